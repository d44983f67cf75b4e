"""Sign and read the Hellos of the E2EE profile: those of the plain profile (`treaty_anp.hello_profile.hello`) with more fields.

docs/specification/e2ee-profile.md, section 1, has the format. For example, a source adds to its plain Hello

    {"timestamp": "2026-11-20T14:03:55.000Z", "supportedVersions": ["1.1"], "cipherSuites": ["TLS_AES_128_GCM_SHA256"],
     "supportedGroups": ["secp256r1"], "keyShares": [{"group": "secp256r1", "expires": 86400, "keyExchange": "04…"}],
     "verificationMethod": {"id": "did:…#key-1", "type": "…", "publicKeyHex": "…"}, "proof": {…}}

The signature covers the whole message except `proof.proofValue`. Version 1.1 of the profile is ours. Version 1.0 is that of the
official SDK. It does not protect the Hellos by `finished` nor the order of records, and is used only if both sides ask for it.
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
from treaty_io.codes import SecureCode

from ..hello_profile.hello import HELLO_VERSION, MAX_HELLO, HelloType
from . import key_schedule, keys
from .keys import HelloSigner, PublicKey

# 1.0 is the SDK's version; 1.1 adds the transcript and the order of records.
BOUND = "1.1"
UNBOUND = "1.0"
# Clocks may differ by five minutes, and a Hello is 30 seconds on its way. The window bounds how long a recorded Hello can be
# repeated; the ephemeral share makes that useless, so the SDK's 30 seconds would only refuse honest peers.
FRESHNESS = 330
"""Seconds by which the times in a Hello may differ from this side's clock."""

# One mark is enough: a Hello that is stripped of the others is refused, not taken for a plain one.
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
    """One side's public key for one handshake. `expires`: seconds for which the side will use the session's keys."""

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


def is_secure_hello(message: str | bytes) -> bool:
    """Return whether this message has fields of the E2EE profile, valid or not. Never raises."""
    data = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
    try:
        # With floats, as the plain profile reads: a Hello that is signed must not pass for a plain one because of a number.
        value = canonical.parse_json(data, limit=MAX_HELLO, floats=True)
    except TreatyError:
        return False
    return isinstance(value, dict) and any(mark in value for mark in _MARKS)


def sign(plain: str, added: dict[str, Any], signer: HelloSigner, now: float) -> Opening:
    """Add the fields `added` to a plain Hello and sign it. `now`: Unix seconds.

    Raises `Malformed` (`secure.hello`) for a Hello without a random or of another identity, and `TooLarge`.
    """
    value: dict[str, Any] = canonical.parse_json(plain.encode(), limit=MAX_HELLO, name="Hello")
    if value.get("sourceDid") != signer.did or value.get("verificationMethod") not in (None, {"id": signer.key_id}):
        raise Malformed(SecureCode.HELLO, f"This Hello must name {signer.did} as its sender and {signer.key_id} as its key.")
    method = keys.method_of(signer)
    kind = keys.public_key(signer.private_key).kind
    proof = {"type": kind.proofs[0], "created": timestamp(now, "seconds"), "verificationMethod": signer.key_id}
    value |= added | {"timestamp": timestamp(now), "verificationMethod": method, "proof": proof}
    proof["proofValue"] = keys.sign(signer.private_key, _signing_input(value))
    # Canonical on this side. The signing input below is the SDK's, which sorts and escapes in its own way.
    text = canonical.dumps(value).decode()
    if len(text.encode()) > MAX_HELLO:
        raise TooLarge(SecureCode.HELLO, f"A Hello has at most {MAX_HELLO} bytes.")
    return Opening(text, _fields(value))


def read(text: str, expected: HelloType, now: float) -> tuple[Opening, PublicKey]:
    """Read the peer's Hello of the `expected` type. Check its times, and its signature by the key that it names.

    The caller must still check that the key belongs to the sender's DID. `now`: Unix seconds.

    Raises `TooLarge`, `Malformed` (`secure.hello`, `secure.key`, `canonical.*`), `Refused` (`secure.stale`), `Unauthorized`
    (`secure.hello`).
    """
    value = canonical.parse_json(text.encode("utf-8", "surrogatepass"), limit=MAX_HELLO, name="Hello")
    fields = _fields(value)
    if (fields.version, fields.type) != (HELLO_VERSION, expected):
        raise Malformed(SecureCode.HELLO, f"The message is not a {expected} of version {HELLO_VERSION}.")
    # Times first: they are cheap, and a stale Hello needs no verification of its signature.
    for timestamp_text in (fields.timestamp, fields.proof.created):
        if abs(seconds(timestamp_text) - now) > FRESHNESS:
            raise Refused(
                SecureCode.STALE,
                f"This Hello was made at {timestamp_text}, more than {FRESHNESS} seconds from now.",
                fix="Check the clocks of both sides.",
            )
    method = fields.verification_method
    # Otherwise a valid proof by another key would pass for one of the named key.
    if fields.proof.verification_method != method.id:
        raise Unauthorized(SecureCode.HELLO, "The proof of this Hello is by another key than its verificationMethod.")
    key = keys.parse_key(method.type, method.public_key_hex)
    key.verify(fields.proof.type, fields.proof.proof_value, _signing_input(value))
    return Opening(text, fields), key


def timestamp(now: float, precision: str = "milliseconds") -> str:
    """Format Unix seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def usable_share(shares: tuple[KeyShare, ...]) -> KeyShare:
    """Return the first share of a supported group. Raises `Refused` (`secure.no-common`) or `Malformed` (`secure.record`)."""
    for one in shares:
        if one.group == key_schedule.GROUP:
            key_schedule.parse_share(one.key_exchange)
            return one
    raise Refused(SecureCode.NO_COMMON, f"No key share of the group {key_schedule.GROUP}.")


def _fields(value: Any) -> SourceHello | DestinationHello:
    is_initiator = isinstance(value, dict) and value.get("type") == "sourceHello"
    try:
        return msgspec.convert(value, SourceHello) if is_initiator else msgspec.convert(value, DestinationHello)
    except msgspec.ValidationError as error:
        raise Malformed(SecureCode.HELLO, f"Not a Hello of the E2EE profile: {error}.") from error


def _signing_input(value: dict[str, Any]) -> bytes:
    proof = {name: item for name, item in value["proof"].items() if name != "proofValue"}
    # As the SDK serializes it, byte for byte; RFC 8785 would sort and escape differently.
    return json.dumps(value | {"proof": proof}, sort_keys=True, separators=(",", ":")).encode("ascii")


def seconds(text: str) -> float:
    """Return a time in a Hello as Unix seconds. Raises `Malformed` (`secure.hello`)."""
    if not _TIME.fullmatch(text):
        raise Malformed(SecureCode.HELLO, "A time in a Hello must have the form 2026-11-20T14:03:55.000Z.")
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise Malformed(SecureCode.HELLO, f"There is no time {text}.") from error
