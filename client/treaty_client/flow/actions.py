"""What the engine is told to try, and what it asks its driver to do: plain values, performed in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treaty_consensus.errors import TreatyError

from .messages import Message


@dataclass(frozen=True)
class Agreed:
    """What was agreed on. `digest`: of the protocol's document, once it is known; `uri`: what the id means here."""

    protocol: str
    parameters: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
    uri: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Shortcut:
    """What to propose without asking for capabilities. `confirmed`: it was agreed on with this peer before, with all terms."""

    agreed: Agreed
    confirmed: bool


@dataclass(frozen=True)
class Send:
    """Seal this message and send it; its `timestamp` is not set."""

    message: Message


@dataclass(frozen=True)
class Evaluate:
    """Judge these protocols, all at once, and see what they mean here; then `evaluated`."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Load:
    """Fetch and verify the protocol; then `loaded` or `load_failed`. `digest`: of the document that the other side means, or
    ""."""

    protocol: str
    digest: str


@dataclass(frozen=True)
class Host:
    """Have a handler ready for this session; then `hosted` or `host_failed`. `changes`: the session runs already."""

    session_id: str
    agreed: Agreed
    changes: bool


@dataclass(frozen=True)
class Ready:
    """The session runs, or runs on by what was agreed on anew. `replaces`: the handler changes too."""

    session_id: str
    agreed: Agreed
    expires_at: int
    replaces: bool = False


@dataclass(frozen=True)
class RenegotiationFailed:
    """The session runs on as before."""

    session_id: str
    error: TreatyError


@dataclass(frozen=True)
class PeerChanged:
    """The other side told of another situation of its own, while sessions run."""


@dataclass(frozen=True)
class Deliver:
    """Give these bytes of the peer to the session's handler."""

    session_id: str
    data: bytes


@dataclass(frozen=True)
class SessionEnded:
    """One session is over, others may go on; None for a normal end."""

    session_id: str
    error: TreatyError | None


@dataclass(frozen=True)
class Ended:
    """Everything is over; None for a normal end. Nothing follows."""

    error: TreatyError | None


Action: TypeAlias = Send | Evaluate | Load | Host | Ready | RenegotiationFailed | PeerChanged | Deliver | SessionEnded | Ended
