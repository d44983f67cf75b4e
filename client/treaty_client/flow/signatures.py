"""Signatures of this profile: a JSON Web Signature with detached, unencoded content (RFC 7515 appendix F, RFC 7797).

    signature       = HEADER ".." BASE64URL(Ed25519(signing input))                 no padding, 86 characters after the dots
    HEADER          = eyJhbGciOiJFZERTQSIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19      {"alg":"EdDSA","b64":false,"crit":["b64"]}
    signing input   = HEADER "." JCS(the message without its member `signature`)

JCS is RFC 8785 of the message as it was received, unknown members included; numbers are IEEE doubles, written as ECMAScript
writes them. The header names no key: the key is one of those that the sender's DID document lists under `authentication` now.

The header is a constant, compared as text, and what remains is one Ed25519 operation, done with `cryptography`. joserfc makes
the same bytes (the tests compare them), but reads a signature in several base64 spellings, any other header that means the
same, and content of at most 125 KiB, and warns of `EdDSA` at each use, which RFC 9864 deprecates and the source asks for.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from treaty_consensus.errors import Malformed, Unauthorized

from ..identity import Identity

HEADER = "eyJhbGciOiJFZERTQSIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19"
MAX_KEYS = 8
"""Keys of one sender that are tried."""

_FORM = re.compile(rf"{HEADER}\.\.([A-Za-z0-9_-]{{86}})")


def signing_input(message: Mapping[str, Any]) -> bytes:
    """What is signed of a message: a JSON object, its numbers within ±(2^53-1). Raises `rfc8785.CanonicalizationError`."""
    unsigned = {name: value for name, value in message.items() if name != "signature"}
    return HEADER.encode() + b"." + rfc8785.dumps(unsigned)


def sign(content: bytes, identity: Identity) -> str:
    """The signature over a signing input."""
    return f"{HEADER}..{_encode(identity.sign(content))}"


def parse_signature(text: str) -> bytes:
    """The 64 bytes of a signature in its one spelling. Raises `Malformed` (`flow.signature`)."""
    match = _FORM.fullmatch(text)
    signature = base64.urlsafe_b64decode(match[1] + "==") if match else b""
    if match is None or _encode(signature) != match[1]:
        raise Malformed("flow.signature", "A message's signature is a detached JWS (EdDSA, b64=false) in its one spelling.")
    return signature


def verify(content: bytes, signature: bytes, keys: Iterable[bytes], sender: str) -> None:
    """Check that one of the sender's `keys` (raw Ed25519) signed. CPU-bound: 0.1 ms a key. Raises `Unauthorized`
    (`flow.unverified`)."""
    for key, _ in zip(keys, range(MAX_KEYS), strict=False):
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
        except (InvalidSignature, ValueError):
            continue
        return
    raise Unauthorized("flow.unverified", f"No authentication key of {sender} made this message's signature.")


def _encode(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
