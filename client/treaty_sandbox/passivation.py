"""Let idle sessions give their workers up, and give them another worker at their next event.

The format and the limits are in docs/specification/transports.md, section 5. A session at rest consists of the snapshot of its
handler (at most `validation.MAX_SNAPSHOT` bytes) and of the host's data: pending calls, timers and stored values. Its next event
opens the handler from the snapshot in a fresh worker. For example, with `max_workers` 48 the 49th session takes the worker of the
session that is idle longest.

One network has at most five sixths of the workers. Beyond that its sessions exchange workers among themselves, two at a time, so
that others find room at once and a start is not delayed by a hundred others.

If all workers are busy, the next session that finishes an event gives its worker up. A session with a call under way gives it
up only if no other session can. At most `starts` workers start at the same time; other sessions wait, fairly among askers
(`places`). After `wait` seconds in the queue an event fails with `session.busy`. It was not delivered, and the session is
unchanged.

A large message costs its worker milliseconds of a processor. With all workers at such messages, each event of another session
would take as long as all of them. So few are handled at the same time, and one network has at most a processor for each.

A session without a snapshot keeps its worker while others can get another one. Otherwise it ends with `session.no-worker`, so
that it cannot block the others.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_handler import Effect, Event, Received
from treaty_io.admission.message_turns import HEAVY
from treaty_io.awake_timeout import AwakeTimeout
from treaty_io.codes import SessionCode
from treaty_io.errors import session_over
from treaty_io.places import Places, asker
from treaty_io.task_set import TaskSet

from .interface import RunningHandler
from .kept_session import KeptSession


class MovableSession(RunningHandler, Protocol):
    """A session that has its own worker or is at rest. One caller at a time; only `close` may be called at any time."""

    @property
    def alive(self) -> bool:
        """Return whether the session has a worker that can still answer."""

    @property
    def may_go_on(self) -> bool:
        """Return whether the session is as it was before its last event when its worker dies at it, and can `resume`."""

    @property
    def has_calls(self) -> bool:
        """Return whether a call or a function of the session is under way, so that its next event comes soon."""

    async def rest(self) -> None:
        """Take a snapshot, so that the worker is not needed any more. The caller then ends the worker with `close`.

        Raises `TreatyError`. If the session is still `alive` after the error, it has no snapshot and is unchanged. Otherwise it
        is over.
        """

    async def resume(self) -> None:
        """Continue in a fresh worker. Raises `TreatyError`; then the session is still at rest."""

    async def close(self) -> None:
        """End the worker, if there is one. Never raises."""


Start = Callable[[], Awaitable[MovableSession]]
"""A function that opens the session in a worker. Raises `TreatyError`."""


@dataclass(frozen=True)
class Passivation:
    """Limits. `max_workers`: workers of all sessions. `starts`: workers that start at the same time. `idle`: seconds until an
    idle session gives its worker up without being asked. `wait`: seconds for which an event waits for a worker."""

    max_workers: int = 48
    # A start takes a tenth of a second of a processor. More of them at the same time would delay each other and the sessions.
    starts: int = 8
    idle: float = 30.0
    # Less than the 15 seconds that a session waits for both codes, and than the time of most operations. So the caller learns
    # that nothing was begun, and may try again.
    wait: float = 12.0


class WorkerPool:
    """Share a bounded number of workers among sessions. For one event loop; call `close` at the end."""

    def __init__(
        self,
        limits: Passivation,
        *,
        spares: Callable[[], int] = lambda: 0,
        release_spare: Callable[[], None] = lambda: None,
        lifetime: float = math.inf,
    ) -> None:
        """Start nothing.

        `spares`: returns the number of other workers, which count toward the limit. `release_spare`: ends one of those.
        `lifetime`: seconds of events after which a session leaves its worker and goes on in another one.
        """
        self.limits, self.lifetime = limits, lifetime
        self._share = limits.max_workers - limits.max_workers // 6
        self._spares, self._release_spare = spares, release_spare
        self._holders: OrderedDict[PassiveHandler, float] = OrderedDict()  # the session idle longest is first
        self._starts = Places(limits.starts, keeps_some=True)
        # Few at a time: each costs a snapshot and a start, and a network can ask for hundreds in a second. Two, because one alone
        # mostly waits for another process.
        self._exchanges = Places(2)
        # One network has at most as many as are free: half of them, one for each processor.
        self._heavy = Places(2 * (os.cpu_count() or 1), keeps_some=True)
        self._room = asyncio.Lock()  # one session at a time frees a worker, so that not more of them rest than is needed
        self._changed = asyncio.Event()
        self._wanted = False
        self._tasks = TaskSet[None]()
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Return whether no further worker may start."""
        return len(self._holders) + self._spares() >= self.limits.max_workers

    @property
    def is_awaited(self) -> bool:
        """Return whether a session waits for a worker."""
        return self._room.locked() and self.is_full

    @property
    def waiting(self) -> int:
        """How many sessions wait for a worker."""
        return self._starts.waiting + (1 if self.is_awaited else 0)

    def at_work(self, event: Event) -> AbstractAsyncContextManager[None]:
        """Wait until a worker may handle an event, which the block has it do. Only a large message waits."""
        # Without a time limit: the peer waits for what its own network has sent.
        return self._heavy.held() if isinstance(event, Received) and len(event.data) > HEAVY else nullcontext()

    async def open(self, start: Start, ended: Callable[[], None]) -> PassiveHandler:
        """Open a session with a worker.

        `ended`: called when the session is closed while it has a worker. Raises `Unavailable` (`session.busy`) and the errors of
        `start`.
        """
        handler = PassiveHandler(self, start, ended)
        await handler.wake()
        return handler

    async def close(self) -> None:
        """Wait until the workers that are ending have ended. The caller closes the sessions."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        # One worker that fails to end must not keep the others from being waited for.
        await self._tasks.finish()

    @asynccontextmanager
    async def starting(self, who: PassiveHandler) -> AsyncIterator[None]:
        """Wait until this session may have a worker. The block starts it. Raises `Unavailable` (`session.busy`) before it."""
        async with AsyncExitStack() as places:
            try:
                # The time in the queues counts too: a peer waits for the answer to its event meanwhile.
                async with AwakeTimeout(self.limits.wait):
                    if self._held_by(who.asker) >= self._share:
                        await places.enter_async_context(self._exchanges.held())
                        # A loop, because sessions that started at the same time may have passed the share together.
                        while self._held_by(who.asker) >= self._share and await self._rest_one(who.asker):
                            pass
                    await places.enter_async_context(self._starts.held())
                    async with self._room:
                        # A loop, because a room that was made can be taken by a spare worker before this session runs again.
                        while self.is_full:
                            await self._make_room()
                        # Counted before the worker exists, so that two sessions cannot start in the last place.
                        self.used(who)
            except TimeoutError as error:
                raise self._busy() from error
            try:
                yield
            # A cancelled start gives its place back too. A place that is lost here would be lost until the agent ends.
            except BaseException:
                self.release(who)
                raise

    def _busy(self) -> Unavailable:
        return Unavailable(
            SessionCode.BUSY, f"All {self.limits.max_workers} workers are busy. Nothing was begun.", fix="Try again later."
        )

    def used(self, who: PassiveHandler) -> None:
        """Record that this session has just used its worker. It gives the worker up if another session waits for one."""
        loop = asyncio.get_running_loop()
        self._holders[who] = loop.time()
        # The dictionary stays in the order of use, so the search for the session idle longest needs no sorting.
        self._holders.move_to_end(who)
        if self._wanted:
            # One session yields for one that waits, not all that finish an event.
            self._wanted = False
            # Not awaited: the caller's event is finished, and its effects must not wait for a snapshot.
            self.spawn(who.yield_worker())
        if self._sweeping is None:
            self._sweeping = loop.call_later(self.limits.idle, self._sweep)

    def release(self, who: PassiveHandler) -> None:
        """Record that this session has no worker any more."""
        self._holders.pop(who, None)
        self._changed.set()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start work that is finished even if its caller is cancelled."""
        return self._tasks.start(work)

    async def _make_room(self) -> None:
        # A spare only saves a start. It goes before any session has to.
        if self._spares():
            self._release_spare()
            return
        if await self._rest_one():
            return
        # No session can rest. One without a snapshot ends, so that such sessions cannot block all others for ever.
        for holder in self._holders:
            if holder.is_idle:
                await asyncio.shield(self.spawn(holder.yield_worker()))
                return
        # All are busy. Cleared and waited for without an await in between, so that no release is missed.
        self._changed.clear()
        self._wanted = True
        try:
            await self._changed.wait()
        finally:
            self._wanted = False

    async def _rest_one(self, asker: str | None = None) -> bool:
        """Have a session give its worker up. Return False if none can now. `asker`: one of this network."""
        held = Counter(holder.asker for holder in self._holders)
        # Those with a call under way come last: their next event comes soon, and would need a start again. Then those of the
        # network with the most workers come first.
        for holder in sorted(self._holders, key=lambda holder: (holder.has_calls, -held[holder.asker])):
            if holder.may_rest and asker in (None, holder.asker):
                # Shielded: a request to a worker that is cancelled kills the worker, and its session with it.
                await asyncio.shield(self.spawn(holder.rest()))
                if not holder.has_worker:
                    return True
        return False

    def _held_by(self, asker: str) -> int:
        return sum(holder.asker == asker for holder in self._holders)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for holder, last in list(self._holders.items()):
            if last + self.limits.idle <= loop.time() and holder.may_rest:
                self.spawn(holder.rest())
        # Half the time: an idle session keeps its worker for at most one and a half `idle`. Without holders the timer stops, so
        # an idle agent does not wake.
        self._sweeping = loop.call_later(self.limits.idle / 2, self._sweep) if self._holders else None


class PassiveHandler:
    """A session that can exist without a worker. Implements `RunningHandler`; made by `WorkerPool.open`."""

    def __init__(self, workers: WorkerPool, start: Start, ended: Callable[[], None]) -> None:
        self._workers, self._start, self._ended = workers, start, ended
        self.asker = asker.get()
        self._session: MovableSession | None = None
        self._has_worker = False
        self._is_movable = True
        # Seconds of events in the present worker, or since the last attempt to leave it.
        self._spent = 0.0
        self._error: TreatyError | None = None
        self._turn = asyncio.Lock()  # events, rest and wake exclude each other: a snapshot is made between two events

    @property
    def has_worker(self) -> bool:
        """Return whether the session has a worker."""
        return self._has_worker

    @property
    def is_idle(self) -> bool:
        """Return whether the session has a worker that it does not use now."""
        return self._has_worker and not self._turn.locked()

    @property
    def may_rest(self) -> bool:
        """Return whether the session is idle and its last attempt at a snapshot did not fail."""
        return self.is_idle and self._is_movable

    @property
    def has_calls(self) -> bool:
        """Return whether a call or a function of the session is under way."""
        return self._session is not None and self._session.has_calls

    @property
    def kept(self) -> KeptSession | None:
        return self._session.kept if self._session is not None else None

    async def handle(self, event: Event) -> Sequence[Effect]:
        # A session that waits is idle: its worker may go to another one.
        async with self._workers.at_work(event), self._turn:
            session = await self._awake()
            # The next event may have changed the state so that a snapshot works again.
            self._is_movable = True
            try:
                return await self._deliver(session, event)
            except Unavailable:
                if session.alive or not session.may_go_on or self._error is not None:
                    raise
            # The worker died, perhaps of another cause than this event.
            await self._dismiss()
            session = await self._awake()
            # A message that kills each worker costs its sender the session, and not the others. Other events end it for all.
            is_message = isinstance(event, Received)
            try:
                return await self._deliver(session, event, last=not is_message)
            except Unavailable as error:
                if session.alive or not is_message or self._error is not None:
                    raise
                await self._dismiss()
                raise Refused(SessionCode.MESSAGE, f"The message was not delivered: {error.message}") from error

    async def _deliver(self, session: MovableSession, event: Event, *, last: bool = False) -> Sequence[Effect]:
        began = asyncio.get_running_loop().time()
        try:
            return await session.handle(event)
        except TreatyError as error:
            # A session that is still alive did not get the event, and is unchanged.
            if not session.alive and (last or not session.may_go_on or not isinstance(error, Unavailable)):
                self._error = self._error or error
            raise
        finally:
            if self._has_worker:  # `close` may have run during the event
                self._workers.used(self)
                self._note_time(asyncio.get_running_loop().time() - began)

    async def wake(self) -> None:
        """Get a worker, if the session has none. Raises the same errors as `handle`."""
        async with self._turn:
            await self._awake()

    async def rest(self) -> None:
        """Give the worker up, if the handler has a snapshot."""
        async with self._turn:
            await self._rest()

    async def yield_worker(self) -> None:
        """Give the worker up if another session still waits for one. Without a snapshot, this session ends."""
        async with self._turn:
            # Asked again under the turn: the waiting session may have got another worker meanwhile.
            if self._workers.is_awaited:
                await self._rest()
            if self._workers.is_awaited and self._has_worker:
                self._error = Unavailable(
                    SessionCode.NO_WORKER,
                    "Another session needed the worker of this session, which has no snapshot.",
                    fix="Connect again.",
                )
                await self._dismiss()

    async def close(self) -> None:
        # Set before the worker ends, so that an event that waits for its turn fails instead of starting another worker. The turn
        # is not taken: an event may hold it for seconds.
        self._error = self._error or session_over()
        if self._has_worker:
            await self._dismiss()
            self._ended()

    def _note_time(self, seconds: float) -> None:
        self._spent += seconds
        if self._spent >= self._workers.lifetime:
            self._spent = 0.0
            # Not awaited: the effects of this event must not wait for a snapshot.
            self._workers.spawn(self.rest())

    async def _rest(self) -> None:
        if not (self._has_worker and self._is_movable):
            return
        assert self._session is not None
        try:
            await self._session.rest()
        except TreatyError as error:
            # The handler has no snapshot now. It is not asked again before its next event.
            if self._session.alive:
                self._is_movable = False
                return
            self._error = self._error or error
        if self._has_worker:  # `close` may have run during the snapshot
            await self._dismiss()

    async def _dismiss(self) -> None:
        """End the worker, also if the caller is cancelled."""
        assert self._session is not None
        # Before the await, so that a second call meanwhile does not end the worker again.
        self._has_worker = False
        await asyncio.shield(self._workers.spawn(self._end(self._session)))

    async def _end(self, session: MovableSession) -> None:
        # The place is given on only when the process is gone. Otherwise more than `max_workers` processes would exist.
        await session.close()
        self._workers.release(self)

    async def _awake(self) -> MovableSession:
        """Return the session with a worker. The caller holds `_turn`."""
        if self._error is not None:
            raise self._error
        if self._session is not None and self._has_worker:
            return self._session
        async with self._workers.starting(self):
            if self._session is None:
                self._session = await self._start()
            else:
                await self._session.resume()
        self._has_worker, self._spent = True, 0.0
        if self._error is not None:  # closed while the worker started
            await self._dismiss()
            raise self._error
        return self._session
