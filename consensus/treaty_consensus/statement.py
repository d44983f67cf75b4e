"""Signed statements: the only write Treaty knows.

A leaf of the log is the JCS of a DSSE envelope

    {"payload": B64, "payloadType": "application/vnd.treaty.statement.v1+json", "signatures": [{"keyid": DID-URL, "sig": B64}, …]}

whose payload is the JCS of

    {"body": {…}, "by": [DID-URL, …], "issued": SECONDS, "log": ORIGIN, "type": TYPE}

`log` is the origin of the one log it is meant for; `by` the sorted DID URLs of the signing keys (one; two for a report, or for an
identity that an old key co-signs), so that authorship is inside what is signed. Signatures are exactly `by`, in that order:
Ed25519 over the DSSE pre-authentication encoding

    "DSSEv1" SP len(payloadType) SP payloadType SP len(payload) SP payload

A statement's id is the SHA-256 of that encoding. `issued` is Unix seconds; it decides nothing, except that the operator's own are
the log's clock. A payload has at most 48,000 bytes, so that its leaf fits the 65,535 of a C2SP entry bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from . import canonical
from .did import Did, parse_key_id
from .errors import Malformed, Unauthorized
from .kinds import KINDS, TYPE_OF, Body

PAYLOAD_TYPE = "application/vnd.treaty.statement.v1+json"
MAX_PAYLOAD = 48_000
MAX_LEAF = 65_535


class _Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    log: str
    by: tuple[str, ...]
    issued: int
    body: dict[str, object]


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    payload: str
    payloadType: str  # noqa: N815 (DSSE's spelling)
    signatures: tuple[_Signature, ...]


@dataclass(frozen=True)
class Draft:
    """A statement before it is signed: the payload, to be signed by each key of `by` over `signing_input`."""

    payload: bytes
    by: tuple[str, ...]

    @property
    def signing_input(self) -> bytes:
        """The bytes each key signs (DSSE PAE)."""
        return pre_authentication_encoding(self.payload)

    def seal(self, signatures: Mapping[str, bytes]) -> Statement:
        """Join the signatures (DID URL → 64 bytes). Raises `Malformed` when a key of `by` has none; verifies nothing."""
        missing = [key_id for key_id in self.by if key_id not in signatures]
        if missing:
            raise Malformed("statement.unsigned", f"{missing[0]} has not signed.")
        return _statement(self.payload, tuple(signatures[key_id] for key_id in self.by))


@dataclass(frozen=True)
class Statement:
    """A parsed statement. Its form is right; whether its signatures and its claims are is for `verify` and `admit`."""

    body: Body
    log: str
    by: tuple[str, ...]
    issued: int
    payload: bytes
    signatures: tuple[bytes, ...]

    @property
    def type(self) -> str:
        """The statement's type, a key of `kinds.KINDS`."""
        return TYPE_OF[type(self.body)]

    @cached_property
    def id(self) -> str:
        """SHA-256 of the pre-authentication encoding, in hexadecimal."""
        return canonical.hex_digest(pre_authentication_encoding(self.payload))

    @cached_property
    def authors(self) -> tuple[Did, ...]:
        """The DIDs whose keys sign, in the order of `by`."""
        return tuple(parse_key_id(key_id)[0] for key_id in self.by)

    @property
    def author(self) -> Did:
        """The first, and for most types the only, author."""
        return self.authors[0]

    @cached_property
    def leaf(self) -> bytes:
        """The canonical envelope: the bytes that the log holds."""
        return canonical.dumps(
            {
                "payload": canonical.b64encode(self.payload),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [
                    {"keyid": key_id, "sig": canonical.b64encode(signature)}
                    for key_id, signature in zip(self.by, self.signatures, strict=True)
                ],
            }
        )


@dataclass(frozen=True)
class Verified:
    """A statement whose signatures hold under `keys` (raw Ed25519, in the order of `by`). Only `verify` makes one."""

    statement: Statement
    keys: tuple[bytes, ...]


def draft(body: Body, *, log: str, by: tuple[str, ...], issued: int) -> Draft:
    """Compose a payload. `by` may come in any order. Raises `Malformed` or `TooLarge` on what `parse` would refuse."""
    body.check()
    value = {
        "type": TYPE_OF[type(body)],
        "log": log,
        "by": sorted(by),
        "issued": issued,
        "body": msgspec.to_builtins(body),
    }
    payload = canonical.dumps(value)
    _read_payload(payload)
    return Draft(payload, tuple(sorted(by)))


def parse_draft(payload: bytes) -> Statement:
    """Parse a payload that nobody has signed yet, for a co-signer to look at. The result has no signatures and no leaf."""
    return _statement(payload, ())


def parse(leaf: bytes) -> Statement:
    """Parse a leaf strictly. Raises `Malformed` or `TooLarge` (`statement.*`, `canonical.*`); verifies no signature."""
    value = canonical.loads(leaf, limit=MAX_LEAF, what="statement")
    try:
        envelope = msgspec.convert(value, _Envelope)
    except msgspec.ValidationError as error:
        raise Malformed("statement.envelope", f"Not a DSSE envelope: {error}.") from error
    if envelope.payloadType != PAYLOAD_TYPE:
        raise Malformed("statement.payload-type", f"A statement's payloadType is {PAYLOAD_TYPE}.")
    payload = canonical.b64decode(envelope.payload, limit=MAX_PAYLOAD)
    signatures = tuple(canonical.b64decode(signature.sig, limit=64) for signature in envelope.signatures)
    statement = _statement(payload, signatures)
    if tuple(signature.keyid for signature in envelope.signatures) != statement.by:
        raise Malformed("statement.signatures", "The signatures of a statement are exactly those of `by`, in that order.")
    if any(len(signature) != 64 for signature in signatures):
        raise Malformed("statement.signatures", "An Ed25519 signature has 64 bytes.")
    vars(statement)["leaf"] = leaf  # it is canonical: encoding it anew would give the same bytes
    return statement


def verify(statement: Statement, keys: Mapping[str, bytes]) -> Verified:
    """Check every signature against `keys` (DID URL → raw Ed25519). Raises `Unauthorized`. CPU-bound, releases the GIL."""
    message = pre_authentication_encoding(statement.payload)
    used = []
    for key_id, signature in zip(statement.by, statement.signatures, strict=True):
        key = keys.get(key_id)
        if key is None:
            raise Unauthorized("statement.unknown-key", f"{key_id} is not a key of its DID as this log knows it.")
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        except InvalidSignature as error:
            raise Unauthorized("statement.signature-invalid", f"The signature of {key_id} does not verify.") from error
        used.append(key)
    return Verified(statement, tuple(used))


def pre_authentication_encoding(payload: bytes) -> bytes:
    """DSSE's PAE of a payload of our type: what is signed, and what a statement's id is the SHA-256 of."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _statement(payload: bytes, signatures: tuple[bytes, ...]) -> Statement:
    head, body = _read_payload(payload)
    return Statement(body, head.log, head.by, head.issued, payload, signatures)


def _read_payload(payload: bytes) -> tuple[_Payload, Body]:
    value = canonical.loads(payload, limit=MAX_PAYLOAD, what="statement payload")
    try:
        head = msgspec.convert(value, _Payload)
        kind = KINDS.get(head.type)
        if kind is None:
            raise Malformed("statement.type", f"{head.type[:40]!r} is not a statement type.")
        body = msgspec.convert(head.body, kind)
    except msgspec.ValidationError as error:
        raise Malformed("statement.body", f"Not a statement: {error}.") from error
    body.check()
    if msgspec.json.decode(msgspec.json.encode(body)) != value["body"]:
        raise Malformed("statement.body", "A field that is absent is left out, never null or empty.")
    if not 1 <= len(head.by) <= 2 or list(head.by) != sorted(set(head.by)):
        raise Malformed("statement.by", "`by` names one or two distinct keys, sorted.")
    for key_id in head.by:
        parse_key_id(key_id)
    if head.issued < 0:
        raise Malformed("statement.issued", "`issued` is Unix seconds.")
    return head, body
