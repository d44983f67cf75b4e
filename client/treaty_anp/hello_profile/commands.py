"""The commands to the machine of the Hello profile: plain values, given to `Machine.apply`.

A command is an answer to an action (`Propose` to `Draft`), or something that this side says of its own accord (`Send`, `Ask`).
An answer that is no longer due does nothing. A command that may not be given raises `TreatyError` and changes nothing; which
one, each class says.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from treaty_consensus.errors import TreatyError

from ..call_metadata import CallMetadata
from .messages import ReportCosignature

# Agreeing on a protocol


class Propose(msgspec.Struct, frozen=True):
    """Answer `Draft` or `Consider` with a protocol document in full. `summary`: the changes since the peer's proposal, "" in the
    first one. A proposal beyond the limit of messages becomes a rejection. Raises `Malformed` or `TooLarge`."""

    text: str
    summary: str = ""


class Accept(msgspec.Struct, frozen=True):
    """Answer `Consider`: the peer's proposal is agreed on."""


class Reject(msgspec.Struct, frozen=True):
    """Answer `Draft` or `Consider`: there is no agreement, and the peer is told the reason. `retry_after`: the seconds after
    which it may begin again, if the reason may pass. Raises `TooLarge`."""

    reason: str
    retry_after: int | None = None


# Getting its code


class CodeReady(msgspec.Struct, frozen=True):
    """Answer `Load`: the code is ready, for the document of this hash."""

    protocol_hash: str


class CodeFailed(msgspec.Struct, frozen=True):
    """Answer `Load` or `Test`: the code cannot be made. The peer is told, and the session ends."""

    error: TreatyError


# Testing it


class ProposeTests(msgspec.Struct, frozen=True):
    """Answer `DraftTests` or `ConsiderTests` with test cases; see `Propose`."""

    text: str
    summary: str = ""


class AcceptTests(msgspec.Struct, frozen=True):
    """Answer `ConsiderTests`: the peer's test cases are agreed on."""


class RejectTests(msgspec.Struct, frozen=True):
    """Answer `DraftTests` or `ConsiderTests`: there is no agreement, and so no session. Raises `TooLarge`."""

    reason: str


class SkipTests(msgspec.Struct, frozen=True):
    """Answer `DraftTests`: run without test cases."""


class TestsPassed(msgspec.Struct, frozen=True):
    """Answer `Test`: this side's code passes the agreed test cases."""

    __test__: ClassVar[bool] = False  # pytest would collect the class by its name


# Mending it


class ReportError(msgspec.Struct, frozen=True):
    """Tell the peer that its messages do not follow the agreement; `ErrorRejected` or its new code follows. Does nothing except
    while tests are run or the session runs, after a message of the peer, and one at a time. Raises `Refused`
    (`session.profile`), `Malformed` or `TooLarge`."""

    description: str


class AcceptError(msgspec.Struct, frozen=True):
    """Answer `ConsiderError`: this side is at fault. `Load` follows."""


class RejectError(msgspec.Struct, frozen=True):
    """Answer `ConsiderError`: this side is not at fault, and why. Raises `Malformed` or `TooLarge`."""

    reason: str


# Saying something


class Send(msgspec.Struct, frozen=True):
    """Send an application message (PT=01); it is kept until it may be sent.

    `early`: it may go out before the peer confirmed the hash, as nothing is lost if it is done twice. No message overtakes one
    that is kept. Raises `Refused` (`session.profile`) in a session without a protocol.

    `metadata`: sent before it, to a peer that reads them.
    """

    payload: bytes
    early: bool = False
    metadata: CallMetadata | None = None


class SendMeta(msgspec.Struct, frozen=True):
    """Send a message about a report. It is dropped unless the session runs, and in a protocol."""

    message: ReportCosignature


class TellPublished(msgspec.Struct, frozen=True):
    """Say where a document of this session is published, at any time after the Hellos. It is dropped unless both Hellos list the
    capability. Raises `Malformed`."""

    uri: str


class SendVerification(msgspec.Struct, frozen=True):
    """Send a message of the handler under test (PT=11). It is dropped unless test cases were agreed on and are run, or the
    session runs. Raises `Refused` (`session.profile`) or `TooLarge`."""

    payload: bytes


class Say(msgspec.Struct, frozen=True):
    """Send natural language (PT=10), at any time after the Hellos. Raises `Refused` (`session.profile`), `Malformed` or
    `TooLarge`."""

    text: str


class Ask(msgspec.Struct, frozen=True):
    """Ask about the negotiation, at any time after the Hellos; `Answered` follows. `message_id`: 16 random characters, different
    for each question. Raises `Refused` (`session.profile`, `negotiation.…`), `Malformed` or `TooLarge`."""

    message_id: str
    text: str


class Answer(msgspec.Struct, frozen=True):
    """Answer `Question`. Raises `Malformed` or `TooLarge`."""

    message_id: str
    text: str


Command: TypeAlias = (
    Propose
    | Accept
    | Reject
    | CodeReady
    | CodeFailed
    | ProposeTests
    | AcceptTests
    | RejectTests
    | SkipTests
    | TestsPassed
    | ReportError
    | AcceptError
    | RejectError
    | Send
    | SendMeta
    | TellPublished
    | SendVerification
    | Say
    | Ask
    | Answer
)
