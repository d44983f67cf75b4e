"""Run an agent's handlers, each active session in its own sandboxed worker (`passivation`).

Sessions of one peer do not share a worker. The plain Hello profile does not prove the peer's DID, so a stranger that claims a
DID must not reach a worker with the data of its real owner. When a session ends, a fresh worker is loaded for the same handler
and the same two DIDs, because a peer that came once often comes again. Its next session need not wait for a worker.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import HandlerPackage
from treaty_handler import Effect, Event
from treaty_io.afterwards import Afterwards
from treaty_io.task_set import TaskSet

from .code_cache import CodeCache
from .handler_session import HandlerSession, Worker
from .interface import RunningHandler, WorkerMetrics
from .isolation import DEFAULT_ISOLATION, Isolation, at_least
from .kept_session import KeptSession
from .limits import SandboxLimits
from .passivation import Passivation, WorkerPool
from .pool import SandboxPool

MAX_SPARES = 4
"""Loaded workers that wait for a returning peer. Beyond the limit the oldest one is ended."""
PAUSE = 0.05
"""Seconds between the end of a session and the start of its spare worker. The start must not delay the end's last messages."""


class _Key(NamedTuple):
    digest: str
    role: str
    local: str
    peer: str


class SandboxRuntime:
    """Implement `Runtime` with a pool of sandboxed workers. Compiled code is kept in HOME/code. For one event loop."""

    def __init__(
        self,
        home: Path,
        levels: Sequence[Isolation] = at_least(DEFAULT_ISOLATION),
        passivation: Passivation | None = None,
        limits: SandboxLimits | None = None,
        afterwards: Afterwards | None = None,
    ) -> None:
        """Start nothing. `levels`: of isolation, as of `SandboxPool`. `passivation`: the limits of workers and of idle sessions.
        `limits`: of a worker. `afterwards`: writes compiled code; without it a first start waits for that."""
        # One ready worker: two that start together would both delay the first session.
        self.passivation, self.limits = passivation or Passivation(), limits or SandboxLimits()
        self._pool = SandboxPool(size=1, levels=levels, limits=self.limits)
        self._code = CodeCache(home / "code", afterwards)
        self._spares: OrderedDict[_Key, asyncio.Task[_Sandboxed]] = OrderedDict()
        self._leaving = TaskSet[None]()
        self._workers = WorkerPool(
            self.passivation,
            spares=lambda: len(self._spares),
            release_spare=self._dismiss_oldest,
            # A worker is ended after `cpu` seconds of its processor, and a session may last for months. A quarter leaves time for
            # further attempts, when the handler has no snapshot at the first.
            lifetime=self.limits.cpu / 4,
        )
        self._closed = False

    @property
    def workers(self) -> int:
        """How many workers run a handler now, those that wait for a peer included."""
        return self._pool.loaded

    @property
    def waiting_for(self) -> list[str]:
        """The peers for whose next session a worker waits or is being started, the one that waits longest first."""
        return [key.peer for key in self._spares]

    async def warm(self) -> None:
        """Start workers. Raises `Unavailable` (`sandbox.unavailable`), so that a missing sandbox shows at the start."""
        await self._pool.warm()

    async def preload(self, package: HandlerPackage, *, local: str) -> None:
        # No session is opened in this worker, so the peer does not matter.
        worker = await self._pool.load(package, local=local, peers=[local], code_cache=self._code)
        await worker.close()

    async def open(
        self,
        package: HandlerPackage,
        role: str,
        *,
        local: str,
        peer: str,
        seed: str | None = None,
        kept: KeptSession | None = None,
    ) -> RunningHandler:
        if not self._pool.needs_process(package):
            # It takes no place among the workers, and has nothing to give up while it is idle.
            return await (await self._pool.load(package, local=local, peers=[peer])).open(role, seed=seed)  # not of a shared role
        key = _Key(package.digest, role, local, peer)
        # A spare has a seed of its own.
        spare = self._take_spare(key) if seed is None and kept is None else None

        async def start() -> _Sandboxed:
            nonlocal spare
            handler, spare = spare, None
            return handler or await self._start(package, key, seed=seed, kept=kept)

        try:
            return await self._workers.open(start, partial(self._prepare, package, key))
        finally:
            # The session got no place among the workers: its spare was taken from the list and would be lost.
            if spare is not None:
                await spare.close()

    def metrics(self) -> WorkerMetrics:
        return WorkerMetrics(self._pool.loaded, self._workers.waiting, self._pool.started, self._pool.failed)

    async def close(self) -> None:
        """End all workers."""
        # First, so that sessions that end meanwhile prepare no further spare.
        self._closed = True
        spares, self._spares = self._spares, OrderedDict()
        for spare in spares.values():
            spare.cancel()
        await asyncio.gather(*spares.values(), *self._leaving, return_exceptions=True)
        await self._pool.close()
        await self._workers.close()

    async def _load(self, package: HandlerPackage, key: _Key) -> Worker:
        return await self._pool.load_code(package, local=key.local, peers=[key.peer], code_cache=self._code)

    async def _start(
        self,
        package: HandlerPackage,
        key: _Key,
        *,
        pause: float = 0,
        seed: str | None = None,
        kept: KeptSession | None = None,
    ) -> _Sandboxed:
        await asyncio.sleep(pause)
        worker, session = await self._pool.open_code(
            package, key.role, local=key.local, peer=key.peer, seed=seed, kept=kept, code_cache=self._code
        )
        return _Sandboxed(worker, session, partial(self._load, package, key))

    def _take_spare(self, key: _Key) -> _Sandboxed | None:
        spare = self._spares.pop(key, None)
        if spare is None:
            return None
        # A spare may have died while it waited. A start that is under way is ended, not awaited.
        if spare.done() and spare.exception() is None and spare.result().alive:
            return spare.result()
        self._dismiss(spare)
        return None

    def _prepare(self, package: HandlerPackage, key: _Key) -> None:
        if self._closed or key in self._spares:
            return
        if len(self._spares) >= MAX_SPARES:
            self._dismiss_oldest()
        # A spare is a guess. It must not take the place of a session, nor its time to start.
        if not self._workers.is_full and not self._workers.waiting:
            self._spares[key] = asyncio.create_task(self._start(package, key, pause=PAUSE))

    def _dismiss_oldest(self) -> None:
        self._dismiss(self._spares.popitem(last=False)[1])

    def _dismiss(self, spare: asyncio.Task[_Sandboxed]) -> None:
        self._leaving.start(_end(spare))


class _Sandboxed:
    """A session with its worker or its snapshot. Implements `MovableSession`."""

    def __init__(self, worker: Worker, session: HandlerSession, load: Callable[[], Awaitable[Worker]]) -> None:
        """Wrap an open session. `load`: loads another worker for the same session."""
        self._worker, self._session, self._load = worker, session, load
        self._snapshot = session.snapshot or b""

    @property
    def alive(self) -> bool:
        return self._worker.alive

    @property
    def has_calls(self) -> bool:
        return self._session.has_calls

    @property
    def may_go_on(self) -> bool:
        return self._session.snapshot is not None

    @property
    def kept(self) -> KeptSession | None:
        return self._session.kept

    async def handle(self, event: Event) -> Sequence[Effect]:
        effects = await self._session.handle(event)
        self._snapshot = self._session.snapshot or b""
        return effects

    async def rest(self) -> None:
        self._snapshot = await self._session.rest()

    async def resume(self) -> None:
        worker = await self._load()
        try:
            await self._session.resume(worker, self._snapshot)
        except BaseException:
            # The session stays at rest with its snapshot, and can resume in another worker.
            await worker.close()
            raise
        self._worker = worker

    async def close(self) -> None:
        await self._worker.close()


async def _end(spare: asyncio.Task[_Sandboxed]) -> None:
    """End a spare worker, ready or starting. A cancelled start leaves no process behind."""
    spare.cancel()
    with suppress(asyncio.CancelledError, TreatyError):
        await (await spare).close()
