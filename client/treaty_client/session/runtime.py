"""Where an agent's handlers run: for each session a sandboxed worker of its own, while it needs one (`passivation`).

Workers are not shared among sessions of one peer: the plain profile of the Hello does not prove who a peer is, and a stranger
that claims another's DID must not meet what the other's messages did to a worker. But whoever spoke once is likely to speak
again: when a session is over, a fresh worker is loaded for the same handler and pair, so that the next session need not wait
for one.
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

from ..handlers import CodeCache, Isolation, SandboxPool, Session, Worker
from .passivation import Passivation, Workforce
from .ports import RunningHandler

MAX_SPARES = 4
"""Workers that wait for a peer to come again; the one that waits longest makes room."""
PAUSE = 0.05
"""Seconds after a session's end before its successor's worker is started: not while somebody waits for what ended."""


class _Key(NamedTuple):
    digest: str
    role: str
    local: str
    peer: str


class SandboxRuntime:
    """Implements `Runtime` with a pool of sandboxed workers, and compiled code kept in HOME/code. For one event loop."""

    def __init__(self, home: Path, isolation: Isolation = "bubblewrap", passivation: Passivation | None = None) -> None:
        """Starts nothing. `passivation`: how many workers there may be, and when sessions do without."""
        # One at a time: two that start together both keep the first session waiting longer.
        self._pool = SandboxPool(size=1, isolation=isolation)
        self._code = CodeCache(home / "code")
        self._spares: OrderedDict[_Key, asyncio.Task[_Sandboxed]] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()
        self._workforce = Workforce(
            passivation or Passivation(), spares=lambda: len(self._spares), release_spare=self._dismiss_oldest
        )
        self._closed = False

    async def warm(self) -> None:
        """Have workers ready. Raises `Unavailable` (`sandbox.unavailable`): better at the start than at the first session."""
        await self._pool.warm()

    async def rehearse(self, package: HandlerPackage, *, local: str) -> None:
        worker = await self._pool.load(package, local=local, peers=[local], code_cache=self._code)
        await worker.close()

    async def open(self, package: HandlerPackage, role: str, *, local: str, peer: str) -> RunningHandler:
        key = _Key(package.digest, role, local, peer)
        spare = self._take_spare(key)

        async def start() -> _Sandboxed:
            nonlocal spare
            taken, spare = spare, None
            return taken or await self._start(package, key)

        try:
            return await self._workforce.open(start, partial(self._prepare, package, key))
        finally:
            if spare is not None:
                await spare.close()

    async def close(self) -> None:
        """End all workers."""
        self._closed = True
        spares, self._spares = self._spares, OrderedDict()
        for spare in spares.values():
            spare.cancel()
        await asyncio.gather(*spares.values(), *self._leaving, return_exceptions=True)
        await self._pool.close()
        await self._workforce.close()

    async def _load(self, package: HandlerPackage, key: _Key) -> Worker:
        return await self._pool.load(package, local=key.local, peers=[key.peer], code_cache=self._code)

    async def _start(self, package: HandlerPackage, key: _Key, *, pause: float = 0) -> _Sandboxed:
        await asyncio.sleep(pause)
        worker = await self._load(package, key)
        try:
            return _Sandboxed(worker, await worker.open(key.role), partial(self._load, package, key))
        except BaseException:
            await worker.close()
            raise

    def _take_spare(self, key: _Key) -> _Sandboxed | None:
        spare = self._spares.pop(key, None)
        if spare is None:
            return None
        if spare.done() and spare.exception() is None and spare.result().alive:
            return spare.result()
        self._dismiss(spare)
        return None

    def _prepare(self, package: HandlerPackage, key: _Key) -> None:
        if self._closed or key in self._spares:
            return
        if len(self._spares) >= MAX_SPARES:
            self._dismiss_oldest()
        if not self._workforce.is_full:
            self._spares[key] = asyncio.create_task(self._start(package, key, pause=PAUSE))

    def _dismiss_oldest(self) -> None:
        self._dismiss(self._spares.popitem(last=False)[1])

    def _dismiss(self, spare: asyncio.Task[_Sandboxed]) -> None:
        task = asyncio.create_task(_end(spare))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class _Sandboxed:
    """A session and the worker that exists for it, or its snapshot. Implements `MovableSession`."""

    def __init__(self, worker: Worker, session: Session, load: Callable[[], Awaitable[Worker]]) -> None:
        """`load`: loads another worker for the same session."""
        self._worker, self._session, self._load = worker, session, load
        self._snapshot = b""

    @property
    def alive(self) -> bool:
        return self._worker.alive

    async def handle(self, event: Event) -> Sequence[Effect]:
        return await self._session.handle(event)

    async def rest(self) -> None:
        self._snapshot = await self._session.rest()

    async def resume(self) -> None:
        worker = await self._load()
        try:
            await self._session.resume(worker, self._snapshot)
        except BaseException:
            await worker.close()
            raise
        self._worker, self._snapshot = worker, b""

    async def close(self) -> None:
        await self._worker.close()


async def _end(spare: asyncio.Task[_Sandboxed]) -> None:
    """End a worker that waits, or is being started: when that is cancelled, nothing of it is left running."""
    spare.cancel()
    with suppress(asyncio.CancelledError, TreatyError):
        await (await spare).close()
