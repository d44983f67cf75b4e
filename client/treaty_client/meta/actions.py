"""What the state machine asks its driver to do, in the order of the list it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from treaty_consensus.errors import TreatyError

from .messages import ReportCosignature


@dataclass(frozen=True)
class Agreement:
    """What both sides will speak. `protocol_hash` is None where a destination selected a URI without saying its hash."""

    uri: str
    protocol_hash: str | None
    confirmed: bool


@dataclass(frozen=True)
class SendText:
    """Send this text message."""

    text: str


@dataclass(frozen=True)
class SendBinary:
    """Send this binary message."""

    data: bytes


@dataclass(frozen=True)
class Load:
    """Get the agreed protocol's code ready, then call `code_ready` or `code_failed`."""

    agreement: Agreement


@dataclass(frozen=True)
class Running:
    """Application messages may flow in both directions."""


@dataclass(frozen=True)
class Deliver:
    """Give this application message to the protocol's handler."""

    payload: bytes


@dataclass(frozen=True)
class Meta:
    """A meta message that is not about the handshake."""

    message: ReportCosignature


@dataclass(frozen=True)
class Ended:
    """The session is over: close the connection. `error` is None when it simply ended."""

    error: TreatyError | None


Action: TypeAlias = SendText | SendBinary | Load | Running | Deliver | Meta | Ended
