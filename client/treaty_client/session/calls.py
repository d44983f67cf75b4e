"""The calls of a session's application: from `Session.call` to the answer, over any number of handlers.

A call is given to each handler once, when the session runs, or earlier if it may be early data. A handler that fails one because
the peer answered outside of the protocol (502) makes this side complain, once a call, where the code was negotiated and can be
mended; the call waits for the outcome. When the code was mended, open calls are issued again, unless they were out already and
doing them twice is not doing them once: those fail.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from treaty_consensus.errors import TreatyError
from treaty_handler import Return

from ..abandonable import abandonable
from ..meta.hello import FIX_ERROR_NEGOTIATION
from ..meta.machine import State
from .hosting import HandlerHost
from .negotiated import is_negotiated
from .operations import OperationError

if TYPE_CHECKING:
    from .driver import SessionDriver

NONCONFORMING = 502
DEFAULT_TIME = 60.0
"""Seconds for an operation that is not known yet."""


@dataclass
class _Call:
    number: str
    operation: str
    arguments: dict[str, Any]
    answer: asyncio.Future[Any] = field(default_factory=abandonable)
    had_room: bool = False
    issued: asyncio.Event = field(default_factory=asyncio.Event)
    given_to: HandlerHost | None = None
    complained: bool = False


class Calls:
    """One session's. `replies`: how many were answered by the peer."""

    def __init__(self, driver: SessionDriver) -> None:
        self.replies = 0
        self._driver = driver
        self._open: dict[str, _Call] = {}
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)

    async def make(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Call an operation and wait for its answer; see `session.Session.call`."""
        call = _Call(str(next(self._numbers)), operation, arguments)
        self._open[call.number] = call
        try:
            async with asyncio.timeout(self._time(operation)):
                async with self._turn:  # one at a time, so that callers together take no more room than there is
                    await self._driver.room()
                    call.had_room = True
                    self._driver.post(partial(self._issue, call))
                    await call.issued.wait()
                return await call.answer
        except TimeoutError as error:
            raise OperationError(504, f"The handler gave no answer to {operation}.") from error
        finally:
            del self._open[call.number]

    async def issue(self) -> None:
        """Give the handler the calls that it does not have yet, as far as it may speak."""
        for call in list(self._open.values()):
            await self._issue(call)

    def answered(self, number: str, outcome: Return | TreatyError) -> None:
        """The handler answers a call, or the call was wrong."""
        call = self._open.get(number)
        if call is None or call.answer.done():
            return  # the caller has given up
        if self._may_complain(call, outcome):
            call.complained = True
            assert isinstance(outcome, Return)
            self._driver.spawn(self._complain(call, outcome))
            return
        if isinstance(outcome, Return):
            self.replies += 1
            if self.replies == 1:
                self._driver.tell("first reply")
        _settle(call, outcome)

    def end(self, error: TreatyError) -> None:
        """The session is over."""
        for call in self._open.values():
            if not call.answer.done():
                _settle(call, error)
            call.issued.set()

    async def _issue(self, call: _Call) -> None:
        driver, handler = self._driver, self._driver.code.handler
        state = driver.machine.state
        if not call.had_room or call.answer.done() or handler is None or not handler.is_open or call.given_to is handler:
            return
        if state not in (State.HELLO, State.RUNNING):
            return  # the session will run, and ask again
        operation = handler.role.calls.get(call.operation)
        idempotent = operation is not None and operation.idempotent
        if call.given_to is not None and driver.was_running and not idempotent:
            _settle(call, OperationError(503, "The protocol's code was mended meanwhile; whether this was done is not known."))
            return
        call.given_to = handler
        try:
            await handler.call(call.number, call.operation, call.arguments, early=state is State.HELLO and idempotent)
        finally:
            call.issued.set()

    def _may_complain(self, call: _Call, outcome: Return | TreatyError) -> bool:
        driver = self._driver
        if isinstance(outcome, TreatyError) or outcome.error is None or outcome.error.code != NONCONFORMING or call.complained:
            return False
        protocol, rounds = driver.code.protocol, driver.machine.limits.fix_rounds
        negotiated = protocol is not None and is_negotiated(protocol)
        return negotiated and driver.machine.both_list(FIX_ERROR_NEGOTIATION) and driver.requests.complaints < rounds

    async def _complain(self, call: _Call, outcome: Return) -> None:
        assert outcome.error is not None
        try:
            await self._driver.requests.complain(f"{call.operation}: {outcome.error.message}")
        except TreatyError:
            _settle(call, outcome)  # when it is not mended, the caller learns how the call failed

    def _time(self, operation: str) -> float:
        """For how long a call may wait: the operation's own time, and what may come before, between and after."""
        driver, handler = self._driver, self._driver.code.handler
        timeouts, protocol = driver.side.timeouts, driver.code.protocol
        known = handler.role.calls.get(operation) if handler else None
        before = 0.0 if driver.machine.state is State.RUNNING else timeouts.hello + timeouts.code
        if driver.side.negotiator is not None and not driver.was_running:  # a remembered hash may turn out to be forgotten
            before += timeouts.reply * (driver.machine.limits.rounds + driver.machine.limits.test_rounds)
        mending = timeouts.reply + timeouts.code if protocol is not None and is_negotiated(protocol) else 0.0
        return before + mending + (known.timeout if known else DEFAULT_TIME) + timeouts.answer


def _settle(call: _Call, outcome: Return | TreatyError) -> None:
    if call.answer.done():
        return
    if isinstance(outcome, TreatyError):
        call.answer.set_exception(outcome)
    elif outcome.error is None:
        call.answer.set_result(outcome.value)
    else:
        call.answer.set_exception(OperationError(outcome.error.code, outcome.error.message))
