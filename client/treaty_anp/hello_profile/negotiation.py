"""The negotiations of a Hello session: about a protocol, its test cases, and anything else in questions and answers.

`ProposalExchange`: two sides take turns to propose a text, until one accepts the other's last proposal, or rejects it. The first
side proposes; then each answers by another proposal with a summary of its changes, by accepting, or by rejecting. The messages of
both sides are counted. Where no further proposal could be accepted within the limit, only accepting and rejecting are left.

`ProtocolExchange` is about the protocol document, and has sequence numbers: see `Numbers`. The official SDK repeats an acceptance
that it receives, with its own last number; one such repetition is ignored. A rejection ends the session in every state, and its
number is not checked, as the SDK sends none when its model fails.

`TestExchange` is about test cases, and has no numbers. The initiator begins, once both codes are ready. The responder does not
know whether test cases come: it is running, and the first testCasesNegotiation takes it back, unless an application message
came first. Once test cases are agreed on, each side runs them, and is running as soon as its own pass.

`Questions`: either side may ask a limited number in natural language, at any time after the Hellos. An answer has its question's
messageId; each id is used once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.printable import printable
from treaty_io.codes import NegotiationCode, SessionCode
from treaty_io.errors import code_in

from ..ending import refused_by_peer
from .actions import Action, Answered, Consider, ConsiderTests, DraftTests, Question, SendBinary, Test
from .core import Core, say, unexpected
from .hello import NATURAL_LANGUAGE_NEGOTIATION, TEST_CASES_NEGOTIATION
from .messages import NaturalLanguageNegotiation, NegotiationStatus, ProtocolNegotiation, TestCasesNegotiation
from .states import Event, HelloState, Wait

NO_MODEL = "This agent has no language model configured: it speaks the protocols that it provides, and negotiates none."
AT_THE_LIMIT = "No agreement was reached within the limit of messages."
# Characters of a reason for the peer. Well below the cap of a summary, in every alphabet.
MAX_REASON = 2000


class ProposalExchange(ABC):
    """One negotiation about a text. Decisions of this side that are not due do nothing; messages of the peer that are not due
    raise.

    `state`: the session's, while it goes on. `own_turn`, `peer_turn`: the events that pass the turn. `rejected`: the code of a
    rejection. `said`: how many messages there were.
    """

    state: ClassVar[HelloState]
    own_turn: ClassVar[Event]
    peer_turn: ClassVar[Event]
    rejected: ClassVar[str]

    def __init__(self, core: Core, rounds: int) -> None:
        self._core, self._rounds = core, rounds
        self.said = 0
        self._own_turn = False
        self._open = False
        self._own_text: str | None = None
        self._peer_text: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self._open

    @property
    def waits_for_peer(self) -> bool:
        """Whether it is the other side's turn."""
        return self._open and not self._own_turn

    @property
    def _is_last(self) -> bool:
        """Whether a further proposal could not be accepted within the limit."""
        return self.said + 1 >= self._rounds

    def open(self, event: Event, now: float) -> None:
        """Begin by an event that gives one side the turn."""
        self._open, self._own_turn = True, event is self.own_turn
        self._core.fire(event, now)

    def propose(self, text: str, summary: str, now: float) -> list[Action]:
        """Propose a first text, or one instead of the peer's. Ends the session where it is one too many. Raises `Malformed` or
        `TooLarge` on a text that may not be sent; then nothing happened."""
        if not self._is_due():
            return []
        if self._is_last:
            return self._reach_limit()
        if self.said and not summary:
            raise Malformed(NegotiationCode.ANSWER, "A proposal after the first one says in its summary what it changes.")
        sent = self._say("negotiating", text, summary or None)
        # Noted only once the message could be encoded: a refused text was never proposed.
        self._own_text = text
        self._pass_turn(False, now)
        return [sent]

    def accept(self, now: float) -> list[Action]:
        """Accept the peer's proposal."""
        if not self._is_due() or self._peer_text is None:
            return []
        sent = self._say("accepted", self._peer_text, None)
        self._open = False
        return [sent, *self._agreed(self._peer_text, now)]

    def reject(self, reason: str, retry_after: int | None = None) -> list[Action]:
        """Reject the peer's proposal, and with it any agreement. `retry_after`: see `commands.Reject`. Raises `TooLarge`; then
        nothing happened."""
        if not self._is_due():
            return []
        error = Refused(self.rejected, f"This side rejected the negotiation: {printable(reason, 500)}")
        return [self._say("rejected", None, reason or None, retry_after), *self._core.end(Event.NOT_AGREED, error)]

    def _receive(
        self, status: NegotiationStatus, text: str | None, summary: str | None, now: float, retry_after: int | None = None
    ) -> list[Action]:
        """Take a message of the peer. Raises `TreatyError` where it breaks a rule."""
        if status == "rejected":
            return self._core.end(Event.NOT_AGREED, self._rejection(summary, retry_after))
        if self._own_turn:
            raise Refused(NegotiationCode.MESSAGE, "It was not the other side's turn to say something.")
        if status == "accepted":
            return self._accepted(text, now)
        assert text is not None, "the message's parser saw to it"
        # A summary is due after the first proposal. The official SDK may leave it out, and the text says everything.
        self.said += 1
        self._peer_text = text
        if self.said >= self._rounds:
            return self._reach_limit()
        # After the check of the limit: a proposal that could never be accepted is not considered.
        self._pass_turn(True, now)
        return [self._consider(text, summary or "", self._is_last)]

    def _accepted(self, text: str | None, now: float) -> list[Action]:
        if self._own_text is None:
            raise Refused(NegotiationCode.MESSAGE, "The other side accepted a text that was not proposed.")
        # To the byte: the hash of the agreed text must be the same on both sides.
        if text not in (None, self._own_text):
            raise _other_text()
        self.said += 1
        self._open = False
        return self._agreed(self._own_text, now)

    def _rejection(self, summary: str | None, retry_after: int | None = None) -> TreatyError:
        """Return the error for a rejection of the peer."""
        reason = f": {printable(summary, 500)}" if summary else "."
        error = Refused(self.rejected, f"The other side rejected the negotiation{reason}")
        error.peer_code = code_in(summary or "")
        return error

    def _pass_turn(self, own: bool, now: float) -> None:
        self._own_turn = own
        self._core.fire(self.own_turn if own else self.peer_turn, now)

    def _is_due(self) -> bool:
        return self._open and self._own_turn and self._core.state is self.state

    def _say(
        self, status: NegotiationStatus, text: str | None, summary: str | None, retry_after: int | None = None
    ) -> SendBinary:
        sent = self._message(status, text, summary, retry_after)
        self.said += 1
        return sent

    def _reach_limit(self) -> list[Action]:
        # Said even if it is one message beyond the limit: a peer without a limit of its own would wait for an answer.
        last = self._say("rejected", None, AT_THE_LIMIT)
        error = Refused(NegotiationCode.LIMIT, f"No agreement within {self._rounds} messages; a person may have to step in.")
        return [last, *self._core.end(Event.NOT_AGREED, error)]

    @abstractmethod
    def _message(self, status: NegotiationStatus, text: str | None, summary: str | None, retry_after: int | None) -> SendBinary:
        """Make the message."""

    @abstractmethod
    def _consider(self, text: str, summary: str, last: bool) -> Action:
        """Make the action that has the peer's proposal judged."""

    @abstractmethod
    def _agreed(self, text: str, now: float) -> list[Action]:
        """Go on with the agreed text."""


class Numbers:
    """The sequence numbers of one negotiation.

    This side counts every message: the first is 0, each further one is one above the highest of either side so far. The source
    can be read in other ways, and a peer may count its own messages, or the rounds, from 0 or from 1. All these are told apart
    from an error: the first number of a peer is 0, or at most one above the number due (the official SDK counts from 1); each
    further one is the number due, or one above the peer's last.
    """

    def __init__(self) -> None:
        self._seen = self._sent = -1

    @property
    def due(self) -> int:
        """The number of the next message."""
        return max(self._seen, self._sent) + 1

    def sent(self) -> None:
        """Note that this side used the next number."""
        self._sent = self.due

    def check(self, number: int) -> None:
        """Note the number of the peer's next message. Raises `Refused` (`negotiation.message`)."""
        due = self.due
        if number not in (range(due + 2) if self._seen < 0 else (due, self._seen + 1)):
            raise Refused(NegotiationCode.MESSAGE, f"The sequence number {number} came where {due} was due.")
        self._seen = number


class ProtocolExchange(ProposalExchange):
    """The negotiation of the protocol document.

    `negotiates`: whether this side has a negotiator. Without one it accepts a text that `is_provided`, and rejects others.
    `agreed`: called with the text and the time.
    """

    state, own_turn, peer_turn = HelloState.NEGOTIATING, Event.OWN_TURN, Event.PEER_TURN
    rejected = NegotiationCode.REJECTED

    def __init__(
        self,
        core: Core,
        *,
        negotiates: bool,
        is_provided: Callable[[str], bool],
        agreed: Callable[[str, float], list[Action]],
    ) -> None:
        super().__init__(core, core.limits.rounds)
        self._negotiates, self._is_provided, self._agree = negotiates, is_provided, agreed
        self._numbers = Numbers()
        self._may_repeat: str | None = None

    def accept(self, now: float) -> list[Action]:
        """See `ProposalExchange.accept`."""
        actions = super().accept(now)
        self._may_repeat = self._peer_text if actions else self._may_repeat
        return actions

    def receive(self, message: ProtocolNegotiation, now: float) -> list[Action]:
        """Take a message of the peer. Raises `TreatyError`."""
        if self._core.state is HelloState.AGREED and message.status == "accepted" and self._may_repeat is not None:
            accepted, self._may_repeat = self._may_repeat, None
            if message.candidate_protocols not in (None, accepted):
                raise _other_text()
            return []
        if message.status == "rejected" and self._core.state is not HelloState.NEGOTIATING:
            return self._core.end(Event.FAILED, self._rejection(message.modification_summary, message.retry_after))
        if not self._open or self._core.state is not HelloState.NEGOTIATING:
            raise unexpected("a protocolNegotiation message")
        if message.status != "rejected" and not self._own_turn:
            self._numbers.check(message.sequence_id)
        actions = self._receive(
            message.status, message.candidate_protocols, message.modification_summary, now, message.retry_after
        )
        if self._negotiates or self._core.state is not HelloState.NEGOTIATING:
            return actions
        if self._is_provided(self._peer_text or ""):
            return self.accept(now)
        error = Refused(SessionCode.NO_MODEL, "A protocol was proposed, and this agent has no language model configured.")
        return [self._say("rejected", None, NO_MODEL), *self._core.end(Event.NOT_AGREED, error)]

    def refusal(self, reason: str) -> SendBinary:
        """Return the rejection that ends a negotiation in which a rule was broken or a deadline passed. Every peer understands
        it: protocolNegotiation is no optional capability."""
        return self._say("rejected", None, reason[:MAX_REASON])

    def _message(self, status: NegotiationStatus, text: str | None, summary: str | None, retry_after: int | None) -> SendBinary:
        sent = say(ProtocolNegotiation(self._numbers.due, status, text, summary, retry_after))
        self._numbers.sent()
        return sent

    def _rejection(self, summary: str | None, retry_after: int | None = None) -> TreatyError:
        """Return the error for a rejection of the peer: `PeerUnavailable` if its reason may pass."""
        refused = super()._rejection(summary)
        error = refused_by_peer(self.rejected, refused.message, summary or "")
        error.retry_after = retry_after if error.retryable else None
        return error

    def _consider(self, text: str, summary: str, last: bool) -> Action:
        return Consider(text, summary, self.said, last)

    def _agreed(self, text: str, now: float) -> list[Action]:
        return self._agree(text, now)


class TestExchange(ProposalExchange):
    """The negotiation of test cases, and the time in which they are run. `run`: called with the event by which the session
    runs."""

    __test__ = False  # pytest would collect the class by its name
    state, own_turn, peer_turn = HelloState.TESTING, Event.OWN_TESTS_TURN, Event.PEER_TESTS_TURN
    rejected = NegotiationCode.TESTS

    def __init__(self, core: Core, *, wanted: bool, run: Callable[[Event, float], list[Action]]) -> None:
        super().__init__(core, core.limits.test_rounds)
        self._wanted, self._run = wanted, run
        self._may_begin = True
        self.agreed: str | None = None

    @property
    def may_come(self) -> bool:
        """Whether a responder that is running may yet be asked to test."""
        if self._core.is_initiator or self._core.is_natural:
            return False
        return self._may_begin and self._core.both_list(TEST_CASES_NEGOTIATION)

    @property
    def are_due(self) -> bool:
        """Whether this side runs the agreed test cases now."""
        return self._core.state is HelloState.TESTING and self.agreed is not None

    def begin(self, now: float) -> list[Action]:
        """Test, or run, as both codes are ready."""
        if self.agreed is not None:
            return self._test(self.agreed, now)
        if self._core.is_initiator and self._wanted and self._may_begin and self._core.both_list(TEST_CASES_NEGOTIATION):
            self._may_begin = False
            self.open(Event.OWN_TESTS_TURN, now)
            return [DraftTests()]
        return self._run(Event.CODES_READY, now)

    def never(self) -> None:
        """Expect no test cases: a hash was confirmed, or an application message came first."""
        self._may_begin = False

    def skip(self, now: float) -> list[Action]:
        """Run without test cases, before any was proposed."""
        if not self._is_due() or self.said:
            return []
        self._open = False
        return self._run(Event.TESTS_SKIPPED, now)

    def passed(self, now: float) -> list[Action]:
        """Run, as this side's code passed them."""
        return self._run(Event.TESTS_PASSED, now) if self.are_due else []

    def receive(self, message: TestCasesNegotiation, now: float) -> list[Action]:
        """Take a message of the peer. Raises `TreatyError`."""
        self._core.require(TEST_CASES_NEGOTIATION)
        if self._core.allows(Event.TESTS_PROPOSED):
            self.open(Event.TESTS_PROPOSED, now)
            self._may_begin = False
        if not self._open or self._core.state is not HelloState.TESTING:
            raise unexpected("a testCasesNegotiation message")
        return self._receive(message.status, message.test_cases, message.modification_summary, now)

    def _message(self, status: NegotiationStatus, text: str | None, summary: str | None, retry_after: int | None) -> SendBinary:
        return say(TestCasesNegotiation(status, text, summary))

    def _consider(self, text: str, summary: str, last: bool) -> Action:
        return ConsiderTests(text, summary, last)

    def _agreed(self, text: str, now: float) -> list[Action]:
        self.agreed = text
        return self._test(text, now)

    def _test(self, text: str, now: float) -> list[Action]:
        self._core.fire(Event.TESTS_DUE, now)
        return [Test(text)]


class Questions:
    """The questions of one session. Bounded, as each keeps its id until the session ends."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asked: dict[str, bool] = {}
        self._received: dict[str, bool] = {}

    def ask(self, message_id: str, text: str, now: float) -> list[Action]:
        """Ask the peer. Raises `Refused` (`session.profile`, `negotiation.too-many`, `negotiation.message`), `Malformed` or
        `TooLarge`; then nothing happened."""
        self._core.require(NATURAL_LANGUAGE_NEGOTIATION)
        sent = say(NaturalLanguageNegotiation("REQUEST", message_id, text))
        self._open(self._asked, message_id)
        self._core.wait_for(Wait.QUESTION, now, message_id)
        self._core.fire_if_allowed(Event.ACTIVITY, now)
        return [sent]

    def answer(self, message_id: str, text: str, now: float) -> list[Action]:
        """Answer the peer; does nothing where no such question is open. Raises `Malformed` or `TooLarge`; then nothing
        happened."""
        if not self._received.get(message_id):
            return []
        sent = say(NaturalLanguageNegotiation("RESPONSE", message_id, text))
        self._received[message_id] = False
        self._core.fire_if_allowed(Event.ACTIVITY, now)
        return [sent]

    def receive(self, message: NaturalLanguageNegotiation) -> list[Action]:
        """Take a message of the peer. Raises `TreatyError`."""
        self._core.require(NATURAL_LANGUAGE_NEGOTIATION)
        if message.type == "REQUEST":
            self._open(self._received, message.message_id)
            return [Question(message.message_id, message.message)]
        if not self._asked.get(message.message_id):
            raise unexpected("the answer to a question that was not asked")
        self._asked[message.message_id] = False
        self._core.deadlines.drop(Wait.QUESTION, message.message_id)
        return [Answered(message.message_id, message.message)]

    def _open(self, questions: dict[str, bool], message_id: str) -> None:
        if message_id in questions:
            raise Refused(NegotiationCode.MESSAGE, "A question has a messageId of its own.")
        if len(questions) >= self._core.limits.questions:
            raise Refused(NegotiationCode.TOO_MANY, f"A side may ask {self._core.limits.questions} questions in a session.")
        # Kept for the whole session: an id that came again could be answered by an old answer.
        questions[message_id] = True


def _other_text() -> Refused:
    return Refused(NegotiationCode.MESSAGE, "The other side accepted another text than the one proposed to it.")
