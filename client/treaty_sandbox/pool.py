"""Load handler packages into workers: one worker for each counterpart, many sessions in each worker.

    async with SandboxPool() as pool:
        worker = await pool.load(package, local="did:key:…", peers=["did:wba:shop.example"], code_cache=cache)
        session = await worker.open("requester")
        await session.handle(Opened())
        effects = await session.handle(Call(call="1", operation="getProductInfo", arguments={"productId": "P12345"}))
        …
        await worker.close()

A worker serves one triple of handler digest, local identity and peers, so the messages of one counterpart cannot affect
another one. A worker is never reused. The pool keeps a few workers that have not loaded a handler yet, and starts the next one
when one is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.handler import VECTORS, HandlerPackage
from treaty_io.codes import ClientHandlerCode, SandboxCode

from .code_cache import CodeCache
from .handler_session import HandlerSession, SessionOpening, Worker
from .in_process import DeclarativePackage, LocalWorker
from .isolation import DEFAULT_ISOLATION, Isolation, at_least
from .kept_session import KeptSession
from .limits import SandboxLimits
from .operation_schemas import Operations
from .process import WorkerProcess
from .strongest import StrongestLevel
from .worker import framing

MAX_COMPILED = 64
"""The number of packages whose compiled schemas are kept. The least recently used ones are dropped."""
_T = TypeVar("_T")
_REFILL_SECONDS = 0.05  # short: the next session needs a worker soon; see `_import` for the reason to wait at all


class SandboxPool:
    """Start workers and keep `size` of them ready. For one event loop. `close`, or the end of `async with`, ends all workers."""

    def __init__(
        self,
        *,
        size: int = 2,
        levels: Sequence[Isolation] = at_least(DEFAULT_ISOLATION),
        limits: SandboxLimits | None = None,
    ) -> None:
        """Start nothing before `warm` or the first `load`. With `size` 0, each worker starts when it is needed.

        `levels`: those of isolation that are accepted. The first that starts here is used.
        """
        self._size = size
        self._limits = limits or SandboxLimits()
        self._starts = StrongestLevel(levels, self._limits)
        self._ready: list[asyncio.Task[WorkerProcess]] = []
        self._workers: set[Worker] = set()
        self._compiled: OrderedDict[str, Operations] = OrderedDict()
        self._declared: OrderedDict[str, DeclarativePackage] = OrderedDict()
        self._closed = False
        self.started = self.failed = 0
        """Workers that loaded a handler, and those of them that died or were killed for a fault."""

    async def __aenter__(self) -> SandboxPool:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def isolation(self) -> Isolation | None:
        """Return the level of its workers; None before the first one."""
        return self._starts.isolation

    @property
    def lacks(self) -> Mapping[Isolation, Unavailable]:
        """Return the stronger levels that do not start here, each with the reason."""
        return self._starts.lacks

    @property
    def loaded(self) -> int:
        """How many workers have a handler; those that are only ready do not count."""
        return len(self._workers)

    async def warm(self) -> None:
        """Wait until `size` workers are ready.

        Call it at the start of an agent, so that a missing sandbox is reported then. Raises `Unavailable`
        (`sandbox.unavailable`).
        """
        self._refill()
        await asyncio.gather(*self._ready)

    async def load(
        self, package: HandlerPackage, *, local: str, peers: Sequence[str], code_cache: CodeCache | None = None
    ) -> Worker | LocalWorker:
        """Return a worker that has imported the package, or one in this process for a package without code.

        This is the one place that decides how a package runs.

        `local` and `peers`: the DIDs of its sessions; the first peer is the `peer` parameter of the handler. `code_cache`: where
        the compiled code is looked up and kept. Raises `Unavailable` (`sandbox.…`) or `Refused` (`handler.…`); the process is
        ended before either is raised.
        """
        if not self.needs_process(package):
            return LocalWorker(self._declarative(package), local, peers)
        return await self.load_code(package, local=local, peers=peers, code_cache=code_cache)

    def needs_process(self, package: HandlerPackage) -> bool:
        """Return whether `load` starts a process for this package."""
        return not package.is_declarative

    async def load_code(
        self, package: HandlerPackage, *, local: str, peers: Sequence[str], code_cache: CodeCache | None = None
    ) -> Worker:
        """Return a worker process that has imported the package, as `load` does for a package with code."""
        return (await self._load(package, local, peers, code_cache))[0]

    async def open_code(
        self,
        package: HandlerPackage,
        role: str,
        *,
        local: str,
        peer: str,
        seed: str | None = None,
        kept: KeptSession | None = None,
        code_cache: CodeCache | None = None,
    ) -> tuple[Worker, HandlerSession]:
        """Return a worker process with its first session. It imports the package and opens the session at one request. Raises the
        errors of `load` and of `Worker.open`; then the process is ended."""

        def opening(worker: Worker) -> SessionOpening:
            return worker.opening(role, seed=seed, kept=kept)

        worker, opened = await self._load(package, local, [peer], code_cache, opening)
        assert opened is not None
        return worker, opened

    async def _load(
        self,
        package: HandlerPackage,
        local: str,
        peers: Sequence[str],
        code_cache: CodeCache | None,
        opening: Callable[[Worker], SessionOpening] | None = None,
    ) -> tuple[Worker, HandlerSession | None]:
        operations = self._operations(package)
        cached = code_cache.get(package.digest) if code_cache is not None else None
        if code_cache is not None and cached is not None:
            try:
                return await self._import(package, cached, operations, local, peers, None, opening)
            except TreatyError as error:
                # The cached bytes may be damaged or of another interpreter. Retry once with newly compiled code: if that
                # fails too, the handler is at fault and not the cache.
                if error.code not in (ClientHandlerCode.CODE, SandboxCode.DIED):
                    raise
                code_cache.discard(package.digest)
        return await self._import(package, None, operations, local, peers, code_cache, opening)

    async def close(self) -> None:
        """End every worker, ready or loaded, and wait until the processes are gone."""
        self._closed = True  # first: no refill may start a worker while the others end
        waiting, self._ready = self._ready, []
        # A start that is cancelled ends its own process. One that was complete is closed below.
        for task in waiting:
            task.cancel()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, WorkerProcess):
                await outcome.close()
        for worker in list(self._workers):
            await worker.close()
        await self._starts.close()

    def _operations(self, package: HandlerPackage) -> Operations:
        """Return the package's operations. They are cached, because compiling foreign schemas takes some time."""
        return self._cached(package.digest, self._compiled, lambda: Operations(package.manifest))

    def _declarative(self, package: HandlerPackage) -> DeclarativePackage:
        return self._cached(package.digest, self._declared, lambda: DeclarativePackage(package, Operations(package.manifest)))

    @staticmethod
    def _cached(digest: str, cache: OrderedDict[str, _T], compile: Callable[[], _T]) -> _T:
        compiled = cache.pop(digest, None) or compile()
        cache[digest] = compiled
        if len(cache) > MAX_COMPILED:
            cache.popitem(last=False)
        return compiled

    async def _import(
        self,
        package: HandlerPackage,
        code: bytes | None,
        operations: Operations,
        local: str,
        peers: Sequence[str],
        code_cache: CodeCache | None,
        opening: Callable[[Worker], SessionOpening] | None,
    ) -> tuple[Worker, HandlerSession | None]:
        process = await self._take()
        worker = Worker(process, package, operations, self._limits, local, peers, self._forget)
        try:
            opened = opening(worker) if opening is not None else None
            # A request of its own. With the next one in the same batch, the handler's code would run before this reply is sent,
            # could replace it, and so leave something for later sessions in the cache.
            if code is None:
                code = await _compile(process, package, self._limits)
                if code_cache is not None:
                    with contextlib.suppress(OSError):  # without the cache (a full disk), only the next start is slower
                        code_cache.put(package.digest, code)
            # The sources stay out: the worker has their code already. The vectors are for readers.
            vectors = f"{package.package}/{VECTORS}/"
            data = {
                path: content
                for path, content in package.files.items()
                if not path.endswith(".py") and not path.startswith(vectors)
            }
            entry = package.entry_point
            load = ("load", code, data, entry.module, entry.attribute)
            replies = await process.batch(load, *([opened.request] if opened else []), seconds=self._limits.load)
            if any(reply.kind != "done" for reply in replies):
                raise worker.offence()
        # The caller has no worker yet, so nothing else would end this process, not even after a cancellation.
        except BaseException:
            await process.close()
            raise
        finally:
            # Wait a moment: a starting process would compete for the processor with the first messages of the new session.
            asyncio.get_running_loop().call_later(_REFILL_SECONDS, self._refill)
        self._workers.add(worker)
        self.started += 1
        return worker, opened.opened() if opened else None

    def _forget(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.discard(worker)
            self.failed += worker.failed

    async def _take(self) -> WorkerProcess:
        """Return a worker without a handler: the one that is ready longest, or a new one."""
        while self._ready and not self._closed:
            with contextlib.suppress(Unavailable):  # a start that failed in the background is tried again, in the foreground
                process = await self._ready.pop(0)
                if process.alive:
                    return process
                await process.close()
        if self._closed:
            raise Unavailable(SandboxCode.CLOSED, "The pool of workers is closed.")
        return await self._starts.start()

    def _refill(self) -> None:
        while len(self._ready) < self._size and not self._closed:
            self._ready.append(asyncio.create_task(self._starts.start()))


async def _compile(process: WorkerProcess, package: HandlerPackage, limits: SandboxLimits) -> bytes:
    """Compile the package in a fresh worker. The returned bytes are opaque to this process."""
    sources = {path: content for path, content in package.files.items() if path.endswith(".py")}
    reply = await process.request("compile", sources, seconds=limits.load)
    code = framing.decode_any(reply.fields[0])
    assert reply.kind == "code"
    assert isinstance(code, bytes)  # no code of the handler has run yet, so the worker can be trusted here
    return code
