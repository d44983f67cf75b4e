"""Handle all talk about a protocol in a Hello session: the negotiator, questions, error reports and natural language.

`Negotiation` asks the negotiator in tasks, one question at a time in the order of the wire; the session continues meanwhile. A
question has no deadline of its own: the deadlines of the machine end the session and its tasks. An error of a negotiator is
reported to this side's owner. The peer learns only that there is no agreement.

`TextChannel` holds the peer's texts in natural language (PT=10). An `@agent.converses` function answers each text, one after the
other. Without such a function the texts wait for `Session.heard`. At most 16 texts wait; then nothing more is read from the peer
until one is taken.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

from treaty_anp.hello_profile import commands
from treaty_anp.hello_profile.actions import Consider, ConsiderError, ConsiderTests, Draft, DraftTests, Question
from treaty_anp.hello_profile.documents import check_pinned, parse_candidate
from treaty_anp.hello_profile.messages import MAX_RETRY
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.printable import printable
from treaty_io.abandonable import abandonable
from treaty_io.codes import ModelCode, NegotiationCode, SessionCode
from treaty_io.errors import code_in
from treaty_io.line_limit import limited_logger

from ..negotiators.documents import resolve
from ..negotiators.negotiator import Acceptance, FaultAdmitted, Implementation, Negotiator, Proposal, Rejection, Verdict
from .agreements import NegotiatedProtocol
from .hello_core import HelloCore
from .interfaces import Answerer

# Texts of the peer that no one has read yet; then reading stops, and the transport slows the peer down.
MAX_TEXTS = 16
# Characters for the peer. Both are well below the caps of the wire, in every alphabet.
MAX_DESCRIPTION = 2000
MAX_REASON = 500
NO_WORD = "This side's negotiator failed."
NOT_NOW = "This side cannot negotiate with you now. Try again later."
NO_ANSWER = "I cannot answer that."
SERVED = "This side serves this document already, so it takes no new one to begin with."
"""The texts for the peer: a failure on this side, one that passes, a question without an answer, the document that is served.
They reveal no details."""

_PASSING = (ModelCode.BUDGET, ModelCode.UNAVAILABLE, SessionCode.BUSY)
Asked = Draft | Consider | DraftTests | ConsiderTests | ConsiderError | Question
_T = TypeVar("_T")
_log = limited_logger(__name__)


class Negotiation:
    """The negotiator's part of one session."""

    def __init__(self, core: HelloCore) -> None:
        self.own_proposal = self.peer_proposal = ""
        self._core = core
        self._began = False
        # The contract of `Negotiator`: its methods are called one at a time, in the order of the wire.
        self._turn = asyncio.Lock()

    def take(self, action: Asked) -> None:
        """Answer an action of the machine, in a task."""
        if isinstance(action, Draft | Consider) and not self._began:
            self._began = True
            self._core.record_event("negotiating")
        match action:
            case Draft():
                self._decide(self._draft, self._propose, _reject)
            case Consider(document, summary, last=last):
                self.peer_proposal = document
                self._decide(partial(self._consider, document, summary, last), self._propose, _reject)
            case DraftTests():
                self._decide(self._draft_tests, _tests_command, _reject_tests)
            case ConsiderTests(cases, summary, last):
                work = partial(self._consider_tests, cases, summary, last)
                self._decide(work, _tests_command, _reject_tests)
            case ConsiderError(description):
                self._decide(partial(self._judge, description), _fault_command, lambda _: commands.RejectError(NO_WORD))
            case Question(message_id, text):
                reply = partial(commands.Answer, message_id)
                self._decide(partial(self._answer, text), reply, lambda _: reply(NO_ANSWER))

    async def implement(self, document: str, error: str) -> Implementation:
        """Return the code for an agreed document. Raises `TreatyError`."""
        return await self._ask(partial(self._implement, document, error))

    async def test(self, test_cases: str) -> Implementation | str:
        """Let this side's code pass the agreed test cases. Raises `TreatyError`."""
        return await self._ask(partial(self._test, test_cases))

    # Questions

    async def _draft(self) -> Verdict:
        opening = self._core.role.opening
        return Proposal(opening) if opening else await (await self._get()).draft()

    async def _consider(self, document: str, summary: str, last: bool) -> Verdict:
        approved = self._core.role.is_approved(document)
        served = None if approved or last else await self._served(document)
        if served is not None:
            return served
        negotiator = None if approved else await self._get()
        # Before the base is fetched: a stranger's proposals must not cost more than there is room for.
        if not approved:
            self._core.role.begin_negotiation()
        # Here and not in the negotiator: the meaning of a text must not change with a URI.
        try:
            await resolve(document, self._core.role.documents)
        except TreatyError as error:
            return Rejection(printable(error.message, MAX_REASON))  # the fault is in the peer's own text, so it may be read
        return await negotiator.consider(document, summary, last=last) if negotiator is not None else Acceptance()

    async def _served(self, document: str) -> Verdict | None:
        """Answer a proposal by a document that this side speaks already: it needs no model, and the peer is told its URI. Once in
        a session: a peer that wants another document gets a judgement."""
        served = self._core.role.served_text(document)
        if served is None or self.own_proposal:
            return None
        if served.published:
            self._core.loop.post(partial(self._core.command, commands.TellPublished(served.published)))
        text = await asyncio.to_thread(self._core.role.document, served)
        return Acceptance() if text == document else Proposal(text, SERVED)

    async def _implement(self, document: str, error: str) -> Implementation:
        return await (await self._get()).implement(document, error=error)

    async def _test(self, test_cases: str) -> Implementation | str:
        return await (await self._get()).test(test_cases)

    async def _draft_tests(self) -> Verdict | None:
        # Published code was fetched for the agreed text: its vectors were replayed when it was published.
        if not isinstance(self._core.protocol, NegotiatedProtocol):
            return None
        return await (await self._get()).draft_tests(self._core.document)

    async def _consider_tests(self, cases: str, summary: str, last: bool) -> Verdict:
        return await (await self._get()).consider_tests(cases, summary, last=last)

    async def _judge(self, description: str) -> FaultAdmitted | Rejection:
        if not isinstance(self._core.protocol, NegotiatedProtocol):
            return Rejection("This side's code was published and verified; it is not written in sessions.")
        return await (await self._get()).judge(description)

    async def _answer(self, question: str) -> str:
        try:
            negotiator = await self._get()
            self._core.role.begin_negotiation()
            return await negotiator.answer(question)
        except TreatyError as error:  # an unanswered question does not end the session
            _log.warning("A negotiator could not answer: %s (%s)", error, error.code)
            return NO_ANSWER

    def _propose(self, verdict: Verdict) -> commands.Command:
        match verdict:
            case Acceptance():
                return commands.Accept()
            case Rejection(reason):
                return commands.Reject(reason)
            case Proposal(text, summary):
                check_pinned(parse_candidate(text).base)  # an unpinned base of this side's own is its owner's fault
                self.own_proposal = text
                return commands.Propose(text, summary)

    # Asking

    def _decide(
        self,
        work: Callable[[], Awaitable[_T]],
        command: Callable[[_T], commands.Command],
        failed: Callable[[TreatyError], commands.Command],
    ) -> None:
        """Ask in a task, and give the machine the `command` for the verdict, or `failed` for the error of the negotiator."""

        async def ask() -> None:
            try:
                decision = command(await self._ask(work))
            except TreatyError as error:
                # The first failure is the cause; later ones follow from it.
                self._core.failure = self._core.failure or error
                decision = failed(error)
            self._core.loop.post(partial(self._core.command, decision))

        self._core.loop.spawn(ask())

    async def _ask(self, work: Callable[[], Awaitable[_T]]) -> _T:
        # The lock keeps the order of the wire; its tasks start in that order.
        async with self._turn:
            try:
                return await work()
            except TreatyError as error:
                _log.warning("A negotiator failed: %s (%s)", error, error.code)
                raise
            except Exception as error:
                _log.exception("A negotiator raised")
                raise Unavailable(SessionCode.INTERNAL, "This side's negotiator failed; its log says why.") from error

    async def _get(self) -> Negotiator:
        negotiator = await self._core.role.open_negotiator(self._core.peer)
        if negotiator is None:
            raise Refused(SessionCode.NO_MODEL, "This agent has no negotiator.", fix="Agent(…, negotiators=…)")
        return negotiator


def _reason(error: TreatyError) -> str:
    """Return the reason for the peer: the code of a failure that may pass, so that it knows to come again."""
    return f"{code_in(error.code)}: {NOT_NOW}" if isinstance(error, Unavailable) and error.code in _PASSING else NO_WORD


def _reject(error: TreatyError) -> commands.Command:
    later = error.retry_after if isinstance(error, Unavailable) else None
    return commands.Reject(_reason(error), None if later is None else min(max(1, math.ceil(later)), MAX_RETRY))


def _reject_tests(error: TreatyError) -> commands.Command:
    return commands.RejectTests(_reason(error))


def _tests_command(verdict: Verdict | None) -> commands.Command:
    match verdict:
        case None:
            return commands.SkipTests()
        case Acceptance():
            return commands.AcceptTests()
        case Rejection(reason):
            return commands.RejectTests(reason)
        case Proposal(text, summary):
            return commands.ProposeTests(text, summary)


def _fault_command(verdict: FaultAdmitted | Rejection) -> commands.Command:
    return commands.RejectError(verdict.reason) if isinstance(verdict, Rejection) else commands.AcceptError()


class PeerRequests:
    """This side's questions and error reports to the peer, of one session. `reported`: the number of errors reported so far."""

    def __init__(self, core: HelloCore) -> None:
        self.reported = 0
        self._core = core
        self._questions: dict[str, asyncio.Future[str]] = {}
        self._report: asyncio.Future[None] | None = None

    @property
    def awaits_repair(self) -> bool:
        """Whether a reported error is still open: neither accepted nor denied."""
        return self._report is not None

    async def ask(self, text: str) -> str:
        """See `session.Session.ask`."""
        self._core.check_open()
        message_id = secrets.token_urlsafe(12)  # 16 characters
        answer = self._questions[message_id] = abandonable()
        try:
            await self._core.tell(self._core.apply(commands.Ask(message_id, text)))
            return str(await answer)
        finally:
            del self._questions[message_id]

    def answered(self, message_id: str, text: str) -> None:
        """Set the answer to a question. An answer to no open question is ignored."""
        answer = self._questions.get(message_id)
        if answer is not None and not answer.done():
            answer.set_result(text)

    async def report_error(self, description: str) -> None:
        """See `session.Session.report_error`. Concurrent reports become one."""
        self._core.check_open()
        if self._report is None:
            await self.begin_report(description)
        if self._report is not None:
            await asyncio.shield(self._report)

    async def begin_report(self, description: str) -> None:
        """Report an error; `accept_fault` or `deny_fault` follows. Raises `Refused` (`session.profile`, also
        where there is no code yet), `Malformed`, `TooLarge`."""
        actions = self._core.apply(commands.ReportError(description[:MAX_DESCRIPTION]))
        if not actions:
            raise Refused(SessionCode.PROFILE, "The other side has no code to repair yet.")
        self.reported += 1
        self._report = abandonable()
        await self._core.tell(actions)

    def accept_fault(self) -> None:
        """Note that the peer repaired its code."""
        if self._report is not None:
            report, self._report = self._report, None
            report.set_result(None)

    def deny_fault(self, reason: str) -> Refused:
        """Note that the peer denies the fault, and return the error."""
        error = Refused(NegotiationCode.FAULT, f"The other side denies the fault: {printable(reason, 500)}")
        self._end_report(error)
        return error

    def end(self, error: TreatyError) -> None:
        """Fail all open questions and reports with the error that ended the session."""
        self._end_report(error)
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(error)

    def _end_report(self, error: TreatyError) -> None:
        if self._report is not None:
            report, self._report = self._report, None
            report.set_exception(error)


class TextChannel:
    """Natural language in one session. For one event loop."""

    def __init__(self, core: HelloCore) -> None:
        self._core = core
        # Not bounded itself: `is_readable` stops the reader at `MAX_TEXTS`.
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        self._over = False

    @property
    def is_readable(self) -> bool:
        """Whether more may be read from the peer."""
        return self._over or self._texts.qsize() < MAX_TEXTS

    def take(self, text: str) -> None:
        """Add a text of the peer. After the end it is dropped."""
        if not self._over:
            self._texts.put_nowait(text)

    def end(self) -> None:
        """End the channel. Listeners receive the remaining texts, then the iteration stops. Safe to repeat."""
        self._over = True
        self._texts.put_nowait(None)

    async def heard(self) -> AsyncIterator[str]:
        """Yield the texts of the peer, until the session ends."""
        while not (self._over and self._texts.empty()):
            text = await self._texts.get()
            self._core.loop.wake()
            if text is not None:
                yield text
        self._texts.put_nowait(None)  # for another listener

    async def say(self, text: str) -> None:
        """See `session.Session.say`."""
        await self._core.loop.wait_writable()
        await self._core.tell(self._core.apply(commands.Say(text)))

    async def answer(self, answerer: Answerer) -> None:
        """Answer the texts of the peer until the session ends. If the function raises, the text stays unanswered and the
        exception is logged."""
        peer = self._core.peer.did
        async for text in self.heard():
            try:
                answer = await answerer(text, peer)
                if answer:
                    await self.say(answer)
            except Exception:  # the application's function may raise anything; its text may be confidential
                _log.exception("Answering a text of %s raised", peer)
