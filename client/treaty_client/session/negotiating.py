"""The negotiator's part of a session: what the machine asks becomes a question to it, its verdict a method of the machine.

The negotiator is asked in tasks, one question at a time and in the order of the wire; the driver goes on meanwhile. No question
has a deadline of its own: the machine's deadlines end the session, and with it the tasks. What a negotiator raises is told to
this side's owner; the peer learns only that there will be no agreement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from treaty_consensus.errors import Refused, TreatyError, Unavailable

from ..meta.actions import Action, Consider, ConsiderError, ConsiderTests, Draft, DraftTests, Question
from ..negotiation.negotiator import Accept, Guilty, Implementation, Negotiator, Proposal, Reject, Verdict
from .escalation import Approvals

if TYPE_CHECKING:
    from .driver import SessionDriver

BUSY = "This side negotiates with others; try again later."
NO_WORD = "This side's negotiator failed."
NO_ANSWER = "I cannot answer that."
"""What a peer is told of a lack of time, of an error here, of a question that could not be answered."""

Asked = Draft | Consider | DraftTests | ConsiderTests | ConsiderError | Question
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Negotiation:
    """One session's. `approvals`: texts to accept unseen; `opening`: a text to propose first instead of a draft, or ""."""

    def __init__(self, driver: SessionDriver, negotiator: Negotiator | None, *, approvals: Approvals, opening: str = "") -> None:
        self.own_proposal = self.peer_proposal = ""
        self.failure: TreatyError | None = None
        self._driver, self._negotiator = driver, negotiator
        self._approvals, self._opening = approvals, opening
        self._began = False
        self._turn = asyncio.Lock()

    def take(self, action: Asked) -> None:
        """Have an action of the machine answered."""
        machine, now = self._driver.machine, self._driver.now
        if isinstance(action, Draft | Consider) and not self._began:
            self._began = True
            self._driver.tell("negotiating")
        match action:
            case Draft():
                self._decide(self._draft, self._propose, lambda: machine.reject(NO_WORD, now()))
            case Consider(document, summary, last=last):
                self.peer_proposal = document
                self._decide(
                    partial(self._consider, document, summary, last), self._propose, lambda: machine.reject(NO_WORD, now())
                )
            case DraftTests():
                self._decide(self._draft_tests, self._propose_tests, lambda: machine.reject_tests(NO_WORD, now()))
            case ConsiderTests(cases, summary, last):
                work = partial(self._consider_tests, cases, summary, last)
                self._decide(work, self._propose_tests, lambda: machine.reject_tests(NO_WORD, now()))
            case ConsiderError(description):
                self._decide(partial(self._judge, description), self._plead, lambda: machine.reject_error(NO_WORD, now()))
            case Question(message_id, text):
                reply = partial(self._reply, message_id)
                self._decide(partial(self._answer, text), reply, partial(reply, NO_ANSWER))

    async def implement(self, document: str, error: str) -> Implementation:
        """The code for an agreed document. Raises `TreatyError`."""
        return await self._ask(lambda: self._get().implement(document, error=error))

    async def test(self, test_cases: str) -> Implementation | str:
        """Have this side's code pass the agreed test cases. Raises `TreatyError`."""
        return await self._ask(lambda: self._get().test(test_cases))

    async def close(self) -> None:
        """The session is over."""
        if self._negotiator is not None:
            await self._negotiator.aclose()

    # Questions

    async def _draft(self) -> Verdict:
        return Proposal(self._opening) if self._opening else await self._get().draft()

    async def _consider(self, document: str, summary: str, last: bool) -> Verdict:
        if document in self._approvals:
            return Accept()
        if not self._driver.side.may_negotiate():
            return Reject(BUSY)
        return await self._get().consider(document, summary, last=last)

    async def _draft_tests(self) -> Verdict | None:
        return await self._get().draft_tests(self._driver.code.document)

    async def _consider_tests(self, cases: str, summary: str, last: bool) -> Verdict:
        return await self._get().consider_tests(cases, summary, last=last)

    async def _judge(self, description: str) -> Guilty | Reject:
        if not self._driver.code.document:
            return Reject("This side's code was published and verified; it is not written in sessions.")
        return await self._get().judge(description)

    async def _answer(self, question: str) -> str:
        try:
            return await self._get().answer(question)
        except TreatyError as error:  # a question that is not answered is no reason to end a session
            _log.warning("A negotiator could not answer: %s (%s)", error, error.code)
            return NO_ANSWER

    # Answers

    def _propose(self, verdict: Verdict) -> list[Action]:
        machine, now = self._driver.machine, self._driver.now()
        match verdict:
            case Accept():
                return machine.accept(now)
            case Reject(reason):
                return machine.reject(reason, now)
            case Proposal(text, summary):
                self.own_proposal = text
                return machine.propose(text, summary, now)

    def _propose_tests(self, verdict: Verdict | None) -> list[Action]:
        machine, now = self._driver.machine, self._driver.now()
        match verdict:
            case None:
                return machine.skip_tests(now)
            case Accept():
                return machine.accept_tests(now)
            case Reject(reason):
                return machine.reject_tests(reason, now)
            case Proposal(text, summary):
                return machine.propose_tests(text, summary, now)

    def _plead(self, verdict: Guilty | Reject) -> list[Action]:
        machine, now = self._driver.machine, self._driver.now()
        return machine.reject_error(verdict.reason, now) if isinstance(verdict, Reject) else machine.accept_error(now)

    def _reply(self, message_id: str, text: str) -> list[Action]:
        return self._driver.machine.answer(message_id, text, self._driver.now())

    # Asking

    def _decide(
        self, work: Callable[[], Awaitable[_T]], then: Callable[[_T], list[Action]], otherwise: Callable[[], list[Action]]
    ) -> None:
        """Ask in a task; what `then`, or `otherwise` where the negotiator fails, makes of it is performed by the driver."""

        async def ask() -> None:
            try:
                verdict = await self._ask(work)
            except TreatyError as error:
                self.failure = self.failure or error
                self._driver.post(lambda: self._driver.perform(otherwise()))
            else:
                self._driver.post(lambda: self._driver.perform(then(verdict)))

        self._driver.spawn(ask())

    async def _ask(self, work: Callable[[], Awaitable[_T]]) -> _T:
        async with self._turn:
            try:
                return await work()
            except TreatyError as error:
                _log.warning("A negotiator failed: %s (%s)", error, error.code)
                raise
            except Exception as error:
                _log.exception("A negotiator raised")
                raise Unavailable("negotiation.failed", "This side's negotiator failed; its log says why.") from error

    def _get(self) -> Negotiator:
        if self._negotiator is None:
            raise Refused("session.no-model", "This agent has no negotiator.", fix="Agent(…, negotiators=…)")
        return self._negotiator
