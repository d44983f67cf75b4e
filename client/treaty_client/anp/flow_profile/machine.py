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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from treaty_consensus.errors import Malformed, Refused, TreatyError, Unavailable

from ...codes import FlowCode
from ..hello_profile.hello import REPORT_COSIGNATURE
from ..recording import Recorder, recorded
from ..transitions import StateTable
from .actions import Action, DeliverData, NegotiationEnded, Ready, RenegotiationFailed, ReportReceived, SendMessage, Track
from .capabilities import CapabilityManager, Peer
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
from .errors import ErrorCode, error_of, peers_error, report
from .messages import ACTION, TYPE, FlowMessage, wrap
from .parameters import Choice, Rules
from .payloads import ErrorReport, Payload, ReportMessage
from .processor import Now
from .sessions import SessionManager, expired
from .states import FINAL, FlowEvent, FlowGuard, FlowLimits, FlowState, FlowTimeouts, FlowWait, TrackTransitions, Transitions
from .strategy import Evaluation

__all__ = ["FINAL", "MAX_MESSAGES", "PROTOCOL_HASH", "FlowLimits", "FlowMachine", "FlowState", "FlowTimeouts"]

PROTOCOL_HASH = "protocolHash"
"""The extension with the SHA-256 of an id's document, 64 hexadecimal digits."""
MAX_MESSAGES = 100
"""The cap of negotiation messages of the peer until the next session is ready."""


_ENDS: Mapping[str, FlowEvent] = {
    ErrorCode.NEGOTIATION_TIMEOUT: FlowEvent.DEADLINE_PASSED,
    ErrorCode.NO_COMMON_PROTOCOL: FlowEvent.NOT_AGREED,
    ErrorCode.VERSION_CONFLICT: FlowEvent.NOT_AGREED,
}


@dataclass
class FlowMachine:
    """The parts that both sides have in common. `peer`: the other side's DID, "" until the first message. `new_id`: a fresh id
    of a kind. `reports`: this side co-signs reports. Not for concurrent use."""

    local: str
    peer: str
    capabilities: CapabilityManager
    new_id: Callable[[str], str]
    timeouts: FlowTimeouts = field(default_factory=FlowTimeouts)
    limits: FlowLimits = field(default_factory=FlowLimits)
    reports: bool = False
    state: FlowState = FlowState.INITIATION
    error: TreatyError | None = None
    known: Peer = field(default_factory=Peer)
    sessions: SessionManager = field(default_factory=SessionManager)
    tracks: dict[str, Track] = field(default_factory=dict)
    recorder: Recorder | None = None
    drawn: list[str] = field(default_factory=list)
    _phase_deadline: float = 0.0
    _offset: float = 0.0
    _received: int = 0
    _noted: Mapping[str, object] = field(default_factory=dict)

    accepts_input: ClassVar[bool] = True  # this machine keeps no incoming message
    TRANSITIONS: ClassVar[Transitions]
    TRACK_TRANSITIONS: ClassVar[TrackTransitions]

    def __post_init__(self) -> None:
        self._table = StateTable(self.TRANSITIONS, {FlowGuard.NO_SESSION: lambda: not len(self.sessions)})

    def start(self, now: Now) -> list[Action]:
        """Begin, and return the first actions."""
        self.drawn.clear()
        self._noted = self._capabilities()
        self._offset = now.seconds - now.unix / 1000
        actions = self._start(now)
        if self.recorder is not None:
            self.recorder.note(type(self).__name__.lower(), {**self._making(), **self._noted}, now, actions, tuple(self.drawn))
        return actions

    @property
    def is_final(self) -> bool:
        """Return whether the connection is over."""
        return self.state in FINAL

    @property
    def deadline(self) -> float:
        """Return the time of the next `tick`, by the clock of `Now.seconds`; infinity after the end."""
        if self.is_final:
            return math.inf
        times = [self._phase_deadline] if self.state is FlowState.RUNNING or not self.tracks else []
        times += [track.deadline for track in self.tracks.values()]
        moments = [track.ready_at for track in self.tracks.values() if track.ready_at is not None and track.hosted]
        expiry = self.sessions.next_expiry()
        moments += [expiry] if expiry is not None else []
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
            if self._received > MAX_MESSAGES:
                raise Refused(FlowCode.ENDLESS, f"{MAX_MESSAGES} messages of negotiation led to no session.")
            self.peer = self.peer or message.sender
            assert isinstance(message.payload, Payload)
            if isinstance(message.payload, ErrorReport):
                return self._take_error(message.payload, message, now)
            if isinstance(message.payload, ReportMessage):
                return self._take_report(message.payload, message)
            return self._take(message.payload, message, now)
        except TreatyError as error:
            return self._end(FlowEvent.FAILED, error)

    def _unverified(self, error: TreatyError) -> list[Action]:
        if not self.peer:
            return self._end(FlowEvent.FAILED, error)
        told = ErrorCode.VERSION_CONFLICT if error.code == FlowCode.VERSION else ErrorCode.VERIFICATION_FAILED
        return [
            self._say(report(told, "A message of yours does not count: " + error.message)),
            *self._end(FlowEvent.FAILED, error),
        ]

    @recorded
    def lost(self, reason: str = "") -> list[Action]:
        """End, as the connection ended. `reason`: the peer's, or ""."""
        if self.is_final:
            return []
        said = f": {reason[:80]!a}" if reason else ""
        running = self.state is FlowState.RUNNING
        if running and reason == expired().code:  # the peer's clock reached the expiry first
            return self._end(FlowEvent.LOST, expired())
        error = Unavailable(FlowCode.PEER_LOST, f"The other side ended the connection{said}.")
        return self._end(FlowEvent.LOST, error if reason or not running else None)

    @recorded
    def tick(self, now: Now) -> list[Action]:
        """Let time pass. Does nothing before `deadline`."""
        if self.is_final:
            return []
        self._observe(now)
        actions: list[Action] = list(self.sessions.expire(now.unix))
        if actions and not len(self.sessions) and not self.tracks:
            return [*actions, *self._end(FlowEvent.CLOSED, expired())]
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
            idle = Unavailable(FlowCode.IDLE, f"Nothing was said for {self.timeouts.idle:g} seconds.")
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
            case SendData(session_id, data):
                return self._send(session_id, data, now)
            case EndSession(session_id):
                return self._end_session(session_id)
            case Renegotiate():
                return self._renegotiate(command, now)
            case TellContext():
                return self._tell_context()
            case SendReport(session_id, report):
                if not self.sessions.get(session_id).reports:
                    raise Refused(FlowCode.REPORTS, "The two sides did not agree to co-sign reports on this session.")
                return [self._say(ReportMessage.of(report), session_id=session_id)]
            case Unverified(error):
                return self._unverified(error)

    def _send(self, session_id: str, data: bytes, now: Now) -> list[Action]:
        session = self.sessions.check_send(session_id, data)
        if session.changing:
            session.waiting.append(data)
            return []
        self._fire(FlowEvent.ACTIVITY, now)
        return [self._pack(session_id, data)]

    def _end_session(self, session_id: str) -> list[Action]:
        if session_id not in self.sessions:
            return []
        self.sessions.end(session_id)
        for track in [track for track in self.tracks.values() if track.renegotiates == session_id]:
            del self.tracks[track.protocol]
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

    def _start(self, now: Now) -> list[Action]:
        raise NotImplementedError

    def _evaluated(self, evaluations: Sequence[Evaluation], now: Now) -> list[Action]:
        """Apply `Evaluated`. A responder asks for no evaluation."""
        return []

    def _loaded(self, protocol: str, uri: str, digest: str, now: Now) -> list[Action]:
        raise NotImplementedError

    def _load_failed(self, protocol: str, error: TreatyError, now: Now) -> list[Action]:
        raise NotImplementedError

    def _hosted(self, session_id: str, now: Now) -> list[Action]:
        raise NotImplementedError

    def _renegotiate(self, wanted: Renegotiate, now: Now) -> list[Action]:
        """Apply `Renegotiate`. A responder may not change sessions."""
        raise Refused(FlowCode.ROLE, "Only the side that began a negotiation changes its sessions.")

    def _tell_context(self) -> list[Action]:
        """Apply `TellContext`. An initiator changes its sessions instead."""
        return []

    def _take(self, payload: Payload, message: FlowMessage, now: Now) -> list[Action]:
        """Take a payload other than an error."""
        raise Malformed(FlowCode.UNEXPECTED, f"{payload.ACTION} is not expected in phase {self.state}.")

    def _take_error(self, payload: ErrorReport, message: FlowMessage, now: Now) -> list[Action]:
        """Take the peer's error message."""
        return self._end(_ENDS.get(payload.error_code, FlowEvent.FAILED), peers_error(payload))

    def _take_report(self, payload: ReportMessage, message: FlowMessage) -> list[Action]:
        """Take a message about a report, in a session that was agreed to have one."""
        session = self.sessions.get(message.session_id or "")
        if not session.reports:
            raise Malformed(FlowCode.UNEXPECTED, "A report came in a session without reports.")
        return [ReportReceived(session.id, payload.message())]

    def _of(self, session_id: str) -> Track | None:
        return next((track for track in self.tracks.values() if track.session_id == session_id), None)

    def _late(self, track: Track, now: Now) -> list[Action]:
        """Handle a track's timeout. Before the confirmation its session continues; after it the sides may differ, so it ends."""
        if track.renegotiates and not track.agreed:
            del self.tracks[track.protocol]
            error = error_of(ErrorCode.NEGOTIATION_TIMEOUT, f"No answer came within {self.timeouts.reply:g} seconds.")
            return [RenegotiationFailed(track.renegotiates, error)]
        return self._time_out(f"{track.protocol} was not agreed on.")

    def _finish(self, track: Track, now: Now) -> list[Action]:
        """Finish a track: its session is ready on this side."""
        del self.tracks[track.protocol]
        replaces = self.sessions.open(track.session_id, track.result, track.expires_at, track.acknowledgment)
        session = self.sessions.get(track.session_id)
        self._fire(FlowEvent.SESSION_READY, now)
        self._received = 0
        waiting, session.waiting = session.waiting, []
        ready = Ready(session.id, session.agreed, session.expires_at, replaces)
        return [ready, *(self._pack(session.id, data) for data in waiting)]

    def _extension_rules(self, track: Track) -> Rules:
        """Return this side's rules for extensions, with the document's hash once it is known."""
        offer = self.capabilities.registry.get(track.protocol)
        own = dict(offer.extensions) if offer else {}
        if self.reports:
            own[REPORT_COSIGNATURE] = Choice((True,))
        return {**own, PROTOCOL_HASH: Choice((track.digest,))} if track.digest else own

    def _parameter_rules(self, track: Track) -> Rules:
        offer = self.capabilities.registry.get(track.protocol)
        return offer.parameters if offer else {}

    def _say(self, payload: Payload, *, reply_to: str | None = None, session_id: str = "", message_id: str = "") -> SendMessage:
        message = FlowMessage(
            type=TYPE,
            action=payload.ACTION,
            message_id=message_id or self._draw("err" if isinstance(payload, ErrorReport) else "msg"),
            sender=self.local,
            recipient=self.peer,
            timestamp=0,
            payload=payload,
            reply_to=reply_to,
            session_id=session_id or None,
        )
        return SendMessage(message)

    def _pack(self, session_id: str, data: bytes) -> SendMessage:
        message = FlowMessage(
            type=self.sessions.get(session_id).name,
            action=ACTION,
            message_id=self._draw("msg"),
            sender=self.local,
            recipient=self.peer,
            timestamp=0,
            payload=wrap(data),
            session_id=session_id,
        )
        return SendMessage(message)

    def _fire(self, event: FlowEvent, now: Now) -> None:
        """Follow a transition to a state that is not final. Raises `UndefinedTransition`."""
        transition = self._table.follow(self.state, event)
        self.state = transition.target
        if transition.wait is not None:
            self._begin_wait(transition.wait, now)

    def _begin_wait(self, wait: FlowWait, now: Now) -> None:
        self._phase_deadline = now.seconds + float(getattr(self.timeouts, wait))

    def _time_out(self, what: str) -> list[Action]:
        error = error_of(ErrorCode.NEGOTIATION_TIMEOUT, f"The negotiation took too long: {what}")
        told = [self._say(report(ErrorCode.NEGOTIATION_TIMEOUT, "An answer did not come in time."))] if self.peer else []
        return [*told, *self._end(FlowEvent.DEADLINE_PASSED, error)]

    def _end(self, event: FlowEvent, error: TreatyError | None) -> list[Action]:
        """Follow a transition to a final state. Raises `UndefinedTransition`."""
        self.state, self.error = self._table.follow(self.state, event).target, error
        self.tracks.clear()
        return [NegotiationEnded(error)]

    def _deliver(self, message: FlowMessage, now: Now) -> list[Action]:
        if self.state is not FlowState.RUNNING:
            raise Malformed(FlowCode.UNEXPECTED, "A message of a protocol came before a session was ready.")
        session, data = self.sessions.receive(message, now.unix)
        self._fire(FlowEvent.ACTIVITY, now)
        return [DeliverData(session.id, data)]

    def _observe(self, now: Now) -> None:
        """Store the time, and record the capabilities if the application has changed them."""
        self._offset = now.seconds - now.unix / 1000
        if self.recorder is not None and (current := self._capabilities()) != self._noted:
            self._noted = current
            self.recorder.note("capabilities", current, None, [])

    def _capabilities(self) -> dict[str, object]:
        return {"offers": tuple(self.capabilities.registry), "context": self.capabilities.context}

    def _making(self) -> dict[str, object]:
        """Return this side's constructor arguments, without its capabilities."""
        return {"local": self.local, "peer": self.peer, "timeouts": self.timeouts, "limits": self.limits, "reports": self.reports}

    def _draw(self, kind: str) -> str:
        self.drawn.append(self.new_id(kind))
        return self.drawn[-1]
