"""Track the application's calls of a session, from `Session.call` to the answer, under either profile.

A session may replace its handler: after a repair of the code, or after a change to another protocol. Each handler receives an
open call once, when the session runs, or earlier if the call may be early data. The open calls are then given to the new handler.
A call that the former handler already had, and that is not idempotent, fails with 503: it is unknown whether it was done.

When the session ends, a call that the handler has fails with `OutcomeUnknown`: the peer may have got it. The other open calls
fail with the error of the session, and were not done.

A handler that fails a call with 502 reports that the peer broke the protocol. The session may then report the error to the peer
(`on_fault`), once for each call; the call waits for the outcome.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_handler import Return

from ..abandonable import abandonable
from ..codes import SessionCode
from .handler_host import HandlerHost
from .interfaces import Step
from .operations import OperationError, OutcomeUnknown

NONCONFORMING = 502


class Phase(Enum):
    """When calls may be given to the handler: not yet, as early data, or always."""

    WAITING = "waiting"
    EARLY = "early"
    RUNNING = "running"


@dataclass(frozen=True)
class CallPort:
    """The functions that a call table uses from its session.

    `wait_writable`: wait until the application may send more.
    `handler`: the present handler of the session.
    `phase`: see `Phase`.
    `time_limit`: seconds that a call of an operation may take.
    `is_reissued`: whether the session ran already, so that a call may be given to a second handler.
    """

    post: Callable[[Step], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    wait_writable: Callable[[], Awaitable[None]]
    handler: Callable[[], HandlerHost | None]
    phase: Callable[[], Phase]
    time_limit: Callable[[str], float]
    is_reissued: Callable[[], bool]
    on_first_reply: Callable[[], None]
    on_outcome: Callable[[float, bool], None] = lambda seconds, succeeded: None
    on_fault: Callable[[str], Awaitable[None]] | None = None
    may_report_fault: Callable[[], bool] = lambda: False


@dataclass
class _Call:
    number: str
    operation: str
    arguments: dict[str, Any]
    answer: asyncio.Future[Any] = field(default_factory=abandonable)
    had_room: bool = False
    issued: asyncio.Event = field(default_factory=asyncio.Event)
    given_to: HandlerHost | None = None
    reported: bool = False


class CallTable:
    """The calls of one session. `replies`: the number of calls that the peer answered. `replied`: set at the first one."""

    def __init__(self, port: CallPort) -> None:
        self.replies = 0
        self.replied = asyncio.Event()
        self._port = port
        self._open: dict[str, _Call] = {}
        # Serializes the wait for room in the outbox.
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)

    async def make(self, operation: str, arguments: dict[str, Any], *, within: float | None = None) -> Any:
        """Call an operation and wait for its answer; see `session.Session.call`. Report the time and the outcome to
        `on_outcome`.

        `within`: fewer seconds than the operation's own time. Their end raises `OutcomeUnknown`, or `Unavailable`
        (`session.late`) for a call that was not issued.
        """
        call = _Call(str(next(self._numbers)), operation, arguments)
        self._open[call.number] = call
        now = asyncio.get_running_loop().time
        began = now()
        limit = self._port.time_limit(operation)
        try:
            # The limit includes the wait for room: a slow peer must not hold the caller for ever.
            async with asyncio.timeout(limit if within is None else min(limit, within)):
                # One call at a time waits for room: else all waiting callers would use the same free room.
                async with self._turn:
                    await self._port.wait_writable()
                    call.had_room = True
                    self._port.post(partial(self._issue, call))
                    await call.issued.wait()
                value = await call.answer
        except TimeoutError as error:
            self._port.on_outcome(now() - began, False)
            if within is not None and within < limit:
                raise _late(call, within) from error
            raise OperationError(504, f"The handler gave no answer to {operation}.") from error
        except OperationError as error:
            self._port.on_outcome(now() - began, error.status < 500)
            raise
        finally:
            del self._open[call.number]
        self._port.on_outcome(now() - began, True)
        return value

    async def issue(self) -> None:
        """Give the handler all open calls that it does not have yet, as far as the phase allows."""
        for call in list(self._open.values()):
            await self._issue(call)

    def answered(self, number: str, outcome: Return | TreatyError) -> None:
        """Set the result of a call: the handler's answer, or the error of a call that was wrong."""
        call = self._open.get(number)
        if call is None or call.answer.done():
            return  # the caller stopped waiting
        if isinstance(outcome, Return) and self._is_reportable(call, outcome):
            call.reported = True
            self._port.spawn(self._report(call, outcome))
            return
        if isinstance(outcome, Return):
            self.replies += 1
            if self.replies == 1:
                self.replied.set()
                self._port.on_first_reply()
        _set_result(call, outcome)

    def end(self, error: TreatyError) -> None:
        """Fail all open calls because of the error that ended the session."""
        for call in self._open.values():
            # Before the session ran, only early data were sent, which may be repeated.
            sent = call.given_to is not None and self._port.is_reissued()
            why = f"The session ended ({error.code}): {error.message}"
            _set_result(call, _unknown(call, why, error) if sent else error)

    async def _issue(self, call: _Call) -> None:
        handler, phase = self._port.handler(), self._port.phase()
        if not call.had_room or call.answer.done() or handler is None or not handler.is_open or call.given_to is handler:
            return
        if phase is Phase.WAITING:
            return  # `issue` is called again when the session runs
        operation = handler.role.calls.get(call.operation)
        idempotent = operation is not None and operation.idempotent
        # A second run could repeat an order or a payment, so only idempotent calls are issued again.
        if call.given_to is not None and self._port.is_reissued() and not idempotent:
            _set_result(
                call,
                OperationError(503, "The protocol's code changed during the call. It is unknown whether the operation was done."),
            )
            return
        # Set before the call: an error in the call must not lead to a second one.
        call.given_to = handler
        try:
            await handler.call(call.number, call.operation, call.arguments, early=phase is Phase.EARLY and idempotent)
        finally:
            call.issued.set()

    def _is_reportable(self, call: _Call, outcome: Return) -> bool:
        failed = outcome.error is not None and outcome.error.code == NONCONFORMING
        return failed and not call.reported and self._port.on_fault is not None and self._port.may_report_fault()

    async def _report(self, call: _Call, outcome: Return) -> None:
        assert outcome.error is not None
        assert self._port.on_fault is not None
        try:
            await self._port.on_fault(f"{call.operation}: {outcome.error.message}")
        except TreatyError:
            _set_result(call, outcome)  # the code was not repaired: the caller gets the failure


def _unknown(call: _Call, why: str, cause: TreatyError | None = None) -> OutcomeUnknown:
    assert call.given_to is not None
    error = OutcomeUnknown(call.operation, why, call.given_to.role.calls.get(call.operation))
    error.__cause__ = cause
    return error


def _late(call: _Call, seconds: float) -> TreatyError:
    why = f"No answer came within {seconds:.3g} seconds."
    if call.given_to is not None:
        return _unknown(call, why)
    return Unavailable(SessionCode.LATE, f"{call.operation} was not sent within {seconds:.3g} seconds.", fix="Call again.")


def _set_result(call: _Call, outcome: Return | TreatyError) -> None:
    call.issued.set()
    if call.answer.done():
        return
    if isinstance(outcome, TreatyError):
        call.answer.set_exception(outcome)
    elif outcome.error is None:
        call.answer.set_result(outcome.value)
    else:
        call.answer.set_exception(OperationError(outcome.error.code, outcome.error.message))
