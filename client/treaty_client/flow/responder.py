"""The responder's side of the engine: it tells what it speaks, and answers. It speaks what its registry has, takes what the rules
there admit, and never proposes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treaty_consensus.errors import Conflict, Malformed, Refused, TooLarge, TreatyError

from . import parameters as rules
from .actions import Action, Host, Load, PeerChanged
from .engine import PROTOCOL_HASH, Engine, State, check_lifetime, check_rounds
from .errors import ABORT, ErrorCode, parameter_report, report
from .messages import Message, format_time, parse_time
from .payloads import (
    Accepted,
    CapabilitiesExchange,
    ConfirmationAcknowledgment,
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
from .track import Track, TrackState


@dataclass(kw_only=True)
class Responder(Engine):
    """`purpose`, `evaluation`: what the initiator said of them, "" and None before."""

    purpose: str = ""
    evaluation: ProtocolEvaluation | None = None

    def start(self, now: Now) -> list[Action]:
        """Begin to wait."""
        self._observe(now)
        self._phase_deadline = now.seconds + self.timeouts.first
        return []

    def loaded(self, protocol: str, uri: str, digest: str, now: Now) -> list[Action]:
        """What `Load` asked for is verified, and is this document."""
        track = self.tracks.get(protocol)
        if track is None or track.state is not TrackState.LOADING:
            return []
        if track.digest not in ("", digest):
            return self.load_failed(protocol, Refused("flow.document", f"{protocol} turned out to be another document."), now)
        track.loaded, track.uri, track.digest = True, uri, digest
        actions, early = self._respond(track, now), track.early
        if early is not None:
            track.early = None
            actions += self._agree(track, *early, now)
        return actions

    def load_failed(self, protocol: str, error: TreatyError, now: Now) -> list[Action]:
        """It cannot be had, or not that document of it."""
        track = self.tracks.get(protocol)
        if track is None or track.state is not TrackState.LOADING:
            return []
        asked = track.asked[ParameterNegotiation.ACTION]
        del self.tracks[protocol]
        self._wait_again(now)
        details = {"parameter": PROTOCOL_HASH, "requested": track.digest, "supported": []}
        failed = report(ErrorCode.PARAM_NEGOTIATION_FAILED, "This side cannot run it.", details=details, suggested=ABORT)
        return [self._say(failed, reply_to=asked, session_id=track.renegotiates)]

    def hosted(self, session_id: str, now: Now) -> list[Action]:
        """What `Host` asked for is ready: so is this side."""
        track = self._of(session_id)
        if track is None or not track.agreed:
            return []
        track.hosted = True
        ready = ConfirmationAcknowledgment(
            protocol=track.protocol, status="ready", session_id=session_id, ready_at=format_time(now.unix)
        )
        said = self._say(ready, reply_to=track.asked[ProtocolConfirmation.ACTION], session_id=track.renegotiates)
        return [said, *self._finish(track, now)]

    def tell(self, now: Now) -> list[Action]:
        """Tell the initiator of this side's new situation, while sessions run: it may want to change them."""
        self._observe(now)
        return [self._say(self.capabilities.exchange())] if self.state is State.RUNNING else []

    # The phases

    def _take(self, payload: Payload, message: Message, now: Now) -> list[Action]:
        match payload:
            case Initialize() if not len(self.sessions):
                return self._initialize(payload, message, now)
            case CapabilitiesExchange() if self.state is not State.INITIATION:
                return self._learn(payload, message, now)
            case ProtocolEvaluation() if self.state is State.EVALUATION:
                self.evaluation = payload
                self._wait(State.SELECTION, now)
                return []
            case ProtocolProposal() if self.state in (State.EVALUATION, State.SELECTION, State.RUNNING):
                return self._choose(payload, message, now)
            case ParameterNegotiation() if self.state in (State.SELECTION, State.RUNNING):
                return self._weigh(payload, message, now)
            case ProtocolConfirmation() if self.state in (State.SELECTION, State.RUNNING):
                return self._confirmed(payload, message, now)
        return super()._take(payload, message, now)

    def _initialize(self, payload: Initialize, message: Message, now: Now) -> list[Action]:
        self.tracks.clear()
        self.purpose = payload.purpose
        if not payload.request_capabilities:
            self._wait(State.SELECTION, now)
            return []
        self._wait(State.DISCOVERY, now)
        told = self.capabilities.exchange(summary=payload.capability_detail == "summary")
        return [self._say(told, reply_to=message.message_id)]

    def _learn(self, told: CapabilitiesExchange, message: Message, now: Now) -> list[Action]:
        self.known.learn(told)
        if self.state is State.DISCOVERY:
            self._wait(State.EVALUATION, now)
        answer = self.capabilities.details(told.request_details)
        asked = [self._say(answer, reply_to=message.message_id)] if told.request_details else []
        return [*asked, *([PeerChanged()] if self.state is State.RUNNING else [])]

    def _choose(self, proposal: ProtocolProposal, message: Message, now: Now) -> list[Action]:
        """The proposed protocol if it is spoken here, else the fallback, else neither."""
        session = message.session_id or ""
        if session:
            self.sessions.get(session)
        if self.state is not State.RUNNING:
            self._wait(State.SELECTION, now)
        if len(self.tracks) >= self.limits.batch:
            raise TooLarge("flow.batch", f"At most {self.limits.batch} protocols are negotiated at once.")
        for proposed in (proposal.proposed_protocol, proposal.fallback_protocol):
            provided = self._provided(proposed) if proposed else None
            if proposed is not None and provided is not None:
                self.tracks[proposed.id] = Track(proposed.id, TrackState.TERMS, now.seconds + self.timeouts.reply, session)
                accepted = Accepted(proposed.id, proposed.version, provided)
                answer = ProtocolResponse(response="accept", accepted_protocol=accepted)
                return [self._say(answer, reply_to=message.message_id, session_id=session)]
        why = f"This side does not speak {proposal.proposed_protocol.id} with all that is required."
        return [self._say(ProtocolResponse(response="reject", comments=why), reply_to=message.message_id, session_id=session)]

    def _provided(self, proposed: Proposed) -> tuple[str, ...] | None:
        """What this side does of what is wanted; None if it does not do what is required."""
        offer = self.capabilities.registry.get(proposed.id)
        if offer is None or proposed.id in self.tracks or not set(proposed.required_capabilities) <= set(offer.capabilities):
            return None
        wanted = {*proposed.required_capabilities, *proposed.optional_capabilities}
        return tuple(name for name in offer.capabilities if name in wanted)

    def _weigh(self, payload: ParameterNegotiation, message: Message, now: Now) -> list[Action]:
        """Answer parameters, after the code is there: what is accepted can be run."""
        track = self.tracks.get(payload.protocol) or self._reopened(payload.protocol, message.session_id, now)
        if track is None:
            return self._stray(message)
        if track.state not in (TrackState.TERMS, TrackState.OFFERED):
            raise Malformed("flow.unexpected", "Parameters were offered before the answer to the last ones.")
        check_rounds(track, self.limits)
        track.deadline = now.seconds + self.timeouts.reply
        track.parameters, track.extensions = payload.parameters, payload.extensions
        track.asked[ParameterNegotiation.ACTION] = message.message_id
        if track.loaded:
            return self._respond(track, now)
        track.state = TrackState.LOADING
        meant = payload.extensions.get(PROTOCOL_HASH, "")
        track.digest = meant if isinstance(meant, str) else ""
        return [Load(track.protocol, track.digest)]

    def _reopened(self, protocol: str, session_id: str | None, now: Now) -> Track | None:
        """A track about the parameters of a session that runs by this protocol."""
        if session_id is None or self.sessions.get(session_id).agreed.protocol != protocol:
            return None
        session = self.sessions.get(session_id)
        if session.renegotiations >= self.limits.renegotiations:
            raise TooLarge("flow.renegotiations", "This session was changed too often.")
        track = Track(protocol, TrackState.TERMS, now.seconds + self.timeouts.reply, session_id, loaded=True, hosted=True)
        track.uri, track.digest = session.agreed.uri, session.agreed.digest
        self.tracks[protocol] = track
        return track

    def _respond(self, track: Track, now: Now) -> list[Action]:
        asked = track.asked[ParameterNegotiation.ACTION]
        try:
            track.parameters = rules.respond(self._parameter_rules(track), track.parameters)
            track.extensions = rules.respond(self._extension_rules(track), track.extensions)
        except rules.Unsupported as error:
            track.state = TrackState.TERMS
            return [self._say(parameter_report(error), reply_to=asked, session_id=track.renegotiates)]
        track.state = TrackState.OFFERED
        answer = ParameterResponse(protocol=track.protocol, accepted_parameters=track.parameters, extensions=track.extensions)
        return [self._say(answer, reply_to=asked, session_id=track.renegotiates)]

    def _confirmed(self, payload: ProtocolConfirmation, message: Message, now: Now) -> list[Action]:
        track = self.tracks.get(payload.protocol)
        if track is None:
            return self._stray(message)
        if track.state is TrackState.LOADING:  # of a shortcut, ahead of this side's answer
            track.early = (payload, message.message_id)
            return []
        return self._agree(track, payload, message.message_id, now)

    def _agree(self, track: Track, payload: ProtocolConfirmation, message_id: str, now: Now) -> list[Action]:
        """The final parameters are those that were accepted, or there is no agreement."""
        if track.state is not TrackState.OFFERED or not track.equals(payload.final_parameters, payload.extensions):
            if track.state is TrackState.CONFIRMED:
                raise Malformed("flow.unexpected", "A protocol was confirmed twice.")
            failed = report(ErrorCode.PARAM_NEGOTIATION_FAILED, "What was confirmed is not what was accepted.")
            return [self._say(failed, reply_to=message_id, session_id=track.renegotiates)]
        track.expires_at = parse_time(payload.expires_at)
        check_lifetime(track.expires_at, now, self.limits)
        if track.renegotiates not in ("", payload.session_id):
            raise Conflict("flow.session", "Another session was confirmed than the one that is negotiated about.")
        if not track.renegotiates:
            self.sessions.check_free(payload.session_id)
            if any(other.session_id == payload.session_id for other in self.tracks.values()):
                raise Conflict("flow.session", "A session of this id is being confirmed already.")
        track.session_id, track.agreed, track.state = payload.session_id, True, TrackState.CONFIRMED
        track.asked[ProtocolConfirmation.ACTION] = message_id
        track.deadline = now.seconds + self.timeouts.reply
        if track.hosted:
            return self.hosted(track.session_id, now)
        return [Host(track.session_id, track.result, bool(track.renegotiates))]

    def _stray(self, message: Message) -> list[Action]:
        """About a protocol that was not accepted, which a shortcut's initiator learns only after it has said more."""
        what: dict[str, Any] = {"messageId": message.message_id}
        failed = report(ErrorCode.PARAM_NEGOTIATION_FAILED, "This protocol was not accepted.", details=what, suggested=ABORT)
        return [self._say(failed, reply_to=message.message_id, session_id=message.session_id or "")]

    def _wait_again(self, now: Now) -> None:
        """A track is over: wait for another proposal."""
        self._phase_deadline = now.seconds + (self.timeouts.idle if self.state is State.RUNNING else self.timeouts.reply)
