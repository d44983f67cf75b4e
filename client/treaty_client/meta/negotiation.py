"""Talks: two sides take turns to propose a text, until one accepts what the other proposed last, or rejects it.

`Talks` is what agreeing on a protocol and agreeing on test cases have in common. Whoever begins proposes; then each answers the
other's proposal by another one, which says what it changed, by accepting or by rejecting. The messages of both sides are
counted: when so many have been said that nobody could accept a further proposal within the limit, only the last two answers are
left.

`ProtocolTalks` has the first message of a session that negotiates, and the sequence numbers. Each is one above the highest
said so far by either side; the first is 0. The official SDK counts from 1, whatever the other side does, so the first number of
either side may be one more than it should. It also repeats a terminal message that it receives, with its own last number: one
such repetition is taken no notice of. A rejection needs no proper number, as the SDK's has none when its model fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from treaty_consensus.errors import Malformed, Refused
from treaty_consensus.printable import printable

from .actions import Action, Consider, SendBinary
from .core import Core, State, say, unexpected
from .deadlines import Wait
from .messages import NegotiationStatus, ProtocolNegotiation

NO_MODEL = "This agent has no language model configured: it speaks the protocols that it provides, and negotiates none."
AT_THE_LIMIT = "No agreement was reached within the limit of messages."


class Talks(ABC):
    """One negotiation. Decisions of this side that are not due do nothing; messages of the peer that are not due raise."""

    state: ClassVar[State]
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
        """Whether they go on."""
        return self._open

    @property
    def waits_for_peer(self) -> bool:
        """Whether it is the other side's turn."""
        return self._open and not self._own_turn

    @property
    def _is_last(self) -> bool:
        """Whether the next proposal would be in vain, as nobody could accept it any more."""
        return self.said + 1 >= self._rounds

    def open(self, *, own_turn: bool, now: float) -> None:
        """Begin, or begin again."""
        self._open = True
        self._take_turns(own_turn, now)

    def propose(self, text: str, summary: str, now: float) -> list[Action]:
        """A first proposal, or one instead of the peer's. Ends the talks where it is one too many. Raises `Malformed` or
        `TooLarge` on a text that may not be sent; then nothing happened."""
        if not self._is_due():
            return []
        if self._is_last:
            return [self._say("rejected", None, AT_THE_LIMIT), *self._reach_limit()]
        if self.said and not summary:
            raise _no_summary()
        sent = self._say("negotiating", text, summary or None)
        self._own_text = text
        self._take_turns(False, now)
        return [sent]

    def accept(self, now: float) -> list[Action]:
        """The peer's proposal will do."""
        if not self._is_due() or self._peer_text is None:
            return []
        sent = self._say("accepted", self._peer_text, None)
        self._open = False
        return [sent, *self._agreed(self._peer_text, now)]

    def reject(self, reason: str) -> list[Action]:
        """There will be no agreement. Raises `TooLarge`; then nothing happened."""
        if not self._is_due():
            return []
        error = Refused(self.rejected, f"This side rejected the negotiation: {printable(reason, 500)}")
        return [self._say("rejected", None, reason or None), *self._core.end(State.REJECTED, error)]

    def _receive(self, status: NegotiationStatus, text: str | None, summary: str | None, now: float) -> list[Action]:
        """The peer's turn. Raises `TreatyError` where it breaks a rule."""
        if status == "rejected":
            said = f": {printable(summary, 500)}" if summary else "."
            return self._core.end(State.REJECTED, Refused(self.rejected, f"The other side rejected the negotiation{said}"))
        if self._own_turn:
            raise Refused("negotiation.turn", "It was not the other side's turn to say something.")
        if status == "accepted":
            return self._accepted(text, now)
        assert text is not None, "the message's parser saw to it"
        if self.said and summary is None:
            raise _no_summary()
        self.said += 1
        self._peer_text = text
        if self.said >= self._rounds:
            return self._reach_limit()
        self._take_turns(True, now)
        return [self._consider(text, summary or "", self._is_last)]

    def _accepted(self, text: str | None, now: float) -> list[Action]:
        if self._own_text is None:
            raise Refused("negotiation.turn", "The other side accepted what nobody proposed.")
        if text not in (None, self._own_text):
            raise _other_text()
        self.said += 1
        self._open = False
        return self._agreed(self._own_text, now)

    def _take_turns(self, own: bool, now: float) -> None:
        self._own_turn = own
        self._core.enter(self.state, Wait.DECISION if own else Wait.REPLY, now)

    def _is_due(self) -> bool:
        return self._open and self._own_turn and self._core.state is self.state

    def _say(self, status: NegotiationStatus, text: str | None, summary: str | None) -> SendBinary:
        sent = self._message(status, text, summary)
        self.said += 1
        return sent

    def _reach_limit(self) -> list[Action]:
        error = Refused("negotiation.limit", f"No agreement within {self._rounds} messages; a person may have to step in.")
        return self._core.end(State.REJECTED, error)

    @abstractmethod
    def _message(self, status: NegotiationStatus, text: str | None, summary: str | None) -> SendBinary:
        """The message that says this."""

    @abstractmethod
    def _consider(self, text: str, summary: str, last: bool) -> Action:
        """Have the peer's proposal judged."""

    @abstractmethod
    def _agreed(self, text: str, now: float) -> list[Action]:
        """Both sides agreed on a text."""


class Numbers:
    """The sequence numbers of one negotiation."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._seen = self._sent = -1

    @property
    def due(self) -> int:
        """The number of the next message."""
        return max(self._seen, self._sent) + 1

    def sent(self) -> None:
        """This side's next message had it."""
        self._sent = self.due

    def check(self, number: int) -> None:
        """Note the number of the peer's next message. Raises `Refused` (`negotiation.sequence`)."""
        due = self.due
        counts_from_one = self._seen < 0 and due <= 1 and number == due + 1
        holds = number == due or counts_from_one if self._strict else number > self._seen
        if not holds:
            raise Refused("negotiation.sequence", f"The sequence number {number} came where {due} was due.")
        self._seen = number


class ProtocolTalks(Talks):
    """The talks about a protocol. `agreed`: told the text and the time."""

    state = State.NEGOTIATING
    rejected = "negotiation.rejected"

    def __init__(self, core: Core, *, negotiates: bool, agreed: Callable[[str, float], list[Action]]) -> None:
        super().__init__(core, core.limits.rounds)
        self._negotiates, self._agree = negotiates, agreed
        self._numbers = Numbers(strict=core.limits.strict_sequence)
        self._may_repeat: str | None = None

    def accept(self, now: float) -> list[Action]:
        """See `Talks.accept`."""
        actions = super().accept(now)
        self._may_repeat = self._peer_text if actions else self._may_repeat
        return actions

    def receive(self, message: ProtocolNegotiation, now: float) -> list[Action]:
        """A message of the peer. Raises `TreatyError`."""
        if self._core.state is State.AGREED and message.status == "accepted" and self._may_repeat is not None:
            accepted, self._may_repeat = self._may_repeat, None
            if message.candidate_protocols not in (None, accepted):
                raise _other_text()
            return []
        if not self._open or self._core.state is not State.NEGOTIATING:
            raise unexpected("a protocolNegotiation message")
        if message.status != "rejected" and not self._own_turn:
            self._numbers.check(message.sequence_id)
        actions = self._receive(message.status, message.candidate_protocols, message.modification_summary, now)
        if self._negotiates or self._core.state is not State.NEGOTIATING:
            return actions
        error = Refused("session.no-model", "A protocol was proposed, and this agent has no language model configured.")
        return [self._say("rejected", None, NO_MODEL), *self._core.end(State.REJECTED, error)]

    def _message(self, status: NegotiationStatus, text: str | None, summary: str | None) -> SendBinary:
        sent = say(ProtocolNegotiation(self._numbers.due, status, text, summary))
        self._numbers.sent()
        return sent

    def _consider(self, text: str, summary: str, last: bool) -> Action:
        return Consider(text, summary, self.said, last)

    def _agreed(self, text: str, now: float) -> list[Action]:
        return self._agree(text, now)


def _no_summary() -> Malformed:
    return Malformed("negotiation.summary", "A proposal after the first one says in its summary what it changes.")


def _other_text() -> Refused:
    return Refused("negotiation.text", "The other side accepted another text than the one proposed to it.")
