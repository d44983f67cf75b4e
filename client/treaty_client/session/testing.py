"""The agreed test cases, run before a session is: by each side on its own code, then by both on the wire.

    1 the negotiator runs the cases against this side's code in the sandbox, and mends it where it fails
    2 where both Hellos list verificationProtocol, both sides have a handler under test (`trial`), whose messages travel as PT=11:
      the source makes the call of each case and compares the outcome, at the destination the cases answer it
    3 a side that fails by its own fault ends the session; a source that sees the other's fault reports it

A destination is through after step 1, and its handler under test goes on answering until the first application message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from treaty_consensus.errors import Refused, TooLarge, TreatyError
from treaty_consensus.printable import printable

from ..meta.hello import VERIFICATION_PROTOCOL
from ..negotiation.negotiator import Implementation
from ..negotiation.test_cases import TestCase, parse_test_cases
from .trial import Trial

if TYPE_CHECKING:
    from .driver import SessionDriver

MAX_WAITING = 64
"""Verification messages that may wait for the handler under test."""


class Testing:
    """One session's."""

    __test__ = False  # not for pytest

    def __init__(self, driver: SessionDriver) -> None:
        self._driver = driver
        self._trial: Trial | None = None
        self._round = 0
        self._waiting: list[bytes] = []

    async def begin(self, test_cases: str) -> None:
        """Run the cases; the machine is told the outcome."""
        await self.end()
        self._driver.tell("testing")
        self._driver.spawn(self._run(test_cases, self._round))

    async def received(self, payload: bytes) -> None:
        """A verification message. Raises `TreatyError`."""
        if self._trial is not None:
            await self._trial.received(payload)
            return
        if len(self._waiting) >= MAX_WAITING:
            raise TooLarge("session.verification-full", "Too many verification messages came before the handler was ready.")
        self._waiting.append(payload)

    async def end(self) -> None:
        """Close the handler under test; what is still being found out about it counts no more."""
        self._round += 1
        self._waiting.clear()
        if self._trial is not None:
            trial, self._trial = self._trial, None
            await trial.close()

    async def _run(self, test_cases: str, number: int) -> None:
        driver = self._driver
        try:
            cases = parse_test_cases(test_cases)
            passed = await driver.negotiation.test(test_cases)
            if isinstance(passed, str):
                raise Refused(
                    "negotiation.tests-failed", f"This side's code does not pass the agreed test cases: {printable(passed, 500)}"
                )
        except TreatyError as error:
            failure = error
            driver.post(lambda: driver.perform(driver.machine.code_failed(failure)))
        else:
            driver.post(partial(self._go_on, passed, cases, number))

    async def _go_on(self, passed: Implementation, cases: Sequence[TestCase], number: int) -> None:
        driver = self._driver
        if number != self._round:
            return
        await driver.code.adopt(passed)
        if not driver.machine.both_list(VERIFICATION_PROTOCOL):
            await driver.perform(driver.machine.tests_passed(driver.now()))
            return
        self._trial = Trial(driver, cases)
        await self._trial.open()
        waiting, self._waiting = self._waiting, []
        for payload in waiting:
            await self._trial.received(payload)
        if driver.machine.is_source:
            driver.spawn(self._check(self._trial, number))
        else:
            await driver.perform(driver.machine.tests_passed(driver.now()))

    async def _check(self, trial: Trial, number: int) -> None:
        problem = await trial.first_problem()
        self._driver.post(partial(self._judge, problem, number))

    async def _judge(self, problem: str, number: int) -> None:
        driver = self._driver
        if number != self._round:
            return
        await self.end()
        if problem:
            await driver.blame(problem)
        else:
            await driver.perform(driver.machine.tests_passed(driver.now()))
