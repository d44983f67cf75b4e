"""Build, parse and verify signed statements, the only way to write to a log.

A statement is a DSSE envelope; a leaf of the log is its JCS. The payload names the log it is for, the signing keys (so the
signatures cover the authorship) and the body:

    {"body": {…}, "by": ["did:wba:example.com#key-1"], "issued": 1790000000, "log": "registry.example", "type": "publish"}

The specification of envelope, payload, signatures and id is `docs/specification/statements.md`; that of statements of newer
releases is `docs/specification/compatibility.md`. Source: DSSE v1.

`parse` is for writers: it knows all, or refuses. `read` is for readers of a log, and `understand` for those that count each leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from . import canonical, ed25519
from .codes import RegistryCode, StatementCode
from .did import Did, parse_key_id
from .errors import Malformed, Unauthorized
from .kinds import (
    Ballot,
    Body,
    Decision,
    Genesis,
    Grant,
    Handler,
    Identity,
    Newer,
    Parameters,
    Publish,
    Report,
    Status,
    Validation,
    Vouch,
    Withdrawal,
)
from .rotation import Rotation

PAYLOAD_TYPE = "application/vnd.treaty.statement.v1+json"
# In base64 64,000 bytes: with signatures and names the leaf still fits `MAX_LEAF`.
MAX_PAYLOAD = 48_000
# A C2SP entry bundle writes the length of an entry in 16 bits.
MAX_LEAF = 65_535


# In the order in which they first occur in a log.
_ALL = (
    *(Genesis, Identity, Grant, Publish, Handler, Status, Report, Ballot, Vouch, Parameters, Decision, Withdrawal, Rotation),
    Validation,
)
KINDS: dict[str, type[Body]] = {kind.__name__.lower(): kind for kind in _ALL}
TYPE_OF: dict[type[Body], str] = {kind: name for name, kind in KINDS.items()}


_WHOLE_TYPE = "type"
"""The name in `critical` that stands for the type itself."""


def _enumerations(kind: type[Body]) -> dict[str, frozenset[str]]:
    """Return the members of a body that have one of some words, with these."""
    return {name: frozenset(get_args(hint)) for name, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}


_WORDS: Final[dict[type[Body], dict[str, frozenset[str]]]] = {kind: _enumerations(kind) for kind in _ALL}


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    type: str
    log: str
    by: tuple[str, ...]
    issued: int
    critical: tuple[str, ...] = ()


class _Payload(_Head, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    body: dict[str, object]


class _RawPayload(_Head, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    body: msgspec.Raw


class _By(msgspec.Struct, frozen=True):
    by: tuple[str, ...]


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    payload: str
    payloadType: str  # noqa: N815 (DSSE's spelling)
    signatures: tuple[_Signature, ...]


# Of these structs the sorted encoding is RFC 8785: their names are ASCII, and their values strings, booleans and integers.
_SORTED = msgspec.json.Encoder(order="sorted")
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_RAW_PAYLOAD = msgspec.json.Decoder(_RawPayload)
_BY = msgspec.json.Decoder(_By)
_BODIES = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}
_Decoded = TypeVar("_Decoded")


@dataclass(frozen=True)
class Draft:
    """Hold a statement before it is signed. Each key of `by` signs `signing_input`."""

    payload: bytes
    by: tuple[str, ...]

    @property
    def signing_input(self) -> bytes:
        """Return the bytes that each key signs (DSSE PAE)."""
        return pre_authentication_encoding(self.payload)

    def seal(self, signatures: Mapping[str, bytes]) -> Statement:
        """Join the signatures into a statement. Does not verify them.

        `signatures`: DID URL → 64 bytes.

        Raises `Malformed` (`statement.signatures`) when a key of `by` has no signature.
        """
        missing = [key_id for key_id in self.by if key_id not in signatures]
        if missing:
            raise Malformed(StatementCode.SIGNATURES, f"{missing[0]} has not signed.")
        return _statement(self.payload, tuple(signatures[key_id] for key_id in self.by))


@dataclass(frozen=True)
class Statement:
    """Hold a parsed statement. Its form is valid; `verify` checks its signatures, and `admit` its claims."""

    body: Body
    log: str
    by: tuple[str, ...]
    issued: int
    payload: bytes
    signatures: tuple[bytes, ...]

    @property
    def type(self) -> str:
        """Return the statement's type, a key of `KINDS` unless the body is `Newer`."""
        return self.body.kind if isinstance(self.body, Newer) else TYPE_OF[type(self.body)]

    @cached_property
    def id(self) -> str:
        """Return SHA-256 of the pre-authentication encoding, in hexadecimal."""
        # Not of the leaf: another signature of the same payload must not give a second id.
        return canonical.hex_digest(pre_authentication_encoding(self.payload))

    @cached_property
    def authors(self) -> tuple[Did, ...]:
        """Return the DIDs of the signing keys, in the order of `by`."""
        return tuple(parse_key_id(key_id)[0] for key_id in self.by)

    @property
    def author(self) -> Did:
        """Return the first author. Most types have only one."""
        return self.authors[0]

    @cached_property
    def leaf(self) -> bytes:
        """Return the canonical envelope: the bytes of the log entry."""
        return _envelope(self.payload, self.by, self.signatures)


@dataclass(frozen=True)
class Verified:
    """Hold a statement with verified signatures. Only `verify` creates one.

    `keys`: raw Ed25519 keys, in the order of `by`.
    """

    statement: Statement
    keys: tuple[bytes, ...]


def draft(body: Body, *, log: str, by: tuple[str, ...], issued: int) -> Draft:
    """Build the payload of a statement.

    `by`: the DID URLs of the signing keys, in any order.
    `issued`: Unix seconds.

    Raises `Malformed` or `TooLarge` where `parse` would.
    """
    body.check()
    value = {
        "type": TYPE_OF[type(body)],
        "log": log,
        # One order, so that both parties of a report sign the same bytes.
        "by": sorted(by),
        "issued": issued,
        "body": msgspec.to_builtins(body),
    }
    payload = canonical.dumps(value)
    # The reader's rules are the only ones: the builder repeats none of them.
    _read_payload(payload)
    return Draft(payload, tuple(sorted(by)))


def leaf_of(payload: bytes, signatures: Sequence[bytes]) -> bytes:
    """Return the leaf of a statement, whose payload and signatures were read from it before. Checks nothing."""
    return _envelope(payload, _BY.decode(payload).by, signatures)


def _envelope(payload: bytes, by: Sequence[str], signatures: Sequence[bytes]) -> bytes:
    signed = zip(by, signatures, strict=True)
    named = tuple(_Signature(key_id, canonical.b64encode(signature)) for key_id, signature in signed)
    return _SORTED.encode(_Envelope(canonical.b64encode(payload), PAYLOAD_TYPE, named))


def parse_draft(payload: bytes) -> Statement:
    """Parse an unsigned payload, for a co-signer to inspect. The result has no signatures and no leaf.

    Raises `Malformed` or `TooLarge` (`statement.*`, `canonical.*`).
    """
    return _statement(payload, ())


def read(leaf: bytes) -> Statement:
    """Parse a leaf of a log that may have a newer release than this one.

    Unknown members that are not critical are dropped. The body is `Newer` where `parse` raises `registry.newer`, and where a
    member that is critical is unknown. All else is as strict as `parse`.
    """
    try:
        return parse(leaf)
    except Malformed as error:
        if error.code not in (StatementCode.FORM, RegistryCode.NEWER):
            raise
    return _parse(leaf, _read_liberally)


def understand(leaf: bytes) -> Statement:
    """Parse a leaf as `read` does, for a reader that counts each leaf. Raises `Malformed` (`registry.newer`) for `Newer`."""
    parsed = read(leaf)
    if isinstance(parsed.body, Newer):
        parse(leaf)  # raises the error that names the unknown part
    return parsed


def unread(statement: Statement) -> Statement:
    """Return the statement with a `Newer` body: it rests on one that this release has no use of."""
    fields: dict[str, object] = msgspec.to_builtins(statement.body)
    return replace(statement, body=Newer.of(statement.type, True, fields))


def parse(leaf: bytes) -> Statement:
    """Parse a leaf strictly, without verifying signatures.

    Raises `Malformed` (`registry.newer`) for an unknown type, value of an enumeration, or critical part; and `Malformed` or
    `TooLarge` (`statement.*`, `canonical.*`).
    """
    return _parse(leaf, _read_payload)


def _parse(leaf: bytes, read_payload: Callable[[bytes], tuple[_Head, Body]]) -> Statement:
    # Strict parsing before anything else: equal statements have equal bytes, so the log can find duplicates by digest.
    envelope = _decode_canonical(leaf, _ENVELOPE, limit=MAX_LEAF) or _read_envelope(leaf)
    if envelope.payloadType != PAYLOAD_TYPE:
        raise Malformed(StatementCode.FORM, f"A statement's payloadType must be {PAYLOAD_TYPE}.")
    payload = canonical.b64decode(envelope.payload, limit=MAX_PAYLOAD)
    signatures = tuple(canonical.b64decode(signature.sig, limit=64) for signature in envelope.signatures)
    head, body = read_payload(payload)
    statement = Statement(body, head.log, head.by, head.issued, payload, signatures)
    if tuple(signature.keyid for signature in envelope.signatures) != statement.by:
        raise Malformed(StatementCode.SIGNATURES, "The signatures of a statement must be exactly those of `by`, in that order.")
    if any(len(signature) != 64 for signature in signatures):
        raise Malformed(StatementCode.SIGNATURES, "An Ed25519 signature has 64 bytes.")
    # The leaf was checked to be canonical, so it is cached instead of encoded again.
    vars(statement)["leaf"] = leaf
    return statement


def verify(statement: Statement, keys: Mapping[str, bytes]) -> Verified:
    """Check every signature. CPU-bound; releases the GIL.

    `keys`: DID URL → raw Ed25519.

    Raises `Unauthorized` (`statement.unknown-key`, `statement.signature-invalid`).
    """
    message = pre_authentication_encoding(statement.payload)
    used = []
    # `strict` refuses a parsed draft, which has no signatures.
    for key_id, signature in zip(statement.by, statement.signatures, strict=True):
        key = keys.get(key_id)
        if key is None:
            raise Unauthorized(StatementCode.UNKNOWN_KEY, f"{key_id} is not a key of its DID as this log knows it.")
        if not ed25519.verify(key, signature, message):
            raise Unauthorized(StatementCode.SIGNATURE_INVALID, f"The signature of {key_id} does not verify.")
        used.append(key)
    return Verified(statement, tuple(used))


def pre_authentication_encoding(payload: bytes) -> bytes:
    """Return the DSSE PAE of a payload. Signatures cover it, and its SHA-256 is the statement's id."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _statement(payload: bytes, signatures: tuple[bytes, ...]) -> Statement:
    head, body = _read_payload(payload)
    return Statement(body, head.log, head.by, head.issued, payload, signatures)


def _read_payload(payload: bytes) -> tuple[_Head, Body]:
    head, body = _decode_payload(payload) or _read_payload_strictly(payload)
    body.check()
    _check_head(head)
    return head, body


def _read_liberally(payload: bytes) -> tuple[_Head, Body]:
    head = _read_head(payload)
    _check_head(head)
    if _news(head):
        # Without a mark a new type is for those that know it. All else that is unknown changes a statement that is known.
        return head, Newer.of(head.type, head.type in KINDS or bool(head.critical), head.body)
    kind = KINDS[head.type]
    body = _convert({name: value for name, value in head.body.items() if name in kind.__struct_fields__}, kind)
    body.check()
    return head, body


def _news(head: _Payload) -> str:
    """Return the part of a statement that a newer release knows and this one must not pass over, or ""."""
    kind = KINDS.get(head.type)
    if kind is None:
        return f"the type {head.type[:40]!r}"
    for name in head.critical:
        if name not in (_WHOLE_TYPE, *kind.__struct_fields__):
            return f"{name[:40]!r}, which is critical in this {head.type}"
    # Not whatever has another form: a log that admitted a malformed statement is no newer one.
    for name, words in _WORDS[kind].items():
        value = head.body.get(name)
        if isinstance(value, str) and value not in words:
            return f"{value[:40]!r} as the {name} of a {head.type}"
    return ""


def _check_head(head: _Head) -> None:
    # Two authors are for reports and co-signed identities; `admit` checks the type.
    if not 1 <= len(head.by) <= 2 or list(head.by) != sorted(set(head.by)):
        raise Malformed(StatementCode.SIGNATURES, "`by` must name one or two distinct keys, sorted.")
    for key_id in head.by:
        parse_key_id(key_id)
    if head.issued < 0:
        raise Malformed(StatementCode.FORM, "`issued` must be Unix seconds.")


def _decode_payload(payload: bytes) -> tuple[_Head, Body] | None:
    """Return the head and the body of a canonical payload, or None when `_read_payload_strictly` has to decide."""
    head = _decode_canonical(payload, _RAW_PAYLOAD, limit=MAX_PAYLOAD)
    if head is None or head.issued > canonical.MAX_INTEGER or head.type not in _BODIES or head.critical:
        return None
    body = _decode_canonical(bytes(head.body), _BODIES[head.type], limit=MAX_PAYLOAD)
    return None if body is None else (head, body)


def _decode_canonical(data: bytes, decoder: msgspec.json.Decoder[_Decoded], *, limit: int) -> _Decoded | None:
    """Return the struct that `data` encodes, or None when `data` is not certain to be its canonical encoding.

    It decodes and encodes once, in C. It refuses nothing: after None the strict reader decides and names the fault, so the
    accepted statements are those of the strict reader.
    """
    if len(data) > limit:
        return None
    try:
        value = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if _SORTED.encode(value) == data else None


def _read_envelope(leaf: bytes) -> _Envelope:
    value = canonical.loads(leaf, limit=MAX_LEAF, name="statement")
    try:
        return msgspec.convert(value, _Envelope)
    except msgspec.ValidationError as error:
        raise Malformed(StatementCode.FORM, f"This is not a DSSE envelope: {error}.") from error


def _read_payload_strictly(payload: bytes) -> tuple[_Head, Body]:
    head = _read_head(payload)
    if news := _news(head):
        raise Malformed(
            RegistryCode.NEWER, f"This release does not know {news}.", fix="If it is no mistake, install a newer release."
        )
    # A second spelling of the same statement: no member that this release knows is critical.
    if head.critical:
        raise Malformed(StatementCode.FORM, f"{head.critical[0]} is not critical in a {head.type}.")
    return head, _convert(head.body, KINDS[head.type])


def _convert(fields: dict[str, object], kind: type[Body]) -> Body:
    try:
        body = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise Malformed(StatementCode.FORM, f"This is not a statement: {error}.") from error
    # A default value that is written out would give the same statement a second encoding.
    if msgspec.json.decode(msgspec.json.encode(body)) != fields:
        raise Malformed(StatementCode.FORM, "A field is null or empty. Leave absent fields out.")
    return body


def _read_head(payload: bytes) -> _Payload:
    value = canonical.loads(payload, limit=MAX_PAYLOAD, name="statement payload")
    try:
        head = msgspec.convert(value, _Payload)
    except msgspec.ValidationError as error:
        raise Malformed(StatementCode.FORM, f"This is not a statement: {error}.") from error
    names = list(head.critical)
    if names != sorted(set(names)) or not {*names} <= {_WHOLE_TYPE, *head.body} or (not names and "critical" in value):
        raise Malformed(StatementCode.FORM, "`critical` names members of the body, or the type, sorted and each once.")
    return head
