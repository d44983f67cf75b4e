"""Write, read and verify the older form of did:wba: one header that names sender and host, and covers nothing of the request.

docs/specification/identity-on-the-wire.md, section "The older form", has the format. For example:

    Authorization: DIDWba v="1.1", did="DID", nonce="TEXT", timestamp="2026-01-31T12:00:00Z", verification_method="FRAGMENT",
        signature="B64URL"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_io.codes import AuthenticationCode
from treaty_io.identity.key_binding import b64url_encode, parse_signature

from .message_signature import MAX_HEADER, MAX_NONCE, verify_request_signature

SCHEME = "DIDWba "
_TIME = "%Y-%m-%dT%H:%M:%SZ"
# No quote and no backslash in a value: escapes could be read in two ways.
_PARAMETER = r'[a-z_]+="[^"\\]*"'
_HEADER = re.compile(rf"DIDWba +{_PARAMETER}(?:, *{_PARAMETER})*")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_AUDIENCE = {"1.0": "service", "1.1": "aud"}
_NEEDED = {"did", "nonce", "timestamp", "verification_method", "signature"}


class Credential(NamedTuple):
    """The signed content of such a header."""

    version: str
    did: str
    nonce: str
    timestamp: str
    fragment: str

    @property
    def key_id(self) -> str:
        """Return the DID URL of the key."""
        return f"{self.did}#{self.fragment}"

    @property
    def created(self) -> int:
        """Return the timestamp in Unix seconds."""
        return int(datetime.strptime(self.timestamp, _TIME).replace(tzinfo=UTC).timestamp())

    def digest(self, host: str) -> bytes:
        """Return the digest to sign for `host`: SHA-256 of the JCS of host, DID, nonce and timestamp."""
        signed = {"nonce": self.nonce, "timestamp": self.timestamp, _AUDIENCE[self.version]: host, "did": self.did}
        return canonical.sha256(canonical.dumps(signed))


def sign(key_id: str, nonce: str, created: int, host: str, signature: Callable[[bytes], bytes]) -> str:
    """Return the value of the Authorization header. `created`: Unix seconds. `signature`: signs bytes with the key."""
    did, _, fragment = key_id.partition("#")
    credential = Credential("1.1", did, nonce, datetime.fromtimestamp(created, UTC).strftime(_TIME), fragment)
    signed = b64url_encode(signature(credential.digest(host)))
    return (
        f'DIDWba v="1.1", did="{did}", nonce="{nonce}", timestamp="{credential.timestamp}", '
        f'verification_method="{fragment}", signature="{signed}"'
    )


def is_used(authorization: str) -> bool:
    """Return whether an Authorization header has this scheme. Schemes are case-insensitive (RFC 9110 §11.1)."""
    return authorization[: len(SCHEME)].lower() == SCHEME.lower()


def parse(header: str) -> tuple[Credential, bytes]:
    """Return the credential and the signature of a header. Raises `Unauthorized` (`authentication.signature`)."""
    if len(header) > MAX_HEADER or not _HEADER.fullmatch(header):
        raise _malformed("it is not DIDWba and its parameters")
    pairs = [part.split('="', 1) for part in re.findall(_PARAMETER, header)]
    parameters = {name: value.removesuffix('"') for name, value in pairs}
    version = parameters.pop("v", "1.1")
    if parameters.keys() != _NEEDED or len(pairs) > len(_NEEDED) + 1 or version not in _AUDIENCE:
        raise _malformed("a parameter is missing, unknown or repeated, or the version is not 1.0 or 1.1")
    if not 0 < len(parameters["nonce"]) <= MAX_NONCE or not _TIMESTAMP.fullmatch(parameters["timestamp"]):
        raise _malformed(f"its nonce must have 1 to {MAX_NONCE} characters, and its timestamp the form 2026-01-31T12:00:00Z")
    credential = Credential(
        version, parameters["did"], parameters["nonce"], parameters["timestamp"], parameters["verification_method"]
    )
    try:
        _ = credential.created
        return credential, parse_signature(parameters["signature"])
    except (ValueError, Malformed) as error:
        raise _malformed("its timestamp is not a time, or its signature is not 64 bytes in base64url") from error


def verify(credential: Credential, signature: bytes, key: bytes, hosts: tuple[str, ...]) -> None:
    """Check a signature for one of `hosts`. Raises `Unauthorized` (`authentication.signature`)."""
    # The header does not name the host that it was made for, so each of this listener's is tried.
    for host in hosts:
        try:
            verify_request_signature(key, signature, credential.digest(host))
        except InvalidSignature:
            continue
        return
    raise Unauthorized(AuthenticationCode.SIGNATURE, "The signature does not verify for this host and key.")


def _malformed(reason: str) -> Unauthorized:
    return Unauthorized(AuthenticationCode.SIGNATURE, f"The Authorization header cannot be read: {reason}.")
