"""Agreeing on test cases, and running them: between the code and the session, where both sides can and the source wants to.

The source begins, once both codes are ready; the talks go as those about the protocol, without sequence numbers. A destination
does not know whether they come: it is running, and the first testCasesNegotiation takes it back, unless an application message
came first. When the test cases are agreed on, each side runs them, and is running as soon as its own are passed.
"""

from __future__ import annotations

from collections.abc import Callable

from .actions import Action, ConsiderTests, DraftTests, SendBinary, Test
from .core import Core, State, say, unexpected
from .deadlines import Wait
from .hello import TEST_CASES_NEGOTIATION
from .messages import NegotiationStatus, TestCasesNegotiation
from .negotiation import Talks


class TestTalks(Talks):
    """The talks about test cases, and the time in which they are run. `run`: what to do when this side is through."""

    __test__ = False  # not for pytest
    state = State.TESTING
    rejected = "negotiation.tests-rejected"

    def __init__(self, core: Core, *, wanted: bool, run: Callable[[float], list[Action]]) -> None:
        super().__init__(core, core.limits.test_rounds)
        self._wanted, self._run = wanted, run
        self._may_begin = True
        self.agreed: str | None = None

    @property
    def may_come(self) -> bool:
        """Whether a destination that is running may yet be asked to test."""
        if self._core.is_source or self._core.is_natural:
            return False
        return self._may_begin and self._core.both_list(TEST_CASES_NEGOTIATION)

    @property
    def are_due(self) -> bool:
        """Whether this side runs the agreed test cases now."""
        return self._core.state is State.TESTING and self.agreed is not None

    def begin(self, now: float) -> list[Action]:
        """Both codes are ready: test, or run."""
        if self.agreed is not None:
            return self._test(self.agreed, now)
        if self._core.is_source and self._wanted and self._may_begin and self._core.both_list(TEST_CASES_NEGOTIATION):
            self._may_begin = False
            self.open(own_turn=True, now=now)
            return [DraftTests()]
        return self._run(now)

    def never(self) -> None:
        """They are not due: a hash was confirmed, or an application message came first."""
        self._may_begin = False

    def skip(self, now: float) -> list[Action]:
        """Do without test cases, before any was proposed."""
        if not self._is_due() or self.said:
            return []
        self._open = False
        return self._run(now)

    def passed(self, now: float) -> list[Action]:
        """This side's code passed them."""
        return self._run(now) if self.are_due else []

    def receive(self, message: TestCasesNegotiation, now: float) -> list[Action]:
        """A message of the peer. Raises `TreatyError`."""
        self._core.require(TEST_CASES_NEGOTIATION)
        if self._core.state is State.RUNNING and self.may_come:
            self._may_begin = False
            self.open(own_turn=False, now=now)
        if not self._open or self._core.state is not State.TESTING:
            raise unexpected("a testCasesNegotiation message")
        return self._receive(message.status, message.test_cases, message.modification_summary, now)

    def _message(self, status: NegotiationStatus, text: str | None, summary: str | None) -> SendBinary:
        return say(TestCasesNegotiation(status, text, summary))

    def _consider(self, text: str, summary: str, last: bool) -> Action:
        return ConsiderTests(text, summary, last)

    def _agreed(self, text: str, now: float) -> list[Action]:
        self.agreed = text
        return self._test(text, now)

    def _test(self, text: str, now: float) -> list[Action]:
        self._core.enter(State.TESTING, Wait.TESTS, now)
        return [Test(text)]
