"""Define the actions of the flow machine: plain values, which the driver performs in their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treaty_consensus.errors import TreatyError

from ..call_metadata import CallMetadata
from ..hello_profile.messages import ReportCosignature
from .messages import FlowMessage


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
