"""Run the responder's side of the flow machine: describe the protocols of its registry, and answer proposals by its rules.

A responder never proposes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from treaty_consensus.errors import Conflict, Malformed, Refused, TooLarge, TreatyError
from treaty_io.codes import FlowCode, SessionCode

from .actions import Action, Host, LoadProtocol, PeerChanged
from .capabilities import check_common
from .errors import ABORT, ErrorCode, parameter_report, report
from .machine import PROTOCOL_HASH, NegotiationEngine
from .messages import FlowMessage, format_time, parse_time
from .parameters import Unsupported
from .payloads import (
    Accepted,
    CapabilitiesExchange,
    ConfirmationAcknowledgment,
    ContextInfo,
    ErrorReport,
    Initialize,
    ParameterNegotiation,
    ParameterResponse,
    Payload,
    Proposed,
    ProtocolConfirmation,
    ProtocolEvaluation,
    ProtocolProposal,
    ProtocolResponse,
)
from .processor import Now
from .sessions import check_lifetime
from .states import RESPONDER, RESPONDER_TRACK, FlowEvent, FlowState, FlowWait, TrackState
from .track import Track


@dataclass(kw_only=True, eq=False)
class Responder(NegotiationEngine):
    """The responder of one connection. `purpose`, `evaluation`: the initiator's; "" and None before they arrive."""

    purpose: str = field(default="", init=False)
    evaluation: ProtocolEvaluation | None = field(default=None, init=False)
    _rejected: int = field(default=0, init=False)

    TRANSITIONS, TRACK_TRANSITIONS = RESPONDER, RESPONDER_TRACK

    def _start(self, now: Now) -> list[Action]:
        self._begin_wait(FlowWait.FIRST, now)
        return []

    def _loaded(self, protocol: str, uri: str, digest: str, now: Now) -> list[Action]:
        track = self.tracks.get(protocol)
        if track is None or track.state is not TrackState.LOADING:
            return []
        if track.digest not in ("", digest):
            return self._load_failed(
                protocol, Refused(SessionCode.HASH_MISMATCH, f"{protocol} turned out to be another document."), now
            )
        track.load(uri, digest)
        actions, early = self._respond(track, now), track.take_early()
        if early is not None:
            actions += self._agree(track, *early, now)
        return actions

    def _load_failed(self, protocol: str, error: TreatyError, now: Now) -> list[Action]:
        """Refuse a protocol that cannot be fetched or has another document."""
        track = self.tracks.get(protocol)
        if track is None or track.state is not TrackState.LOADING:
            return []
        offer_id = track.asked[ParameterNegotiation.ACTION]
        self._drop_track(protocol)
        self._fire(FlowEvent.TRACK_FAILED, now)
        details = {"parameter": PROTOCOL_HASH, "requested": track.digest, "supported": [], "reason": error.code}
        failed = report(ErrorCode.PARAM_NEGOTIATION_FAILED, "This side cannot run it.", details=details, suggested=ABORT)
        return [self._say(failed, reply_to=offer_id, session_id=track.renegotiates)]

    def _hosted(self, session_id: str, now: Now) -> list[Action]:
        """Acknowledge the confirmation when the handler is ready."""
        track = self._of(session_id)
        if track is None or not track.agreed:
            return []
        track.host()
        ready = ConfirmationAcknowledgment(
            protocol=track.protocol, status="ready", session_id=session_id, ready_at=format_time(now.unix)
        )
        acknowledgment = self._say(ready, reply_to=track.asked[ProtocolConfirmation.ACTION], session_id=track.renegotiates)
        track.acknowledge(acknowledgment.message.message_id)
        return [acknowledgment, *self._finish(track, now)]

    def _tell_context(self, context: ContextInfo | None) -> list[Action]:
        """Send this side's new context to the initiator, which may then change the running sessions."""
        return [self._say(self.capabilities.exchange(context=context))] if self.state is FlowState.RUNNING else []

    # The phases

    def _take(self, payload: Payload, message: FlowMessage, now: Now) -> list[Action]:
        match payload:
            case Initialize() if self._allows(_initialized(payload)):
                return self._initialize(payload, message, now)
            case CapabilitiesExchange() if self._allows(FlowEvent.CAPABILITIES_TOLD):
                return self._learn(payload, message, now)
            case ProtocolEvaluation() if self._allows(FlowEvent.EVALUATION_TOLD):
                self.evaluation = payload
                self._fire(FlowEvent.EVALUATION_TOLD, now)
                return []
            case ProtocolProposal() if self._allows(FlowEvent.PROPOSED):
                return self._choose(payload, message, now)
            case ParameterNegotiation() if self._allows(FlowEvent.PARAMETERS_OFFERED):
                return self._weigh(payload, message, now)
            case ProtocolConfirmation() if self._allows(FlowEvent.CONFIRMED):
                return self._confirmed(payload, message, now)
        return super()._take(payload, message, now)

    def _initialize(self, payload: Initialize, message: FlowMessage, now: Now) -> list[Action]:
        # A new `initialize` replaces a shortcut that failed; its protocols are proposed again.
        self.tracks.clear()
        self.purpose = payload.purpose
        self._fire(_initialized(payload), now)
        if not payload.request_capabilities:
            return []
        capabilities = self.capabilities.exchange(summary=payload.capability_detail == "summary")
        return [self._say(capabilities, reply_to=message.message_id)]

    def _learn(self, capabilities: CapabilitiesExchange, message: FlowMessage, now: Now) -> list[Action]:
        if self.state is FlowState.DISCOVERY:
            try:
                # The initiator may be one that does not compare: then it hears it now, and not by a timeout.
                check_common(self._own_ids(), [entry.id for entry in capabilities.supported_protocols])
            except TreatyError as error:
                failed = self._common_report(error)
                return [self._say(failed, reply_to=message.message_id), *self._end(FlowEvent.NOT_AGREED, error)]
        self.peer_capabilities.learn(capabilities)
        self._fire(FlowEvent.CAPABILITIES_TOLD, now)
        answer = self.capabilities.details(capabilities.request_details)
        details = [self._say(answer, reply_to=message.message_id)] if capabilities.request_details else []
        return [*details, *([PeerChanged()] if self.state is FlowState.RUNNING else [])]

    def _choose(self, proposal: ProtocolProposal, message: FlowMessage, now: Now) -> list[Action]:
        """Accept the proposed protocol if this side speaks it, else the fallback, else neither."""
        session = message.session_id or ""
        if session:
            self.sessions.get(session)
        self._fire(FlowEvent.PROPOSED, now)
        # Each track loads code for a peer that has proved only a DID.
        if len(self.tracks) >= self.limits.batch:
            raise TooLarge(FlowCode.BATCH, f"At most {self.limits.batch} protocols are negotiated at once.")
        for proposed in (proposal.proposed_protocol, proposal.fallback_protocol):
            provided = self._provided(proposed) if proposed else None
            if proposed is not None and provided is not None:
                self._open_track(proposed.id, TrackState.TERMS, now, session)
                accepted = Accepted(proposed.id, proposed.version, provided)
                answer = ProtocolResponse(response="accept", accepted_protocol=accepted)
                return [self._say(answer, reply_to=message.message_id, session_id=session)]
        self._rejected += 1
        # Each rejected proposal begins another wait, so an initiator could hold the connection for an hour.
        if self._rejected > self.limits.proposals and self.state is not FlowState.RUNNING:
            raise Refused(FlowCode.ENDLESS, f"{self.limits.proposals} proposals led to no session.")
        proposals = [one for one in (proposal.proposed_protocol, proposal.fallback_protocol) if one is not None]
        if not any(self.capabilities.registry.get(one.id) for one in proposals):
            try:
                check_common(self._own_ids(), [one.id for one in proposals])
            except TreatyError as error:
                return [self._say(self._common_report(error), reply_to=message.message_id, session_id=session)]
        why = f"This side does not speak {proposal.proposed_protocol.id} with all that is required."
        return [self._say(ProtocolResponse(response="reject", comments=why), reply_to=message.message_id, session_id=session)]

    def _provided(self, proposed: Proposed) -> tuple[str, ...] | None:
        """Return the wanted capabilities that this side has; None if a required one is missing."""
        offer = self.capabilities.registry.get(proposed.id)
        if offer is None or proposed.id in self.tracks or not set(proposed.required_capabilities) <= set(offer.capabilities):
            return None
        names = {*proposed.required_capabilities, *proposed.optional_capabilities}
        return tuple(name for name in offer.capabilities if name in names)

    def _weigh(self, payload: ParameterNegotiation, message: FlowMessage, now: Now) -> list[Action]:
        """Answer an offer of parameters after the code is loaded, so that an accepted protocol can run."""
        track = self.tracks.get(payload.protocol) or self._reopened(payload.protocol, message.session_id, now)
        if track is None:
            return self._stray(message)
        # A second offer during the loading would race with the answer to the first.
        if track.state not in (TrackState.TERMS, TrackState.OFFERED):
            raise Malformed(FlowCode.MESSAGE, "Parameters were offered before the answer to the last ones.")
        track.take_offer(payload.parameters, payload.extensions, self.limits)
        track.wait_until(self._reply_deadline(now))
        track.ask(ParameterNegotiation.ACTION, message.message_id)
        if track.loaded:
            return self._respond(track, now)
        # The initiator names its document, so that this side finds the same one or refuses before anything runs.
        digest = payload.extensions.get(PROTOCOL_HASH, "")
        track.begin_loading(digest if isinstance(digest, str) else "")
        return [LoadProtocol(track.protocol, track.digest)]

    def _reopened(self, protocol: str, session_id: str | None, now: Now) -> Track | None:
        """Open a track to change the parameters of a running session."""
        if session_id is None or self.sessions.get(session_id).agreed.protocol != protocol:
            return None
        session = self.sessions.get(session_id)
        if session.renegotiations >= self.limits.renegotiations:
            raise TooLarge(FlowCode.RENEGOTIATIONS, "This session was changed too often.")
        track = self._open_track(protocol, TrackState.TERMS, now, session_id)
        track.reopen(session.agreed)
        return track

    def _respond(self, track: Track, now: Now) -> list[Action]:
        offer_id = track.asked[ParameterNegotiation.ACTION]
        try:
            track.respond(self._parameter_rules(track.protocol), self._extension_rules(track))
        except Unsupported as error:
            return [self._say(parameter_report(error), reply_to=offer_id, session_id=track.renegotiates)]
        answer = ParameterResponse(protocol=track.protocol, accepted_parameters=track.parameters, extensions=track.extensions)
        return [self._say(answer, reply_to=offer_id, session_id=track.renegotiates)]

    def _confirmed(self, payload: ProtocolConfirmation, message: FlowMessage, now: Now) -> list[Action]:
        track = self.tracks.get(payload.protocol)
        if track is None:
            return self._stray(message)
        if track.state is TrackState.LOADING:  # of a shortcut, ahead of this side's answer
            track.keep_early(payload, message.message_id)
            return []
        return self._agree(track, payload, message.message_id, now)

    def _agree(self, track: Track, payload: ProtocolConfirmation, message_id: str, now: Now) -> list[Action]:
        """Accept a confirmation if its parameters are the accepted ones."""
        if track.state is not TrackState.OFFERED or not track.equals(payload.final_parameters, payload.extensions):
            if track.state is TrackState.CONFIRMED:
                raise Malformed(FlowCode.MESSAGE, "A protocol was confirmed twice.")
            accepted = {"parameters": track.parameters, "extensions": track.extensions}
            why = "The confirmed parameters are not the accepted ones."
            failed = report(ErrorCode.PARAM_NEGOTIATION_FAILED, why, details={"accepted": accepted})
            return [self._say(failed, reply_to=message_id, session_id=track.renegotiates)]
        expires_at = parse_time(payload.expires_at)
        check_lifetime(expires_at, now, self.limits)
        if track.renegotiates not in ("", payload.session_id):
            raise Conflict(FlowCode.SESSION, "Another session was confirmed than the one that is negotiated about.")
        # Two confirmations in one flight might name the same new session.
        if not track.renegotiates:
            self.sessions.check_free(payload.session_id)
            if any(other.session_id == payload.session_id for other in self.tracks.values()):
                raise Conflict(FlowCode.SESSION, "A session of this id is being confirmed already.")
        track.confirm(payload.session_id, expires_at)
        track.ask(ProtocolConfirmation.ACTION, message_id)
        track.wait_until(self._reply_deadline(now))
        # Only parameters change, so the handler stays and is ready.
        if track.hosted:
            return self._hosted(track.session_id, now)
        return [Host(track.session_id, track.result, bool(track.renegotiates))]

    def _stray(self, message: FlowMessage) -> list[Action]:
        """Answer a message about a rejected protocol. The initiator of a shortcut sends it before it knows the rejection."""
        what: dict[str, Any] = {"messageId": message.message_id}
        failed = report(ErrorCode.PARAM_NEGOTIATION_FAILED, "This protocol was not accepted.", details=what, suggested=ABORT)
        return [self._say(failed, reply_to=message.message_id, session_id=message.session_id or "")]

    def _common_report(self, error: TreatyError) -> ErrorReport:
        """Return the error message for a peer that names no protocol of this side."""
        conflict = error.code == FlowCode.VERSION_CONFLICT
        code = ErrorCode.VERSION_CONFLICT if conflict else ErrorCode.NO_COMMON_PROTOCOL
        return report(code, error.message, details={"supported": self._own_ids()})

    def _own_ids(self) -> list[str]:
        return [offer.id for offer in self.capabilities.registry]


def _initialized(payload: Initialize) -> FlowEvent:
    return FlowEvent.INITIALIZED if payload.request_capabilities else FlowEvent.INITIALIZED_SHORT
