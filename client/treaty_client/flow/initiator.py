"""The initiator's side of the engine: it begins, evaluates, proposes, offers parameters and confirms; and it alone begins
changes of a running session.

Full:       initialize → capabilities ⇄ → evaluation, proposal → response → parameters ⇄ → confirmation → acknowledgment
Simplified: initialize{requestCapabilities: false}, proposal, parameters in one flight → response, parameters → confirmation → …
Cached:     as simplified, with the confirmation of what was agreed on the last time in the same flight: one round trip

Where a shortcut does not lead to a session, the full negotiation follows on the same connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError

from . import parameters as rules
from .actions import Action, Evaluate, Host, Load, PeerChanged, RenegotiationFailed, Send, Shortcut
from .capabilities import Goal
from .engine import PROTOCOL_HASH, Engine, State, check_rounds
from .errors import RENEGOTIATE, ErrorCode, error_of, peers_error, report
from .identifiers import parse_protocol_id
from .messages import Message, format_time, parse_time
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
)
from .processor import Now
from .strategy import Evaluation, announce, rank
from .track import Track, TrackState


@dataclass(kw_only=True)
class Initiator(Engine):
    """`count`: how many protocols to agree on."""

    goal: Goal
    count: int = 1
    shortcut: Shortcut | None = None
    ranking: list[Evaluation] = field(default_factory=list)
    _candidates: list[Evaluation] = field(default_factory=list)
    _proposals: int = 0
    _first: str = ""
    _told: str = ""
    _superseded: set[str] = field(default_factory=set)

    def start(self, now: Now) -> list[Action]:
        """The first actions."""
        self._observe(now)
        return self._take_shortcut(self.shortcut, now) if self.shortcut else self._begin(now)

    def evaluated(self, evaluations: Sequence[Evaluation], now: Now) -> list[Action]:
        """What `Evaluate` asked for."""
        if self.state is not State.EVALUATION:
            return []
        self._observe(now)
        self.ranking = rank(evaluations)
        self._candidates = list(self.ranking)
        if not self.ranking:
            return self._refuse(error_of(ErrorCode.NO_COMMON_PROTOCOL, "No protocol that both speak is fit for the task."))
        self._wait(State.SELECTION, now)
        actions: list[Action] = [self._say(announce(self.ranking))]
        for _ in range(min(self.count, len(self.ranking))):
            actions += self._propose_next(now)
        return actions

    def loaded(self, protocol: str, uri: str, digest: str, now: Now) -> list[Action]:
        """What `Load` asked for is verified, and is this document."""
        track = self.tracks.get(protocol)
        if track is None:
            return []
        if track.digest not in ("", digest):
            return self.load_failed(protocol, Refused("flow.document", f"{protocol} turned out to be another document."), now)
        track.loaded, track.uri, track.digest = True, uri, digest
        return self._offer_first(track) if track.state is TrackState.LOADING else self._go_on(track, now)

    def load_failed(self, protocol: str, error: TreatyError, now: Now) -> list[Action]:
        """It cannot be had: on to the next protocol, unless the other side may be speaking this one already."""
        track = self.tracks.get(protocol)
        if track is None:
            return []
        return self.fail(error) if track.agreed else self._give_up(track, ErrorCode.NO_COMMON_PROTOCOL, error, now)

    def hosted(self, session_id: str, now: Now) -> list[Action]:
        """What `Host` asked for is ready."""
        track = self._of(session_id)
        if track is None:
            return []
        track.hosted = True
        return self._go_on(track, now)

    def renegotiate(
        self, session_id: str, now: Now, *, parameters: Mapping[str, Any] | None = None, protocol: str = ""
    ) -> list[Action]:
        """Begin to change a running session: its parameters (also to make it last longer), or its protocol. Raises `NotFound`,
        `Refused` (`flow.changing`) and `TooLarge` (`flow.renegotiations`), after which all is as before."""
        if self.is_final:
            return []
        session = self.sessions.get(session_id)
        wanted = protocol or session.agreed.protocol
        offer = self.capabilities.registry.get(wanted)
        if offer is None:
            raise NotFound("flow.unregistered", f"{wanted} is not in this agent's registry.", fix="Add it to the registry.")
        if any(track.renegotiates == session_id for track in self.tracks.values()) or wanted in self.tracks:
            raise Refused("flow.changing", "This session is being changed already.", fix="Wait for the outcome.")
        if session.renegotiations >= self.limits.renegotiations:
            raise TooLarge("flow.renegotiations", "This session was changed too often.", fix="Negotiate a new one.")
        self._observe(now)
        asked = dict(parameters) if parameters is not None else rules.preferred(offer.parameters)
        if wanted == session.agreed.protocol:
            track, agreed = self._track(wanted, TrackState.TERMS, now, session_id), session.agreed
            track.loaded = track.hosted = track.hosting = True
            track.uri, track.digest, track.extensions = agreed.uri, agreed.digest, dict(agreed.extensions)
            return self._offer(track, asked, track.extensions)
        known = next((found for found in self.ranking if found.id == wanted), None)
        track = self._track(wanted, TrackState.PROPOSED, now, session_id)
        track.parameters = asked
        track.digest = known.digest if known else ""
        return [self._propose(track, known, None)]

    # The phases

    def _begin(self, now: Now) -> list[Action]:
        self._wait(State.DISCOVERY, now)
        detail: Literal["full", "summary"] = "summary" if self.goal.summary else "full"
        hello = self._say(Initialize(purpose=self.goal.purpose, request_capabilities=True, capability_detail=detail))
        self._first = hello.message.message_id
        return [hello]

    def _take_shortcut(self, shortcut: Shortcut, now: Now) -> list[Action]:
        agreed = shortcut.agreed
        self._wait(State.SELECTION, now)
        track = self._track(agreed.protocol, TrackState.PROPOSED, now)
        track.uri, track.digest, track.parameters = agreed.uri, agreed.digest, dict(agreed.parameters)
        hello = self._say(Initialize(purpose=self.goal.purpose, request_capabilities=False))
        actions: list[Action] = [hello, self._propose(track, None, None)]
        if not track.digest:
            return actions
        extensions = {**agreed.extensions, **_hash_of(track)}
        actions += [Load(track.protocol, track.digest), *self._offer(track, agreed.parameters, extensions)]
        if shortcut.confirmed:
            actions += self._confirm(track, now)
        return actions

    def _take(self, payload: Payload, message: Message, now: Now) -> list[Action]:
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

    def _learn(self, told: CapabilitiesExchange, message: Message, now: Now) -> list[Action]:
        if self.state is not State.DISCOVERY:
            self.known.learn(told)  # unasked for, in a shortcut or later: good to know
            return [PeerChanged()] if self.state is State.RUNNING else []
        if message.reply_to not in (self._first, self._told):
            return []  # the answer to an initialize before
        self.known.learn(told)
        try:
            common = self.capabilities.common(self.known, self.goal.protocols)
        except TreatyError as error:
            return self._refuse(error, message.message_id)
        lacking = self.known.lacking(common)
        actions: list[Action] = []
        if not self._told:
            request = lacking if self.goal.summary else ()
            mine = self.capabilities.exchange(
                common if self.goal.summary else self.goal.protocols, requirements=self.goal.requirements, request=request
            )
            said = self._say(mine, reply_to=message.message_id)
            self._told = said.message.message_id
            actions.append(said)
            if request:
                self._wait(State.DISCOVERY, now)
                return actions
        self._wait(State.EVALUATION, now)
        return [*actions, Evaluate(common)]

    def _answered(self, answer: ProtocolResponse, message: Message, now: Now) -> list[Action]:
        track = self._expect(message, ProtocolProposal.ACTION)
        if track is None:
            return []
        accepted = answer.accepted_protocol
        if accepted is None:
            error = error_of(
                ErrorCode.NO_COMMON_PROTOCOL, f"The other side rejected {track.protocol}: {answer.comments[:200]!a}."
            )
            return self._give_up(track, ErrorCode.NO_COMMON_PROTOCOL, error, now)
        if accepted.id not in (track.protocol, track.fallback) or not set(track.required) <= set(accepted.provided_capabilities):
            raise Refused("flow.accepted", f"{accepted.id} was accepted as nobody proposed it.")
        if accepted.id != track.protocol:
            track = self._fall_back(track, now)
        if track.state is not TrackState.PROPOSED:
            return []  # a shortcut, whose parameters are on their way
        load = Load(track.protocol, track.digest)
        if not track.digest:  # what to offer says which document is meant
            track.state = TrackState.LOADING
            return [load]
        return [load, *self._offer_first(track)]

    def _weigh(self, answer: ParameterResponse, message: Message, now: Now) -> list[Action]:
        track = self._expect(message, ParameterNegotiation.ACTION)
        if track is None or answer.protocol != track.protocol:
            return []
        theirs = answer.accepted_parameters, answer.extensions
        try:
            mine = (
                rules.counter(self._parameter_rules(track), track.parameters, theirs[0]),
                rules.counter(self._extension_rules(track), track.extensions, theirs[1]),
            )
            agrees = rules.same(list(mine), list(theirs))
            confirmed = track.agreed and track.equals(*theirs)
            track.deadline = now.seconds + self.timeouts.reply
            if not agrees:
                return self._offer(track, *mine)
        except (rules.Unsupported, TooLarge) as error:
            return self._give_up(track, ErrorCode.PARAM_NEGOTIATION_FAILED, error, now)
        track.settled = True
        if not confirmed:  # by a confirmation that was sent ahead
            track.parameters, track.extensions = theirs
            track.state, track.agreed = TrackState.OFFERED, False
        return self._go_on(track, now)

    def _acknowledged(self, answer: ConfirmationAcknowledgment, message: Message, now: Now) -> list[Action]:
        track = self._expect(message, ProtocolConfirmation.ACTION)
        if track is None:
            return []
        ready_at = parse_time(answer.ready_at)
        if (answer.protocol, answer.session_id) != (track.protocol, track.session_id):
            raise Refused("flow.accepted", "The other side acknowledged what was not confirmed.")
        if ready_at > now.unix + self.limits.ready * 1000:
            raise Refused("flow.ready", f"The other side would be ready in more than {self.limits.ready} seconds.")
        track.ready_at = ready_at
        return self._go_on(track, now)

    # One track

    def _propose_next(self, now: Now, renegotiates: str = "") -> list[Action]:
        if not self._candidates or self._proposals >= self.limits.proposals:
            return []
        best = self._candidates.pop(0)
        self._proposals += 1
        fallback = self._candidates[0] if self._candidates and self.count == 1 else None
        track = self._track(best.id, TrackState.PROPOSED, now, renegotiates)
        track.digest = best.digest
        return [self._propose(track, best, fallback)]

    def _propose(self, track: Track, judged: Evaluation | None, fallback: Evaluation | None) -> Send:
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
        """The responder took the fallback instead."""
        del self.tracks[track.protocol]
        other = self._track(track.fallback, TrackState.PROPOSED, now, track.renegotiates)
        self._candidates = [found for found in self._candidates if found.id != other.protocol]
        other.digest = next((found.digest for found in self.ranking if found.id == other.protocol), "")
        return other

    def _offer_first(self, track: Track) -> list[Action]:
        """What this side prefers, or was told to ask for."""
        offer = self.capabilities.registry.get(track.protocol)
        asked = track.parameters or rules.preferred(offer.parameters if offer else {})
        extensions = rules.preferred(offer.extensions if offer else {})
        return self._offer(track, asked, {**extensions, **_hash_of(track)})

    def _offer(self, track: Track, parameters: Mapping[str, Any], extensions: Mapping[str, Any]) -> list[Action]:
        """Offer parameters. Raises `TooLarge` (`flow.rounds`), also for an offer that was made before."""
        check_rounds(track, self.limits)
        track.parameters, track.extensions = dict(parameters), dict(extensions)
        if track.repeats():
            raise TooLarge("flow.rounds", "Offers of parameters go round in circles.")
        track.state = TrackState.TERMS
        offer = ParameterNegotiation(protocol=track.protocol, parameters=track.parameters, extensions=track.extensions)
        return [self._ask(track, offer)]

    def _go_on(self, track: Track, now: Now) -> list[Action]:
        """Whatever can follow, once what it needs is there."""
        track.deadline = now.seconds + self.timeouts.reply
        if track.state is TrackState.OFFERED and track.loaded and not track.agreed:
            return self._confirm(track, now)
        if track.agreed and track.settled and track.loaded and not track.hosting:
            track.hosting = True
            return [Host(track.session_id, track.result, bool(track.renegotiates))]
        if track.ready_at is not None and track.hosted and now.unix >= track.ready_at:
            return self._finish(track, now)
        return []

    def _confirm(self, track: Track, now: Now) -> list[Action]:
        track.state, track.agreed = TrackState.CONFIRMED, True
        track.session_id = track.renegotiates or self.new_id("session")
        track.expires_at = now.unix + self.limits.lifetime * 1000
        if track.renegotiates:
            self.sessions.get(track.session_id).changing = True
        confirmation = ProtocolConfirmation(
            protocol=track.protocol,
            final_parameters=track.parameters,
            extensions=track.extensions,
            session_id=track.session_id,
            expires_at=format_time(track.expires_at),
        )
        said = self._ask(track, confirmation)
        return [said, *self._go_on(track, now)]

    def _take_error(self, payload: ErrorReport, message: Message, now: Now) -> list[Action]:
        """A refusal of parameters may be followed by another offer, any other one by another protocol."""
        if message.reply_to in self._superseded:
            return []
        track = next((track for track in self.tracks.values() if track.answers(message.reply_to)), None)
        if track is None or (track.renegotiates and track.agreed):
            return super()._take_error(payload, message, now)
        if payload.error_code == ErrorCode.PARAM_NEGOTIATION_FAILED and payload.suggested_action == RENEGOTIATE:
            asked = rules.instead(self._parameter_rules(track), track.parameters, payload.details)
            if asked is not None and not track.agreed:
                try:
                    track.deadline = now.seconds + self.timeouts.reply
                    return self._offer(track, asked, track.extensions)
                except TooLarge as error:
                    return self._give_up(track, ErrorCode.PARAM_NEGOTIATION_FAILED, error, now)
        if payload.error_code in (ErrorCode.PARAM_NEGOTIATION_FAILED, ErrorCode.NO_COMMON_PROTOCOL, ErrorCode.VERSION_CONFLICT):
            return self._give_up(track, None, peers_error(payload), now)
        return super()._take_error(payload, message, now)

    def _give_up(self, track: Track, code: ErrorCode | None, error: TreatyError, now: Now) -> list[Action]:
        """Nothing comes of a track: on to the next candidate, or the long way, or the end. `code`: what the peer is told then."""
        if track.renegotiates and track.agreed:
            return self.fail(error)
        self._superseded |= set(track.asked.values())
        del self.tracks[track.protocol]
        if track.renegotiates:
            return [RenegotiationFailed(track.renegotiates, error)]
        if self.shortcut is not None:
            self.shortcut = None
            return self._begin(now)
        following = self._propose_next(now)
        if following or self.tracks or len(self.sessions):
            return following
        return self._refuse(error, code=code)

    def _refuse(
        self, error: TreatyError, reply_to: str | None = None, *, code: ErrorCode | None = ErrorCode.NO_COMMON_PROTOCOL
    ) -> list[Action]:
        if error.code == "flow.version-conflict":
            code = ErrorCode.VERSION_CONFLICT
        told = [self._say(report(code, error.message), reply_to=reply_to)] if code else []
        return [*told, *self._end(State.REJECTED, error)]

    def _ask(self, track: Track, payload: Payload) -> Send:
        said = self._say(payload, session_id=track.renegotiates)
        if payload.ACTION in track.asked:
            self._superseded.add(track.asked[payload.ACTION])
        track.asked[payload.ACTION] = said.message.message_id
        return said

    def _expect(self, message: Message, action: str) -> Track | None:
        """The track whose last message of this action is answered; None where that was superseded, or answered before. Raises
        `Malformed` (`flow.unexpected`)."""
        assert message.reply_to is not None
        for track in self.tracks.values():
            if track.asked.get(action) == message.reply_to:
                self._superseded.add(track.asked.pop(action))
                return track
        if message.reply_to in self._superseded:
            return None
        raise Malformed("flow.unexpected", f"{message.action} answers no message of this side.")

    def _track(self, id: str, state: TrackState, now: Now, renegotiates: str = "") -> Track:
        track = Track(id, state, now.seconds + self.timeouts.reply, renegotiates)
        self.tracks[id] = track
        return track


def _hash_of(track: Track) -> dict[str, Any]:
    return {PROTOCOL_HASH: track.digest} if track.digest else {}
