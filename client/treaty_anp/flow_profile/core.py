"""Hold the common data and the common steps of both sides' negotiation engines: state, waits, rules, outgoing messages, the end.

`machine` adds the verbs that a driver calls. For example, `_say` makes a message of the negotiation, and `_pack` the messages
that carry a handler's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from treaty_consensus.errors import TreatyError

from ..call_metadata import CallMetadata
from ..hello_profile.hello import REPORT_COSIGNATURE
from ..recording import Recorder
from ..transitions import StateTable
from .actions import Action, NegotiationEnded, SendMessage, Track
from .capabilities import CapabilityManager, PeerCapabilities
from .errors import ErrorCode, error_of, report
from .messages import TYPE, FlowMessage, Foreign
from .parameters import Choice, Rule, Rules
from .payloads import ErrorReport, Payload
from .processor import Now
from .sessions import SessionManager
from .states import FINAL, FlowEvent, FlowGuard, FlowLimits, FlowState, FlowTimeouts, FlowWait, TrackTransitions, Transitions
from .terms import RoleName, kept
from .transfer import BYTE_FORM

PROTOCOL_HASH = "protocolHash"
"""The extension with the SHA-256 of an id's document, 64 hexadecimal digits."""
INITIATOR_ROLE = "initiatorRole"
"""The extension with the initiator's role in the protocol."""
OWN_EXTENSIONS = frozenset((PROTOCOL_HASH, REPORT_COSIGNATURE, BYTE_FORM, INITIATOR_ROLE))
"""The extensions that the profile itself offers; the others belong to the owner's offers."""


@dataclass
class EngineCore:
    """The data of one side of a connection. `peer`: the other side's DID, "" until the first message. `new_id`: a fresh id of a
    kind. `reports`: this side co-signs reports. `encrypted`: the connection has end-to-end encryption."""

    local: str
    peer: str
    capabilities: CapabilityManager
    new_id: Callable[[str], str]
    timeouts: FlowTimeouts = field(default_factory=FlowTimeouts)
    limits: FlowLimits = field(default_factory=FlowLimits)
    reports: bool = False
    encrypted: bool = False
    state: FlowState = FlowState.INITIATION
    error: TreatyError | None = None
    known: PeerCapabilities = field(default_factory=PeerCapabilities)
    sessions: SessionManager = field(default_factory=SessionManager)
    tracks: dict[str, Track] = field(default_factory=dict)
    recorder: Recorder | None = None
    drawn: list[str] = field(default_factory=list)
    _phase_deadline: float = 0.0
    _offset: float = 0.0
    _received: int = 0
    _last_heard: str = ""
    _noted: Mapping[str, object] = field(default_factory=dict)

    accepts_input: ClassVar[bool] = True  # this machine keeps no incoming message
    TRANSITIONS: ClassVar[Transitions]
    TRACK_TRANSITIONS: ClassVar[TrackTransitions]

    def __post_init__(self) -> None:
        self._table = StateTable(self.TRANSITIONS, {FlowGuard.NO_SESSION: lambda: not len(self.sessions)})

    @property
    def is_final(self) -> bool:
        """Return whether the connection is over."""
        return self.state in FINAL

    def _of(self, session_id: str) -> Track | None:
        return next((track for track in self.tracks.values() if track.session_id == session_id), None)

    def _drop_changes(self, session_id: str) -> None:
        """Forget the changes of a session that are negotiated."""
        self.tracks = {id: track for id, track in self.tracks.items() if track.renegotiates != session_id}

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

    def _say(
        self, payload: Payload, *, reply_to: str | None = None, session_id: str = "", message_id: str = "", recipient: str = ""
    ) -> SendMessage:
        message = FlowMessage(
            type=TYPE,
            action=payload.ACTION,
            message_id=message_id or self._draw("err" if isinstance(payload, ErrorReport) else "msg"),
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
        told = [self._say(late, reply_to=self._last_heard or None)] if self.peer else []
        return [*told, *self._end(FlowEvent.DEADLINE_PASSED, error)]

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

    def _making(self) -> dict[str, object]:
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
