"""Questions and answers in natural language, about whatever the predefined messages cannot say (naturalLanguageNegotiation).

Either side may ask so many in a session, at any time after the Hellos. An answer has its question's messageId; an id asks once.
"""

from __future__ import annotations

from treaty_consensus.errors import Refused

from .actions import Action, Answered, Question
from .core import Core, say, unexpected
from .deadlines import Wait
from .hello import NATURAL_LANGUAGE_NEGOTIATION
from .messages import NaturalLanguageNegotiation


class Questions:
    """One session's."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asked: dict[str, bool] = {}
        self._received: dict[str, bool] = {}

    def ask(self, message_id: str, text: str, now: float) -> list[Action]:
        """Ask the peer. Raises `Refused` (`meta.not-agreed`, `question.limit`, `question.repeated`), `Malformed` or `TooLarge`;
        then nothing happened."""
        self._core.require(NATURAL_LANGUAGE_NEGOTIATION)
        sent = say(NaturalLanguageNegotiation("REQUEST", message_id, text))
        self._open(self._asked, message_id)
        self._core.deadlines.add(Wait.QUESTION, now, self._core.timeouts.reply, message_id)
        self._core.touch(now)
        return [sent]

    def answer(self, message_id: str, text: str, now: float) -> list[Action]:
        """Answer the peer; does nothing where no such question is open. Raises `Malformed` or `TooLarge`; then nothing
        happened."""
        if not self._received.get(message_id):
            return []
        sent = say(NaturalLanguageNegotiation("RESPONSE", message_id, text))
        self._received[message_id] = False
        self._core.touch(now)
        return [sent]

    def receive(self, message: NaturalLanguageNegotiation) -> list[Action]:
        """A message of the peer. Raises `TreatyError`."""
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
            raise Refused("question.repeated", "A question has a messageId of its own.")
        if len(questions) >= self._core.limits.questions:
            raise Refused("question.limit", f"A side may ask {self._core.limits.questions} questions in a session.")
        questions[message_id] = True
