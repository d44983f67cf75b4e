"""Meta messages: the payload of PT=00 frames, one JSON object (RFC 8259) of at most 1 MiB and 1,024 values, told apart by
`action`.

    {"action": "protocolNegotiation", "sequenceId": 0, "candidateProtocols": TEXT, "modificationSummary": TEXT,
     "status": "negotiating"}                                 or "accepted", "rejected" (with "retryAfter": SECONDS or without)
    {"action": "codeGeneration", "status": "generated"}       the code to speak the protocol is ready
    {"action": "codeGeneration", "status": "error", "reason": CODE}         it cannot be made
    {"action": "testCasesNegotiation", "testCases": TEXT, "modificationSummary": TEXT, "status": "negotiating"}
    {"action": "fixErrorNegotiation", "errorDescription": TEXT, "status": "negotiating"}
    {"action": "naturalLanguageNegotiation", "type": "REQUEST", "messageId": ID, "message": TEXT}        or "RESPONSE"

    {"action": "reportCosignature", "status": "proposed", "payload": B64, "keyid": DID-URL, "signature": B64}
    {"action": "reportCosignature", "status": "signed", "keyid": DID-URL, "signature": B64}
    {"action": "reportCosignature", "status": "refused", "reason": CODE}

    {"action": "protocolPublished", "uri": URI}

    {"action": "callContext", "traceparent": TEXT, "tracestate": TEXT, "timeout": MILLISECONDS}
    the same, a line feed, and a PT=01 frame: the application message that the context belongs to

Three messages share the statuses negotiating, accepted and rejected; `timeout` is read as rejected and never sent.

    candidateProtocols    a protocol document as in `treaty_consensus.protocol`: at most 256 KiB; testCases likewise
    modificationSummary,  at most 16 KiB
    errorDescription
    message               1 byte to 64 KiB
    sequenceId            0 to 2^31-1
    messageId             1 to 128 characters; this side draws 16

All texts are counted in UTF-8 bytes, after JSON's escapes; the largest document fits a frame in every spelling but the wasteful
ones. A text that is negotiated about must be there, and an error and a rejection of one have a description. Elsewhere a text
may be absent, null or empty, which mean the same. `reason` of codeGeneration is an extension of this implementation: a machine
code, by which the other side tells a temporary failure from a permanent one. So is `retryAfter` of a rejection: after so many
seconds, at most 31 days, a negotiation may be begun again; any other value counts as absent. `uri` has 1 to 512 printable ASCII
characters. `payload` is the unsigned payload of a `report`
statement, `signature` Ed25519 over its DSSE pre-authentication encoding, and `reason` of a refusal a machine code such as
`report.other`. Base64 is padded standard. The members of `callContext` are those of `call_metadata`.
Names that a message does not have here are ignored. An action not listed here is an error: a peer learns from the Hello's
capabilities which ones are understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Refused, TooLarge
from treaty_consensus.protocol import MAX_DOCUMENT, check_document
from treaty_consensus.statement import MAX_PAYLOAD
from treaty_io.codes import FrameCode, MetaCode
from treaty_io.errors import code_in

from .. import frame
from ..call_metadata import CallMetadata, call_fields, parse_call_metadata

# The largest document fits in ASCII with `\u` escapes, as the official SDK writes it.
MAX_MESSAGE = frame.MAX_PAYLOAD
# A message of ours has about ten. The rest is room for members of other profiles; parsing costs time for each.
MAX_VALUES = 1_024
"""Values of a message, those included whose names are ignored."""
# A summary and a reason are read by people and models, not by programs.
MAX_SUMMARY = 16 * 1024
MAX_QUESTION = 64 * 1024
MAX_ID = 128
# So that a peer with 32-bit integers can read the answer's number.
MAX_SEQUENCE = 2**31 - 1
MAX_RETRY = 31 * 86_400
"""Seconds."""

# In no JSON text does a line feed stand before an at sign, which is the header of a PT=01 frame.
CARRIES = b"\n@"
"""The bytes between a context and the payload of the application message in its frame."""
_CALL_CONTEXT = "callContext"

NegotiationStatus: TypeAlias = Literal["negotiating", "accepted", "rejected"]

_Status: TypeAlias = Literal["negotiating", "accepted", "rejected", "timeout"]
# The source asks for 16 random characters. Others are read, too: a UUID tells questions apart as well.
_MessageId: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID)]
_KeyId: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
_Uri: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,512}\Z")]
_Reason: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9.-]{1,64}\Z")]


class CodeGeneration(msgspec.Struct, frozen=True):
    """The code for the agreed protocol is ready, or could not be made; an error ends the session. `reason`: the code of the
    error, or ""; only this implementation sends it."""

    status: Literal["generated", "error"]
    reason: str = ""


class ProtocolNegotiation(msgspec.Struct, frozen=True):
    """A candidate protocol, or the answer to one. `candidate_protocols`: its full text, which an acceptance repeats.
    `retry_after`: of a rejection, the seconds after which a negotiation may be begun again; None if it is not said."""

    sequence_id: int
    status: NegotiationStatus
    candidate_protocols: str | None = None
    modification_summary: str | None = None
    retry_after: int | None = None


class TestCasesNegotiation(msgspec.Struct, frozen=True):
    """Test cases for the agreed protocol, or the answer to them."""

    status: NegotiationStatus
    test_cases: str | None = None
    modification_summary: str | None = None


class FixErrorNegotiation(msgspec.Struct, frozen=True):
    """A description of an error in the peer's messages, or its answer: accepted, or rejected with a reason."""

    status: NegotiationStatus
    error_description: str


class NaturalLanguageNegotiation(msgspec.Struct, frozen=True):
    """A question or its answer, in natural language. `message_id`: 1 to 128 characters, the question's in the answer too."""

    type: Literal["REQUEST", "RESPONSE"]
    message_id: str
    message: str


class ReportProposed(msgspec.Struct, frozen=True):
    """Asks the peer to sign the payload of a report about this session; `signature` is that of its proposer's `key_id`."""

    payload: bytes
    key_id: str
    signature: bytes


class ReportSigned(msgspec.Struct, frozen=True):
    """The answer to a proposal that holds: the signature of `key_id` over it."""

    key_id: str
    signature: bytes


class ReportRefused(msgspec.Struct, frozen=True):
    """The answer to a proposal that is not signed, and why."""

    reason: str


class ProtocolPublished(msgspec.Struct, frozen=True):
    """A document that this session negotiates, or speaks, is published at `uri`. A claim: the receiver compares the hashes."""

    uri: str


class TracedMessage(msgspec.Struct, frozen=True):
    """An application message behind the metadata of its call, in one frame."""

    metadata: CallMetadata
    payload: bytes


ReportCosignature: TypeAlias = ReportProposed | ReportSigned | ReportRefused
MetaMessage: TypeAlias = (
    ProtocolNegotiation
    | CodeGeneration
    | TestCasesNegotiation
    | FixErrorNegotiation
    | NaturalLanguageNegotiation
    | ReportCosignature
    | ProtocolPublished
    | CallMetadata
    | TracedMessage
)


class _Action(msgspec.Struct, frozen=True):
    action: str


class _CodeGeneration(msgspec.Struct, frozen=True):
    status: Literal["generated", "error"]
    # Any value: the source has no such member, and another make may use the name for something else.
    reason: Any = ""


class _ProtocolNegotiation(msgspec.Struct, frozen=True, rename="camel"):
    sequence_id: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]
    status: _Status
    candidate_protocols: str | None = None
    modification_summary: str | None = None
    # Any value: the source has no such member.
    retry_after: Any = None


class _TestCasesNegotiation(msgspec.Struct, frozen=True, rename="camel"):
    status: _Status
    test_cases: str | None = None
    modification_summary: str | None = None


class _FixErrorNegotiation(msgspec.Struct, frozen=True, rename="camel"):
    status: _Status
    error_description: str | None = None


class _NaturalLanguageNegotiation(msgspec.Struct, frozen=True, rename="camel"):
    type: Literal["REQUEST", "RESPONSE"]
    message_id: _MessageId
    message: str


class _Published(msgspec.Struct, frozen=True):
    uri: _Uri


class _Proposed(msgspec.Struct, frozen=True, tag_field="status", tag="proposed"):
    payload: str
    keyid: _KeyId
    signature: str


class _Signed(msgspec.Struct, frozen=True, tag_field="status", tag="signed"):
    keyid: _KeyId
    signature: str


class _Refused(msgspec.Struct, frozen=True, tag_field="status", tag="refused"):
    reason: _Reason


def encode(message: MetaMessage) -> bytes:
    """Encode the payload of a PT=00 frame. Raises `TooLarge` or `Malformed` for a message that `parse` would refuse."""
    action, fields = _fields(message)
    # Left out and not null: some readers tell these apart.
    present = {name: value for name, value in fields.items() if value is not None}
    # One for each call: canonical form and the check below would cost as much as the rest of sending it.
    if isinstance(message, CallMetadata | TracedMessage):
        text = msgspec.json.encode({"action": action, **present})
        return text if isinstance(message, CallMetadata) else text + CARRIES + message.payload
    payload = canonical.dumps({"action": action, **present})
    parse(payload)
    return payload


def parse(payload: bytes) -> MetaMessage:
    """Parse the payload of a PT=00 frame. Raises `TooLarge` (`frame.too-large`, `document.text`, `canonical.too-large`),
    `Malformed` (`meta.message`, `document.*`, `canonical.*`) or `Refused` (`meta.message`)."""
    payload, carries, carried = payload.partition(CARRIES)
    value = canonical.parse_json(payload, limit=MAX_MESSAGE, name="meta message", values=MAX_VALUES, floats=True)
    try:
        action = msgspec.convert(value, _Action).action
        parser = _PARSERS.get(action)
        if carries and action == _CALL_CONTEXT:
            return TracedMessage(parse_call_metadata(value), carried)
        if carries:
            raise Malformed(MetaCode.MESSAGE, f"Only {_CALL_CONTEXT} has an application message behind it.")
        if parser is not None:
            return parser(value)
    except msgspec.ValidationError as error:
        raise Malformed(MetaCode.MESSAGE, f"Not a meta message: {fault_of(error)}.") from error
    raise Refused(
        MetaCode.MESSAGE,
        f"The meta message {ascii(action)[:40]} is not among the capabilities of this agent's Hello.",
        fix="Send only what both sides list under supportedCapabilities.",
    )


def fault_of(error: msgspec.ValidationError) -> str:
    """Return the fault as a clause for the peer: the member and the type that is expected, without the pattern of a text."""
    return re.sub(r" matching regex '.*'(?=$| - at )", " of another form", str(error))


def _fields(message: MetaMessage) -> tuple[str, dict[str, object]]:
    match message:
        case ProtocolNegotiation(number, status, text, summary, retry_after):
            negotiated = {"candidateProtocols": text, "modificationSummary": summary, "retryAfter": retry_after}
            return "protocolNegotiation", {"sequenceId": number, "status": status, **negotiated}
        case CodeGeneration(result, reason):
            return "codeGeneration", {"status": result, "reason": reason or None}
        case TestCasesNegotiation(status, text, summary):
            return "testCasesNegotiation", {"status": status, "testCases": text, "modificationSummary": summary}
        case FixErrorNegotiation(status, description):
            return "fixErrorNegotiation", {"status": status, "errorDescription": description}
        case NaturalLanguageNegotiation(type, message_id, text):
            return "naturalLanguageNegotiation", {"type": type, "messageId": message_id, "message": text}
        case ReportProposed() | ReportSigned() | ReportRefused():
            return "reportCosignature", {**report_fields(message)}
        case ProtocolPublished(uri):
            return "protocolPublished", {"uri": uri}
        case CallMetadata():
            return _CALL_CONTEXT, {**call_fields(message)}
        case TracedMessage(metadata):
            return _fields(metadata)


def report_fields(message: ReportCosignature) -> dict[str, str]:
    """The members of a message about a report; the inverse of `parse_report`."""
    match message:
        case ReportProposed(payload, key_id, signature):
            return {"status": "proposed", "payload": canonical.b64encode(payload), **_signed(key_id, signature)}
        case ReportSigned(key_id, signature):
            return {"status": "signed", **_signed(key_id, signature)}
        case ReportRefused(reason):
            return {"status": "refused", "reason": reason}


def _code_generation(value: object) -> CodeGeneration:
    message = msgspec.convert(value, _CodeGeneration)
    is_reason = message.status == "error" and isinstance(message.reason, str)
    return CodeGeneration(message.status, code_in(message.reason) if is_reason else "")


def _protocol(value: object) -> ProtocolNegotiation:
    message = msgspec.convert(value, _ProtocolNegotiation)
    status, text, summary = _negotiated(message.status, message.candidate_protocols, message.modification_summary)
    later = message.retry_after
    is_said = status == "rejected" and type(later) is int and 0 <= later <= MAX_RETRY
    return ProtocolNegotiation(message.sequence_id, status, text, summary, later if is_said else None)


def _test_cases(value: object) -> TestCasesNegotiation:
    message = msgspec.convert(value, _TestCasesNegotiation)
    return TestCasesNegotiation(*_negotiated(message.status, message.test_cases, message.modification_summary))


def _published(value: object) -> ProtocolPublished:
    return ProtocolPublished(msgspec.convert(value, _Published).uri)


def _fix_error(value: object) -> FixErrorNegotiation:
    message = msgspec.convert(value, _FixErrorNegotiation)
    status = _status(message.status)
    description = _text(message.error_description, MAX_SUMMARY)
    if description is None and status != "accepted":
        raise Malformed(MetaCode.MESSAGE, "An error, and a rejection of one, comes with a description.")
    return FixErrorNegotiation(status, description or "")


def _natural_language(value: object) -> NaturalLanguageNegotiation:
    message = msgspec.convert(value, _NaturalLanguageNegotiation)
    text = _text(message.message, MAX_QUESTION)
    if text is None:
        raise Malformed(MetaCode.MESSAGE, "A question or an answer is not empty.")
    return NaturalLanguageNegotiation(message.type, message.message_id, text)


def parse_report(value: object) -> ReportCosignature:
    """Parse the members of a message about a report. Raises `msgspec.ValidationError`, `Malformed` or `TooLarge`."""
    message: _Proposed | _Signed | _Refused = msgspec.convert(value, _Proposed | _Signed | _Refused)
    match message:
        case _Proposed(payload, key_id, signature):
            return ReportProposed(canonical.b64decode(payload, limit=MAX_PAYLOAD), key_id, _signature(signature))
        case _Signed(key_id, signature):
            return ReportSigned(key_id, _signature(signature))
        case _Refused(reason):
            return ReportRefused(reason)


_PARSERS: dict[str, Callable[[object], MetaMessage]] = {
    "protocolNegotiation": _protocol,
    "codeGeneration": _code_generation,
    "testCasesNegotiation": _test_cases,
    "fixErrorNegotiation": _fix_error,
    "naturalLanguageNegotiation": _natural_language,
    "reportCosignature": parse_report,
    "protocolPublished": _published,
    _CALL_CONTEXT: parse_call_metadata,
}


def _negotiated(status: _Status, text: str | None, summary: str | None) -> tuple[NegotiationStatus, str | None, str | None]:
    """Check the members of a proposal or its answer, and return them."""
    proposed = _text(text, MAX_DOCUMENT)
    if proposed is not None:
        check_document(proposed.encode())
    if proposed is None and status == "negotiating":
        raise Malformed(MetaCode.MESSAGE, "A proposal has the whole text each time.")
    return _status(status), proposed, _text(summary, MAX_SUMMARY)


def _status(status: _Status) -> NegotiationStatus:
    # The English text of the source has a fourth status; the official SDK raises on it, so it is never sent.
    return "rejected" if status == "timeout" else status


def _text(text: str | None, limit: int) -> str | None:
    """A text, or None for one that is absent or empty."""
    if text and len(text.encode()) > limit:
        raise TooLarge(FrameCode.TOO_LARGE, f"A text of a meta message has over {limit} bytes.")
    return text or None


def _signed(key_id: str, signature: bytes) -> dict[str, str]:
    return {"keyid": key_id, "signature": canonical.b64encode(signature)}


def _signature(text: str) -> bytes:
    signature = canonical.b64decode(text, limit=64)
    # Checked here, so that later code need not expect other lengths of foreign bytes.
    if len(signature) != 64:
        raise Malformed(MetaCode.MESSAGE, "An Ed25519 signature has 64 bytes.")
    return signature
