"""Run the initiator's side of the flow machine: evaluate, propose, offer parameters, confirm, and change sessions.

Full, simplified and cached negotiation: `docs/specification/flow-profile.md`, sections 2 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from treaty_consensus.errors import NotFound, Refused, TooLarge, TreatyError
from treaty_io.codes import FlowCode

from ..hello_profile.hello import REPORT_COSIGNATURE
from . import parameters as rules
from .actions import Action, Evaluate, LoadProtocol, PeerChanged, Shortcut
from .commands import Renegotiate
from .core import INITIATOR_ROLE
from .errors import RENEGOTIATE, ErrorCode, error_of, peers_error
from .messages import FlowMessage, parse_time
from .payloads import (
    CapabilitiesExchange,
    ConfirmationAcknowledgment,
    ErrorReport,
    Initialize,
    ParameterNegotiation,
    ParameterResponse,
    Payload,
    ProtocolConfirmation,
    ProtocolProposal,
    ProtocolResponse,
)
from .processor import Now
from .proposing import ProposingEngine
from .sessions import NegotiationSession
from .states import INITIATOR, INITIATOR_TRACK, FlowEvent, FlowState, TrackEvent, TrackState
from .strategy import Evaluation, announce


@dataclass(kw_only=True)
class Initiator(ProposingEngine):
    """The initiator of one connection."""

    _first: str = ""
    _told: str = ""

    TRANSITIONS, TRACK_TRANSITIONS = INITIATOR, INITIATOR_TRACK

    def _start(self, now: Now) -> list[Action]:
        return self._take_shortcut(self.shortcut, now) if self.shortcut else self._begin(now)

    def _evaluated(self, evaluations: Sequence[Evaluation], now: Now) -> list[Action]:
        if self.state is not FlowState.EVALUATION:
            return []
        self.ranking = list(evaluations)
        self._candidates = list(self.ranking)
        if not self.ranking:
            return self._refuse(error_of(ErrorCode.NO_COMMON_PROTOCOL, "No protocol that both speak is fit for the task."))
        self._fire(FlowEvent.EVALUATED, now)
        actions: list[Action] = [self._say(announce(self.ranking))]
        for _ in range(min(self.count, len(self.ranking))):
            actions += self._propose_next(now)
        return actions

    def _loaded(self, protocol: str, uri: str, digest: str, now: Now) -> list[Action]:
        track = self.tracks.get(protocol)
        if track is None:
            return []
        if track.digest not in ("", digest):
            return self._load_failed(protocol, Refused(FlowCode.DOCUMENT, f"{protocol} turned out to be another document."), now)
        track.loaded, track.uri, track.digest = True, uri, digest
        return self._offer_first(track, now) if track.state is TrackState.LOADING else self._go_on(track, now)

    def _load_failed(self, protocol: str, error: TreatyError, now: Now) -> list[Action]:
        """Give up a protocol that cannot be fetched, and try the next one, unless the peer may already use this one."""
        track = self.tracks.get(protocol)
        if track is None:
            return []
        return (
            self._end(FlowEvent.FAILED, error) if track.agreed else self._give_up(track, ErrorCode.NO_COMMON_PROTOCOL, error, now)
        )

    def _hosted(self, session_id: str, now: Now) -> list[Action]:
        track = self._of(session_id)
        if track is None:
            return []
        track.hosted = True
        return self._go_on(track, now)

    def _renegotiate(self, command: Renegotiate, now: Now) -> list[Action]:
        session_id, parameters = command.session_id, command.parameters
        session = self.sessions.get(session_id)
        wanted = command.protocol or session.agreed.protocol
        offer = self.capabilities.registry.get(wanted)
        if offer is None:
            raise NotFound(FlowCode.UNREGISTERED, f"{wanted} is not in this agent's registry.", fix="Add it to the registry.")
        if any(track.renegotiates == session_id for track in self.tracks.values()) or wanted in self.tracks:
            raise Refused(FlowCode.CHANGING, "This session is being changed already.", fix="Wait for the outcome.")
        if session.renegotiations >= self.limits.renegotiations:
            raise TooLarge(FlowCode.RENEGOTIATIONS, "This session was changed too often.", fix="Negotiate a new one.")
        asked = dict(parameters) if parameters is not None else rules.preferred(self._parameter_rules(wanted))
        if wanted == session.agreed.protocol:
            track, agreed = self._track(wanted, TrackState.TERMS, now, session_id), session.agreed
            track.loaded = track.hosted = track.hosting = True
            track.uri, track.digest, track.extensions = agreed.uri, agreed.digest, dict(agreed.extensions)
            return self._offer(track, asked, track.extensions)
        known = next((found for found in self.ranking if found.id == wanted), None)
        track = self._track(wanted, TrackState.PROPOSED, now, session_id)
        track.parameters, track.digest = asked, known.digest if known else ""
        return [self._propose(track, known, None)]

    def _renewal(self, expires_at: int, now: Now) -> int | None:
        # At most half of the time, so that a short session is not renewed without end.
        before = min(int(self.timeouts.renew * 1000), (expires_at - now.unix) // 2)
        return expires_at - before if self.timeouts.renew else None

    def _renew(self, session: NegotiationSession, now: Now) -> list[Action]:
        # After a failure, in half of the rest; the last second is too short for an answer.
        rest = (session.expires_at - now.unix) // 2
        session.renew_at = now.unix + rest if rest > 1000 else None
        try:
            return self._renegotiate(Renegotiate(session.id, session.agreed.parameters), now)
        except TreatyError:  # it is being changed already, which renews it too, or its offer was removed
            return []

    def _making(self) -> dict[str, object]:
        return {**super()._making(), "goal": self.goal, "count": self.count, "shortcut": self.shortcut}

    # The phases

    def _begin(self, now: Now) -> list[Action]:
        self._fire(FlowEvent.FULL_WAY, now)
        detail: Literal["full", "summary"] = "summary" if self.goal.summary else "full"
        hello = self._say(Initialize(purpose=self.goal.purpose, request_capabilities=True, capability_detail=detail))
        self._first = hello.message.message_id
        return [hello]

    def _take_shortcut(self, shortcut: Shortcut, now: Now) -> list[Action]:
        agreed = shortcut.agreed
        self._fire(FlowEvent.SHORTCUT, now)
        track = self._track(agreed.protocol, TrackState.PROPOSED, now)
        track.uri, track.digest, track.parameters = agreed.uri, agreed.digest, dict(agreed.parameters)
        hello = self._say(Initialize(purpose=self.goal.purpose, request_capabilities=False))
        actions: list[Action] = [hello, self._propose(track, None, None)]
        if not track.digest:
            return actions
        own = (REPORT_COSIGNATURE, INITIATOR_ROLE)  # offered again below, as this request wants them
        former = {name: value for name, value in agreed.extensions.items() if name not in own}
        extensions = {**former, **self._own_extensions(track)}
        actions += [LoadProtocol(track.protocol, track.digest), *self._offer(track, agreed.parameters, extensions)]
        if shortcut.confirmed:
            actions += self._confirm(track, now)
        return actions

    def _take(self, payload: Payload, message: FlowMessage, now: Now) -> list[Action]:
        match payload:
            case CapabilitiesExchange():
                return self._learn(payload, message, now)
            case ProtocolResponse():
                return self._answered(payload, message, now)
            case ParameterResponse():
                return self._weigh(payload, message, now)
            case ConfirmationAcknowledgment():
                return self._acknowledged(payload, message, now)
        return super()._take(payload, message, now)

    def _learn(self, told: CapabilitiesExchange, message: FlowMessage, now: Now) -> list[Action]:
        if self.state is not FlowState.DISCOVERY:
            self.known.learn(told)  # sent without a request, in a shortcut or later; still useful
            return [PeerChanged()] if self.state is FlowState.RUNNING else []
        if message.reply_to not in (self._first, self._told):
            return []  # the answer to an earlier initialize
        self.known.learn(told)
        try:
            common = self.capabilities.common(self.known, self.goal.protocols)
        except TreatyError as error:
            return self._refuse(error, message.message_id)
        actions: list[Action] = []
        if not self._told:
            told_ids = common if self.goal.summary else self.goal.protocols
            request = self.known.lacking(common) if self.goal.summary else ()
            mine = self.capabilities.exchange(told_ids, requirements=self.goal.requirements, request=request)
            said = self._say(mine, reply_to=message.message_id)
            self._told = said.message.message_id
            actions.append(said)
            if request:
                self._fire(FlowEvent.DETAILS_ASKED, now)
                return actions
        self._fire(FlowEvent.CAPABILITIES_KNOWN, now)
        return [*actions, Evaluate(common)]

    def _answered(self, answer: ProtocolResponse, message: FlowMessage, now: Now) -> list[Action]:
        track = self._expect(message, ProtocolProposal.ACTION)
        if track is None:
            return []
        accepted = answer.accepted_protocol
        if accepted is None:
            said = f"The other side rejected {track.protocol}: {answer.comments[:200]!a}."
            error = error_of(ErrorCode.NO_COMMON_PROTOCOL, said)
            return self._give_up(track, ErrorCode.NO_COMMON_PROTOCOL, error, now, reply_to=message.message_id)
        if accepted.id not in (track.protocol, track.fallback) or not set(track.required) <= set(accepted.provided_capabilities):
            raise Refused(FlowCode.ACCEPTED, f"The other side accepted {accepted.id}, which was not proposed in this form.")
        if accepted.id != track.protocol:
            track = self._fall_back(track, now)
        if track.state is not TrackState.PROPOSED:
            return []  # a shortcut, whose parameters are on their way
        load = LoadProtocol(track.protocol, track.digest)
        if not track.digest:  # the offer must name the document
            track.fire(TrackEvent.ACCEPTED)
            return [load]
        return [load, *self._offer_first(track, now)]

    def _weigh(self, answer: ParameterResponse, message: FlowMessage, now: Now) -> list[Action]:
        track = self._expect(message, ParameterNegotiation.ACTION)
        if track is None or answer.protocol != track.protocol:
            return []
        theirs = answer.accepted_parameters, answer.extensions
        try:
            mine = (
                rules.counter(self._parameter_rules(track.protocol), track.parameters, theirs[0]),
                rules.counter(self._extension_rules(track), track.extensions, theirs[1]),
            )
            agrees = rules.json_equal(list(mine), list(theirs))
            confirmed = track.agreed and track.equals(*theirs)
            track.deadline = now.seconds + self.timeouts.reply
            if not agrees:
                return self._offer(track, *mine)
        except (rules.Unsupported, TooLarge) as error:
            details = error.details if isinstance(error, rules.Unsupported) else {"reason": error.code}
            code = ErrorCode.PARAM_NEGOTIATION_FAILED
            return self._give_up(track, code, error, now, reply_to=message.message_id, details=details)
        track.settled = True
        if not confirmed:  # by a confirmation that was sent ahead
            track.parameters, track.extensions = theirs
            track.fire(TrackEvent.ANSWER_TAKEN)
            track.agreed = False
        return self._go_on(track, now)

    def _acknowledged(self, answer: ConfirmationAcknowledgment, message: FlowMessage, now: Now) -> list[Action]:
        track = self._expect(message, ProtocolConfirmation.ACTION)
        if track is None:
            return []
        ready_at = parse_time(answer.ready_at)
        if (answer.protocol, answer.session_id) != (track.protocol, track.session_id):
            raise Refused(FlowCode.ACCEPTED, "The other side acknowledged a session that was not confirmed.")
        if ready_at > now.unix + self.limits.ready * 1000:
            raise Refused(FlowCode.READY, f"The other side would be ready in more than {self.limits.ready} seconds.")
        track.ready_at, track.acknowledgment = ready_at, message.message_id
        return self._go_on(track, now)

    def _take_error(self, payload: ErrorReport, message: FlowMessage, now: Now) -> list[Action]:
        """Answer an error: refused parameters by another offer, another error by another protocol."""
        if message.reply_to in self._superseded:
            return []
        track = next((track for track in self.tracks.values() if track.answers(message.reply_to)), None)
        if track is None or (track.renegotiates and track.agreed):
            return super()._take_error(payload, message, now)
        if payload.error_code == ErrorCode.PARAM_NEGOTIATION_FAILED and payload.suggested_action == RENEGOTIATE:
            asked = rules.next_offer(self._parameter_rules(track.protocol), track.parameters, payload.details)
            if asked is not None and not track.agreed:
                try:
                    track.deadline = now.seconds + self.timeouts.reply
                    return self._offer(track, asked, track.extensions)
                except TooLarge as error:
                    code, details = ErrorCode.PARAM_NEGOTIATION_FAILED, {"reason": error.code}
                    return self._give_up(track, code, error, now, reply_to=message.message_id, details=details)
        if payload.error_code in (ErrorCode.PARAM_NEGOTIATION_FAILED, ErrorCode.NO_COMMON_PROTOCOL, ErrorCode.VERSION_CONFLICT):
            return self._give_up(track, None, peers_error(payload), now)
        return super()._take_error(payload, message, now)
