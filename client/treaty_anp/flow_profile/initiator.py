"""Run the initiator's side of the flow machine: evaluate, propose, offer parameters, confirm, and change sessions.

Full, simplified and cached negotiation: `docs/specification/flow-profile.md`, sections 2 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError
from treaty_io.codes import FlowCode, SessionCode

from ..hello_profile.hello import REPORT_COSIGNATURE
from . import parameters as rules
from .actions import Action, Evaluate, Host, LoadProtocol, PeerChanged, RenegotiationFailed, SendMessage, Shortcut
from .capabilities import FlowRequest
from .commands import Renegotiate
from .errors import ABORT, RENEGOTIATE, ErrorCode, error_of, peers_error, report
from .machine import INITIATOR_ROLE, PROTOCOL_HASH, NegotiationEngine
from .messages import FlowMessage, format_time, parse_time
from .payloads import (
    CapabilitiesExchange,
    ConfirmationAcknowledgment,
    ErrorReport,
    Initialize,
    ParameterNegotiation,
    ParameterResponse,
    Payload,
    Proposed,
    ProtocolConfirmation,
    ProtocolProposal,
    ProtocolResponse,
    parse_protocol_id,
)
from .processor import Now
from .sessions import NegotiationSession
from .states import INITIATOR, INITIATOR_TRACK, FlowEvent, FlowState, TrackEvent, TrackState
from .strategy import Evaluation, announce
from .track import Track
from .transfer import BYTE_FORM


@dataclass(kw_only=True, eq=False)
class Initiator(NegotiationEngine):
    """The initiator of one connection. `count`: the number of protocols to agree on."""

    goal: FlowRequest
    count: int = 1
    shortcut: Shortcut | None = None
    ranking: list[Evaluation] = field(default_factory=list, init=False)
    _candidates: list[Evaluation] = field(default_factory=list, init=False)
    _proposals: int = field(default=0, init=False)
    _superseded: set[str] = field(default_factory=set, init=False)
    _first: str = field(default="", init=False)
    _told: str = field(default="", init=False)

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
            return self._load_failed(
                protocol, Refused(SessionCode.HASH_MISMATCH, f"{protocol} turned out to be another document."), now
            )
        track.load(uri, digest)
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
        track.host()
        return self._go_on(track, now)

    def _renegotiate(self, command: Renegotiate, now: Now) -> list[Action]:
        session_id, parameters = command.session_id, command.parameters
        session = self.sessions.get(session_id)
        protocol = command.protocol or session.agreed.protocol
        offer = self.capabilities.registry.get(protocol)
        if offer is None:
            raise NotFound(FlowCode.OFFER, f"{protocol} is not in this agent's registry.", fix="Add it to the registry.")
        if any(track.renegotiates == session_id for track in self.tracks.values()) or protocol in self.tracks:
            raise Refused(FlowCode.CHANGING, "This session is being changed already.", fix="Wait for the outcome.")
        if session.renegotiations >= self.limits.renegotiations:
            raise TooLarge(FlowCode.RENEGOTIATIONS, "This session was changed too often.", fix="Negotiate a new one.")
        terms = dict(parameters) if parameters is not None else rules.preferred(self._parameter_rules(protocol))
        if protocol == session.agreed.protocol:
            track = self._open_track(protocol, TrackState.TERMS, now, session_id)
            track.reopen(session.agreed)
            return self._offer(track, terms, track.extensions)
        ranked = self._ranked(protocol)
        digest = ranked.digest if ranked else ""
        track = self._open_track(protocol, TrackState.PROPOSED, now, session_id, digest=digest, parameters=terms)
        return [self._propose(track, ranked, None)]

    def _renewal(self, expires_at: int, now: Now) -> int | None:
        # At most half of the time, so that a short session is not renewed without end.
        before = min(int(self.timeouts.renew * 1000), (expires_at - now.unix) // 2)
        return expires_at - before if self.timeouts.renew else None

    def _renew(self, session: NegotiationSession, now: Now) -> list[Action]:
        # After a failure, in half of the rest; the last second is too short for an answer.
        rest = (session.expires_at - now.unix) // 2
        session.plan_renewal(now.unix + rest if rest > 1000 else None)
        try:
            return self._renegotiate(Renegotiate(session.id, session.agreed.parameters), now)
        except TreatyError:  # it is being changed already, which renews it too, or its offer was removed
            return []

    def _arguments(self) -> dict[str, object]:
        return {**super()._arguments(), "goal": self.goal, "count": self.count, "shortcut": self.shortcut}

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
        track = self._open_track(
            agreed.protocol, TrackState.PROPOSED, now, uri=agreed.uri, digest=agreed.digest, parameters=agreed.parameters
        )
        hello = self._say(Initialize(purpose=self.goal.purpose, request_capabilities=False))
        actions: list[Action] = [hello, self._propose(track, None, None)]
        if not track.digest:
            return actions
        own = (REPORT_COSIGNATURE, INITIATOR_ROLE)  # offered again below, as this request wants them
        peers = {name: value for name, value in agreed.extensions.items() if name not in own}
        extensions = {**peers, **self._own_extensions(track)}
        actions += [LoadProtocol(track.protocol, track.digest), *self._offer(track, agreed.parameters, extensions)]
        if shortcut.confirmed:
            # A peer of another make drops extensions that it does not know. All are offered, because it may know them now.
            track.expect(agreed.extensions)
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

    def _learn(self, answer: CapabilitiesExchange, message: FlowMessage, now: Now) -> list[Action]:
        if self.state is not FlowState.DISCOVERY:
            self.peer_capabilities.learn(answer)  # sent without a request, in a shortcut or later; still useful
            return [PeerChanged()] if self.state is FlowState.RUNNING else []
        if message.reply_to not in (self._first, self._told):
            return []  # the answer to an earlier initialize
        self.peer_capabilities.learn(answer)
        try:
            common = self.capabilities.common(self.peer_capabilities, self.goal.protocols)
        except TreatyError as error:
            return self._refuse(error, message.message_id)
        actions: list[Action] = []
        if not self._told:
            told_ids = common if self.goal.summary else self.goal.protocols
            request = self.peer_capabilities.lacking(common) if self.goal.summary else ()
            mine = self.capabilities.exchange(told_ids, requirements=self.goal.requirements, request=request)
            own = self._say(mine, reply_to=message.message_id)
            self._told = own.message.message_id
            actions.append(own)
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
            why = f"The other side rejected {track.protocol}: {answer.comments[:200]!a}."
            error = error_of(ErrorCode.NO_COMMON_PROTOCOL, why)
            return self._give_up(track, ErrorCode.NO_COMMON_PROTOCOL, error, now, reply_to=message.message_id)
        if accepted.id not in (track.protocol, track.fallback) or not set(track.required) <= set(accepted.provided_capabilities):
            raise Refused(FlowCode.MESSAGE, f"The other side accepted {accepted.id}, which was not proposed in this form.")
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
        offered, theirs = track.offered, (answer.accepted_parameters, answer.extensions)
        try:
            mine = (
                rules.counter(self._parameter_rules(track.protocol), offered[0], theirs[0]),
                rules.counter(self._extension_rules(track), offered[1], theirs[1]),
            )
            agrees = rules.json_equal(list(mine), list(theirs))
            track.wait_until(self._reply_deadline(now))
            if not agrees:
                return self._offer(track, *mine)
        except (rules.Unsupported, TooLarge) as error:
            details = error.details if isinstance(error, rules.Unsupported) else {"reason": error.code}
            code = ErrorCode.PARAM_NEGOTIATION_FAILED
            return self._give_up(track, code, error, now, reply_to=message.message_id, details=details)
        track.take_answer(*theirs)
        return self._go_on(track, now)

    def _acknowledged(self, answer: ConfirmationAcknowledgment, message: FlowMessage, now: Now) -> list[Action]:
        track = self._expect(message, ProtocolConfirmation.ACTION)
        if track is None:
            return []
        ready_at = parse_time(answer.ready_at)
        if (answer.protocol, answer.session_id) != (track.protocol, track.session_id):
            raise Refused(FlowCode.MESSAGE, "The other side acknowledged a session that was not confirmed.")
        if ready_at > now.unix + self.limits.ready * 1000:
            raise Refused(FlowCode.LIFETIME, f"The other side would be ready in more than {self.limits.ready} seconds.")
        track.acknowledge(message.message_id, ready_at)
        return self._go_on(track, now)

    def _take_error(self, payload: ErrorReport, message: FlowMessage, now: Now) -> list[Action]:
        """Answer an error: refused parameters by another offer, another error by another protocol."""
        if message.reply_to in self._superseded:
            return []
        track = next((track for track in self.tracks.values() if track.answers(message.reply_to)), None)
        if track is None or (track.renegotiates and track.agreed):
            return super()._take_error(payload, message, now)
        if payload.error_code == ErrorCode.PARAM_NEGOTIATION_FAILED and payload.suggested_action == RENEGOTIATE:
            terms = rules.next_offer(self._parameter_rules(track.protocol), track.parameters, payload.details)
            if terms is not None and not track.agreed:
                try:
                    track.wait_until(self._reply_deadline(now))
                    return self._offer(track, terms, track.extensions)
                except TooLarge as error:
                    code, details = ErrorCode.PARAM_NEGOTIATION_FAILED, {"reason": error.code}
                    return self._give_up(track, code, error, now, reply_to=message.message_id, details=details)
        if payload.error_code in (ErrorCode.PARAM_NEGOTIATION_FAILED, ErrorCode.NO_COMMON_PROTOCOL, ErrorCode.VERSION_CONFLICT):
            return self._give_up(track, None, peers_error(payload), now)
        return super()._take_error(payload, message, now)

    # One protocol

    def _propose_next(self, now: Now, renegotiates: str = "") -> list[Action]:
        # Bounded, because a responder may reject each one slowly.
        if not self._candidates or self._proposals >= self.limits.proposals:
            return []
        best = self._candidates.pop(0)
        self._proposals += 1
        # In a batch the next one is proposed itself, so it is no fallback.
        fallback = self._candidates[0] if self._candidates and self.count == 1 else None
        track = self._open_track(best.id, TrackState.PROPOSED, now, renegotiates, digest=best.digest)
        return [self._propose(track, best, fallback)]

    def _propose(self, track: Track, evaluation: Evaluation | None, fallback: Evaluation | None) -> SendMessage:
        track.propose(self.goal.required, fallback.id if fallback else "")
        proposal = ProtocolProposal(
            proposed_protocol=self._proposed(track.protocol, evaluation),
            fallback_protocol=self._proposed(fallback.id, fallback) if fallback else None,
        )
        return self._ask(track, proposal)

    def _proposed(self, id: str, evaluation: Evaluation | None) -> Proposed:
        shared = evaluation.capabilities if evaluation else ()
        optional = tuple(name for name in shared if name not in self.goal.required)
        return Proposed(
            id, parse_protocol_id(id).version, self.goal.required, optional, evaluation.rationale if evaluation else ""
        )

    def _fall_back(self, track: Track, now: Now) -> Track:
        """Continue with the fallback, which the responder has chosen."""
        self._drop_track(track.protocol)
        self._candidates = [candidate for candidate in self._candidates if candidate.id != track.fallback]
        ranked = self._ranked(track.fallback)
        digest = ranked.digest if ranked else ""
        return self._open_track(track.fallback, TrackState.PROPOSED, now, track.renegotiates, digest=digest)

    def _ranked(self, id: str) -> Evaluation | None:
        return next((evaluation for evaluation in self.ranking if evaluation.id == id), None)

    def _offer_first(self, track: Track, now: Now) -> list[Action]:
        """Offer the preferred parameters, or those of a requested change."""
        offer = self.capabilities.registry.get(track.protocol)
        try:
            terms = track.parameters or rules.preferred(self._parameter_rules(track.protocol))
        except rules.Unsupported as error:  # this connection does not keep a value that the owner requires
            return self._give_up(track, ErrorCode.PARAM_NEGOTIATION_FAILED, error, now, details=error.details)
        extensions = rules.preferred(offer.extensions if offer else {})
        return self._offer(track, terms, {**extensions, **self._own_extensions(track)})

    def _offer(self, track: Track, parameters: Mapping[str, Any], extensions: Mapping[str, Any]) -> list[Action]:
        """Offer parameters. Raises `TooLarge` (`flow.rounds`), also for an offer that was made before."""
        track.offer(parameters, extensions, self.limits)
        offer = ParameterNegotiation(protocol=track.protocol, parameters=track.parameters, extensions=track.extensions)
        return [self._ask(track, offer)]

    def _go_on(self, track: Track, now: Now) -> list[Action]:
        """Take the next step of a track, if its inputs are complete."""
        track.wait_until(self._reply_deadline(now))
        if track.state is TrackState.OFFERED and track.loaded and not track.agreed:
            return self._confirm(track, now)
        if track.agreed and track.settled and track.loaded and not track.hosting:
            track.begin_hosting()
            return [Host(track.session_id, track.result, bool(track.renegotiates))]
        # The responder may put its beginning off; a message before it would be refused.
        if track.ready_at is not None and track.hosted and now.unix >= track.ready_at:
            return self._finish(track, now)
        return []

    def _confirm(self, track: Track, now: Now) -> list[Action]:
        track.confirm(track.renegotiates or self._draw("session"), now.unix + self.limits.lifetime * 1000)
        if track.renegotiates:
            # From now on the responder may use the new terms, so nothing is sent under the old ones.
            self.sessions.get(track.session_id).begin_change()
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
        self._drop_track(track.protocol)
        if track.renegotiates:
            # The responder keeps the session too, and need not wait for an answer that does not come.
            failed = report(code, error.message, details=details, suggested=ABORT) if code else None
            last = [self._say(failed, reply_to=reply_to, session_id=track.renegotiates)] if failed else []
            return [*last, RenegotiationFailed(track.renegotiates, error)]
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
        reply_to = reply_to or self.last_received
        last = [self._say(report(code, error.message, details=details, suggested=ABORT), reply_to=reply_to)] if code else []
        return [*last, *self._end(FlowEvent.NOT_AGREED, error)]

    def _ask(self, track: Track, payload: Payload) -> SendMessage:
        question = self._say(payload, session_id=track.renegotiates)
        replaced = track.ask(payload.ACTION, question.message.message_id)
        if replaced is not None:
            # A late answer to the earlier question is ignored; it is no fault of the peer.
            self._superseded.add(replaced)
        return question

    def _expect(self, message: FlowMessage, action: str) -> Track | None:
        """Return the track that is answered; None for a superseded or second answer. Raises `Malformed` (`flow.message`)."""
        assert message.reply_to is not None
        for track in self.tracks.values():
            if track.take_reply(action, message.reply_to):
                self._superseded.add(message.reply_to)
                return track
        if message.reply_to in self._superseded:
            return None
        raise Malformed(FlowCode.MESSAGE, f"{message.action} answers no message of this side.")

    def _own_extensions(self, track: Track) -> dict[str, Any]:
        """Return the extensions that this profile always offers."""
        own: dict[str, Any] = {BYTE_FORM: True, **({REPORT_COSIGNATURE: True} if self.reports else {})}
        if self.goal.role:
            own[INITIATOR_ROLE] = self.goal.role
        return {**own, PROTOCOL_HASH: track.digest} if track.digest else own

    def _extension_rules(self, track: Track) -> rules.Rules:
        """Return this side's rules for extensions. The responder repeats this side's role, or leaves it out."""
        return {**super()._extension_rules(track), INITIATOR_ROLE: rules.Choice((self.goal.role,))}
