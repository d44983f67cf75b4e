"""Run the agreed test cases of a Hello session before the session runs.

    1 the negotiator runs the cases against this side's code in the sandbox, and repairs the code where it fails; a case of the
      source's form has messages alone, and the code that passed says what they mean
    2 if both Hellos list verificationProtocol, each side opens a handler under test; its messages travel as PT=11: the
      initiator makes the call of each case and compares the outcome; at the responder the cases answer it
    3 a side whose own code fails ends the session; an initiator that finds a fault of the peer reports it

Cases that have no form of docs/specification/hello-profile.md, section 6, are passed over: the text is natural language, and
tests are optional. The event `tests passed over` and a log line say so.

A responder has passed after step 1. Its handler under test answers until the first application message. A handler under test
calls no business function, stores nothing and sends no application message: a verification message is no user data, and a booking
would be real. So the handler is the real one, and the outcome is that of the case. Values are compared as JSON. Failures are
compared by their code, because their message is for people.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.hello_profile import commands
from treaty_anp.hello_profile.hello import FIX_ERROR_NEGOTIATION, VERIFICATION_PROTOCOL
from treaty_consensus.errors import Refused, TooLarge, TreatyError
from treaty_consensus.handler import Operation
from treaty_consensus.printable import printable
from treaty_handler import Failure, Return, Value, encode_json
from treaty_io.abandonable import abandonable
from treaty_io.codes import NegotiationCode, SessionCode
from treaty_io.line_limit import limited_logger

from ..negotiators.negotiator import Implementation
from ..negotiators.test_cases import Outcome, Success, TestCase, describe, format_test_cases, read_test_cases
from .call_context import CallContext, CallOrigin
from .code import CodeLoader
from .handler_host import HostedHandler
from .hello_core import HelloCore
from .interfaces import Step
from .negotiation import Negotiation, PeerRequests
from .operation_errors import OperationError

# The peer may be ready much earlier than this side's handler under test.
MAX_WAITING = 64
"""Verification messages that wait for the handler under test."""
MAX_SHOWN = 300
"""Characters of a value in a description of a failure, which the peer and a log may read."""

_log = limited_logger(__name__)


class ConformanceRun:
    """The test cases of one session."""

    def __init__(self, core: HelloCore, code: CodeLoader, negotiation: Negotiation, requests: PeerRequests) -> None:
        """Run nothing yet. `code`: adopts code that passed. `negotiation`: lets this side's code pass. `requests`: report a fault
        of the peer's."""
        self._core, self._code, self._negotiation, self._requests = core, code, negotiation, requests
        self._tested: TestedHandler | None = None
        self._round = 0
        self._begun = False
        self._waiting: list[bytes] = []

    async def begin(self, test_cases: str) -> None:
        """Run the cases in a task, and report the outcome to the machine."""
        await self.end()
        self._begun = True
        self._core.loop.spawn(self._run(test_cases, self._round))

    async def received(self, payload: bytes) -> None:
        """Handle a verification message. Raises `TreatyError`."""
        if self._tested is not None:
            await self._tested.received(payload)
            return
        # After the run no handler under test is left, and the peer's may still speak.
        if not self._begun:
            return
        # The cap bounds the memory that a peer can use before the handler is ready.
        if len(self._waiting) >= MAX_WAITING:
            raise TooLarge(SessionCode.INBOX_FULL, "Too many verification messages came before the handler was ready.")
        self._waiting.append(payload)

    async def end(self) -> None:
        """Close the handler under test. Ignore an outcome that arrives later."""
        # The round number marks results of earlier tasks as stale.
        self._round += 1
        self._begun = False
        self._waiting.clear()
        if self._tested is not None:
            tested, self._tested = self._tested, None
            await tested.close()

    async def _run(self, test_cases: str, number: int) -> None:
        cases, whole = read_test_cases(test_cases)
        if not whole:
            _log.warning("Agreed test cases are passed over where they cannot be read; %d cases are run", len(cases))
            self._core.record_event("tests passed over")
        completed: Sequence[TestCase] = ()
        try:
            # The negotiator gets the cases that can be run, so that it need not read free text either.
            passed = await self._negotiation.test(format_test_cases(cases)) if cases else None
            if isinstance(passed, str):
                raise Refused(
                    NegotiationCode.TESTS,
                    f"This side's code does not pass the agreed test cases: {printable(passed, 500)}",
                )
            if passed is not None:
                completed = await self._core.role.complete_cases(passed.package, cases)
        except TreatyError as error:
            self._core.loop.post(partial(self._core.command, commands.CodeFailed(error)))
        else:
            self._core.loop.post(partial(self._go_on, passed, completed, number))

    async def _go_on(self, passed: Implementation | None, cases: Sequence[TestCase], number: int) -> None:
        # A new round or the end of the run made this result stale.
        if number != self._round:
            return
        if passed is not None:
            await self._code.adopt(passed)
        # A responder opens a handler under test even without cases: the peer may send what it reads in the text.
        if not self._core.machine.both_list(VERIFICATION_PROTOCOL) or (self._core.machine.is_initiator and not cases):
            await self._core.command(commands.TestsPassed())
            return
        self._tested = TestedHandler(self._core, cases)
        await self._tested.open()
        # In the order of arrival: the handler's conversation depends on it.
        waiting, self._waiting = self._waiting, []
        for payload in waiting:
            await self._tested.received(payload)
        if self._core.machine.is_initiator:
            self._core.loop.spawn(self._check(self._tested, number))
        else:
            await self._core.command(commands.TestsPassed())

    async def _check(self, tested: TestedHandler, number: int) -> None:
        problem = await tested.first_problem()
        self._core.loop.post(partial(self._conclude, problem, number))

    async def _conclude(self, problem: str, number: int) -> None:
        if number != self._round:
            return
        await self.end()
        if not problem:
            await self._core.command(commands.TestsPassed())
        elif self._core.machine.both_list(FIX_ERROR_NEGOTIATION):
            await self._requests.begin_report(problem)
        else:
            failing = f"The other side's code fails the agreed test cases: {printable(problem, 500)}"
            raise Refused(NegotiationCode.TESTS, failing)


class TestedHandler:
    """A handler under test; the `HandlerPort` of its host."""

    __test__ = False  # else pytest collects the class because of its name

    def __init__(self, core: HelloCore, cases: Sequence[TestCase]) -> None:
        self._core, self._cases, self.timer = core, cases, core.loop.timer
        self._host: HostedHandler | None = None
        self._outcomes: dict[str, asyncio.Future[Return]] = {}

    async def open(self) -> None:
        """Start the handler. Raises `TreatyError`, TimeoutError."""
        core, role = self._core, self._core.role
        assert core.protocol is not None
        async with asyncio.timeout(role.timeouts.code):
            self._host = await role.host(self, core.protocol, core.peer, core.peer_role, CaseAnswers(self._cases))
        await self._host.open()

    async def received(self, payload: bytes) -> None:
        """Give a message to the handler. Raises `TreatyError`."""
        assert self._host is not None
        await self._host.received(payload)

    async def first_problem(self) -> str:
        """Make the call of each case. Return a description of the first unexpected outcome, "" without one."""
        for number, case in enumerate(self._cases, 1):
            try:
                outcome = await self._outcome(str(number), case)
            except TreatyError as error:
                return f"Test case {number}, {case.title}: {error.message}"
            if not _agree(outcome, case.outcome):
                expected_text, outcome_text = _shown(describe(case.outcome)), _shown(describe(outcome))
                return (
                    f"Test case {number}, {case.title}: {case.operation} with {_shown(dict(case.arguments))} "
                    f"should give {expected_text} and gives {outcome_text}."
                )
        return ""

    async def close(self) -> None:
        """End the handler."""
        await self.end(None)
        if self._host is not None:
            await self._host.close()

    # Called by its host

    @property
    def backlog(self) -> int:
        return 0  # a test has one message at a time

    def served_call(self) -> None:
        """Nothing follows: a test is no work."""

    def post(self, step: Step) -> None:
        self._core.loop.post(step)

    def origin(self) -> CallOrigin:
        return CallOrigin(is_initiator=self._core.machine.is_initiator)

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        await self._core.command(commands.SendVerification(payload))

    async def wait_writable(self) -> None:
        pass  # no streams are tested

    def item(self, call: str, value: Value) -> None:
        pass  # as above

    def answer(self, call: str, outcome: Return | TreatyError, *, silent: bool = False) -> None:
        waiting = self._outcomes.get(call)
        if waiting is None or waiting.done():
            return
        if isinstance(outcome, TreatyError):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome)

    async def end(self, error: TreatyError | None) -> None:
        for waiting in self._outcomes.values():
            if not waiting.done():
                waiting.set_exception(error or Refused(SessionCode.CLOSED, "The handler under test ended the session."))

    async def _outcome(self, number: str, case: TestCase) -> Outcome:
        self._outcomes[number] = abandonable()
        self.post(partial(self._call, number, case))
        outcome = await self._outcomes[number]
        return outcome.error if outcome.error is not None else Success(outcome.value)

    async def _call(self, number: str, case: TestCase) -> None:
        if self._host is not None and not self._outcomes[number].done():
            await self._host.call(number, case.operation, dict(case.arguments), early=False)


class CaseAnswers:
    """Answer operations from the test cases, in the place of business functions: the first case with the same arguments
    counts."""

    def __init__(self, cases: Sequence[TestCase]) -> None:
        self._cases = cases

    async def call(self, context: CallContext, operation: Operation, arguments: Mapping[str, Value]) -> Value:
        for case in self._cases:
            if case.operation == operation.name and _is_same_value(dict(case.arguments), dict(arguments)):
                if isinstance(case.outcome, Success):
                    return case.outcome.value
                raise OperationError(case.outcome.code, case.outcome.message)
        raise OperationError(500, "No test case has these arguments.")

    def items(self, context: CallContext, operation: Operation, arguments: Mapping[str, Value]) -> AsyncGenerator[Value, None]:
        raise OperationError(500, "Test cases have no streams.")


def _agree(actual: Outcome, expected: Outcome) -> bool:
    if isinstance(actual, Failure) or isinstance(expected, Failure):
        return isinstance(actual, Failure) and isinstance(expected, Failure) and actual.code == expected.code
    return _is_same_value(actual.value, expected.value)


def _is_same_value(one: Value, other: Value) -> bool:
    return one == other and _shape(one) == _shape(other)


def _shape(value: Value) -> object:
    """Return where a value has booleans: `==` treats true and 1 as equal."""
    if isinstance(value, dict):
        return {name: _shape(item) for name, item in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list) else isinstance(value, bool)


def _shown(value: Value) -> str:
    text = encode_json(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
