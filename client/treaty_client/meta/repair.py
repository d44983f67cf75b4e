"""Errors that one side finds in the other's messages, and what becomes of them.

Either side may report an error once both codes are ready, one at a time; both may have one open. The side that is accused
accepts and gets its code ready anew, for which both go back to AGREED, or rejects and says why, and all goes on as it was. Each
side may report so many errors in a session, and the next one ends it.

The same message is the last word to a peer that broke a rule of the meta-protocol itself: an error report, before the
connection is closed. Where there is no code yet to be mended, whoever receives one ends too.
"""

from __future__ import annotations

from treaty_consensus.errors import Refused, TreatyError

from .actions import Action, ConsiderError, ErrorRejected, SendBinary
from .core import Core, State, say, unexpected
from .deadlines import Wait
from .generation import Generation
from .hello import FIX_ERROR_NEGOTIATION
from .messages import FixErrorNegotiation


class Repairs:
    """One session's."""

    def __init__(self, core: Core, generation: Generation) -> None:
        self._core, self._generation = core, generation
        self._reported = self._received = 0
        self._own_open = self._peer_open = False
        self._description = ""

    @property
    def waits_for_peer(self) -> bool:
        """Whether an error that this side reported is unanswered."""
        return self._own_open

    def report(self, description: str, now: float) -> list[Action]:
        """The other side's messages are wrong. Does nothing while an earlier report is open. Raises `Malformed` or `TooLarge`;
        then nothing happened."""
        if self._own_open:
            return []
        sent = say(FixErrorNegotiation("negotiating", description))
        if self._reported >= self._core.limits.fix_rounds:
            return self._reach_limit()
        self._reported += 1
        self._own_open = True
        self._core.deadlines.add(Wait.FIX, now, self._core.timeouts.reply)
        self._keep_time(now)
        return [sent]

    def accept(self, now: float) -> list[Action]:
        """This side's code is at fault."""
        if not self._peer_open:
            return []
        self._close_peers()
        return [say(FixErrorNegotiation("accepted", "")), *self._generation.mend(self._description, now)]

    def reject(self, reason: str, now: float) -> list[Action]:
        """This side's code is not at fault. Raises `Malformed` (without a reason) or `TooLarge`; then nothing happened."""
        if not self._peer_open:
            return []
        sent = say(FixErrorNegotiation("rejected", reason))
        self._close_peers()
        self._keep_time(now)
        return [sent]

    def receive(self, message: FixErrorNegotiation, now: float, *, mendable: bool) -> list[Action]:
        """A message of the peer. `mendable`: this side has code to mend. Raises `TreatyError`."""
        self._core.require(FIX_ERROR_NEGOTIATION)
        if message.status == "negotiating":
            return self._accused(message.error_description, now, mendable)
        if not self._own_open:
            raise unexpected("the answer to an error that was not reported")
        self._own_open = False
        self._core.deadlines.drop(Wait.FIX)
        if message.status == "rejected":
            self._keep_time(now)
            return [ErrorRejected(message.error_description)]
        self._generation.wait_for_mended(now)
        return []

    def notice(self, error: TreatyError) -> list[SendBinary]:
        """The last word to a peer that broke a rule, where it would understand."""
        if not self._core.both_list(FIX_ERROR_NEGOTIATION):
            return []
        return [say(FixErrorNegotiation("negotiating", f"{error.code}: {error.message}"[:2000]))]

    def _accused(self, description: str, now: float, mendable: bool) -> list[Action]:
        if not mendable:
            error = Refused("negotiation.nonconforming", f"The other side refused a message of this side: {description[:500]!a}")
            return self._core.end(State.ERROR, error)
        if self._peer_open:
            raise unexpected("a second error report before the first one was answered")
        if self._received >= self._core.limits.fix_rounds:
            return self._reach_limit()
        self._received += 1
        self._peer_open, self._description = True, description
        self._core.deadlines.add(Wait.VERDICT, now, self._core.timeouts.reply)
        return [ConsiderError(description)]

    def _keep_time(self, now: float) -> None:
        """A running session was not idle, and one that is tested gets its time anew."""
        self._core.touch(now)
        if self._core.deadlines.is_in(Wait.TESTS):
            self._core.enter(State.TESTING, Wait.TESTS, now)

    def _close_peers(self) -> None:
        self._peer_open = False
        self._core.deadlines.drop(Wait.VERDICT)

    def _reach_limit(self) -> list[Action]:
        rounds = self._core.limits.fix_rounds
        return self._core.end(State.ERROR, Refused("negotiation.fix-limit", f"More than {rounds} errors were reported."))
