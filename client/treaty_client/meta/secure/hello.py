"""The signed Hellos: those of the plain profile (`meta.hello`) with more fields, JSON of at most 32 KiB.

Both sides add

    {"timestamp": "2026-11-20T14:03:55.000Z",
     "verificationMethod": {"id": "did:…#key-1", "type": "…", "publicKeyHex": "…"},        see `keys`
     "random": "…",                              mandatory here: 32 to 64 characters of A-Z a-z 0-9 _ -
     "proof": {"type": "…", "created": "2026-11-20T14:03:55Z", "verificationMethod": "did:…#key-1", "proofValue": "…"}}

the source

    {"supportedVersions": ["1.1"], "cipherSuites": ["TLS_AES_128_GCM_SHA256"], "supportedGroups": ["secp256r1"],
     "keyShares": [{"group": "secp256r1", "expires": 86400, "keyExchange": "04…"}]}

and the destination what it chose of that, with a share of its own

    {"selectedVersion": "1.1", "cipherSuite": "TLS_AES_128_GCM_SHA256",
     "keyShare": {"group": "secp256r1", "expires": 86400, "keyExchange": "04…"}}

`expires` is for how many seconds the side is willing to use the keys; the smaller one counts. Of a Hello nothing is left
unsigned: the signature is over the whole message but `proof.proofValue`, as JSON with its names sorted by code point, no
whitespace, and `\\u` escapes for everything beyond ASCII (Python's `json.dumps(…, sort_keys=True, separators=(",", ":"))`).
Both times must be within 30 seconds of the reader's clock.

Versions of the profile: 1.1 is ours. 1.0 is that of the official SDK, whose `finished` does not cover the Hellos and whose
records are not bound to their place; it is spoken only where both sides want it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unauthorized

from ..hello import HELLO_VERSION, MAX_HELLO, HelloType
from . import keys, schedule
from .keys import PublicKey, Signer

BOUND = "1.1"
UNBOUND = "1.0"
FRESHNESS = 30
"""Seconds that a Hello may be old, or ahead."""

_MARKS = ("proof", "keyShares", "keyShare")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z")

_Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{16,64}\Z")]
_Random: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{32,64}\Z")]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
_Hex: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{2,512}\Z")]
_Names: TypeAlias = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=16)]


class _Method(msgspec.Struct, frozen=True, rename="camel"):
    id: _Text
    type: _Text
    public_key_hex: _Hex


class _Proof(msgspec.Struct, frozen=True, rename="camel"):
    type: _Text
    created: str
    verification_method: _Text
    proof_value: _Text


class KeyShare(msgspec.Struct, frozen=True, rename="camel"):
    """One side's public key for one handshake, and for how many seconds it is good."""

    group: _Text
    expires: Annotated[int, msgspec.Meta(ge=1)]
    key_exchange: _Hex


class _Hello(msgspec.Struct, frozen=True, rename="camel"):
    version: str
    type: str
    timestamp: str
    message_id: _Id
    session_id: _Id
    source_did: _Text
    destination_did: _Text
    random: _Random
    verification_method: _Method
    proof: _Proof


class SourceHello(_Hello, frozen=True, rename="camel"):
    """The E2EE fields of a sourceHello."""

    supported_versions: _Names
    cipher_suites: _Names
    supported_groups: _Names
    key_shares: Annotated[tuple[KeyShare, ...], msgspec.Meta(max_length=16)]


class DestinationHello(_Hello, frozen=True, rename="camel"):
    """The E2EE fields of a destinationHello."""

    selected_version: _Text
    cipher_suite: _Text
    key_share: KeyShare


@dataclass(frozen=True)
class Opening:
    """A Hello of either side: its exact text, and its fields."""

    text: str
    fields: SourceHello | DestinationHello


def is_secure_hello(text: str) -> bool:
    """Whether this message has fields of the E2EE profile, valid or not. Never raises."""
    try:
        value = canonical.parse_json(text.encode("utf-8", "surrogatepass"), limit=MAX_HELLO)
    except TreatyError:
        return False
    return isinstance(value, dict) and any(mark in value for mark in _MARKS)


def sign(plain: str, added: dict[str, Any], signer: Signer, now: float) -> Opening:
    """The signed form of a plain Hello with the fields `added`; `now` in Unix seconds.

    Raises `Malformed` (`secure.hello`) for a Hello that has no random or is another identity's, `TooLarge`.
    """
    value: dict[str, Any] = canonical.parse_json(plain.encode(), limit=MAX_HELLO, what="Hello")
    if value.get("sourceDid") != signer.did or value.get("verificationMethod") not in (None, {"id": signer.key_id}):
        raise Malformed("secure.hello", f"This Hello is not {signer.did}'s, signed by {signer.key_id}.")
    method = keys.method_of(signer)
    kind = keys.public_key(signer.private_key).kind
    proof = {"type": kind.proofs[0], "created": timestamp(now, "seconds"), "verificationMethod": signer.key_id}
    value |= added | {"timestamp": timestamp(now), "verificationMethod": method, "proof": proof}
    proof["proofValue"] = keys.sign(signer.private_key, _signing_input(value))
    text = canonical.dumps(value).decode()
    if len(text.encode()) > MAX_HELLO:
        raise TooLarge("secure.hello", f"A Hello has at most {MAX_HELLO} bytes.")
    return Opening(text, _fields(value))


def read(text: str, expected: HelloType, now: float) -> tuple[Opening, PublicKey]:
    """Read the peer's Hello of the `expected` type and check its times, and its signature under the key that it names; whose key
    that is remains to be seen.

    Raises `TooLarge`, `Malformed` (`secure.hello`, `secure.key`, `canonical.*`), `Refused` (`secure.stale`), `Unauthorized`
    (`secure.proof`).
    """
    value = canonical.parse_json(text.encode("utf-8", "surrogatepass"), limit=MAX_HELLO, what="Hello")
    fields = _fields(value)
    if (fields.version, fields.type) != (HELLO_VERSION, expected):
        raise Malformed("secure.hello", f"A {expected} of version {HELLO_VERSION} is due here.")
    for made in (fields.timestamp, fields.proof.created):
        if abs(_seconds(made) - now) > FRESHNESS:
            raise Refused(
                "secure.stale",
                f"This Hello was made at {made}, more than {FRESHNESS} seconds from now.",
                fix="See whether the clocks of both sides are right.",
            )
    method = fields.verification_method
    if fields.proof.verification_method != method.id:
        raise Unauthorized("secure.proof", "The proof of this Hello is by another key than its verificationMethod.")
    key = keys.parse_key(method.type, method.public_key_hex)
    key.verify(fields.proof.type, fields.proof.proof_value, _signing_input(value))
    return Opening(text, fields), key


def timestamp(now: float, precision: str = "milliseconds") -> str:
    """Unix seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def usable_share(shares: tuple[KeyShare, ...]) -> KeyShare:
    """The first share of the group spoken here. Raises `Refused` (`secure.group`) or `Malformed` (`secure.key-share`)."""
    for one in shares:
        if one.group == schedule.GROUP:
            schedule.parse_share(one.key_exchange)
            return one
    raise Refused("secure.group", f"No key share of the group {schedule.GROUP}.")


def _fields(value: Any) -> SourceHello | DestinationHello:
    is_source = isinstance(value, dict) and value.get("type") == "sourceHello"
    try:
        return msgspec.convert(value, SourceHello) if is_source else msgspec.convert(value, DestinationHello)
    except msgspec.ValidationError as error:
        raise Malformed("secure.hello", f"Not a Hello of the E2EE profile: {error}.") from error


def _signing_input(value: dict[str, Any]) -> bytes:
    proof = {name: item for name, item in value["proof"].items() if name != "proofValue"}
    return json.dumps(value | {"proof": proof}, sort_keys=True, separators=(",", ":")).encode("ascii")


def _seconds(text: str) -> float:
    if not _TIME.fullmatch(text):
        raise Malformed("secure.hello", "A time in a Hello is written like 2026-11-20T14:03:55.000Z.")
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise Malformed("secure.hello", f"There is no time {text}.") from error
