"""The code on both sides of a Hello session, and its repair.

`Generation`: each side gets its code ready and says so by codeGeneration, once after an agreement and once more after each
repair. A confirmed hash needs no message, as both sides had the code when they offered and confirmed it: the session is running
at once, and waits only for this side's code.

`Repairs`: once both codes are ready, either side may report an error in the other's messages, one at a time; both may have one
open. The accused side accepts and gets its code ready anew, for which both go back to AGREED; or it rejects with a reason, and
the session goes on. Each side may report a limited number; one more ends the session. The same message is the last one to a
peer that broke a rule of the meta-protocol itself, before the connection is closed. A receiver without code to repair ends as
well.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.printable import printable
from treaty_io.codes import NegotiationCode, SessionCode
from treaty_io.errors import code_in

from ..ending import refused_by_peer
from .actions import Action, Agreement, ConsiderError, ErrorRejected, Load, SendBinary
from .core import Core, say, unexpected
from .hello import FIX_ERROR_NEGOTIATION
from .messages import CodeGeneration, FixErrorNegotiation
from .states import Event, Wait


class Generation:
    """Whether the codes are ready. `own`, `peer`: this side's and the other's; `was_ready`: both were, once. `heard_from_peer`:
    it said so, or spoke the protocol. `both_ready`: called with the time once they are."""

    def __init__(self, core: Core, *, both_ready: Callable[[float], list[Action]]) -> None:
        self._core, self._both_ready = core, both_ready
        self.own = self.peer = False
        self.was_ready = False
        self.heard_from_peer = False
        self._announces = True

    @property
    def drops_early_data(self) -> bool:
        """Whether a PT=01 frame now is one that the initiator sent because of a hash that was not confirmed."""
        peer, agreement = self._core.peer, self._core.agreement
        offered = peer.used_protocol_hash if peer and not self._core.is_initiator else None
        confirmed = agreement is not None and agreement.confirmed
        return offered is not None and not confirmed and not self.heard_from_peer

    def begin(self, event: Event, agreement: Agreement, now: float) -> list[Action]:
        """Get the code of an agreement, after the event that made it."""
        self._core.agree(agreement)
        self.peer = agreement.confirmed
        # After a confirmed hash the other side runs already and expects no codeGeneration.
        self._announces = not agreement.confirmed
        self._core.fire(event, now)
        return [Load(agreement)]

    def note_message(self) -> None:
        """Note that the peer spoke the protocol."""
        self.heard_from_peer = True

    def ready(self, protocol_hash: str, now: float) -> list[Action]:
        """Note that this side's code is ready, for the document of this hash."""
        agreement = self._core.agreement
        if self.own or agreement is None or self._core.is_natural or self._core.is_final:
            return []
        # None: the destination did not say the hash of its selection. Otherwise both must speak the same document.
        if agreement.protocol_hash not in (None, protocol_hash):
            what = agreement.uri or "The agreed text"
            return self.failed(Refused(SessionCode.HASH_MISMATCH, f"{what} has another hash than what was agreed on."))
        self._core.agree(structs.replace(agreement, protocol_hash=protocol_hash))
        self.own = True
        announced: list[Action] = [say(CodeGeneration("generated"))] if self._announces else []
        return [*announced, *(self._go_on(now) if self.peer else [])]

    def failed(self, error: TreatyError) -> list[Action]:
        """Tell the peer that this side's code cannot be made, and end."""
        if self._core.is_final:
            return []
        # Not for want of room: the code is at no fault, and the reason of the close tells the peer to try again.
        agreed = self._core.agreement is not None and not self._core.is_natural and error.code != SessionCode.BUSY
        # The code alone: the message may name things of this machine.
        messages = [say(CodeGeneration("error", code_in(error.code)))] if agreed else []
        return [*messages, *self._core.end(Event.FAILED, error)]

    def receive(self, message: CodeGeneration, now: float) -> list[Action]:
        """Take a message of the peer. Raises `Refused` (`meta.message`) without an agreement."""
        if message.status == "error":
            why = f": {message.reason}." if message.reason else "."
            sentence = f"The other side could not get the protocol's code ready{why}"
            error = refused_by_peer(SessionCode.PEER_CODE, sentence, message.reason)
            return self._core.end(Event.FAILED, error)
        if self._core.agreement is None or self._core.is_natural:
            raise unexpected("a codeGeneration message")
        self.heard_from_peer = True
        first, self.peer = not self.peer, True
        return self._go_on(now) if first and self.own else []

    def regenerate(self, error: str, now: float) -> list[Action]:
        """Get this side's code ready anew, as it is at fault."""
        assert self._core.agreement is not None
        # A repair is announced also after a confirmed hash, as the other side now waits for it.
        self.own, self._announces = False, True
        self._core.fire(Event.FAULT_ACCEPTED, now)
        return [Load(self._core.agreement, error)]

    def wait_for_regenerated(self, now: float) -> None:
        """Wait for the other side's code, as it is at fault."""
        self.peer = False
        self._core.fire(Event.FAULT_ACCEPTED, now)

    def _go_on(self, now: float) -> list[Action]:
        self.was_ready = True
        return self._both_ready(now)


class Repairs:
    """The error reports of one session."""

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
        """Report that the other side's messages are wrong. Does nothing while an earlier report is open. Raises `Malformed` or
        `TooLarge`; then nothing happened."""
        if self._own_open:
            return []
        sent = say(FixErrorNegotiation("negotiating", description))
        # Encoded above, before anything is counted: a report that cannot be sent changes nothing.
        if self._reported >= self._core.limits.fix_rounds:
            return self._reach_limit()
        self._reported += 1
        self._own_open = True
        # Beside the phase, as both sides may report at the same time.
        self._core.wait_for(Wait.FIX, now)
        self._keep_time(now)
        return [sent]

    def accept(self, now: float) -> list[Action]:
        """Accept the peer's report: this side's code is at fault."""
        if not self._peer_open:
            return []
        self._close_peers()
        return [say(FixErrorNegotiation("accepted", "")), *self._generation.regenerate(self._description, now)]

    def reject(self, reason: str, now: float) -> list[Action]:
        """Reject the peer's report: this side's code is not at fault. Raises `Malformed` (without a reason) or `TooLarge`; then
        nothing happened."""
        if not self._peer_open:
            return []
        sent = say(FixErrorNegotiation("rejected", reason))
        self._close_peers()
        self._keep_time(now)
        return [sent]

    def receive(self, message: FixErrorNegotiation, now: float, *, repairable: bool) -> list[Action]:
        """Take a message of the peer. `repairable`: this side has code to repair. Raises `TreatyError`."""
        self._core.require(FIX_ERROR_NEGOTIATION)
        if message.status == "negotiating":
            return self._accused(message.error_description, now, repairable)
        if not self._own_open:
            raise unexpected("the answer to an error that was not reported")
        self._own_open = False
        self._core.deadlines.drop(Wait.FIX)
        if message.status == "rejected":
            self._keep_time(now)
            return [ErrorRejected(message.error_description)]
        self._generation.wait_for_regenerated(now)
        return []

    def notice(self, reason: str) -> list[SendBinary]:
        """The last message to a peer that broke a rule, if it lists the capability."""
        if not self._core.both_list(FIX_ERROR_NEGOTIATION):
            return []
        return [say(FixErrorNegotiation("negotiating", reason[:2000]))]

    def _accused(self, description: str, now: float, repairable: bool) -> list[Action]:
        # Also the last notice of a peer to which this side broke a rule: it is shown to the owner, and no model is asked.
        if not repairable:
            description_text = printable(description, 500)
            error = Refused(NegotiationCode.FAULT, f"The other side refused a message of this side: {description_text}")
            error.peer_code = code_in(description)
            return self._core.end(Event.FAILED, error)
        if self._peer_open:
            raise unexpected("a second error report before the first one was answered")
        if self._received >= self._core.limits.fix_rounds:
            return self._reach_limit()
        self._received += 1
        # Kept for the repair: the negotiator gets it together with the order to write anew.
        self._peer_open, self._description = True, description
        self._core.wait_for(Wait.VERDICT, now)
        return [ConsiderError(description)]

    def _keep_time(self, now: float) -> None:
        """Renew the wait of a running session, or of one whose tests are run."""
        self._core.fire_if_allowed(Event.ACTIVITY, now)
        self._core.fire_if_allowed(Event.FAULT_RAISED, now)

    def _close_peers(self) -> None:
        self._peer_open = False
        self._core.deadlines.drop(Wait.VERDICT)

    def _reach_limit(self) -> list[Action]:
        rounds = self._core.limits.fix_rounds
        return self._core.end(Event.FAILED, Refused(NegotiationCode.TOO_MANY, f"More than {rounds} errors were reported."))
