"""A handler under test: its messages are verification messages, its business is what the agreed test cases say.

No business function is called, nothing is stored, and no application message passes. A value is compared as JSON, a failure by
its code: its message is for people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import Operation
from treaty_handler import Failure, Result, Return, Value, encode_json

from ..abandonable import abandonable
from ..negotiation.test_cases import Outcome, Success, TestCase, describe
from .hosting import HandlerHost, Step

if TYPE_CHECKING:
    from .driver import SessionDriver

MAX_SHOWN = 300


class Trial:
    """A handler under test; to its host, the driver of its session."""

    def __init__(self, driver: SessionDriver, cases: Sequence[TestCase]) -> None:
        self._driver, self._cases = driver, cases
        self._host: HandlerHost | None = None
        self._outcomes: dict[str, asyncio.Future[Return]] = {}

    async def open(self) -> None:
        """Start the handler. Raises `TreatyError`, TimeoutError."""
        driver = self._driver
        assert driver.code.protocol is not None
        async with asyncio.timeout(driver.side.timeouts.code):
            answers = CaseAnswers(self._cases)
            self._host = await driver.side.host_under_test(self, driver.code.protocol, driver.code.peer, answers)
        await self._host.open()

    async def received(self, payload: bytes) -> None:
        """A message for it. Raises `TreatyError`."""
        assert self._host is not None
        await self._host.received(payload)

    async def first_problem(self) -> str:
        """Make the call of each case; what the first one that turns out otherwise shows, "" when none does."""
        for number, case in enumerate(self._cases, 1):
            try:
                outcome = await self._outcome(str(number), case)
            except TreatyError as error:
                return f"Test case {number}, {case.title}: {error.message}"
            if not _agree(outcome, case.outcome):
                wanted, found = _shown(describe(case.outcome)), _shown(describe(outcome))
                return (
                    f"Test case {number}, {case.title}: {case.operation} with {_shown(dict(case.arguments))} "
                    f"should give {wanted} and gives {found}."
                )
        return ""

    async def close(self) -> None:
        """End the handler."""
        await self.end(None)
        if self._host is not None:
            await self._host.close()

    # What its host asks for

    def post(self, step: Step) -> None:
        self._driver.post(step)

    async def send(self, payload: bytes, *, early: bool) -> None:
        await self._driver.perform(self._driver.machine.send_verification(payload, self._driver.now()))

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
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
                waiting.set_exception(error or Refused("session.closed", "The handler under test ended the session."))

    async def _outcome(self, number: str, case: TestCase) -> Outcome:
        self._outcomes[number] = abandonable()
        self.post(partial(self._call, number, case))
        outcome = await self._outcomes[number]
        return outcome.error if outcome.error is not None else Success(outcome.value)

    async def _call(self, number: str, case: TestCase) -> None:
        if self._host is not None and not self._outcomes[number].done():
            await self._host.call(number, case.operation, dict(case.arguments), early=False)


class CaseAnswers:
    """Answers operations as the first test case with their arguments says; stands where business functions do."""

    def __init__(self, cases: Sequence[TestCase]) -> None:
        self._cases = cases

    async def call(self, call: str, operation: Operation, arguments: Mapping[str, Value]) -> Result:
        for case in self._cases:
            if case.operation == operation.name and _same(dict(case.arguments), dict(arguments)):
                if isinstance(case.outcome, Success):
                    return Result(call=call, value=case.outcome.value)
                return Result(call=call, error=case.outcome)
        return Result(call=call, error=Failure(code=500, message="No test case has these arguments."))


class Nothing:
    """What a handler under test keeps: nothing."""

    async def load(self) -> dict[str, bytes]:
        return {}

    async def put(self, key: str, value: bytes | None) -> None:
        pass


def _agree(found: Outcome, wanted: Outcome) -> bool:
    if isinstance(found, Failure) or isinstance(wanted, Failure):
        return isinstance(found, Failure) and isinstance(wanted, Failure) and found.code == wanted.code
    return _same(found.value, wanted.value)


def _same(one: Value, other: Value) -> bool:
    return one == other and _shape(one) == _shape(other)


def _shape(value: Value) -> object:
    """What `==` overlooks: that true is not 1."""
    if isinstance(value, dict):
        return {name: _shape(item) for name, item in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list) else isinstance(value, bool)


def _shown(value: Value) -> str:
    text = encode_json(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
