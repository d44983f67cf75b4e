"""The older form of did:wba: one header, which says who sends a request to which host, and nothing of the request itself.

    Authorization: DIDWba v="1.1", did="DID", nonce="TEXT", timestamp="2026-01-31T12:00:00Z", verification_method="FRAGMENT",
        signature="B64URL"

One line, parameters once each, in any order. The Ed25519 signature is over SHA-256(JCS({"aud": HOST, "did", "nonce",
"timestamp"})); in version 1.0, the name is `service` instead of `aud`; without `v` it is 1.1. HOST has no port.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Unauthorized

from ..key_binding import b64url_encode, parse_signature
from .message_signature import MAX_HEADER, MAX_NONCE

SCHEME = "DIDWba "
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_PARAMETER = r'[a-z_]+="[^"\\]*"'
_HEADER = re.compile(rf"DIDWba +{_PARAMETER}(?:, *{_PARAMETER})*")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_AUDIENCE = {"1.0": "service", "1.1": "aud"}
_NEEDED = {"did", "nonce", "timestamp", "verification_method", "signature"}


class Credential(NamedTuple):
    """What such a header says."""

    version: str
    did: str
    nonce: str
    timestamp: str
    fragment: str

    @property
    def key_id(self) -> str:
        """The DID URL of the key."""
        return f"{self.did}#{self.fragment}"

    @property
    def created(self) -> int:
        """The timestamp in Unix seconds."""
        return int(datetime.strptime(self.timestamp, _TIME).replace(tzinfo=UTC).timestamp())

    def digest(self, host: str) -> bytes:
        """What is signed, when it is for `host`."""
        signed = {"nonce": self.nonce, "timestamp": self.timestamp, _AUDIENCE[self.version]: host, "did": self.did}
        return canonical.sha256(canonical.dumps(signed))


def sign(key_id: str, nonce: str, created: int, host: str, signature: Callable[[bytes], bytes]) -> str:
    """The value of the Authorization header; `created` in Unix seconds."""
    did, _, fragment = key_id.partition("#")
    credential = Credential("1.1", did, nonce, datetime.fromtimestamp(created, UTC).strftime(_TIME), fragment)
    signed = b64url_encode(signature(credential.digest(host)))
    return (
        f'DIDWba v="1.1", did="{did}", nonce="{nonce}", timestamp="{credential.timestamp}", '
        f'verification_method="{fragment}", signature="{signed}"'
    )


def is_used(authorization: str) -> bool:
    """Whether the value of an Authorization header is of this form: its scheme, which has no case (RFC 9110 §11.1)."""
    return authorization[: len(SCHEME)].lower() == SCHEME.lower()


def parse(header: str) -> tuple[Credential, bytes]:
    """A header's credential and signature. Raises `Unauthorized` (`authentication.malformed`)."""
    if len(header) > MAX_HEADER or not _HEADER.fullmatch(header):
        raise _malformed("it is not DIDWba and its parameters")
    pairs = [part.split('="', 1) for part in re.findall(_PARAMETER, header)]
    parameters = {name: value.removesuffix('"') for name, value in pairs}
    version = parameters.pop("v", "1.1")
    if parameters.keys() != _NEEDED or len(pairs) > len(_NEEDED) + 1 or version not in _AUDIENCE:
        raise _malformed("a parameter is missing, unknown or there twice, or it is of another version than 1.0 and 1.1")
    if not 0 < len(parameters["nonce"]) <= MAX_NONCE or not _TIMESTAMP.fullmatch(parameters["timestamp"]):
        raise _malformed(f"its nonce has 1 to {MAX_NONCE} characters, and its timestamp is such as 2026-01-31T12:00:00Z")
    credential = Credential(
        version, parameters["did"], parameters["nonce"], parameters["timestamp"], parameters["verification_method"]
    )
    try:
        _ = credential.created
        return credential, parse_signature(parameters["signature"])
    except (ValueError, Malformed) as error:
        raise _malformed("its timestamp is no time, or its signature not one of Ed25519 in base64url") from error


def verify(credential: Credential, signature: bytes, key: bytes, hosts: tuple[str, ...]) -> None:
    """Check a signature for one of `hosts`. Raises `Unauthorized` (`authentication.signature`)."""
    for host in hosts:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, credential.digest(host))
        except InvalidSignature:
            continue
        return
    raise Unauthorized("authentication.signature", "The signature does not verify for this host and key.")


def _malformed(reason: str) -> Unauthorized:
    return Unauthorized("authentication.malformed", f"The Authorization header does not read: {reason}.")
