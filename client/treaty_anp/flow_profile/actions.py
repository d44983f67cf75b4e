"""Define the actions of the flow machine, and the track of one protocol from its proposal to its session.

Actions are plain values. The driver performs them in their order. The states of a track are in `states`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treaty_consensus.errors import TooLarge, TreatyError
from treaty_io.codes import FlowCode

from ..call_metadata import CallMetadata
from ..hello_profile.messages import ReportCosignature
from ..transitions import StateTable
from .messages import FlowMessage
from .parameters import json_equal
from .payloads import ProtocolConfirmation
from .states import FlowLimits, TrackEvent, TrackState, TrackTransitions


@dataclass(frozen=True)
class Agreed:
    """An agreement. `digest`: that of the protocol's document, once known. `uri`: the protocol that this side uses for the id."""

    protocol: str
    parameters: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
    uri: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Shortcut:
    """An agreement to propose without asking for capabilities. `confirmed`: it was made with this peer before, with all terms."""

    agreed: Agreed
    confirmed: bool


@dataclass(frozen=True)
class SendMessage:
    """Seal this message and send it; its `timestamp` is not set."""

    message: FlowMessage


@dataclass(frozen=True)
class Evaluate:
    """Evaluate these protocols and find the protocol of each id; then apply `Evaluated`."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class LoadProtocol:
    """Fetch and verify the protocol; then apply `Loaded` or `LoadFailed`. `digest`: that of the peer's document, or ""."""

    protocol: str
    digest: str


@dataclass(frozen=True)
class Host:
    """Start a handler for this session; then apply `Hosted` or `HostFailed`. `changes`: the session runs already."""

    session_id: str
    agreed: Agreed
    changes: bool


@dataclass(frozen=True)
class Ready:
    """The session runs, or continues with a new agreement. `replaces`: the handler changes too."""

    session_id: str
    agreed: Agreed
    expires_at: int
    replaces: bool = False


@dataclass(frozen=True)
class RenegotiationFailed:
    """A change failed; the session continues unchanged."""

    session_id: str
    error: TreatyError


@dataclass(frozen=True)
class PeerChanged:
    """The other side reported a change of its context, while sessions run."""


@dataclass(frozen=True)
class DeliverData:
    """Give these bytes of the peer to the session's handler. `action`: of a message in the JSON form, else "". `metadata`: of the
    call that led to them."""

    session_id: str
    data: bytes
    action: str = ""
    metadata: CallMetadata | None = None


@dataclass(frozen=True)
class ReportReceived:
    """The peer's message about the co-signed report on a session; then `SendReport`."""

    session_id: str
    message: ReportCosignature


@dataclass(frozen=True)
class SessionEnded:
    """One session is over; others may continue. `error`: None for a normal end."""

    session_id: str
    error: TreatyError | None


@dataclass(frozen=True)
class NegotiationEnded:
    """The connection is over; no action follows. `error`: None for a normal end."""

    error: TreatyError | None


Action: TypeAlias = (
    SendMessage
    | Evaluate
    | LoadProtocol
    | Host
    | Ready
    | RenegotiationFailed
    | PeerChanged
    | DeliverData
    | ReportReceived
    | SessionEnded
    | NegotiationEnded
)


@dataclass
class Track:
    """One protocol that is negotiated. `transitions`: its table. `renegotiates`: the running session that this is about, or "".
    `parameters`, `extensions`: the last offer, or what was accepted. `asked`: the ids of the messages that wait for an answer,
    by action. `offers`: all that was offered, so that none comes twice."""

    protocol: str
    transitions: TrackTransitions
    state: TrackState
    deadline: float
    renegotiates: str = ""
    fallback: str = ""
    required: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
    rounds: int = 0
    offers: list[Any] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    uri: str = ""
    digest: str = ""
    settled: bool = False
    loaded: bool = False
    hosting: bool = False
    hosted: bool = False
    agreed: bool = False
    session_id: str = ""
    expires_at: int = 0
    ready_at: int | None = None
    acknowledgment: str = ""
    # The confirmation of a shortcut, which arrives while this side still loads the protocol.
    early: tuple[ProtocolConfirmation, str] | None = None

    def fire(self, event: TrackEvent) -> None:
        """Follow a transition. Raises `UndefinedTransition`."""
        self.state = StateTable(self.transitions, {}).follow(self.state, event).target

    @property
    def result(self) -> Agreed:
        """Return the agreement so far."""
        return Agreed(self.protocol, self.parameters, self.extensions, self.uri, self.digest)

    def equals(self, parameters: dict[str, Any], extensions: dict[str, Any]) -> bool:
        """Return whether these equal the last offer."""
        return json_equal(parameters, self.parameters) and json_equal(extensions, self.extensions)

    def repeats(self) -> bool:
        """Return whether the last offer was made before. Record it if it is new."""
        offer = [self.parameters, self.extensions]
        # A repeated offer gets the same answer, so the two sides would go round in circles.
        if any(json_equal(offer, before) for before in self.offers):
            return True
        self.offers.append(offer)
        return False

    def answers(self, reply_to: str | None) -> bool:
        """Return whether a message answers one of this track."""
        return reply_to is not None and reply_to in self.asked.values()


def check_rounds(track: Track, limits: FlowLimits) -> None:
    """Raise `TooLarge` (`flow.rounds`) if parameters were offered too often."""
    track.rounds += 1
    # Counted on both sides: a peer of another make may not count.
    if track.rounds > limits.rounds:
        raise TooLarge(FlowCode.ROUNDS, f"After {limits.rounds} offers there is no agreement on parameters.")
