"""What a session is waiting for, and until when."""

from __future__ import annotations

import math
from enum import StrEnum

from treaty_consensus.errors import TreatyError, Unavailable


class Wait(StrEnum):
    """What is waited for. The first six exclude each other: a session is in one phase. The last three go on beside it."""

    HELLO = "hello"
    CODE = "code"
    REPLY = "reply"
    DECISION = "decision"
    TESTS = "tests"
    IDLE = "idle"
    FIX = "fix"
    VERDICT = "verdict"
    QUESTION = "question"


_PHASES = (Wait.HELLO, Wait.CODE, Wait.REPLY, Wait.DECISION, Wait.TESTS, Wait.IDLE)
_PASSED = {
    Wait.HELLO: ("session.hello-timeout", "No Hello came within {:g} seconds."),
    Wait.CODE: ("session.code-timeout", "The code was not ready on both sides {:g} seconds after the agreement."),
    Wait.REPLY: ("session.reply-timeout", "The other side did not answer within {:g} seconds."),
    Wait.DECISION: ("session.reply-timeout", "This side came to no decision within {:g} seconds."),
    Wait.TESTS: ("session.reply-timeout", "This side's tests took over {:g} seconds."),
    Wait.IDLE: ("session.idle", "Nothing was said for {:g} seconds."),
    Wait.FIX: ("session.reply-timeout", "The other side did not answer to a reported error within {:g} seconds."),
    Wait.VERDICT: ("session.reply-timeout", "This side did not answer to a reported error within {:g} seconds."),
    Wait.QUESTION: ("session.reply-timeout", "The other side did not answer a question within {:g} seconds."),
}


class Deadlines:
    """One session's waits."""

    def __init__(self) -> None:
        self._until: dict[tuple[Wait, str], tuple[float, float]] = {}

    @property
    def next(self) -> float:
        """When the first of them is over; infinity where there is none."""
        return min((until for until, _ in self._until.values()), default=math.inf)

    def enter(self, phase: Wait, now: float, seconds: float) -> None:
        """A new phase begins, or the same one once more; the phase before is over."""
        for other in _PHASES:
            self._until.pop((other, ""), None)
        self._until[phase, ""] = (now + seconds, seconds)

    def is_in(self, phase: Wait) -> bool:
        """Whether this is the phase."""
        return (phase, "") in self._until

    def add(self, wait: Wait, now: float, seconds: float, name: str = "") -> None:
        """Wait for this too; `name` tells several of a kind apart."""
        self._until[wait, name] = (now + seconds, seconds)

    def drop(self, wait: Wait, name: str = "") -> None:
        """It came."""
        self._until.pop((wait, name), None)

    def clear(self) -> None:
        """Wait for nothing more."""
        self._until.clear()

    def passed(self, now: float) -> TreatyError | None:
        """Why the session is over at `now`, if it is."""
        if not self._until or now < self.next:
            return None
        (wait, _), (_, seconds) = min(self._until.items(), key=lambda item: item[1][0])
        code, sentence = _PASSED[wait]
        return Unavailable(code, sentence.format(seconds))
