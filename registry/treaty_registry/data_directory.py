"""Open a registry's data directory (`settings`): its database and its operator's keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from treaty_consensus.errors import Conflict, NotFound
from treaty_consensus.log.checkpoint import Checkpoint

from .codes import KeysCode, RegistryMirrorCode
from .keys import Operator, create_operator, load_operator
from .log.fence import Fence, HeadRecord, create_fence, read_fence, restore_fence
from .log.stored_fence import StoredFence
from .settings import MIRROR_MARK, Settings
from .storage.embedded import embedded_postgres
from .storage.objects import local_path

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def running_database(settings: Settings) -> AsyncIterator[str]:
    """Yield the URL of the database of the settings, or of the embedded one, which is started and stopped as needed."""
    if settings.database is not None:
        yield settings.database
        return
    settings.data.mkdir(parents=True, exist_ok=True)
    async with embedded_postgres(settings.data) as url:
        yield url


def open_operator(settings: Settings) -> Operator:
    """Return the operator's keys. Makes them and the fence's record when the data directory has none. Blocking.

    Raises `NotFound` when there are no keys and no origin to make them for, and `Conflict` when the settings name another
    origin.
    """
    if (settings.data / MIRROR_MARK).exists():
        raise Conflict(
            RegistryMirrorCode.DIRECTORY,
            f"{settings.data} is a mirror, which signs nothing.",
            fix="Serve it with: treaty-registry mirror. If its registry is gone for good: treaty-registry promote",
        )
    if not settings.keys.exists():
        if settings.origin is None:
            raise _no_log(settings)
        if ":" in settings.origin:
            # sigstore-go and cosign verify checkpoints with a key of the name `url.Hostname()`, which has no port.
            _log.warning(
                "the log's name has a port",
                origin=settings.origin,
                effect="Sigstore's Go clients (sigstore-go, cosign) cannot verify this log. Its name cannot change later.",
                fix="Begin with an empty directory and an --origin without a port; give the port in --base-url.",
            )
        # The fence first. A crash after it leaves a record of the empty tree, which the next start replaces. Keys
        # without a record would be refused at every start.
        _create_record(settings, settings.origin)
        create_operator(settings.keys, settings.origin)
    operator = load_operator(settings.keys)
    # An origin is permanent. A different one in the settings is an error and never a rename.
    settings.check_origin(operator.origin)
    return operator


def open_record(settings: Settings, origin: str) -> HeadRecord:
    """Open the record of the newest signed head. Blocking. Raises as `Fence` and `StoredFence`."""
    if settings.head_object is not None:
        return StoredFence(settings.head_object, origin)
    return Fence(settings.fence, origin, shared=settings.node is not None)


def read_record(settings: Settings, origin: str) -> Checkpoint:
    """Return the record without opening it for writing. Blocking. Raises as `open_record`."""
    return record_at(settings.head_object or str(settings.fence), origin)


def record_at(place: str, origin: str) -> Checkpoint:
    """Return the record at a path (the file `head`) or a URL (the option `--head`). Blocking. Raises as `open_record`."""
    if "://" in place and local_path(place) is None:
        return StoredFence(place, origin).record
    return read_fence(local_path(place) or Path(place), origin)


def restore_record(settings: Settings, record: Checkpoint) -> None:
    """Write the record of a restored or promoted log, whose caller has compared it with every head that may have been signed.

    Durable on return. Blocking. Raises `Conflict` or `Untrusted` when the record of a larger tree is there.
    """
    if settings.head_object is not None:
        StoredFence.restore(settings.head_object, record)
    else:
        settings.fence.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        restore_fence(settings.fence, record)


def check_log(settings: Settings) -> None:
    """Raise `NotFound` (`keys.missing`) where a command would make an embedded database for no log and no mirror."""
    if settings.database is None and not settings.keys.exists() and not (settings.data / MIRROR_MARK).exists():
        raise _no_log(settings)


def _no_log(settings: Settings) -> NotFound:
    return NotFound(
        KeysCode.MISSING,
        f"There is no log in {settings.data}.",
        fix="Name its directory: --data DIRECTORY. To make a new log: treaty-registry init --origin registry.example",
    )


def _create_record(settings: Settings, origin: str) -> None:
    if settings.head_object is not None:
        StoredFence.create(settings.head_object, origin)
    else:
        settings.fence.parent.mkdir(parents=True, exist_ok=True)
        create_fence(settings.fence, origin)
