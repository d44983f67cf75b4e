"""Track the application's calls of a session, from `Session.call` or `Session.stream` to the answer, under either profile.

A session may replace its handler: after a repair of the code, or after a change to another protocol. Each handler receives an
open call once, when the session runs, or earlier if the call may be early data. The open calls are then given to the new handler.
A call that the former handler already had, and that is not idempotent, fails with 503: it is unknown whether it was done.

A stream that has given items is not given to a new handler either, because its items would come twice.

When the session ends, a call that the handler has fails with `OutcomeUnknown`: the peer may have got it. The other open calls
fail with the error of the session, and were not done.

A handler that fails a call with 502 reports that the peer broke the protocol. The session may then report the error to the peer
(`report_error`), once for each call; the call waits for the outcome.

The application asks a stream for `Operation.window` items at first. When it has taken half of them it asks for as many again. So
at most `window` items wait here, and all that wait in a session hold at most `MAX_HELD` bytes.

A call that nobody answered in its time fails with `OutcomeUnknown`, whoever kept the time: the caller, this table or a timer in
the handler. So the caller gets neither the 504 that a handler returns at a timer, nor the 503 at the loss of a peer. It gets what
a handler returns at a message of the peer.

A call whose caller leaves (by cancellation, a timeout or the end of an `async for`) is cancelled at the handler, when the session
can take that event; until then it stays in the table.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import WeakSet

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.trace_context import TraceContext
from treaty_consensus.errors import Malformed, TooLarge, TreatyError
from treaty_consensus.handler import Operation, OperationKind
from treaty_handler import Return, Value
from treaty_io.abandonable import abandonable
from treaty_io.alarm_timeout import AlarmTimeout
from treaty_io.codes import OperationCode, SessionCode
from treaty_io.errors import PeerUnavailable
from treaty_io.shared_timer import SharedTimer
from treaty_sandbox.schemas import measure

from ..transport.parting import SessionParting
from .call_context import CallOrigin, current_call, next_trace
from .handler_host import HostedHandler
from .interfaces import Step
from .middleware import Call, CallPipeline, described_call
from .operation_errors import OperationError, OutcomeUnknown, PeerOperationError, wrong_kind

NONCONFORMING = 502
MAX_HELD = 32 * 1024 * 1024
"""Bytes of the items of one session that wait for the application."""
VALUE_BYTES = 64
"""Bytes of one value beside its text, as a bound for Python's objects."""


Arguments: TypeAlias = Mapping[str, Any]
"""The arguments of a call, by their names in the protocol."""
NO_ARGUMENTS: Arguments = MappingProxyType({})


class CallTable:
    """The calls of one session. `replies`: the number of calls that the peer answered. `work`: these, and the calls of the peer
    that this side served, where it began the session."""

    def __init__(self, session: CallingSession, *, prefix: str = "") -> None:
        """`prefix`: of the ids of calls, which are unique in a session, also in one that a former process began."""
        self.replies = self.work = 0
        self._session = session
        self._open: dict[str, OpenCall] = {}
        self._held = 0
        self._error: TreatyError | None = None
        self._ended_by: TreatyError | None = None
        # Made when the first one waits: most sessions end without.
        self._end: asyncio.Event | None = None
        self._worked: asyncio.Event | None = None
        # Weakly: an error is of interest only while its caller has it.
        self._failures: WeakSet[TreatyError] | None = None
        # Serializes the wait for room in the outbox.
        self._turn = asyncio.Lock()
        self._ids = (f"{prefix}{number}" for number in itertools.count(1))

    async def make(
        self,
        operation: str,
        arguments: dict[str, Any],
        *,
        within: float | None = None,
        limited: bool = False,
        trace: TraceContext | None = None,
    ) -> Any:
        """Call an operation and wait for its answer; see `Session.call`. Report the time and the outcome to the session.

        `within`: fewer seconds than the operation's own time. The end of either raises `OutcomeUnknown`, or `Unavailable`
        (`session.late`) for a call that was not issued. `limited`: the caller gave a `within`. `trace`: its span.
        """
        call = self._enter(OpenCall(next(self._ids), operation, arguments, limited=limited))
        began, limit = asyncio.get_running_loop().time(), self._session.time_limit(operation)
        # The limit includes the wait for room, and the middleware: neither may hold the caller for ever.
        seconds = limit if within is None else min(limit, within)
        call.due = began + seconds
        described = self._described(call, trace)
        try:
            with self._session.pipeline.recorded(described) as described:
                value = await self._within(call, described, seconds)
        except TreatyError as error:
            self._note_failure(began, error)
            raise
        finally:
            self._leave(call)
        self._note(began, True)
        return value

    async def stream(
        self, operation: str, arguments: dict[str, Any], *, within: float | None = None, limited: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Call a stream and yield its items; see `Session.stream`. Report the time and outcome of its first answer. `within`:
        until the first item. `limited`: as in `make`."""
        call = OpenCall(next(self._ids), operation, arguments, OpenStream(), kind=OperationKind.STREAM, limited=limited)
        described = self._described(call, None)
        with self._session.pipeline.recorded(described) as described:
            async with aclosing(self._session.pipeline.stream(described, partial(self._items, call, within))) as items:
                async for item in items:
                    yield item

    async def issue(self) -> None:
        """Give the handler all open calls that it does not have yet, as far as the phase allows."""
        for call in list(self._open.values()):
            await self._issue(call)

    def answered(self, number: str, outcome: Return | TreatyError, *, silent: bool = False) -> None:
        """Set the result of a call: the handler's answer, or the error of a call that was wrong. `silent`: the handler fails it
        because nobody answered."""
        call = self._open.get(number)
        if call is None:
            return
        if silent and isinstance(outcome, Return) and outcome.error is not None:
            outcome = call.unknown(outcome.error.message or "No answer came.")
        if isinstance(outcome, Return) and self._is_reportable(call, outcome):
            call.reported = True
            self._session.spawn(self._report(call, outcome))
            return
        call.closed = True
        if call.left:
            del self._open[number]
        # The return of an event says only that it was sent.
        elif isinstance(outcome, Return) and call.kind is not OperationKind.EVENT and not call.has_begun:
            self._replied()
        call.settle(outcome)

    def item(self, number: str, value: Value) -> None:
        """Take an item of a stream from the handler."""
        call = self._open.get(number)
        if call is None or call.stream is None or call.answer.done():
            return  # the caller stopped waiting
        if not call.stream.has_begun:
            call.stream.has_begun = True
            self._replied()
        size = measure(value, OperationCode.RESULT, f"The items of {call.operation}")
        held = size.text + size.names + VALUE_BYTES * size.values
        # The caller takes the items too slowly for their size. The credit was given by number, so it cannot be less now.
        if self._held + held > MAX_HELD:
            self._drop_items(call.stream)
            call.settle(_too_much(call.operation))
            return
        self._held += held
        call.stream.items.append((value, held))
        call.stream.changed.set()

    @property
    def is_waiting(self) -> bool:
        """Whether a call has no answer yet."""
        return any(not call.answer.done() for call in self._open.values())

    def has_failed_with(self, error: TreatyError) -> bool:
        """Return whether a call of this session ended with this error. The errors of middleware, and of the calls that middleware
        makes to others, say nothing about that."""
        return self._failures is not None and error in self._failures

    def served(self) -> None:
        """Note that this side served a call of the peer."""
        self.work += 1
        if self._worked is not None:
            self._worked.set()

    async def wait_worked(self) -> None:
        """Wait until `work` is not 0."""
        while not self.work:
            self._worked = self._worked or asyncio.Event()
            await self._worked.wait()

    @property
    def ended_by(self) -> TreatyError | None:
        """The error with which calls fail since the end of the session, None before."""
        return self._ended_by

    async def wait_ended(self) -> TreatyError:
        """Wait for the end of the session, and return `ended_by`."""
        while self._ended_by is None:
            self._end = self._end or asyncio.Event()
            await self._end.wait()
        return self._ended_by

    @property
    def is_refusing(self) -> bool:
        """Whether further calls are refused."""
        return self._error is not None

    def refuse(self, error: TreatyError) -> None:
        """Take no further calls, except those that functions under way make back to the peer. Open ones go on."""
        self._error = self._error or error

    def end(self, error: TreatyError) -> None:
        """Fail all open calls because of the error that ended the session. A stream gives the items that wait before."""
        self._error = error
        self._ended_by = self._ended_by or error
        if self._end is not None:
            self._end.set()
        for call in self._open.values():
            call.closed = True
            # Before the session ran, only early data were sent, which may be repeated. Items that came were done.
            sent = call.given_to is not None and self._session.is_reissued and not call.has_begun and not call.is_unread(error)
            why = f"The session ended ({error.code}): {error.message}"
            call.settle(call.unknown(why, error.peer_code) if sent else copy(error))

    # The caller's side

    def _described(self, call: OpenCall, trace: TraceContext | None) -> Call:
        """Return a call as middleware sees it."""
        origin, handler, clock = self._session.own_origin(), self._session.handler, asyncio.get_running_loop().time
        operation = handler.role.calls.get(call.operation) if handler is not None else None
        context = origin.context(call.number, call.operation, trace or next_trace(), call.due, clock)
        return described_call("out", context, operation.kind if operation else call.kind, call.arguments, origin.is_initiator)

    async def _within(self, call: OpenCall, described: Call, seconds: float) -> Any:
        """Make a call inside of the middleware. `seconds`: its time."""
        try:
            async with AlarmTimeout(call.due, self._session.timer):
                return await self._session.pipeline.call(described, partial(self._exchange, call))
        except TimeoutError as error:
            raise self._noted(call.late(seconds)) from error

    async def _exchange(self, call: OpenCall, described: Call) -> Any:
        """Send a call and wait for its answer."""
        call.trace = described.context.trace
        try:
            await self._submit(call)
            return await call.answer
        except TreatyError as error:
            self._noted(error)
            raise

    async def _items(self, call: OpenCall, within: float | None, described: Call) -> AsyncGenerator[Any, None]:
        """Send the call of a stream and yield its items."""
        items, operation, began = call.stream, call.operation, asyncio.get_running_loop().time()
        limit, clock = self._session.time_limit(operation), asyncio.get_running_loop().time
        limit = limit if within is None else min(limit, within)
        assert items is not None
        self._enter(call).trace = described.context.trace
        try:
            async with AlarmTimeout(clock() + limit, self._session.timer):
                await self._submit(call)
                more = await call.is_ready(items)
            self._note(began, True)
            while more:
                yield self._take(call, items)
                # The limit begins anew: it is for the silence before one item. The items before it are taken, so the other side
                # owes one.
                async with AlarmTimeout(clock() + limit, self._session.timer):
                    more = await call.is_ready(items)
        except TimeoutError as error:
            self._note(began, False)
            raise self._noted(call.late(limit)) from error
        except TreatyError as error:
            self._note_failure(began, error)
            self._noted(error)
            raise
        finally:
            self._leave(call)

    def _enter(self, call: OpenCall) -> OpenCall:
        # A stream begins later than `Session.stream`, perhaps after the session's end.
        if self._error is not None and (self._ended_by is not None or not self._is_calling_back()):
            raise self._noted(copy(self._error))
        self._open[call.number] = call
        return call

    def _is_calling_back(self) -> bool:
        """Return whether this code works for a call of the peer in this session, which may need an answer of the peer."""
        served, origin = current_call(), self._session.own_origin()
        return served is not None and (served.session, served.peer) == (origin.session, origin.peer)

    def _noted(self, error: TreatyError) -> TreatyError:
        # Made when needed: a set of weak references costs more than a call.
        self._failures = self._failures if self._failures is not None else WeakSet()
        self._failures.add(error)
        return error

    async def _submit(self, call: OpenCall) -> None:
        # One call at a time has room until it is issued: else all callers would use the same free room.
        await self._turn.acquire()
        call.turn = self._turn
        await self._session.wait_writable()
        call.had_room = True
        self._session.post(partial(self._issue, call))

    def _take(self, call: OpenCall, stream: OpenStream) -> Value:
        value, held = stream.items.popleft()
        self._held -= held
        stream.taken += 1
        # By halves: an event for each item would cost the handler as much as the item.
        if 2 * stream.taken >= stream.window and not call.answer.done():
            self._session.post(partial(self._request, call, stream, stream.taken))
            stream.taken = 0
        return value

    def _leave(self, call: OpenCall) -> None:
        """Forget a call whose caller has its answer, or does not wait any more."""
        call.left = True
        call.end_turn()
        call.answer.cancel()
        if call.stream is not None:
            self._drop_items(call.stream)
        if call.given_to is None or call.closed:
            del self._open[call.number]
        else:
            self._session.post(partial(self._cancel, call))

    def _drop_items(self, stream: OpenStream) -> None:
        self._held -= sum(held for _, held in stream.items)
        stream.items.clear()

    def _replied(self) -> None:
        self.replies += 1
        self.work += 1
        if self._worked is not None:
            self._worked.set()
        if self.replies == 1:
            self._session.replied()

    def _note_failure(self, began: float, error: TreatyError) -> None:
        """Note an error that the peer answered with, or its silence while the session goes on."""
        if isinstance(error, OperationError):
            self._note(began, error.status < 500)
        elif self._error is None and (isinstance(error, OutcomeUnknown) or error.code == SessionCode.LATE):
            self._note(began, False)

    def _note(self, began: float, succeeded: bool) -> None:
        self._session.served(asyncio.get_running_loop().time() - began, succeeded)

    # Steps

    async def _issue(self, call: OpenCall) -> None:
        handler, phase = self._session.handler, self._session.phase
        if call.left:
            await self._cancel(call)
            return
        if not call.had_room or call.answer.done() or handler is None or not handler.is_open or call.given_to is handler:
            return
        if call.given_to is None and call.due <= asyncio.get_running_loop().time():
            return  # its time is over: so its caller learns that it was not sent
        if phase is Phase.WAITING:
            return  # `issue` is called again when the session runs
        operation = handler.role.calls.get(call.operation)
        if operation is not None and (operation.kind is OperationKind.STREAM) != (call.stream is not None):
            call.settle(wrong_kind(operation))
            return
        if operation is not None and call.limited and call.is_ambiguous(operation):
            call.settle(_two_withins(operation))
            return
        idempotent = operation is not None and operation.idempotent
        # A second run could repeat an order or a payment, so only idempotent calls are issued again.
        if call.given_to is not None and self._session.is_reissued and (not idempotent or call.has_begun):
            call.settle(
                PeerOperationError(
                    503, "The protocol's code changed during the call. It is unknown whether the operation was done.", operation
                ),
            )
            return
        if call.sent_before is None:
            call.sent_before = self._session.messages_sent()
        # Set before the call: an error in the call must not lead to a second one.
        call.given_to, call.early = handler, phase is Phase.EARLY and idempotent
        if operation is not None:
            call.kind = operation.kind
        try:
            left = max(call.due - asyncio.get_running_loop().time(), 0)
            # An event has no answer, and the time of a stream is that of each item.
            metadata = CallMetadata(call.trace, round(1000 * left) if call.kind is OperationKind.REQUEST else None)
            await handler.call(call.number, call.operation, call.arguments, early=call.early, metadata=metadata)
            if call.stream is not None and operation is not None:
                call.stream.window = operation.window
                await self._request(call, call.stream, operation.window)
        finally:
            call.end_turn()

    async def _request(self, call: OpenCall, stream: OpenStream, count: int) -> None:
        handler = call.given_to
        # A new handler is asked for the whole window when it gets the call.
        if handler is not None and handler is self._session.handler and not call.answer.done():
            await handler.requested(call.number, call.operation, count, early=call.early)

    async def _cancel(self, call: OpenCall) -> None:
        handler = self._session.handler
        if call.closed or call.given_to is not handler or handler is None or not handler.is_open:
            self._open.pop(call.number, None)  # a former handler is closed, with all its calls
        # While the session waits, the call stays, and `issue` calls this again. The step that `_leave` posted may come later.
        elif self._session.phase is not Phase.WAITING and self._open.pop(call.number, None) is not None:
            await handler.cancelled(call.number, call.operation, early=call.early)

    def _is_reportable(self, call: OpenCall, outcome: Return) -> bool:
        failed = outcome.error is not None and outcome.error.code == NONCONFORMING
        # The call is issued again after the repair, which a stream that has begun cannot be.
        again = not (call.left or call.reported or call.has_begun)
        return failed and again and self._session.may_report_fault()

    async def _report(self, call: OpenCall, outcome: Return) -> None:
        assert outcome.error is not None
        try:
            await self._session.report_error(f"{call.operation}: {outcome.error.message}")
        except TreatyError:
            call.settle(outcome)  # the code was not repaired: the caller gets the failure


def _two_withins(operation: Operation) -> Malformed:
    return Malformed(
        OperationCode.ARGUMENTS,
        f"{operation.name} has an argument `within` of its own, so it is unclear whether that or the time of the call is meant.",
        fix=f'Give the arguments as a mapping: call("{operation.name}", {{…}}, within=SECONDS).',
    )


def _too_much(operation: str) -> TooLarge:
    return TooLarge(
        SessionCode.OUTBOX_FULL,
        f"The items of {operation} that wait for the application hold more than {MAX_HELD} bytes, with those of other streams.",
        fix="Take the items faster, or several streams one after the other.",
    )


class Phase(Enum):
    """When calls may be given to the handler: not yet, as early data, or always."""

    WAITING = "waiting"
    EARLY = "early"
    RUNNING = "running"


class CallingSession(ABC):
    """A session, as the table of its calls uses it. `pipeline`: the middleware around each call. `timer`: of the session's
    deadlines."""

    pipeline: CallPipeline
    timer: SharedTimer

    @property
    @abstractmethod
    def handler(self) -> HostedHandler | None:
        """The present handler."""

    @property
    @abstractmethod
    def phase(self) -> Phase:
        """When calls may be given to the handler."""

    @property
    def is_reissued(self) -> bool:
        """Whether the session ran already, so that a call may be given to a second handler."""
        return True

    @abstractmethod
    def own_origin(self) -> CallOrigin:
        """Return what the calls of this side have in common."""

    @abstractmethod
    def time_limit(self, operation: str) -> float:
        """Return the seconds that a call of an operation may take."""

    @abstractmethod
    def messages_sent(self) -> int:
        """Return the number of messages that were sent on the connection."""

    @abstractmethod
    def post(self, step: Step) -> None:
        """Run a step in the connection's task, after all earlier steps."""

    @abstractmethod
    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the steps."""

    @abstractmethod
    async def wait_writable(self) -> None:
        """Wait until the application may send more."""

    @abstractmethod
    def replied(self) -> None:
        """Note that the peer answered a call for the first time."""

    @abstractmethod
    def served(self, seconds: float, succeeded: bool) -> None:
        """Note the outcome of a call."""

    def may_report_fault(self) -> bool:
        """Return whether the peer can be asked to repair its code."""
        return False

    async def report_error(self, description: str) -> None:
        """Ask the peer to repair its code, and wait for the outcome. Called only where `may_report_fault` is true. Raises
        `TreatyError`."""
        raise NotImplementedError


@dataclass(eq=False)
class OpenStream:
    """The items of a stream that wait for the application, with the bytes that each holds. `taken`: items that the application
    took since it asked for more last. `has_begun`: an item came."""

    items: deque[tuple[Value, int]] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    window: int = 0
    taken: int = 0
    has_begun: bool = False


@dataclass(eq=False)
class OpenCall:
    """One call.

    `due`: the end of its time. `limited`: its caller gave one, as `within`.
    `sent_before`: the messages of the connection when the first handler got the call.
    `closed`: the handler has answered it or never had it.
    `left`: the caller does not wait any more.
    """

    number: str
    operation: str
    arguments: dict[str, Any]
    stream: OpenStream | None = None
    kind: OperationKind = OperationKind.REQUEST
    answer: asyncio.Future[Any] = field(default_factory=abandonable)
    had_room: bool = False
    turn: asyncio.Lock | None = None
    given_to: HostedHandler | None = None
    sent_before: int | None = None
    early: bool = False
    trace: TraceContext | None = None
    due: float = math.inf
    limited: bool = False
    reported: bool = False
    closed: bool = False
    left: bool = False

    @property
    def declared(self) -> Operation | None:
        """The operation in the manifest, once a handler has the call."""
        return self.given_to.role.calls.get(self.operation) if self.given_to is not None else None

    @property
    def has_begun(self) -> bool:
        """Whether an item came."""
        return self.stream is not None and self.stream.has_begun

    def is_ambiguous(self, operation: Operation) -> bool:
        """Return whether a `within` may mean an argument of the operation, which was left out."""
        return "within" in operation.arguments.get("properties", {}) and "within" not in self.arguments

    def is_unread(self, error: TreatyError) -> bool:
        """Return whether the peer ended the session before it read a message of this call. `error`: of the end."""
        return isinstance(error, SessionParting) and self.sent_before is not None and self.sent_before >= error.received

    def unknown(self, why: str, peer_code: str = "") -> OutcomeUnknown:
        """Return the error for a call that was sent and gets no answer."""
        error = OutcomeUnknown(self.operation, why, self.declared)
        error.peer_code = peer_code
        return error

    def late(self, seconds: float) -> TreatyError:
        """Return the error for a call that got no answer in time."""
        if self.given_to is not None:
            return self.unknown(f"No answer came within {seconds:.3g} seconds.")
        return PeerUnavailable(
            SessionCode.LATE, f"{self.operation} was not sent within {max(seconds, 0):.3g} seconds.", fix="Call again."
        )

    def end_turn(self) -> None:
        """Let the next call use the room of the connection. Later calls do nothing."""
        if self.turn is not None:
            self.turn.release()
            self.turn = None

    def settle(self, outcome: Return | TreatyError) -> None:
        """Set the result. Later ones change nothing."""
        self.end_turn()
        if not self.answer.done():
            if isinstance(outcome, TreatyError):
                self.answer.set_exception(outcome)
            elif outcome.error is None:
                self.answer.set_result(outcome.value)
            else:
                self.answer.set_exception(PeerOperationError(outcome.error.code, outcome.error.message, self.declared))
        if self.stream is not None:
            self.stream.changed.set()

    async def is_ready(self, stream: OpenStream) -> bool:
        """Wait for an item of the stream; return False at its end. Raises the error that ended it."""
        while not stream.items:
            if self.answer.done():
                self.answer.result()
                return False
            stream.changed.clear()
            await stream.changed.wait()
        return True
