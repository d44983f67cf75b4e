"""The actions of the Hello machine: plain values, performed in the order of the list that it returns."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from treaty_consensus.errors import TreatyError

from ..call_metadata import CallMetadata
from .messages import ReportCosignature


class Agreement(msgspec.Struct, frozen=True):
    """The protocol that both sides will speak.

    Published: `uri` names it, and `protocol_hash` is None where a destination selected a URI without saying its hash.
    Negotiated: `uri` is "" and `document` the agreed text, `protocol_hash` its SHA-256. Natural language alone: all three are
    empty. `confirmed`: a remembered hash, so that nothing was negotiated. `peer_role`: the role that the other side says it has
    in the protocol, or "".
    """

    uri: str
    protocol_hash: str | None
    confirmed: bool
    document: str | None = None
    peer_role: str = ""


class SendText(msgspec.Struct, frozen=True):
    """Send this text message."""

    text: str


class SendBinary(msgspec.Struct, frozen=True):
    """Send this binary message."""

    data: bytes


class Draft(msgspec.Struct, frozen=True):
    """Write the first proposal: then `Propose` or `Reject`."""


class Consider(msgspec.Struct, frozen=True):
    """Judge the peer's proposal: then `Propose` another, `Accept` or `Reject`. `round`: how many proposals there were so far,
    from 1; `last`: no further proposal may follow."""

    document: str
    summary: str
    round: int
    last: bool


class Load(msgspec.Struct, frozen=True):
    """Get the agreed protocol's code ready, then `CodeReady` or `CodeFailed`. `error`: the fault of the code that
    this side has, which it agreed to mend; "" the first time."""

    agreement: Agreement
    error: str = ""


class DraftTests(msgspec.Struct, frozen=True):
    """Write test cases for the agreed protocol: then `ProposeTests` or `SkipTests`."""


class ConsiderTests(msgspec.Struct, frozen=True):
    """Judge the peer's test cases: then `ProposeTests`, `AcceptTests` or `RejectTests`."""

    test_cases: str
    summary: str
    last: bool


class Test(msgspec.Struct, frozen=True):
    """Run the agreed test cases: then `TestsPassed`, `ReportError` (the peer's fault) or `CodeFailed` (this side's)."""

    test_cases: str


class ConsiderError(msgspec.Struct, frozen=True):
    """The peer says that this side's code is wrong: then `AcceptError` or `RejectError`."""

    description: str


class ErrorRejected(msgspec.Struct, frozen=True):
    """The peer rejected the reported error, and says why."""

    reason: str


class Running(msgspec.Struct, frozen=True):
    """Application messages may flow in both directions; again after each repair."""


class Deliver(msgspec.Struct, frozen=True):
    """Give this application message to the protocol's handler. `metadata`: those that came before it."""

    payload: bytes
    metadata: CallMetadata | None = None


class DeliverVerification(msgspec.Struct, frozen=True):
    """Give this verification message to the handler under test; it is never user data."""

    payload: bytes


class DeliverText(msgspec.Struct, frozen=True):
    """A natural language message (PT=10) for the application."""

    text: str


class Question(msgspec.Struct, frozen=True):
    """The peer asks in natural language about the negotiation: then `Answer`."""

    message_id: str
    text: str


class Answered(msgspec.Struct, frozen=True):
    """The answer to this side's `Ask`."""

    message_id: str
    text: str


class Meta(msgspec.Struct, frozen=True):
    """A meta message that is not about the handshake."""

    message: ReportCosignature


class Published(msgspec.Struct, frozen=True):
    """The other side says that a document of this session is published at this URI."""

    uri: str


class SwitchProfile(msgspec.Struct, frozen=True):
    """Go on by the flow profile on the same connection: the initiator's next message is `initialize`. Nothing follows from this
    machine, and the connection stays open."""


class Ended(msgspec.Struct, frozen=True):
    """The session is over: close the connection. `error` is None when it simply ended."""

    error: TreatyError | None


Action: TypeAlias = (
    SendText
    | SendBinary
    | Draft
    | Consider
    | Load
    | DraftTests
    | ConsiderTests
    | Test
    | ConsiderError
    | ErrorRejected
    | Running
    | Deliver
    | DeliverVerification
    | DeliverText
    | Question
    | Answered
    | Meta
    | Published
    | SwitchProfile
    | Ended
)
