"""Sessions without workers: an idle session gives its worker up, and gets another one when something happens in it.

At rest, a session is what its handler says that it is (`snapshot`, at most `validation.MAX_SNAPSHOT` bytes) and what the host
knows of it: pending calls, timers, what is stored. With the next event its handler is opened from the snapshot in a fresh worker.

Of all sessions of a runtime at most `max_workers` have workers. Who needs one takes that of the session that was idle longest.
While all are busy, the next one that is done with an event gives its worker up; `wait` seconds are waited at most
(`session.no-worker`). A session whose handler has no such snapshot keeps its worker as long as nobody waits who could not have
another's; then it is over (`session.no-worker`), so that no session stands in all others' way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_handler import Effect, Event

from .ports import RunningHandler


class MovableSession(RunningHandler, Protocol):
    """A session in a worker of its own, or at rest. One caller at a time, but `close` may come at any time."""

    @property
    def alive(self) -> bool:
        """Whether it has a worker that could still answer."""

    async def rest(self) -> None:
        """Keep what the handler knows, so that the worker is not needed; it is still to be ended, by `close`. Raises
        `TreatyError`: when it is still `alive`, it has no snapshot, and stands as before; else it is over."""

    async def resume(self) -> None:
        """Go on in a fresh worker. Raises `TreatyError`; then it is still at rest."""

    async def close(self) -> None:
        """End the worker, if there is one. Never raises."""


Start = Callable[[], Awaitable[MovableSession]]
"""Opens the session in a worker. Raises `TreatyError`."""


@dataclass(frozen=True)
class Passivation:
    """`idle`: seconds after which a session gives its worker up even if nobody needs it."""

    max_workers: int = 48
    idle: float = 30.0
    wait: float = 8.0


class Workforce:
    """Who has a worker. For one event loop; `close` it."""

    def __init__(
        self,
        limits: Passivation,
        *,
        spares: Callable[[], int] = lambda: 0,
        release_spare: Callable[[], None] = lambda: None,
    ) -> None:
        """`spares`: workers beside those of sessions, which count too; `release_spare`: ends one of them."""
        self.limits = limits
        self._spares, self._release_spare = spares, release_spare
        self._holders: OrderedDict[PassiveHandler, float] = OrderedDict()  # the one idle longest first
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._wanted = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Whether another worker is one too many."""
        return len(self._holders) + self._spares() >= self.limits.max_workers

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a worker."""
        return self._turn.locked() and self.is_full

    async def open(self, start: Start, ended: Callable[[], None]) -> PassiveHandler:
        """A session, for now with a worker. `ended`: told when it is closed while it has one. Raises `Unavailable`
        (`session.no-worker`) and what `start` does."""
        handler = PassiveHandler(self, start, ended)
        await handler.wake()
        return handler

    async def close(self) -> None:
        """Wait for what is being ended; the sessions are others' to close."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self, who: PassiveHandler) -> None:
        """Wait for a place, in the order of asking. Raises `Unavailable` (`session.no-worker`)."""
        try:
            async with asyncio.timeout(self.limits.wait), self._turn:
                while self.is_full:
                    await self._make_room()
        except TimeoutError as error:
            raise Unavailable(
                "session.no-worker", f"All {self.limits.max_workers} workers are busy.", fix="Try again later."
            ) from error
        self.used(who)

    def used(self, who: PassiveHandler) -> None:
        """It has a worker, and has just used it: it gives it up if all were busy and somebody waits."""
        loop = asyncio.get_running_loop()
        self._holders[who] = loop.time()
        self._holders.move_to_end(who)
        if self._wanted:
            self._wanted = False
            self.spawn(who.give_way())
        if self._sweeping is None:
            self._sweeping = loop.call_later(self.limits.idle, self._sweep)

    def release(self, who: PassiveHandler) -> None:
        """It has none any more."""
        self._holders.pop(who, None)
        self._changed.set()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something that is to be finished, whatever becomes of who asked for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _make_room(self) -> None:
        if self._spares():
            self._release_spare()
            return
        # What is begun is finished even if who waits gives up meanwhile: a worker that is interrupted is lost.
        for holder in list(self._holders):
            if holder.may_rest:
                await asyncio.shield(self.spawn(holder.rest()))
                if not self.is_full:
                    return
        for holder in self._holders:
            if holder.is_idle:
                await asyncio.shield(self.spawn(holder.give_way()))
                return
        self._changed.clear()
        self._wanted = True
        try:
            await self._changed.wait()
        finally:
            self._wanted = False

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for holder, last in list(self._holders.items()):
            if last + self.limits.idle <= loop.time() and holder.may_rest:
                self.spawn(holder.rest())
        self._sweeping = loop.call_later(self.limits.idle / 2, self._sweep) if self._holders else None


class PassiveHandler:
    """A session that lives on without a worker. Implements `RunningHandler`; made by `Workforce.open`."""

    def __init__(self, workforce: Workforce, start: Start, ended: Callable[[], None]) -> None:
        self._workforce, self._start, self._ended = workforce, start, ended
        self._session: MovableSession | None = None
        self._has_worker = False
        self._is_movable = True
        self._error: TreatyError | None = None
        self._turn = asyncio.Lock()

    @property
    def is_idle(self) -> bool:
        """Whether it has a worker, and does nothing with it."""
        return self._has_worker and not self._turn.locked()

    @property
    def may_rest(self) -> bool:
        """Whether it is idle, and is not known to have no snapshot."""
        return self.is_idle and self._is_movable

    async def handle(self, event: Event) -> Sequence[Effect]:
        async with self._turn:
            session = await self._awake()
            self._is_movable = True
            try:
                return await session.handle(event)
            except TreatyError as error:
                if not session.alive:  # otherwise the event was not delivered, and nothing changed
                    self._error = self._error or error
                raise
            finally:
                if self._has_worker:  # not closed meanwhile
                    self._workforce.used(self)

    async def wake(self) -> None:
        """Have a worker. Raises what `handle` does."""
        async with self._turn:
            await self._awake()

    async def rest(self) -> None:
        """Give the worker up, if the handler has a snapshot."""
        async with self._turn:
            await self._rest()

    async def give_way(self) -> None:
        """Give the worker up if somebody still waits for one, whatever becomes of the session."""
        async with self._turn:
            if self._workforce.is_awaited:
                await self._rest()
            if self._workforce.is_awaited and self._has_worker:
                self._error = Unavailable(
                    "session.no-worker",
                    "Others needed the worker of this session, which cannot be kept without one.",
                    fix="Connect again.",
                )
                await self._dismiss()

    async def close(self) -> None:
        self._error = self._error or Unavailable("session.closed", "The session is over.", fix="Connect again.")
        if self._has_worker:
            await self._dismiss()
            self._ended()

    async def _rest(self) -> None:
        if not (self._has_worker and self._is_movable):
            return
        assert self._session is not None
        try:
            await self._session.rest()
        except TreatyError as error:
            if self._session.alive:
                self._is_movable = False
                return
            self._error = self._error or error
        if self._has_worker:  # not closed meanwhile
            await self._dismiss()

    async def _dismiss(self) -> None:
        """End the worker; whoever is cancelled meanwhile does not keep it from being ended."""
        assert self._session is not None
        self._has_worker = False
        await asyncio.shield(self._workforce.spawn(self._end(self._session)))

    async def _end(self, session: MovableSession) -> None:
        await session.close()
        self._workforce.release(self)

    async def _awake(self) -> MovableSession:
        """The session with a worker, while `_turn` is held."""
        if self._error is not None:
            raise self._error
        if self._session is not None and self._has_worker:
            return self._session
        await self._workforce.take(self)
        try:
            if self._session is None:
                self._session = await self._start()
            else:
                await self._session.resume()
        except BaseException:
            self._workforce.release(self)
            raise
        self._has_worker = True
        if self._error is not None:  # closed meanwhile
            await self._dismiss()
            raise self._error
        return self._session
