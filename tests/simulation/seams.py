"""The places where the simulation takes over from the product's surroundings. Everything else is the product's own code.

asyncpg.connect, Pool       the simulated PostgreSQL                        (storage.postgres)
os, fcntl, durable          the simulated disk                              (log.fence)
obstore, open_store         the simulated object store                      (log.stored_fence)
sign                        recorded, then the real one                     (log.checkpoints)
Network                     the HTTP client that asks witnesses and nodes   (outbound)
BlobStore                   a dictionary                                    (registry)
ContentChecker              checks in the same process                      (admission.intake)
open_operator               the operator's keys, made once for all          (registry)
OtherSigner                 finds none: the places that it asks are outside   (registry)
verify                      remembers what it verified                      (ed25519)
migrations, _POLL, POLL     read once; one that does not lead looks less often (storage.postgres, log.node)
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from typing import Any, ClassVar
from unittest.mock import patch

import asyncpg
import msgspec
import structlog
from signers import ORIGIN

import treaty_registry.outbound as outbound
import treaty_registry.registry as registry
from treaty_consensus import ed25519
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.note import sign
from treaty_registry.admission import intake
from treaty_registry.admission.contents import check_contents
from treaty_registry.catalogue.readers import READERS
from treaty_registry.keys import Operator
from treaty_registry.log import checkpoints, fence, node, stored_fence
from treaty_registry.settings import Settings
from treaty_registry.storage import postgres

from .blobs import Blobs
from .connection import SimulatedPool, connect
from .messages import SimulatedNetwork
from .objects import Calls, open_store
from .operators import operator


class _Blobs(Blobs):
    """The blob store of the history that runs."""

    @classmethod
    def open(cls, folder: Any, url: str | None) -> Blobs:
        """Return it."""
        blobs: Blobs = _current().world.blobs
        return blobs


class _ContentChecker:
    """Checks contents at once, in the process of the registry."""

    processes: ClassVar[dict[str, int]] = {}

    def prepare(self) -> None: ...

    def stop(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self, body: Any, load: Any, source: str) -> Any:
        """Check the blobs of a publish or a handler by the product's rules."""
        return _checked(body, tuple((await load()).items()))

    async def read(self, kind: Any, name: str, load: Any, source: str) -> bytes:
        """Run a reader of blobs by the product's rules."""
        return _read(kind, name, *await load())


@cache
def _checked(body: Any, contents: tuple[tuple[str, bytes], ...]) -> Any:
    return check_contents(body, dict(contents))


@cache
def _read(kind: Any, name: str, *contents: bytes) -> bytes:
    return msgspec.msgpack.encode(READERS[kind](name, *contents))


class _OtherSigner:
    """No process signs the log with another record: the faults of a history are those of one."""

    def __init__(self, *_: object) -> None: ...

    async def begin(self) -> None: ...

    async def run(self) -> None: ...


def _current() -> Any:
    return asyncio.get_running_loop().process  # type: ignore[attr-defined]


def _open_operator(settings: Settings) -> Operator:
    if settings.head_object is not None:
        if not _current().world.store.objects:
            stored_fence.StoredFence.create(settings.head_object, ORIGIN)
    elif not settings.fence.exists():
        begun = _current().world.begun
        fence.create_fence(settings.fence, ORIGIN) if begun is None else fence.restore_fence(settings.fence, begun)
    return operator()


def _sign(text: str, keys: Any, *, time: int) -> bytes:
    process = _current()
    process.world.sign(process, Checkpoint.parse(text), time)
    return sign(text, keys, time=time)


def _log(_logger: Any, level: str, event: dict[str, Any]) -> Any:
    try:
        process = _current()
    except RuntimeError:  # a coroutine of a killed process is collected
        raise structlog.DropEvent from None
    if process.alive:
        process.world.log(process, level, event.pop("event"), event)
    raise structlog.DropEvent


class _Files:
    """The system calls of the history that runs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_current().world.files, name)


@contextmanager
def simulated() -> Iterator[None]:
    """Put the simulation in place during the block."""
    operator()
    before, hook, structure = sys.get_asyncgen_hooks(), sys.unraisablehook, structlog.get_config()
    files: Any = _Files()
    with ExitStack() as stack:
        for target, name, stand_in in (
            (asyncpg, "connect", connect),
            (postgres, "Pool", SimulatedPool),
            (fence, "os", files),
            (fence, "fcntl", files),
            (fence, "durable", files),
            (stored_fence, "obstore", Calls()),
            (stored_fence, "open_store", open_store),
            (checkpoints, "sign", _sign),
            (outbound, "Network", SimulatedNetwork),
            (registry, "BlobStore", _Blobs),
            (registry, "open_operator", _open_operator),
            (intake, "ContentChecker", _ContentChecker),
            (registry, "OtherSigner", _OtherSigner),
            # So that a second of a processor holds more histories: each of these is the same work again.
            (postgres, "_POLL", 0.25),
            (node, "POLL", 1.0),
            (postgres, "migrations", cache(postgres.migrations)),
            # The same statements are signed in all histories, and several processes read them.
            (ed25519, "verify", lru_cache(maxsize=8192)(ed25519.verify)),
        ):
            stack.enter_context(patch.object(target, name, stand_in))
        structlog.configure(processors=[_log])  # type: ignore[list-item]
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)  # a killed process leaves coroutines that nothing awaits
        # The coroutines of a killed process are collected, and their `finally` runs: nothing of it has an effect, and nothing of
        # it is an error.
        sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda _: None)
        sys.unraisablehook = lambda _: None
        # Everything that exists by now stays, so that collecting the rest of a history is fast.
        gc.collect()
        gc.freeze()
        # `history.run` collects, after a history and never during one.
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            warnings.simplefilter("ignore", RuntimeWarning)  # pytest has its own filters by now
            gc.collect()
            gc.unfreeze()
            sys.unraisablehook = hook
            sys.set_asyncgen_hooks(*before)
            structlog.configure(**structure)
