"""Run the state machine of the flow profile for one connection, without I/O or a clock.

    receive(message, now)    a message of the peer that the processor has verified
    apply(command, now)      a command of this side, see `commands`
    tick(now)                the time; due at `deadline`
    close(), fail(error)     this side ends the connection
    lost(reason)             the connection ended

Each returns the actions to perform, in their order. The states and all transitions are in the tables of `states`. `initiator` and
`responder` are the two sides. A wrong message of the peer raises no error: it ends the machine. After the end every call returns
no actions. Until the next session is ready, the peer may send 100 messages of negotiation, so that no negotiation is endless.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_io.codes import FlowCode, SessionCode
from treaty_io.errors import PeerUnavailable

from ..call_metadata import CallMetadata
from ..ending import ended_by_peer
from ..hello_profile.hello import REPORT_COSIGNATURE, ROLE_FIX
from ..recording import Recorder, recorded
from ..transitions import StateTable
from .actions import Action, DeliverData, NegotiationEnded, Ready, RenegotiationFailed, ReportReceived, SendMessage
from .capabilities import CapabilityManager, PeerCapabilities
from .commands import (
    Command,
    EndSession,
    Evaluated,
    Hosted,
    HostFailed,
    Loaded,
    LoadFailed,
    Renegotiate,
    SendData,
    SendReport,
    TellContext,
    Unverified,
)
from .errors import ABORT, ErrorCode, error_of, peers_error, refusal, report
from .messages import TYPE, FlowMessage, Foreign
from .parameters import Choice, RoleName, Rule, Rules, kept
from .payloads import ContextInfo, ErrorReport, Payload, ReportMessage
from .processor import Now
from .sessions import NegotiationSession, SessionManager, expired
from .states import (
    FINAL,
    FlowEvent,
    FlowGuard,
    FlowLimits,
    FlowState,
    FlowTimeouts,
    FlowWait,
    TrackState,
    TrackTransitions,
    Transitions,
)
from .strategy import Evaluation
from .track import Track
from .transfer import BYTE_FORM

PROTOCOL_HASH = "protocolHash"
"""The extension with the SHA-256 of an id's document, 64 hexadecimal digits."""
INITIATOR_ROLE = "initiatorRole"
"""The extension with the initiator's role in the protocol."""
OWN_EXTENSIONS = frozenset((PROTOCOL_HASH, REPORT_COSIGNATURE, BYTE_FORM, INITIATOR_ROLE))
"""The extensions that the profile itself offers; the others belong to the owner's offers."""
MAX_MESSAGES = 100
"""The cap of negotiation messages of the peer until the next session is ready."""

_ENDS: Mapping[str, FlowEvent] = {
    ErrorCode.NEGOTIATION_TIMEOUT: FlowEvent.DEADLINE_PASSED,
    ErrorCode.NO_COMMON_PROTOCOL: FlowEvent.NOT_AGREED,
    ErrorCode.VERSION_CONFLICT: FlowEvent.NOT_AGREED,
}
_TOLD = frozenset((FlowCode.ROUNDS, FlowCode.LIFETIME, FlowCode.RENEGOTIATIONS, FlowCode.BATCH))
"""Refusals of a proposal or of parameters. They are told by an error message before the connection ends."""


@dataclass(eq=False)
class NegotiationEngine(ABC):
    """One side of a connection, with all that the two sides have in common. Not for concurrent use.

    `peer`: the other side's DID, "" until the first message.
    `new_id`: return a fresh id of a kind.
    `reports`: whether this side co-signs reports.
    `encrypted`: whether the connection has end-to-end encryption.
    `peer_capabilities`: those that the other side named.
    `last_received`: the id of the peer's last message of the negotiation.
    `drawn`: the ids that the last call used.
    """

    local: str
    peer: str
    capabilities: CapabilityManager
    new_id: Callable[[str], str]
    timeouts: FlowTimeouts = field(default_factory=FlowTimeouts)
    limits: FlowLimits = field(default_factory=FlowLimits)
    reports: bool = False
    encrypted: bool = False
    recorder: Recorder | None = None
    state: FlowState = field(default=FlowState.INITIATION, init=False)
    error: TreatyError | None = field(default=None, init=False)
    peer_capabilities: PeerCapabilities = field(default_factory=PeerCapabilities, init=False)
    sessions: SessionManager = field(default_factory=SessionManager, init=False)
    tracks: dict[str, Track] = field(default_factory=dict, init=False)
    last_received: str | None = field(default=None, init=False)
    drawn: list[str] = field(default_factory=list, init=False)
    _phase_deadline: float = field(default=0.0, init=False)
    _offset: float = field(default=0.0, init=False)
    _received: int = field(default=0, init=False)
    _noted: Mapping[str, object] = field(default_factory=dict, init=False)

    accepts_input: ClassVar[bool] = True  # this machine keeps no incoming message
    TRANSITIONS: ClassVar[Transitions]
    TRACK_TRANSITIONS: ClassVar[TrackTransitions]

    def __post_init__(self) -> None:
        self._table = StateTable(self.TRANSITIONS, self._is_met)

    def _is_met(self, guard: FlowGuard) -> bool:
        match guard:
            case FlowGuard.NO_SESSION:
                return not len(self.sessions)

    @property
    def is_final(self) -> bool:
        """Return whether the connection is over."""
        return self.state in FINAL

    def start(self, now: Now) -> list[Action]:
        """Begin, and return the first actions."""
        self.drawn.clear()
        self._noted = self._capabilities()
        self._offset = now.seconds - now.unix / 1000
        actions = self._start(now)
        if self.recorder is not None:
            self.recorder.note(type(self).__name__.lower(), {**self._arguments(), **self._noted}, now, actions, tuple(self.drawn))
        return actions

    @property
    def deadline(self) -> float:
        """Return the time of the next `tick`, by the clock of `Now.seconds`; infinity after the end."""
        if self.is_final:
            return math.inf
        times = [self._phase_deadline] if self.state is FlowState.RUNNING or not self.tracks else []
        times += [track.deadline for track in self.tracks.values()]
        moments = [track.ready_at for track in self.tracks.values() if track.ready_at is not None and track.hosted]
        moments += [at for at in (self.sessions.next_expiry(), self.sessions.next_renewal()) if at is not None]
        return min([*times, *((moment + 1) / 1000 + self._offset for moment in moments)])

    # What arrives

    @recorded
    def receive(self, message: FlowMessage, now: Now) -> list[Action]:
        """Take a verified message of the peer."""
        if self.is_final:
            return []
        self._observe(now)
        try:
            if message.type != TYPE:
                return self._deliver(message, now)
            self._received += 1
            # Counted over all tracks: a peer that negotiates and never agrees costs work without end.
            if self._received > MAX_MESSAGES:
                raise Refused(FlowCode.ENDLESS, f"{MAX_MESSAGES} messages of negotiation led to no session.")
            self.peer, self.last_received = self.peer or message.sender, message.message_id
            assert isinstance(message.payload, Payload)
            if isinstance(message.payload, ErrorReport):
                return self._take_error(message.payload, message, now)
            if isinstance(message.payload, ReportMessage):
                return self._take_report(message.payload, message)
            return self._take(message.payload, message, now)
        except TreatyError as error:
            last = [self._tell(error, message)] if error.code in _TOLD else []
            return [*last, *self._end(FlowEvent.FAILED, error)]

    def _tell(self, error: TreatyError, message: FlowMessage) -> Action:
        details = {"reason": error.code}
        failed = report(ErrorCode.PARAM_NEGOTIATION_FAILED, error.message, details=details, suggested=ABORT)
        return self._say(failed, reply_to=message.message_id, session_id=message.session_id or "")

    def _unverified(self, refused: Unverified) -> list[Action]:
        """Tell why a message is not accepted, also a claimed sender: the answer goes back on its own connection only."""
        recipient = self.peer or refused.sender
        if not recipient:
            return self._end(FlowEvent.FAILED, refused.error)
        failed = self._say(refusal(refused.error), reply_to=refused.message_id or None, recipient=recipient)
        return [failed, *self._end(FlowEvent.FAILED, refused.error)]

    @recorded
    def lost(self, reason: str = "") -> list[Action]:
        """End, as the connection ended. `reason`: the peer's, or ""."""
        if self.is_final:
            return []
        running = self.state is FlowState.RUNNING
        if running and reason == expired().code:  # the peer's clock reached the expiry first
            return self._end(FlowEvent.LOST, expired())
        if reason == SessionCode.ROLE:
            refused = Refused(SessionCode.ROLE, "The other side refused this side's role in the protocol.", fix=ROLE_FIX)
            return self._end(FlowEvent.LOST, refused)
        error = ended_by_peer(reason, "The other side ended the connection", SessionCode.PEER_LOST, SessionCode.PEER_REFUSED)
        return self._end(FlowEvent.LOST, error if reason or not running else None)

    @recorded
    def tick(self, now: Now) -> list[Action]:
        """Let time pass. Does nothing before `deadline`."""
        if self.is_final:
            return []
        self._observe(now)
        ended = self.sessions.expire(now.unix)
        for one in ended:
            self._drop_changes(one.session_id)
        actions: list[Action] = list(ended)
        if actions and not len(self.sessions) and not self.tracks:
            return [*actions, *self._end(FlowEvent.CLOSED, expired())]
        for session in self.sessions.to_renew(now.unix):
            actions += self._renew(session, now)
        for track in list(self.tracks.values()):
            if track.ready_at is not None and track.hosted and now.unix >= track.ready_at:
                actions += self._finish(track, now)
            elif now.seconds >= track.deadline:
                actions += self._late(track, now)
            if self.is_final:
                return actions
        if not self.tracks and self.state is not FlowState.RUNNING and now.seconds >= self._phase_deadline:
            return [*actions, *self._time_out(f"no answer came in phase {self.state}.")]
        if self.state is FlowState.RUNNING and now.seconds >= self._phase_deadline:
            idle = PeerUnavailable(SessionCode.IDLE, f"Nothing was said for {self.timeouts.idle:g} seconds.")
            return [*actions, *self._end(FlowEvent.DEADLINE_PASSED, idle)]
        return actions

    # What this side does

    @recorded
    def apply(self, command: Command, now: Now) -> list[Action]:
        """Apply a command of this side. Raises the errors of the command's class; then nothing has changed."""
        if self.is_final:
            return []
        self._observe(now)
        match command:
            case Evaluated(evaluations):
                return self._evaluated(evaluations, now)
            case Loaded(protocol, uri, digest):
                return self._loaded(protocol, uri, digest, now)
            case LoadFailed(protocol, error):
                return self._load_failed(protocol, error, now)
            case Hosted(session_id):
                return self._hosted(session_id, now)
            case HostFailed(session_id, error):
                return self._end(FlowEvent.FAILED, error) if self._of(session_id) else []
            case SendData():
                return self._send(command, now)
            case EndSession(session_id):
                return self._end_session(session_id)
            case Renegotiate():
                return self._renegotiate(command, now)
            case TellContext(context):
                return self._tell_context(context)
            case SendReport(session_id, report):
                if not self.sessions.get(session_id).reports:
                    raise Refused(SessionCode.PROFILE, "The two sides did not agree to co-sign reports on this session.")
                return [self._say(ReportMessage.of(report), session_id=session_id)]
            case Unverified():
                return self._unverified(command)

    def _send(self, command: SendData, now: Now) -> list[Action]:
        session, message = self.sessions.check_send(command.session_id), (command.data, command.action, command.metadata)
        if session.changing:
            # The peer would read it by the new terms, or by the old ones: it waits until both sides have the same.
            session.hold(*message)
            return []
        packed = self._pack(session.id, *message)
        self._fire(FlowEvent.ACTIVITY, now)
        return packed

    def _end_session(self, session_id: str) -> list[Action]:
        if session_id not in self.sessions:
            return []
        self.sessions.end(session_id)
        self._drop_changes(session_id)
        return [] if len(self.sessions) or self.tracks else self._end(FlowEvent.CLOSED, None)

    @recorded
    def close(self) -> list[Action]:
        """End the connection in order."""
        return [] if self.is_final else self._end(FlowEvent.CLOSED, None)

    @recorded
    def fail(self, error: TreatyError) -> list[Action]:
        """End the connection, as this side cannot go on."""
        return [] if self.is_final else self._end(FlowEvent.FAILED, error)

    # For the two sides

    @abstractmethod
    def _start(self, now: Now) -> list[Action]:
        """Send the first messages."""

    def _evaluated(self, evaluations: Sequence[Evaluation], now: Now) -> list[Action]:
        """Apply `Evaluated`. A responder asks for no evaluation."""
        return []

    @abstractmethod
    def _loaded(self, protocol: str, uri: str, digest: str, now: Now) -> list[Action]:
        """Apply `Loaded`."""

    @abstractmethod
    def _load_failed(self, protocol: str, error: TreatyError, now: Now) -> list[Action]:
        """Apply `LoadFailed`."""

    @abstractmethod
    def _hosted(self, session_id: str, now: Now) -> list[Action]:
        """Apply `Hosted`."""

    def _renegotiate(self, command: Renegotiate, now: Now) -> list[Action]:
        """Apply `Renegotiate`. A responder may not change sessions."""
        raise Refused(SessionCode.PROFILE, "Only the side that began a negotiation changes its sessions.")

    def _tell_context(self, context: ContextInfo | None) -> list[Action]:
        """Apply `TellContext`. An initiator changes its sessions instead."""
        return []

    def _renew(self, session: NegotiationSession, now: Now) -> list[Action]:
        """Renew a session whose end is near. A responder leaves that to the initiator."""
        session.plan_renewal(None)
        return []

    def _renewal(self, expires_at: int, now: Now) -> int | None:
        """Return when to renew a session, in milliseconds since 1970."""
        return None

    def _take(self, payload: Payload, message: FlowMessage, now: Now) -> list[Action]:
        """Take a payload other than an error."""
        raise Malformed(FlowCode.MESSAGE, f"{payload.ACTION} is not expected in phase {self.state}.")

    def _take_error(self, payload: ErrorReport, message: FlowMessage, now: Now) -> list[Action]:
        """Take the peer's error message. One about a running session leaves it as it was."""
        session_id = message.session_id or ""
        about = [track for track in self.tracks.values() if track.renegotiates == session_id]
        # After the confirmation the two sides may differ about the terms, so only an earlier change can be taken back.
        if session_id in self.sessions and not any(track.agreed for track in about):
            self._drop_changes(session_id)
            return [RenegotiationFailed(session_id, peers_error(payload))] if about else []
        return self._end(_ENDS.get(payload.error_code, FlowEvent.FAILED), peers_error(payload))

    def _take_report(self, payload: ReportMessage, message: FlowMessage) -> list[Action]:
        """Take a message about a report, in a session that was agreed to have one."""
        session = self.sessions.get(message.session_id or "")
        if not session.reports:
            raise Malformed(FlowCode.MESSAGE, "A report came in a session without reports.")
        return [ReportReceived(session.id, payload.message())]

    def _late(self, track: Track, now: Now) -> list[Action]:
        """Handle a track's timeout. Before the confirmation its session continues; after it the sides may differ, so it ends."""
        if track.renegotiates and not track.agreed:
            self._drop_track(track.protocol)
            error = error_of(ErrorCode.NEGOTIATION_TIMEOUT, f"No answer came within {self.timeouts.reply:g} seconds.")
            return [RenegotiationFailed(track.renegotiates, error)]
        return self._time_out(f"{track.protocol} was not agreed on.")

    def _finish(self, track: Track, now: Now) -> list[Action]:
        """Finish a track: its session is ready on this side."""
        self._drop_track(track.protocol)
        replaces = self.sessions.open(track.session_id, track.result, track.expires_at, track.acknowledgment)
        session = self.sessions.get(track.session_id)
        self._fire(FlowEvent.SESSION_READY, now)
        # A ready session shows that the negotiation made progress.
        self._received = 0
        waiting = session.release()
        session.plan_renewal(self._renewal(session.expires_at, now))
        actions: list[Action] = [Ready(session.id, session.agreed, session.expires_at, replaces)]
        try:
            for message in waiting:
                actions += self._pack(session.id, *message)
        except TreatyError as error:  # the new terms admit only smaller messages
            return [*actions, *self._end(FlowEvent.FAILED, error)]
        return actions

    def _deliver(self, message: FlowMessage, now: Now) -> list[Action]:
        if self.state is not FlowState.RUNNING:
            raise Malformed(FlowCode.MESSAGE, "A message of a protocol came before a session was ready.")
        session, received = self.sessions.receive(message, now.unix)
        self._fire(FlowEvent.ACTIVITY, now)
        return [DeliverData(session.id, *received, message.call_context)] if received is not None else []

    # Shared steps

    def _of(self, session_id: str) -> Track | None:
        return next((track for track in self.tracks.values() if track.session_id == session_id), None)

    def _open_track(
        self,
        protocol: str,
        state: TrackState,
        now: Now,
        renegotiates: str = "",
        *,
        uri: str = "",
        digest: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> Track:
        """Begin to negotiate a protocol."""
        track = Track(
            protocol,
            self.TRACK_TRANSITIONS,
            state,
            self._reply_deadline(now),
            renegotiates,
            uri,
            digest,
            dict(parameters or {}),
        )
        self.tracks[protocol] = track
        return track

    def _drop_track(self, protocol: str) -> None:
        del self.tracks[protocol]

    def _drop_changes(self, session_id: str) -> None:
        """Forget the changes of a session that are negotiated."""
        self.tracks = {id: track for id, track in self.tracks.items() if track.renegotiates != session_id}

    def _reply_deadline(self, now: Now) -> float:
        return now.seconds + self.timeouts.reply

    def _allows(self, event: FlowEvent) -> bool:
        return self._table.allows(self.state, event)

    def _extension_rules(self, track: Track) -> Rules:
        """Return this side's rules for extensions, with those of the profile itself."""
        offer = self.capabilities.registry.get(track.protocol)
        own: dict[str, Rule] = {**(offer.extensions if offer else {}), BYTE_FORM: Choice((True,))}
        # Compared when the handler is started, because the manifest says which roles fit.
        own[INITIATOR_ROLE] = RoleName()
        if self.reports:
            own[REPORT_COSIGNATURE] = Choice((True,))
        # The hash is compared once this side knows its own document.
        return {**own, PROTOCOL_HASH: Choice((track.digest,))} if track.digest else own

    def _parameter_rules(self, protocol: str) -> Rules:
        """Return this side's rules for the parameters of a protocol, as far as this connection can keep them."""
        offer = self.capabilities.registry.get(protocol)
        return kept(offer.parameters if offer else {}, encrypted=self.encrypted)

    def _say(self, payload: Payload, *, reply_to: str | None = None, session_id: str = "", recipient: str = "") -> SendMessage:
        message = FlowMessage(
            type=TYPE,
            action=payload.ACTION,
            message_id=self._draw("err" if isinstance(payload, ErrorReport) else "msg"),
            sender=self.local,
            recipient=recipient or self.peer,
            timestamp=0,
            payload=payload,
            reply_to=reply_to,
            session_id=session_id or None,
        )
        return SendMessage(message)

    def _pack(self, session_id: str, data: bytes, action: str, metadata: CallMetadata | None) -> list[Action]:
        """Return the messages that carry a handler's bytes: one, or one for each chunk."""
        session = self.sessions.get(session_id)
        return [
            SendMessage(
                FlowMessage(
                    type=session.name,
                    action=named,
                    message_id=self._draw("msg"),
                    sender=self.local,
                    recipient=self.peer,
                    timestamp=0,
                    payload=Foreign(value),
                    session_id=session_id,
                    # Only agents of this profile agree on the byte form. Others may refuse members that they do not know.
                    call_context=None if session.codec.json_form else metadata,
                )
            )
            for named, value in session.codec.encode(data, action)
        ]

    def _fire(self, event: FlowEvent, now: Now) -> None:
        """Follow a transition to a state that is not final. Raises `UndefinedTransition`."""
        transition = self._table.follow(self.state, event)
        self.state = transition.target
        if transition.wait is not None:
            self._begin_wait(transition.wait, now)

    def _begin_wait(self, wait: FlowWait, now: Now) -> None:
        # By the monotonic clock: a wall clock that is set must not end or prolong a wait.
        self._phase_deadline = now.seconds + float(getattr(self.timeouts, wait))

    def _time_out(self, what: str) -> list[Action]:
        error = error_of(ErrorCode.NEGOTIATION_TIMEOUT, f"The negotiation took too long: {what}")
        details = {"phase": str(self.state), "seconds": self.timeouts.reply}
        late = report(ErrorCode.NEGOTIATION_TIMEOUT, "An answer did not come in time.", details=details)
        last = [self._say(late, reply_to=self.last_received)] if self.peer else []
        return [*last, *self._end(FlowEvent.DEADLINE_PASSED, error)]

    def _end(self, event: FlowEvent, error: TreatyError | None) -> list[Action]:
        """Follow a transition to a final state. Raises `UndefinedTransition`."""
        self.state, self.error = self._table.follow(self.state, event).target, error
        # Nothing is negotiated after the end, so no deadline is left.
        self.tracks.clear()
        return [NegotiationEnded(error)]

    def _observe(self, now: Now) -> None:
        """Store the time, and record the capabilities if the application has changed them."""
        self._offset = now.seconds - now.unix / 1000
        # The application may change its offers at any time; a replay must see the same ones.
        if self.recorder is not None and (current := self._capabilities()) != self._noted:
            self._noted = current
            self.recorder.note("capabilities", current, None, [])

    def _capabilities(self) -> dict[str, object]:
        return {"offers": tuple(self.capabilities.registry), "context": self.capabilities.context}

    def _arguments(self) -> dict[str, object]:
        """Return this side's constructor arguments, without its capabilities."""
        return {
            "local": self.local,
            "peer": self.peer,
            "timeouts": self.timeouts,
            "limits": self.limits,
            "reports": self.reports,
            "encrypted": self.encrypted,
        }

    def _draw(self, kind: str) -> str:
        self.drawn.append(self.new_id(kind))
        return self.drawn[-1]
