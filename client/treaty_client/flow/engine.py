"""The negotiation engine: the state machine of one connection, without I/O, clock or randomness. `initiator` and `responder`
are its two sides.

    state        the initiator waits for              the responder waits for                     deadline
    INITIATION   –                                    initialize                                  10 s
    DISCOVERY    capabilities-exchange                capabilities-exchange                       30 s
    EVALUATION   its own evaluation                   protocol-evaluation, or a proposal          30 s
    SELECTION    its tracks, see `track`              a protocol-proposal, its tracks             30 s for each answer
    RUNNING      messages of the protocol             the same, and changes of sessions          600 s without any; expiry
    CLOSED       –  a session was running, and all are over
    REJECTED     –  nothing to speak in common
    ERROR        –  somebody broke a rule, or the connection was lost too early
    TIMEOUT      –  a deadline passed

Whoever drives it passes in messages that the processor has verified, and the time; performs the returned actions in their
order; and calls `tick` at `deadline`. What a peer sends never raises: it ends the engine. After the end every call returns no
actions.

Between two sessions that become ready the peer may send 100 messages of negotiation, so that nothing goes round for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable

from .actions import Action, Deliver, Ended, Ready, RenegotiationFailed, Send
from .capabilities import CapabilityManager, Peer
from .errors import ErrorCode, error_of, peers_error, report
from .messages import ACTION, TYPE, Message, wrap
from .parameters import Choice, Rules
from .payloads import ErrorReport, Payload
from .processor import Now
from .sessions import SessionManager, expired
from .track import Track

PROTOCOL_HASH = "protocolHash"
"""The extension that says which document an id means: its SHA-256, 64 hexadecimal digits."""
MAX_MESSAGES = 100


class State(StrEnum):
    """Where a negotiation stands; the last four are final."""

    INITIATION = "initiation"
    DISCOVERY = "discovery"
    EVALUATION = "evaluation"
    SELECTION = "selection"
    RUNNING = "running"
    CLOSED = "closed"
    REJECTED = "rejected"
    ERROR = "error"
    TIMEOUT = "timeout"


_ENDS: Mapping[str, State] = {
    ErrorCode.NEGOTIATION_TIMEOUT: State.TIMEOUT,
    ErrorCode.NO_COMMON_PROTOCOL: State.REJECTED,
    ErrorCode.VERSION_CONFLICT: State.REJECTED,
}
FINAL = frozenset({State.CLOSED, State.REJECTED, State.ERROR, State.TIMEOUT})


@dataclass(frozen=True)
class FlowTimeouts:
    """In seconds, how long the engine waits: for the first message, for each answer and for its own code, for anything at all;
    `work`: for evaluating, for fetching, for starting a handler, each less than `reply`."""

    first: float = 10.0
    reply: float = 30.0
    idle: float = 600.0
    work: float = 25.0


@dataclass(frozen=True)
class FlowLimits:
    """How far a negotiation goes. `rounds`: offers of parameters for one protocol; `proposals`: protocols that are proposed;
    `batch`: protocols at once; `renegotiations`: changes of one session; `lifetime`: seconds that a session may be confirmed for;
    `ready`: seconds that a responder may put off being ready."""

    rounds: int = 5
    proposals: int = 8
    batch: int = 8
    renegotiations: int = 64
    lifetime: int = 3600
    ready: int = 30


@dataclass
class Engine:
    """What both sides have in common. `peer`: the DID that is spoken with, "" until the first message. Not for concurrent use."""

    local: str
    peer: str
    capabilities: CapabilityManager
    new_id: Callable[[str], str]
    timeouts: FlowTimeouts = field(default_factory=FlowTimeouts)
    limits: FlowLimits = field(default_factory=FlowLimits)
    state: State = State.INITIATION
    error: TreatyError | None = None
    known: Peer = field(default_factory=Peer)
    sessions: SessionManager = field(default_factory=SessionManager)
    tracks: dict[str, Track] = field(default_factory=dict)
    _phase_deadline: float = 0.0
    _offset: float = 0.0
    _received: int = 0

    @property
    def is_final(self) -> bool:
        """Whether everything is over."""
        return self.state in FINAL

    @property
    def deadline(self) -> float:
        """When `tick` has something to do, by the clock of `Now.seconds`."""
        times = [self._phase_deadline] if self.state is State.RUNNING or not self.tracks else []
        times += [track.deadline for track in self.tracks.values()]
        moments = [track.ready_at for track in self.tracks.values() if track.ready_at is not None and track.hosted]
        expiry = self.sessions.next_expiry()
        moments += [expiry] if expiry is not None else []
        return min([*times, *((moment + 1) / 1000 + self._offset for moment in moments)])

    # What arrives

    def receive(self, message: Message, now: Now) -> list[Action]:
        """A verified message of the peer."""
        if self.is_final:
            return []
        self._observe(now)
        try:
            if message.type != TYPE:
                return self._deliver(message, now)
            self._received += 1
            if self._received > MAX_MESSAGES:
                raise Refused("flow.endless", f"{MAX_MESSAGES} messages of negotiation led to no session.")
            self.peer = self.peer or message.sender
            assert isinstance(message.payload, Payload)
            if isinstance(message.payload, ErrorReport):
                return self._take_error(message.payload, message, now)
            return self._take(message.payload, message, now)
        except TreatyError as error:
            return self._end(State.ERROR, error)

    def unverified(self, error: TreatyError, now: Now) -> list[Action]:
        """What arrived does not count, and nothing that follows would: tell the peer, and end."""
        if self.is_final:
            return []
        self._observe(now)
        if not self.peer:
            return self._end(State.ERROR, error)
        told = ErrorCode.VERSION_CONFLICT if error.code == "flow.version" else ErrorCode.VERIFICATION_FAILED
        return [self._say(report(told, "A message of yours does not count: " + error.message)), *self._end(State.ERROR, error)]

    def lost(self, reason: str = "") -> list[Action]:
        """The connection is gone; `reason` is what the peer gave for closing it, or ""."""
        if self.is_final:
            return []
        said = f": {reason[:80]!a}" if reason else ""
        running = self.state is State.RUNNING
        if running and reason == expired().code:  # its clock was the first of the two
            return self._end(State.CLOSED, expired())
        error = Unavailable("flow.peer-lost", f"The other side ended the connection{said}.")
        return self._end(State.CLOSED if running else State.ERROR, error if reason or not running else None)

    def tick(self, now: Now) -> list[Action]:
        """Time passed. Does nothing before `deadline`."""
        if self.is_final:
            return []
        self._observe(now)
        actions: list[Action] = list(self.sessions.expire(now.unix))
        if actions and not len(self.sessions) and not self.tracks:
            return [*actions, *self._end(State.CLOSED, expired())]
        for track in list(self.tracks.values()):
            if track.ready_at is not None and track.hosted and now.unix >= track.ready_at:
                actions += self._finish(track, now)
            elif now.seconds >= track.deadline:
                actions += self._late(track, now)
            if self.is_final:
                return actions
        if not self.tracks and self.state is not State.RUNNING and now.seconds >= self._phase_deadline:
            return [*actions, *self._time_out(f"no answer came in phase {self.state}.")]
        if self.state is State.RUNNING and now.seconds >= self._phase_deadline:
            idle = Unavailable("flow.idle", f"Nothing was said for {self.timeouts.idle:g} seconds.")
            return [*actions, *self._end(State.TIMEOUT, idle)]
        return actions

    # What this side does

    def send(self, session_id: str, data: bytes, now: Now) -> list[Action]:
        """A handler's bytes for the peer; kept while the session changes. Raises `NotFound`, `TooLarge`, which change nothing."""
        if self.is_final:
            return []
        session = self.sessions.check_send(session_id, data)
        if session.changing:
            session.waiting.append(data)
            return []
        self._phase_deadline = now.seconds + self.timeouts.idle
        return [self._pack(session_id, data)]

    def end_session(self, session_id: str) -> list[Action]:
        """This side has had enough of one session; with the last one everything is over."""
        if self.is_final or session_id not in self.sessions:
            return []
        self.sessions.end(session_id)
        for track in [track for track in self.tracks.values() if track.renegotiates == session_id]:
            del self.tracks[track.protocol]
        return [] if len(self.sessions) or self.tracks else self._end(State.CLOSED, None)

    def host_failed(self, session_id: str, error: TreatyError) -> list[Action]:
        """What `Host` asked for cannot run here, and the other side may believe that it does: the end."""
        return self.fail(error) if self._of(session_id) else []

    def close(self) -> list[Action]:
        """This side has had enough of it all."""
        return [] if self.is_final else self._end(State.CLOSED, None)

    def fail(self, error: TreatyError) -> list[Action]:
        """This side cannot go on."""
        return [] if self.is_final else self._end(State.ERROR, error)

    # For the two sides

    def _take(self, payload: Payload, message: Message, now: Now) -> list[Action]:
        """A payload other than an error."""
        raise Malformed("flow.unexpected", f"{payload.ACTION} is not expected in phase {self.state}.")

    def _take_error(self, payload: ErrorReport, message: Message, now: Now) -> list[Action]:
        """The peer says that something cannot be done."""
        return self._end(_ENDS.get(payload.error_code, State.ERROR), peers_error(payload))

    def _of(self, session_id: str) -> Track | None:
        return next((track for track in self.tracks.values() if track.session_id == session_id), None)

    def _late(self, track: Track, now: Now) -> list[Action]:
        """A track's deadline passed. While nothing is confirmed, its session runs on; after that nobody knows what is spoken."""
        if track.renegotiates and not track.agreed:
            del self.tracks[track.protocol]
            error = error_of(ErrorCode.NEGOTIATION_TIMEOUT, f"No answer came within {self.timeouts.reply:g} seconds.")
            return [RenegotiationFailed(track.renegotiates, error)]
        return self._time_out(f"{track.protocol} was not agreed on.")

    def _finish(self, track: Track, now: Now) -> list[Action]:
        """The track's session is ready on this side."""
        del self.tracks[track.protocol]
        replaces = self.sessions.open(track.session_id, track.result, track.expires_at)
        session = self.sessions.get(track.session_id)
        self.state = State.RUNNING
        self._received = 0
        self._phase_deadline = now.seconds + self.timeouts.idle
        waiting, session.waiting = session.waiting, []
        ready = Ready(session.id, session.agreed, session.expires_at, replaces)
        return [ready, *(self._pack(session.id, data) for data in waiting)]

    def _extension_rules(self, track: Track) -> Rules:
        """This side's rules for extensions, the document's hash among them once it is known."""
        offer = self.capabilities.registry.get(track.protocol)
        own = dict(offer.extensions) if offer else {}
        return {**own, PROTOCOL_HASH: Choice((track.digest,))} if track.digest else own

    def _parameter_rules(self, track: Track) -> Rules:
        offer = self.capabilities.registry.get(track.protocol)
        return offer.parameters if offer else {}

    def _say(self, payload: Payload, *, reply_to: str | None = None, session_id: str = "", message_id: str = "") -> Send:
        message = Message(
            type=TYPE,
            action=payload.ACTION,
            message_id=message_id or self.new_id("err" if isinstance(payload, ErrorReport) else "msg"),
            sender=self.local,
            recipient=self.peer,
            timestamp=0,
            payload=payload,
            reply_to=reply_to,
            session_id=session_id or None,
        )
        return Send(message)

    def _pack(self, session_id: str, data: bytes) -> Send:
        message = Message(
            type=self.sessions.get(session_id).name,
            action=ACTION,
            message_id=self.new_id("msg"),
            sender=self.local,
            recipient=self.peer,
            timestamp=0,
            payload=wrap(data),
            session_id=session_id,
        )
        return Send(message)

    def _wait(self, state: State, now: Now) -> None:
        self.state = state
        self._phase_deadline = now.seconds + self.timeouts.reply

    def _time_out(self, what: str) -> list[Action]:
        error = error_of(ErrorCode.NEGOTIATION_TIMEOUT, f"The negotiation took too long: {what}")
        told = [self._say(report(ErrorCode.NEGOTIATION_TIMEOUT, "An answer did not come in time."))] if self.peer else []
        return [*told, *self._end(State.TIMEOUT, error)]

    def _end(self, state: State, error: TreatyError | None) -> list[Action]:
        self.state, self.error = state, error
        self.tracks.clear()
        return [Ended(error)]

    def _deliver(self, message: Message, now: Now) -> list[Action]:
        if self.state is not State.RUNNING:
            raise Malformed("flow.unexpected", "A message of a protocol came before a session was ready.")
        session, data = self.sessions.receive(message, now.unix)
        self._phase_deadline = now.seconds + self.timeouts.idle
        return [Deliver(session.id, data)]

    def _observe(self, now: Now) -> None:
        self._offset = now.seconds - now.unix / 1000


def check_lifetime(expires_at: int, now: Now, limits: FlowLimits) -> None:
    """Raises `Refused` (`flow.lifetime`) for a session that is over already, or that would go on for too long."""
    if not now.unix < expires_at <= now.unix + limits.lifetime * 1000 + 60_000:
        raise Refused("flow.lifetime", f"A session lasts at most {limits.lifetime} seconds here, and is not over when it begins.")


def check_rounds(track: Track, limits: FlowLimits) -> None:
    """Raises `TooLarge` (`flow.rounds`) when parameters were offered too often."""
    track.rounds += 1
    if track.rounds > limits.rounds:
        raise TooLarge("flow.rounds", f"After {limits.rounds} offers there is no agreement on parameters.")
