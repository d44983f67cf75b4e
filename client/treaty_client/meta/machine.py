"""The state machine of the Hello profile, the same for both sides: no I/O, no clock, no randomness.

    state     what it waits for                          deadline   goes to
    HELLO     the other side's Hello                     10 s       AGREED, RUNNING (hash confirmed), REJECTED
    AGREED    both codeGeneration messages               15 s       RUNNING
    RUNNING   application messages                       idle time  CLOSED
    CLOSED    –  the session was running and is over
    REJECTED  –  no protocol in common
    ERROR     –  somebody broke a rule, the code could not be made, or the connection was lost too early
    TIMEOUT   –  a deadline passed

Whoever drives it passes in what happens and the time (seconds, any monotonic clock), performs the returned actions in their
order, and calls `tick` at `deadline`. Foreign input never raises; it ends the machine. After the end every call returns no
actions.

Order on the wire. Each side sends codeGeneration before its first PT=01 frame of a session that took the long way; PT=01 frames
that arrive before the code is ready are kept and delivered when it is. A source that offers a hash may send early data right
behind its Hello: a destination that does not confirm the hash drops PT=01 frames up to the source's codeGeneration, and the
source starts over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable

from . import frame, messages
from .actions import Action, Agreement, Deliver, Ended, Load, Meta, Running, SendBinary, SendText
from .frame import ProtocolType
from .hello import META_VERSIONS, REPORT_COSIGNATURE, Hello, common_version, parse
from .messages import CodeGeneration, MetaMessage, ReportCosignature

MAX_WAITING_FRAMES = 64
MAX_WAITING_BYTES = frame.MAX_PAYLOAD
MAX_EARLY_FRAMES = 16


class State(StrEnum):
    """Where a session stands; the last four are final."""

    HELLO = "hello"
    AGREED = "agreed"
    RUNNING = "running"
    CLOSED = "closed"
    REJECTED = "rejected"
    ERROR = "error"
    TIMEOUT = "timeout"


FINAL = frozenset({State.CLOSED, State.REJECTED, State.ERROR, State.TIMEOUT})


@dataclass(frozen=True)
class Timeouts:
    """How long the machine waits, in seconds: for a Hello, for code (15 s by the specification), for anything at all."""

    hello: float = 10.0
    code: float = 15.0
    idle: float = 600.0


class Provided(NamedTuple):
    """A protocol that this side speaks: its hash, and whether that may be confirmed without fetching it again."""

    protocol_hash: str
    confirmable: bool


@dataclass
class Machine:
    """One session. Make it by `source` or `destination`; not for concurrent use."""

    own: Hello
    timeouts: Timeouts
    deadline: float
    provides: Mapping[str, Provided] = field(default_factory=dict)
    known_uri: str = ""
    state: State = State.HELLO
    peer: Hello | None = None
    agreement: Agreement | None = None
    error: TreatyError | None = None
    _own_code: bool = False
    _peer_code: bool = False
    _early_frames: int = 0
    _waiting: list[bytes] = field(default_factory=list)
    _outbox: list[bytes] = field(default_factory=list)

    @classmethod
    def source(cls, hello: Hello, *, now: float, timeouts: Timeouts, known_uri: str = "") -> tuple[Machine, list[Action]]:
        """The side that connects, and its first actions. `known_uri`: the URI of the hash that `hello` offers, if it does."""
        machine = cls(hello, timeouts, now + timeouts.hello, known_uri=known_uri)
        return machine, [SendText(hello.format())]

    @classmethod
    def destination(cls, hello: Hello, *, now: float, timeouts: Timeouts, provides: Mapping[str, Provided]) -> Machine:
        """The side that is connected to. `hello`: its own, which it completes when the source's has come. `provides`: URI to
        protocol, of those that the policy admits."""
        return cls(hello, timeouts, now + timeouts.hello, provides=provides)

    @property
    def is_source(self) -> bool:
        """Whether this side connected."""
        return self.own.type == "sourceHello"

    @property
    def is_final(self) -> bool:
        """Whether the session is over."""
        return self.state in FINAL

    @property
    def accepts_input(self) -> bool:
        """False while the driver had better not read on: the inbox is full, and only this side's code is lacking."""
        return not (self._peer_code and not self._own_code and self._is_full())

    def can_report(self) -> bool:
        """Whether both sides list the capability of co-signing reports."""
        both = (self.own, self.peer) if self.peer else ()
        return bool(both) and all(REPORT_COSIGNATURE in hello.capabilities for hello in both)

    # What arrives

    def receive(self, message: str | bytes, now: float) -> list[Action]:
        """A text or binary message of the peer."""
        if self.is_final:
            return []
        try:
            if isinstance(message, str):
                return self._receive_hello(message, now)
            return self._receive_frame(message, now)
        except TreatyError as error:
            return self._end(State.ERROR, error)

    def lost(self, reason: str = "") -> list[Action]:
        """The connection is gone; `reason` is what the peer gave for closing it, or ""."""
        if self.is_final:
            return []
        said = f": {reason[:80]!a}" if reason else ""
        error = Unavailable("session.peer-lost", f"The other side ended the session{said}.")
        running = self.state is State.RUNNING
        return self._end(State.CLOSED if running else State.ERROR, error if reason or not running else None)

    def tick(self, now: float) -> list[Action]:
        """Time passed. Does nothing before `deadline`."""
        if self.is_final or now < self.deadline:
            return []
        if self.state is State.HELLO:
            error = Unavailable("session.hello-timeout", f"No Hello came within {self.timeouts.hello:g} seconds.")
        elif not (self._own_code and self._peer_code):
            whose = "The other side's" if self._own_code else "This side's"
            error = Unavailable(
                "session.code-timeout",
                f"{whose} code was not ready {self.timeouts.code:g} seconds after the agreement.",
            )
        else:
            error = Unavailable("session.idle", f"Nothing was said for {self.timeouts.idle:g} seconds.")
        return self._end(State.TIMEOUT, error)

    # What this side does

    def code_ready(self, protocol_hash: str, now: float) -> list[Action]:
        """The code that `Load` asked for is ready; it is for the document of this hash."""
        agreement = self.agreement
        if self.is_final or self._own_code or agreement is None:
            return []
        if agreement.protocol_hash not in (None, protocol_hash):
            return self.code_failed(
                Refused("session.hash-mismatch", f"The document of {agreement.uri} has another hash than the other side says.")
            )
        self.agreement = replace(agreement, protocol_hash=protocol_hash)
        self._own_code = True
        if agreement.confirmed:
            return self._run(now)
        announce = SendBinary(frame.encode(ProtocolType.META, messages.encode(CodeGeneration("generated"))))
        return [announce, *(self._run(now) if self._peer_code else [])]

    def code_failed(self, error: TreatyError) -> list[Action]:
        """The code that `Load` asked for cannot be made: tell the peer, and end."""
        if self.is_final:
            return []
        announce = SendBinary(frame.encode(ProtocolType.META, messages.encode(CodeGeneration("error"))))
        return [announce, *self._end(State.ERROR, error)]

    def send(self, payload: bytes, now: float, *, early: bool = False) -> list[Action]:
        """An application message to the peer; kept until it may be sent.

        `early`: it may go out before the peer confirmed the hash, as nothing is lost if that is done twice. Nothing overtakes
        what is kept already.
        """
        if self.is_final:
            return []
        try:
            data = frame.encode(ProtocolType.APPLICATION, payload)
        except TooLarge as error:
            return self._end(State.ERROR, error)
        if self.state is State.RUNNING and self._own_code:
            self.deadline = now + self.timeouts.idle
            return [SendBinary(data)]
        offered = self.is_source and self.state is State.HELLO and self.own.used_protocol_hash is not None
        if early and offered and not self._outbox and self._early_frames < MAX_EARLY_FRAMES:
            self._early_frames += 1
            return [SendBinary(data)]
        self._outbox.append(data)
        if len(self._outbox) > MAX_WAITING_FRAMES or sum(map(len, self._outbox)) > MAX_WAITING_BYTES:
            return self._end(State.ERROR, TooLarge("session.outbox-full", "Too much was said before the session was running."))
        return []

    def send_meta(self, message: ReportCosignature, now: float) -> list[Action]:
        """A meta message that is not about the handshake; dropped unless the session is running."""
        if self.state is not State.RUNNING:
            return []
        self.deadline = max(self.deadline, now + self.timeouts.idle) if self._own_code else self.deadline
        return [SendBinary(frame.encode(ProtocolType.META, messages.encode(message)))]

    def close(self) -> list[Action]:
        """This side has had enough."""
        return [] if self.is_final else self._end(State.CLOSED, None)

    def fail(self, error: TreatyError) -> list[Action]:
        """This side cannot go on."""
        return [] if self.is_final else self._end(State.ERROR, error)

    # Hellos

    def _receive_hello(self, text: str, now: float) -> list[Action]:
        if self.state is not State.HELLO:
            raise Malformed("hello.repeated", "After the Hellos every message is binary.")
        if self.is_source:
            return self._answered(parse(text, "destinationHello"), now)
        return self._asked(parse(text, "sourceHello"), now)

    def _asked(self, hello: Hello, now: float) -> list[Action]:
        """The destination's choice: a hash it can confirm, else the first candidate, in source order, that it provides."""
        if hello.destination_did not in ("", self.own.source_did):
            raise Refused(
                "hello.destination",
                f"This is {self.own.source_did}, not {hello.destination_did}.",
                fix="Connect to the address of the agent you mean, or leave the DID out.",
            )
        self.peer = hello
        answer = replace(
            self.own,
            session_id=hello.session_id,
            destination_did=hello.source_did,
            meta_version=common_version(hello.meta_version),
        )
        offered = hello.used_protocol_hash
        confirmed = next(
            (uri for uri, known in self.provides.items() if known.confirmable and known.protocol_hash == offered), None
        )
        selected = next((uri for uri in hello.candidate_protocols if uri in self.provides), None)
        if confirmed is not None:
            self.own = replace(answer, used_protocol_hash=offered)
            return [SendText(self.own.format()), *self._agree(Agreement(confirmed, offered, True), now)]
        if selected is not None:
            chosen = self.provides[selected].protocol_hash
            # Repeating the offered hash would confirm it; left out, it says that this session takes the long way.
            shown = None if chosen == offered else chosen
            self.own = replace(answer, selected_protocol=selected, used_protocol_hash=shown)
            return [SendText(self.own.format()), *self._agree(Agreement(selected, chosen, False), now)]
        self.own = answer
        return [SendText(answer.format()), *self._reject()]

    def _answered(self, hello: Hello, now: float) -> list[Action]:
        """The source reads the destination's choice, and believes only what it offered itself."""
        if (hello.session_id, hello.destination_did) != (self.own.session_id, self.own.source_did):
            raise Refused("hello.session", "This destinationHello answers another sourceHello.")
        if self.own.destination_did not in ("", hello.source_did):
            raise Refused("hello.destination", f"{hello.source_did} answered, not {self.own.destination_did}.")
        if hello.meta_version not in META_VERSIONS:
            raise Refused("hello.version", f"The other side chose version {hello.meta_version}, which was not offered.")
        self.peer = hello
        offered, selected, shown = self.own.used_protocol_hash, hello.selected_protocol, hello.used_protocol_hash
        if selected is not None and selected not in self.own.candidate_protocols:
            raise Refused("hello.selected", "The other side selected a protocol that was not among the candidates.")
        if shown is not None and shown == offered:
            return self._agree(Agreement(self.known_uri, offered, True), now)
        self._outbox.clear()
        if selected is not None:
            return self._agree(Agreement(selected, shown, False), now)
        if shown is not None:
            raise Refused("hello.hash", "The other side confirmed a protocol hash that was not offered.")
        return self._reject()

    def _agree(self, agreement: Agreement, now: float) -> list[Action]:
        self.agreement = agreement
        self.deadline = now + self.timeouts.code
        if not agreement.confirmed:
            self.state = State.AGREED
            return [Load(agreement)]
        self.state = State.RUNNING
        self._peer_code = True
        return [Load(agreement)]

    def _reject(self) -> list[Action]:
        error = Refused(
            "session.no-common-protocol",
            "The two agents have no protocol in common, and negotiating one with a language model is not available.",
            fix="Offer a protocol that the other side provides, or provide one that is offered.",
        )
        return self._end(State.REJECTED, error)

    # Frames

    def _receive_frame(self, message: bytes, now: float) -> list[Action]:
        if self.state is State.HELLO:
            raise Malformed("hello.missing", "A Hello comes before anything else.")
        type, payload = frame.decode(message)
        if type is ProtocolType.META:
            return self._receive_meta(messages.parse(payload), now)
        if type is not ProtocolType.APPLICATION:
            raise Refused("frame.unsupported-type", f"PT={type:02b} is not among the capabilities of this agent's Hello.")
        if self.state is State.RUNNING and self._own_code:
            self.deadline = now + self.timeouts.idle
            return [Deliver(payload)]
        if self._is_dropped_early_data():
            return []
        if self._is_full():
            raise TooLarge("session.inbox-full", "Too many application messages came before the code was ready.")
        self._waiting.append(payload)
        return []

    def _receive_meta(self, message: MetaMessage, now: float) -> list[Action]:
        match message:
            case CodeGeneration("error"):
                raise Refused("session.peer-code", "The other side could not get the protocol's code ready.")
            case CodeGeneration():
                first, self._peer_code = not self._peer_code, True
                return self._run(now) if first and self._own_code else []
        if self.state is not State.RUNNING or not self.can_report():
            raise Refused("meta.not-agreed", f"{REPORT_COSIGNATURE} is not a capability that both sides listed.")
        return [Meta(message)]

    def _run(self, now: float) -> list[Action]:
        """Both codes are ready: what waited goes its way."""
        self.state = State.RUNNING
        self.deadline = now + self.timeouts.idle
        sent, self._outbox = self._outbox, []
        delivered, self._waiting = self._waiting, []
        return [Running(), *map(SendBinary, sent), *map(Deliver, delivered)]

    def _is_dropped_early_data(self) -> bool:
        """Whether a PT=01 frame now is one the source sent on the strength of a hash that was not confirmed."""
        offered = self.peer.used_protocol_hash if self.peer and not self.is_source else None
        return self.state is State.AGREED and offered is not None and not self._peer_code

    def _is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING_FRAMES or sum(map(len, self._waiting)) >= MAX_WAITING_BYTES

    def _end(self, state: State, error: TreatyError | None) -> list[Action]:
        self.state, self.error = state, error
        self._waiting.clear()
        self._outbox.clear()
        return [Ended(error)]
