"""Drive a state machine over one connection, with backpressure.

`ConnectionLoop.run` is one task that runs one step at a time: a message, a call, a timer, an answer, a verdict. Longer work
(code, negotiators, functions, tests) runs in other tasks, which end with the connection. Every wait is bounded: by the deadlines
of the machine, and by `SessionTimeouts` for the rest. Each profile subclasses the loop.

One task reads and one task writes. The reader hands over one message at a time. It reads the next message when that step is done
and the outbox has room for the answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from treaty_consensus.errors import TreatyError, Unavailable

from ..codes import SessionCode
from ..network.transport.connection import Connection, ConnectionLost
from ..network.transport.outbox import Outbox
from .handler_host import HandlerHost
from .interfaces import CANCELLING_TIME, SessionTimeouts, Step

INTERNAL = "This side failed; its log says why."
_A = TypeVar("_A")
_T = TypeVar("_T")
_T_contra = TypeVar("_T_contra", contravariant=True)
_log = logging.getLogger(__name__)


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


class Wire:
    """Read and write one connection. For one event loop: `start` it, then `close` or `release` it."""

    def __init__(
        self,
        connection: Connection,
        timeouts: SessionTimeouts,
        *,
        first: str | bytes | None,
        post: Callable[[Step], None],
        received: Callable[[str | bytes], Awaitable[None]],
        lost: Callable[[str], Awaitable[None]],
        failed: Callable[[TreatyError], Awaitable[None]],
    ) -> None:
        """Set up the wire without reading or writing.

        `first`: a message that was received already.
        `post`: run a step in the connection's task. The next three are called there.
        `received`: called for each message.
        `lost`: called with the peer's reason when the connection is lost.
        `failed`: called for any other failure.
        """
        self.connection = connection
        self._timeouts, self._first = timeouts, first
        self._post, self._received, self._lost, self._failed = post, received, lost, failed
        self._connected = True
        # Backpressure: the reader waits here until the loop allows the next message.
        self._may_read = asyncio.Event()
        self._outbox = Outbox(connection, timeouts.send, failed=self._send_failed, drained=self.wake)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def peer(self) -> str:
        """The DID that the transport proved, or ""."""
        return self.connection.peer

    @property
    def is_readable(self) -> bool:
        """Whether there is room for the answers to the next message."""
        return self._outbox.may_read

    def start(self) -> None:
        """Start the tasks that read and write."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._outbox.run())]
        for task in self._tasks:
            task.add_done_callback(self._broke)

    def enqueue(self, message: str | bytes) -> None:
        """Send a message after all earlier messages. Raises `Unavailable` (`session.slow-peer`)."""
        self._outbox.enqueue(message)

    async def wait_writable(self) -> None:
        """Wait until the local application may send more."""
        await self._outbox.wait_writable()

    def allow_reading(self, allowed: bool) -> None:
        """Set whether the next message may be read."""
        if allowed:
            self._may_read.set()
        else:
            self._may_read.clear()

    def wake(self) -> None:
        """Let the loop decide again whether to read."""
        self._post(_nothing)

    async def close(self, error: TreatyError | None) -> None:
        """Send the queued messages, for a bounded time, and close the connection. The peer receives the error's code."""
        connected = self._connected
        await self.release()
        await self.connection.close(error.code if error and connected else "")

    async def release(self) -> None:
        """Send the queued messages, for a bounded time, and stop reading and writing. The connection stays open."""
        if self._connected:
            # A peer that does not read must not delay the end of the session.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeouts.flush):
                    await self._outbox.flushed()
        self._outbox.close()
        # Exceptions of the tasks were already handled by `_broke`.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                await self._may_read.wait()
                message, self._first = (await self.connection.receive() if self._first is None else self._first), None
                # The next message is read only after this one is handled, so a peer cannot fill the queue.
                done = asyncio.Event()
                self._post(partial(self._hand_over, message, done))
                await done.wait()
        except ConnectionLost as error:
            self._connected = False
            self._post(partial(self._lost, error.reason))
        except TreatyError as error:  # the transport refuses the peer, which gets the code
            self._post(partial(self._failed, error))

    async def _hand_over(self, message: str | bytes, done: asyncio.Event) -> None:
        try:
            await self._received(message)
        finally:
            done.set()

    def _send_failed(self, error: TreatyError) -> None:
        self._connected = False
        if not isinstance(error, ConnectionLost):  # `_read` reports the loss, after all messages that arrived before
            self._post(partial(self._failed, error))

    def _broke(self, task: asyncio.Task[None]) -> None:
        """End the session after an unexpected exception of the reader or writer; else it would wait for ever."""
        if not task.cancelled() and task.exception() is not None:
            _log.error("A connection failed", exc_info=task.exception())
            self._connected = False
            self._post(partial(self._failed, Unavailable(SessionCode.INTERNAL, INTERNAL)))


class ConnectionLoop(ABC, Generic[_A, _T]):
    """Drive a machine over a connection. Call `run` in a task of its own. `closed`: set when all parts are closed."""

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
        self.wire = Wire(
            connection, timeouts, first=first, post=self.post, received=self._received, lost=self._lost, failed=self._fail
        )
        self._machine, self._timeouts, self._clock = machine, timeouts, clock
        # Unbounded, because its producers are bounded: one message at a time, capped functions, waiting calls.
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._released = False
        self.closed = asyncio.Event()

    async def run(self) -> None:
        """Drive the connection to its end. Raises only CancelledError, which also ends the connection."""
        self.wire.start()
        try:
            await self._guarded(self._begin)
            while not (self._machine.is_final or self._released):
                await self._guarded(await self._next())
        finally:
            await self._wind_up()

    # Called by the parts of a connection

    def now(self) -> _T:
        """Return the machine's time."""
        return self._clock()

    def post(self, step: Step) -> None:
        """Run a step in the connection's task, after all earlier steps."""
        self._steps.put_nowait(step)

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
    def _seconds(self) -> float:
        """Return the time on the clock of `StateMachine.deadline`."""

    @abstractmethod
    def _speaking(self) -> Iterable[HandlerHost]:
        """Return the handlers that are open in a running session."""

    def _on_lost(self) -> None:
        """Handle the loss of the connection, before the handlers are informed."""

    @abstractmethod
    def _may_read(self) -> bool:
        """Return whether the profile can take another message."""

    def _after_step(self) -> None:
        """Run after each step."""

    @abstractmethod
    def _end(self) -> None:
        """Fail everything that waits for the session. Called once, after the machine has ended."""

    @abstractmethod
    async def _close_parts(self) -> None:
        """Close handlers and negotiators, in bounded time."""

    # Steps

    async def _next(self) -> Step:
        """Wait for the next step. A deadline that has passed goes first."""
        # The deadline goes first: a busy peer must not be able to delay it with messages.
        remaining = self._machine.deadline - self._seconds()
        if remaining <= 0:
            return self._tick
        try:
            async with asyncio.timeout(None if math.isinf(remaining) else remaining):
                return await self._steps.get()
        except TimeoutError:
            return self._tick

    async def _tick(self) -> None:
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
        self.wire.allow_reading(self._machine.accepts_input and self.wire.is_readable and self._may_read() and not self._released)

    async def _fail(self, error: TreatyError) -> None:
        # The error is final, so a failure to send it is ignored.
        for message in self._encoded(self._machine.fail(error)):
            with suppress(TreatyError):
                self.wire.enqueue(message)

    async def _lost(self, reason: str) -> None:
        if self._machine.is_final:
            return
        # Collected before the machine changes its state, which ends `_speaking`.
        handlers = list(self._speaking())
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
        ended = self.wire.release() if self._released else self.wire.close(self._machine.error)
        try:
            await asyncio.gather(ended, self._end_tasks())
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
    """Do nothing; after this step the loop decides again whether to read."""
