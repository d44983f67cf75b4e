"""Define the commands of the flow machine: plain values for `NegotiationEngine.apply`.

The first five answer actions of the machine. They have no effect if the machine does not wait for them any more. The others may
be applied at any time. A refused command raises `TreatyError` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from treaty_consensus.errors import TreatyError

from ..call_metadata import CallMetadata
from ..hello_profile.messages import ReportCosignature
from .payloads import ContextInfo
from .strategy import Evaluation


@dataclass(frozen=True)
class Evaluated:
    """Answer `Evaluate`: the suitable protocols, best first."""

    evaluations: Sequence[Evaluation]


@dataclass(frozen=True)
class Loaded:
    """Answer `LoadProtocol`: the protocol is verified. `digest`: that of its document."""

    protocol: str
    uri: str
    digest: str


@dataclass(frozen=True)
class LoadFailed:
    """Answer `LoadProtocol`: the protocol cannot be fetched or verified."""

    protocol: str
    error: TreatyError


@dataclass(frozen=True)
class Hosted:
    """Answer `Host`: the handler is ready."""

    session_id: str


@dataclass(frozen=True)
class HostFailed:
    """Answer `Host`: the handler cannot run. The connection ends, because the other side may assume that it runs."""

    session_id: str
    error: TreatyError


@dataclass(frozen=True)
class SendData:
    """Send a handler's bytes. They wait while the session changes. `action`: of the JSON form, or "". `metadata`: of their
    call; for the byte form alone. Raises `NotFound` or `TooLarge`."""

    session_id: str
    data: bytes
    action: str = ""
    metadata: CallMetadata | None = None


@dataclass(frozen=True)
class EndSession:
    """End one session. The connection ends with the last one."""

    session_id: str


@dataclass(frozen=True)
class Renegotiate:
    """Change a running session: its parameters, its lifetime or its protocol. Only the initiator may do this.

    None stands for this side's preferred parameters, "" for the current protocol. Raises `NotFound`, `Refused`
    (`session.profile`, `flow.changing`) or `TooLarge` (`flow.renegotiations`).
    """

    session_id: str
    parameters: Mapping[str, Any] | None = None
    protocol: str = ""


@dataclass(frozen=True)
class TellContext:
    """Send this side's new context to the initiator, while sessions run. Does nothing on the initiator's side. `context`: sent
    instead of the context that the registry's owner set."""

    context: ContextInfo | None = None


@dataclass(frozen=True)
class SendReport:
    """Send a message about the co-signed report on a session. Raises `NotFound`, or `Refused` (`session.profile`) unless both
    sides agreed on the extension `reportCosignature`."""

    session_id: str
    message: ReportCosignature


@dataclass(frozen=True)
class Unverified:
    """A message was not accepted, so later ones cannot be either: tell the peer, and end. `sender`, `message_id`: the claims of
    the message, "" for none."""

    error: TreatyError
    sender: str = ""
    message_id: str = ""


Command: TypeAlias = (
    # The union is closed, so that `match` in the machine is checked to be complete.
    Evaluated
    | Loaded
    | LoadFailed
    | Hosted
    | HostFailed
    | SendData
    | EndSession
    | Renegotiate
    | TellContext
    | SendReport
    | Unverified
)
