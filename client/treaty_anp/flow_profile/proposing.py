"""Take the initiator's steps for one protocol: propose it, offer parameters, confirm, or give it up.

`initiator` decides which step is next. For example, `_propose_next` proposes the best candidate that is left, with the one after
it as the fallback.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treaty_consensus.errors import Malformed, TooLarge, TreatyError
from treaty_io.codes import FlowCode

from ..hello_profile.hello import REPORT_COSIGNATURE
from . import parameters as rules
from .actions import Action, Host, RenegotiationFailed, SendMessage, Shortcut, Track, check_rounds
from .capabilities import FlowRequest
from .core import INITIATOR_ROLE, PROTOCOL_HASH
from .errors import ABORT, ErrorCode, report
from .machine import NegotiationEngine
from .messages import FlowMessage, format_time
from .payloads import ParameterNegotiation, Payload, Proposed, ProtocolConfirmation, ProtocolProposal, parse_protocol_id
from .processor import Now
from .states import FlowEvent, TrackEvent, TrackState
from .strategy import Evaluation
from .transfer import BYTE_FORM


@dataclass(kw_only=True)
class ProposingEngine(NegotiationEngine):
    """The initiator's steps. `count`: the number of protocols to agree on."""

    goal: FlowRequest
    count: int = 1
    shortcut: Shortcut | None = None
    ranking: list[Evaluation] = field(default_factory=list)
    _candidates: list[Evaluation] = field(default_factory=list)
    _proposals: int = 0
    _superseded: set[str] = field(default_factory=set)

    @abstractmethod
    def _begin(self, now: Now) -> list[Action]:
        """Begin the full negotiation."""

    def _propose_next(self, now: Now, renegotiates: str = "") -> list[Action]:
        # Bounded, because a responder may reject each one slowly.
        if not self._candidates or self._proposals >= self.limits.proposals:
            return []
        best = self._candidates.pop(0)
        self._proposals += 1
        # In a batch the next one is proposed itself, so it is no fallback.
        fallback = self._candidates[0] if self._candidates and self.count == 1 else None
        track = self._track(best.id, TrackState.PROPOSED, now, renegotiates)
        track.digest = best.digest
        return [self._propose(track, best, fallback)]

    def _propose(self, track: Track, judged: Evaluation | None, fallback: Evaluation | None) -> SendMessage:
        track.required = self.goal.required
        track.fallback = fallback.id if fallback else ""
        proposal = ProtocolProposal(
            proposed_protocol=self._proposed(track.protocol, judged),
            fallback_protocol=self._proposed(fallback.id, fallback) if fallback else None,
        )
        return self._ask(track, proposal)

    def _proposed(self, id: str, judged: Evaluation | None) -> Proposed:
        shared = judged.capabilities if judged else ()
        optional = tuple(name for name in shared if name not in self.goal.required)
        return Proposed(id, parse_protocol_id(id).version, self.goal.required, optional, judged.rationale if judged else "")

    def _fall_back(self, track: Track, now: Now) -> Track:
        """Continue with the fallback, which the responder has chosen."""
        del self.tracks[track.protocol]
        other = self._track(track.fallback, TrackState.PROPOSED, now, track.renegotiates)
        self._candidates = [found for found in self._candidates if found.id != other.protocol]
        other.digest = next((found.digest for found in self.ranking if found.id == other.protocol), "")
        return other

    def _offer_first(self, track: Track, now: Now) -> list[Action]:
        """Offer the preferred parameters, or those of a requested change."""
        offer = self.capabilities.registry.get(track.protocol)
        try:
            asked = track.parameters or rules.preferred(self._parameter_rules(track.protocol))
        except rules.Unsupported as error:  # this connection does not keep a value that the owner requires
            return self._give_up(track, ErrorCode.PARAM_NEGOTIATION_FAILED, error, now, details=error.details)
        extensions = rules.preferred(offer.extensions if offer else {})
        return self._offer(track, asked, {**extensions, **self._own_extensions(track)})

    def _offer(self, track: Track, parameters: Mapping[str, Any], extensions: Mapping[str, Any]) -> list[Action]:
        """Offer parameters. Raises `TooLarge` (`flow.rounds`), also for an offer that was made before."""
        check_rounds(track, self.limits)
        track.parameters, track.extensions = dict(parameters), dict(extensions)
        if track.repeats():
            raise TooLarge(FlowCode.ROUNDS, "Offers of parameters go round in circles.")
        track.fire(TrackEvent.OFFERED)
        offer = ParameterNegotiation(protocol=track.protocol, parameters=track.parameters, extensions=track.extensions)
        return [self._ask(track, offer)]

    def _go_on(self, track: Track, now: Now) -> list[Action]:
        """Take the next step of a track, if its inputs are complete."""
        track.deadline = now.seconds + self.timeouts.reply
        if track.state is TrackState.OFFERED and track.loaded and not track.agreed:
            return self._confirm(track, now)
        if track.agreed and track.settled and track.loaded and not track.hosting:
            track.hosting = True
            return [Host(track.session_id, track.result, bool(track.renegotiates))]
        # The responder may put its beginning off; a message before it would be refused.
        if track.ready_at is not None and track.hosted and now.unix >= track.ready_at:
            return self._finish(track, now)
        return []

    def _confirm(self, track: Track, now: Now) -> list[Action]:
        track.fire(TrackEvent.CONFIRMED)
        track.agreed, track.session_id = True, track.renegotiates or self._draw("session")
        track.expires_at = now.unix + self.limits.lifetime * 1000
        if track.renegotiates:
            # From now on the responder may use the new terms, so nothing is sent under the old ones.
            self.sessions.get(track.session_id).changing = True
        confirmation = ProtocolConfirmation(
            protocol=track.protocol,
            final_parameters=track.parameters,
            extensions=track.extensions,
            session_id=track.session_id,
            expires_at=format_time(track.expires_at),
        )
        return [self._ask(track, confirmation), *self._go_on(track, now)]

    def _give_up(
        self,
        track: Track,
        code: ErrorCode | None,
        error: TreatyError,
        now: Now,
        *,
        reply_to: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> list[Action]:
        """Give up a track: try the next candidate or the full negotiation, or end. `code`: sent to the peer, about a change at
        once, else at the end; None if the peer knows. `reply_to`: the message that caused the error."""
        if track.renegotiates and track.agreed:
            return self._end(FlowEvent.FAILED, error)
        self._superseded |= set(track.asked.values())
        del self.tracks[track.protocol]
        if track.renegotiates:
            # The responder keeps the session too, and need not wait for an answer that does not come.
            said = report(code, error.message, details=details, suggested=ABORT) if code else None
            told = [self._say(said, reply_to=reply_to, session_id=track.renegotiates)] if said else []
            return [*told, RenegotiationFailed(track.renegotiates, error)]
        if self.shortcut is not None:
            # Once only: the full negotiation decides anew, and has no way back to the shortcut.
            self.shortcut = None
            return self._begin(now)
        following = self._propose_next(now)
        if following or self.tracks or len(self.sessions):
            return following
        return self._refuse(error, reply_to, code=code, details=details)

    def _refuse(
        self,
        error: TreatyError,
        reply_to: str | None = None,
        *,
        code: ErrorCode | None = ErrorCode.NO_COMMON_PROTOCOL,
        details: Mapping[str, Any] | None = None,
    ) -> list[Action]:
        code = ErrorCode.VERSION_CONFLICT if error.code == FlowCode.VERSION_CONFLICT else code
        details = details or {"reason": error.code, "supported": [offer.id for offer in self.capabilities.registry]}
        reply_to = reply_to or self._last_heard or None
        told = [self._say(report(code, error.message, details=details, suggested=ABORT), reply_to=reply_to)] if code else []
        return [*told, *self._end(FlowEvent.NOT_AGREED, error)]

    def _ask(self, track: Track, payload: Payload) -> SendMessage:
        said = self._say(payload, session_id=track.renegotiates)
        if payload.ACTION in track.asked:
            # A late answer to the earlier question is ignored; it is no fault of the peer.
            self._superseded.add(track.asked[payload.ACTION])
        track.asked[payload.ACTION] = said.message.message_id
        return said

    def _expect(self, message: FlowMessage, action: str) -> Track | None:
        """Return the track that is answered; None for a superseded or second answer. Raises `Malformed` (`flow.unexpected`)."""
        assert message.reply_to is not None
        for track in self.tracks.values():
            if track.asked.get(action) == message.reply_to:
                self._superseded.add(track.asked.pop(action))
                return track
        if message.reply_to in self._superseded:
            return None
        raise Malformed(FlowCode.UNEXPECTED, f"{message.action} answers no message of this side.")

    def _track(self, id: str, state: TrackState, now: Now, renegotiates: str = "") -> Track:
        track = Track(id, self.TRACK_TRANSITIONS, state, now.seconds + self.timeouts.reply, renegotiates)
        self.tracks[id] = track
        return track

    def _own_extensions(self, track: Track) -> dict[str, Any]:
        """Return the extensions that this profile always offers."""
        own: dict[str, Any] = {BYTE_FORM: True, **({REPORT_COSIGNATURE: True} if self.reports else {})}
        if self.goal.role:
            own[INITIATOR_ROLE] = self.goal.role
        return {**own, PROTOCOL_HASH: track.digest} if track.digest else own

    def _extension_rules(self, track: Track) -> rules.Rules:
        """Return this side's rules for extensions. The responder repeats this side's role, or leaves it out."""
        return {**super()._extension_rules(track), INITIATOR_ROLE: rules.Choice((self.goal.role,))}
