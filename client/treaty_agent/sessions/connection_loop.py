"""Drive a state machine over one connection, with backpressure.

`ConnectionLoop.run` is one task that runs one step at a time: a message, a call, a timer, an answer, a verdict. Longer work
(code, negotiators, functions, tests) runs in other tasks, which end with the connection. Every wait is bounded: by the deadlines
of the machine, and by `SessionTimeouts` for the rest. Each profile subclasses the loop.

A step takes the next message of the connection when the steps before are done and there is room for the answers. What it sends
goes to the transport at once. So no task and no queue are between a message and its answer.

`OpenConnections` are those of an agent, and end in good order.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any, Generic, Protocol, TypeVar

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.alarm import Alarm
from treaty_io.codes import SessionCode
from treaty_io.line_limit import limited_logger
from treaty_io.shared_timer import SharedTimer

from ..transport.connection import Connection, ConnectionLost
from ..transport.parting import SessionParting
from .calls import CallTable
from .handler_host import HostedHandler
from .interfaces import CANCELLING_TIME, SessionTimeouts, SpokenProtocol, Step
from .wire import Wire

INTERNAL = "This side failed; its log says why."
IN_A_ROW = 4
"""Steps of one connection before all others have theirs. A peer may send thousands of small messages at once."""
STREAM_TIME = 2.0
"""Seconds that streams under way get to end, when a connection parts. Some never end, and must not hold up an agent."""
_A = TypeVar("_A")
_T = TypeVar("_T")
_T_contra = TypeVar("_T_contra", contravariant=True)
_log = limited_logger(__name__)


class StateMachine(Protocol[_A, _T_contra]):
    """The interface of a state machine of either profile, generic in its actions and its time."""

    @property
    def is_final(self) -> bool:
        """Whether the machine has ended."""

    @property
    def error(self) -> TreatyError | None:
        """The error that ended the machine; None for a normal end."""

    @property
    def deadline(self) -> float:
        """The time when `tick` is due, in seconds of the loop's clock."""

    @property
    def accepts_input(self) -> bool:
        """Whether the next message may be read."""

    def tick(self, now: _T_contra) -> list[_A]:
        """Handle the passing of time."""

    def lost(self, reason: str = "") -> list[_A]:
        """Handle the loss of the connection. `reason`: as the peer gave it."""

    def close(self) -> list[_A]:
        """End the session normally."""

    def fail(self, error: TreatyError) -> list[_A]:
        """End the session with an error of this side."""


class ConnectionLoop(ABC, Generic[_A, _T]):
    """Drive a machine over a connection. Call `run` in a task of its own.

    `parting`: the peer's, if it ended the session in good order.
    """

    def __init__(
        self,
        connection: Connection,
        machine: StateMachine[_A, _T],
        timeouts: SessionTimeouts,
        clock: Callable[[], _T],
        *,
        first: str | bytes | None = None,
    ) -> None:
        """Send nothing yet. `clock`: the machine's clock. `first`: a message that was received already."""
        self.wire = Wire(connection, self.wake, patience=timeouts.send, first=first)
        self._machine = machine
        self.now = clock
        """Return the machine's time."""
        # Unbounded, because its producers are bounded: capped functions, waiting calls, timers.
        self._steps = deque[Step]()
        # The task of the loop waits for it when there is no step.
        self._idle: asyncio.Future[None] | None = None
        self.timer = SharedTimer()
        """The timer of all deadlines of the sessions on this connection."""
        # One alarm for all deadlines of the machine, which moves them at most steps.
        self._alarm, self._due_at = Alarm(self.wake, self.timer), math.inf
        self._is_reading = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._released = False
        self._parts_with: SessionCode | None = None
        self._streams_until = math.inf
        self.parting: SessionParting | None = None

    @cached_property
    def closed(self) -> asyncio.Event:
        """Set when all parts are closed."""
        return asyncio.Event()

    async def run(self) -> None:
        """Drive the connection to its end. Raises only CancelledError, which also ends the connection."""
        self.wire.start()
        try:
            await self._guarded(self._begin)
            in_a_row = 0
            while not (self._machine.is_final or self._released):
                step = self._next()
                if step is None:
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
                    # Also without a step `_guarded` looks again: there may be room to read.
                    step, in_a_row = self._next() or _nothing, 0
                in_a_row += 1
                await self._guarded(step)
                if in_a_row == IN_A_ROW:
                    in_a_row = 0
                    await asyncio.sleep(0)
        finally:
            await self._wind_up()

    # Called by the parts of a connection

    def messages_sent(self) -> int:
        """Return the number of messages that were sent on the connection."""
        return self.wire.sent

    @property
    def backlog(self) -> int:
        """The bytes that wait to be sent to the peer."""
        return self.wire.backlog

    async def wait_writable(self) -> None:
        """Wait until the local application may send more."""
        await self.wire.wait_writable()

    def post(self, step: Step) -> None:
        """Run a step in the connection's task, after all earlier steps."""
        self._steps.append(step)
        self.wake()

    def wake(self) -> None:
        """Let the loop look again whether there is something to do."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the steps. It is cancelled at the end of the connection."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def release(self) -> None:
        """End the loop after this step, and leave the connection open for another loop."""
        self._released = True

    @property
    def is_released(self) -> bool:
        """Whether the connection is left open for another loop."""
        return self._released

    def leave(self) -> None:
        """Request the end: the handlers say goodbye, the connection is closed, and `run` returns."""
        self.post(self._leave)

    def part(self, code: SessionCode, *, at_once: bool = False) -> None:
        """Request the end when the calls under way are answered, or `at_once`. No further message is read, unless this side waits
        for an answer of the peer. Streams delay the end for at most
        `STREAM_TIME` seconds."""
        self.post(partial(self._part, code, at_once))

    @abstractmethod
    async def perform(self, actions: Sequence[_A]) -> None:
        """Perform the machine's actions in order."""

    # Implemented by each profile

    @abstractmethod
    async def _begin(self) -> None:
        """Run the first step."""

    @abstractmethod
    async def _received(self, message: str | bytes) -> None:
        """Handle a message of the peer."""

    @abstractmethod
    async def _leave(self) -> None:
        """Say goodbye, and close the machine."""

    @abstractmethod
    def _encoded(self, actions: Sequence[_A]) -> Iterable[str | bytes]:
        """Return the messages among the actions, encoded."""

    @abstractmethod
    def _due(self) -> float:
        """Return `StateMachine.deadline` as a time of the event loop's clock."""

    @abstractmethod
    def _speaking(self) -> Iterable[HostedHandler]:
        """Return the handlers that are open in a running session."""

    @abstractmethod
    def _call_tables(self) -> Iterable[CallTable]:
        """Return the tables of this side's calls."""

    def _on_lost(self) -> None:
        """Handle the loss of the connection, before the handlers are informed."""

    def _may_read(self) -> bool:
        """Return whether the profile can take another message."""
        return True

    def _after_step(self) -> None:
        """Run after each step."""

    @abstractmethod
    def _end(self) -> None:
        """Fail everything that waits for the session. Called once, after the machine has ended."""

    @abstractmethod
    async def _close_parts(self) -> None:
        """Close handlers and negotiators, in bounded time."""

    # Steps

    def _next(self) -> Step | None:
        """Return the next step, or None: the deadline that has passed, what was posted, the next message of the peer."""
        # The deadline goes first: a busy peer must not be able to delay it with messages. After a pause those that arrived do.
        if self._due_at <= asyncio.get_running_loop().time() and not self._alarm.is_held:
            return self._tick
        if self._steps:
            return self._steps.popleft()
        if not self._is_reading:
            return None
        try:
            message = self.wire.receive()
        except ConnectionLost as error:
            return partial(self._lost, error.reason)
        except TreatyError as error:  # the transport refuses the peer, which gets the code
            return partial(self._fail, error)
        except Exception:
            _log.exception("A connection failed")
            return partial(self._fail, Unavailable(SessionCode.INTERNAL, INTERNAL))
        return None if message is None else partial(self._received, message)

    async def _tick(self) -> None:
        self.wire.check()
        await asyncio.sleep(0)  # if the clock lags behind the deadline, other tasks must still run
        await self.perform(self._machine.tick(self.now()))

    async def _guarded(self, step: Step) -> None:
        """Run a step. An exception ends the connection."""
        try:
            await step()
        except TreatyError as error:
            await self._fail(error)
        except TimeoutError:
            await self._fail(Unavailable(SessionCode.CODE_TIMEOUT, "The handler was not ready in time."))
        except Exception:
            _log.exception("A session failed")
            await self._fail(Unavailable(SessionCode.INTERNAL, INTERNAL))
        self._after_step()
        waits = self._parts_with is None or any(table.is_waiting for table in self._call_tables())
        if self._parts_with is not None and not (waits or self._is_working()):
            await self._fail(SessionParting(self._parts_with, self.wire.received))
        has_room = True
        for handler in self._speaking():
            has_room = has_room and handler.is_readable
        if self.wire.is_lost and not has_room:
            # Its functions are at their bound, and may run for hours. What it sent and nothing has read is lost with it.
            await self._lost("")
        allowed = has_room and self._machine.accepts_input and self.wire.may_read and self._may_read() and not self._released
        # While the session parts, unread messages are calls that the peer may repeat elsewhere.
        self._is_reading = allowed and waits
        self._due_at = min(self._due(), self.wire.due)
        self._alarm.set(self._due_at)

    def _is_working(self) -> bool:
        streams = asyncio.get_running_loop().time() < self._streams_until
        return any(handler.is_working(streams=streams) for handler in self._speaking())

    async def _part(self, code: SessionCode, at_once: bool) -> None:
        # `_guarded` ends the session after this step if nothing is under way.
        if self._parts_with is None:
            self._parts_with, self._streams_until = code, asyncio.get_running_loop().time() + STREAM_TIME
            self.spawn(self._step_at(self._streams_until))
        for table in self._call_tables():
            table.refuse(SessionParting(code, 0))
        if at_once:
            await self._fail(SessionParting(self._parts_with, self.wire.received))

    async def _step_at(self, due: float) -> None:
        """Run an empty step at a time, after which `_guarded` looks again."""
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        self.post(_nothing)

    async def _fail(self, error: TreatyError) -> None:
        # The error is final, so a failure to send it is ignored.
        for message in self._encoded(self._machine.fail(error)):
            with suppress(TreatyError):
                self.wire.send(message)

    async def _lost(self, reason: str) -> None:
        if self._machine.is_final:
            return
        # Collected before the machine changes its state, which ends `_speaking`.
        handlers = list(self._speaking())
        self.parting = SessionParting.parse(reason)
        self._machine.lost(reason)
        self._on_lost()
        for handler in handlers:
            with suppress(TreatyError):
                await handler.peer_lost()

    # The end

    async def _wind_up(self) -> None:
        if not self._released:
            self._machine.close()
        self._after_step()
        self._end()
        self._alarm.cancel()
        try:
            if self._released:
                self.wire.release()
                await self._end_tasks()
            else:
                # Beside the tasks: neither may wait for the other, and each takes seconds where the peer or a function hangs.
                closing = asyncio.create_task(self.wire.close(self._machine.error))
                try:
                    await self._end_tasks()
                finally:
                    await closing
        finally:
            self.closed.set()

    async def _end_tasks(self) -> None:
        """Cancel the tasks beside the steps and wait a bounded time for them: a business function may ignore cancellation. Then
        close the parts, which the tasks may have opened."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            # `wait` with a timeout: a business function may ignore cancellation.
            await asyncio.wait(tasks, timeout=CANCELLING_TIME)
        await self._close_parts()


async def _nothing() -> None:
    pass


LEAVING_TIME = 5.0
"""Seconds for connections to close after their calls: to send the last messages, and to close their handlers."""

Run = ConnectionLoop[Any, Any]


class OpenConnections:
    """The connections of one agent, in both directions and profiles. For one event loop."""

    def __init__(self) -> None:
        self._protocols: dict[Run, Callable[[], Iterable[SpokenProtocol]]] = {}
        self._answered: set[Run] = set()

    @contextmanager
    def holding(self, run: Run, protocols: Callable[[], Iterable[SpokenProtocol]], *, is_initiator: bool) -> Iterator[None]:
        """Note a connection for the time of the block. `protocols`: return those of its sessions."""
        self._protocols[run] = protocols
        if not is_initiator:
            self._answered.add(run)
        try:
            yield
        finally:
            del self._protocols[run]
            self._answered.discard(run)

    @property
    def answered(self) -> list[Run]:
        """The connections that other agents opened."""
        return list(self._answered)

    def speaking(self, uri: str) -> list[Run]:
        """Return the connections with a session of a protocol."""
        return [run for run, protocols in self._protocols.items() if any(protocol.uri == uri for protocol in protocols())]

    def spoken(self) -> list[SpokenProtocol]:
        """Return the protocols of all open sessions, one entry for each session."""
        return [protocol for protocols in self._protocols.values() for protocol in protocols()]


async def part(runs: Iterable[Run], code: SessionCode, seconds: float) -> None:
    """End connections when the calls under way in them are answered, or after some seconds. The peers learn the code, and which
    calls were not begun."""
    runs = list(runs)
    ending = [asyncio.create_task(run.closed.wait()) for run in runs]
    if not ending:
        return
    try:
        for run in runs:
            run.part(code)
        _, late = await asyncio.wait(ending, timeout=seconds)
        if late:
            for run in runs:
                run.part(code, at_once=True)
            await asyncio.wait(late, timeout=LEAVING_TIME)
    finally:
        for task in ending:
            task.cancel()
