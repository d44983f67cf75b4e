"""Meta messages: the payload of PT=00 frames, one JSON object (RFC 8259) of at most 64 KiB, told apart by `action`.

    {"action": "codeGeneration", "status": "generated"}       or "error": the code to speak the protocol is ready, or never will
    be

    {"action": "reportCosignature", "status": "proposed", "payload": B64, "keyid": DID-URL, "signature": B64}
    {"action": "reportCosignature", "status": "signed", "keyid": DID-URL, "signature": B64}
    {"action": "reportCosignature", "status": "refused", "reason": CODE}

`payload` is the unsigned payload of a `report` statement, `signature` Ed25519 over its DSSE pre-authentication encoding,
`reason` a machine code such as `report.document`. Base64 is padded standard. Names that a message does not have here are
ignored. An action not listed here is an error: a peer learns from the Hello's capabilities which ones are understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Refused
from treaty_consensus.statement import MAX_PAYLOAD

MAX_MESSAGE = 64 * 1024

_KeyId: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
_Reason: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9.-]{1,64}\Z")]


@dataclass(frozen=True)
class CodeGeneration:
    """The code for the agreed protocol is ready, or could not be made; an error ends the session."""

    status: Literal["generated", "error"]


@dataclass(frozen=True)
class ReportProposed:
    """Asks the peer to sign the payload of a report about this session; `signature` is that of its proposer's `key_id`."""

    payload: bytes
    key_id: str
    signature: bytes


@dataclass(frozen=True)
class ReportSigned:
    """The answer to a proposal that holds: the signature of `key_id` over it."""

    key_id: str
    signature: bytes


@dataclass(frozen=True)
class ReportRefused:
    """The answer to a proposal that is not signed, and why."""

    reason: str


ReportCosignature: TypeAlias = ReportProposed | ReportSigned | ReportRefused
MetaMessage: TypeAlias = CodeGeneration | ReportCosignature


class _Action(msgspec.Struct, frozen=True):
    action: str


class _CodeGeneration(msgspec.Struct, frozen=True):
    status: Literal["generated", "error"]


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
    """The payload of the PT=00 frame."""
    match message:
        case CodeGeneration(status):
            return canonical.dumps({"action": "codeGeneration", "status": status})
        case ReportProposed(payload, key_id, signature):
            fields = {"status": "proposed", "payload": canonical.b64encode(payload), **_signed(key_id, signature)}
        case ReportSigned(key_id, signature):
            fields = {"status": "signed", **_signed(key_id, signature)}
        case ReportRefused(reason):
            fields = {"status": "refused", "reason": reason}
    return canonical.dumps({"action": "reportCosignature", **fields})


def parse(payload: bytes) -> MetaMessage:
    """Parse the payload of a PT=00 frame. Raises `TooLarge`, `Malformed` (`meta.message`, `canonical.*`) or `Refused`
    (`meta.unknown-action`)."""
    value = canonical.parse_json(payload, limit=MAX_MESSAGE, what="meta message")
    try:
        action = msgspec.convert(value, _Action).action
        if action == "codeGeneration":
            return CodeGeneration(msgspec.convert(value, _CodeGeneration).status)
        if action == "reportCosignature":
            return _report(msgspec.convert(value, _Proposed | _Signed | _Refused))
    except msgspec.ValidationError as error:
        raise Malformed("meta.message", f"Not a meta message: {error}.") from error
    raise Refused(
        "meta.unknown-action",
        f"The meta message {ascii(action)[:40]} is not among the capabilities of this agent's Hello.",
        fix="Send only what both sides list under supportedCapabilities.",
    )


def _report(message: _Proposed | _Signed | _Refused) -> ReportCosignature:
    match message:
        case _Proposed(payload, key_id, signature):
            return ReportProposed(canonical.b64decode(payload, limit=MAX_PAYLOAD), key_id, _signature(signature))
        case _Signed(key_id, signature):
            return ReportSigned(key_id, _signature(signature))
        case _Refused(reason):
            return ReportRefused(reason)


def _signed(key_id: str, signature: bytes) -> dict[str, str]:
    return {"keyid": key_id, "signature": canonical.b64encode(signature)}


def _signature(text: str) -> bytes:
    signature = canonical.b64decode(text, limit=64)
    if len(signature) != 64:
        raise Malformed("meta.message", "An Ed25519 signature has 64 bytes.")
    return signature
