"""AES-128-GCM as it is written in JSON: three members, padded standard base64.

    {"iv": B64(12 bytes), "tag": B64(16 bytes), "ciphertext": B64(as long as the plaintext)}

This side's iv is the number of the message under its key, 12 bytes, big-endian: 0 is its `finished`, its records count on from
1. So no iv is used twice (NIST SP 800-38D §8.2.1).
"""

from __future__ import annotations

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from treaty_consensus import canonical
from treaty_consensus.errors import Unauthorized

IV_SIZE = 12
TAG_SIZE = 16


class Sealed(msgspec.Struct, frozen=True):
    """An encrypted text as it stands in a message."""

    iv: str
    tag: str
    ciphertext: str


def iv_of(number: int) -> bytes:
    """The iv of this side's message with that number."""
    return number.to_bytes(IV_SIZE, "big")


def seal(key: bytes, number: int, plaintext: bytes, covered: bytes | None) -> dict[str, str]:
    """Encrypt; `covered`: what is authenticated besides."""
    iv = iv_of(number)
    sealed = AESGCM(key).encrypt(iv, plaintext, covered)
    parts = {"iv": iv, "tag": sealed[-TAG_SIZE:], "ciphertext": sealed[:-TAG_SIZE]}
    return {name: canonical.b64encode(part) for name, part in parts.items()}


def unseal(key: bytes, sealed: Sealed, covered: bytes | None, *, limit: int) -> bytes:
    """Decrypt at most `limit` bytes. Raises `Unauthorized` (`secure.tampered`), `Malformed` and `TooLarge` (`canonical.*`)."""
    iv, tag = canonical.b64decode(sealed.iv, limit=IV_SIZE), canonical.b64decode(sealed.tag, limit=TAG_SIZE)
    data = canonical.b64decode(sealed.ciphertext, limit=limit)
    if (len(iv), len(tag)) == (IV_SIZE, TAG_SIZE):
        try:
            return AESGCM(key).decrypt(iv, data + tag, covered)
        except InvalidTag as error:
            raise _tampered() from error
    raise _tampered()


def _tampered() -> Unauthorized:
    return Unauthorized("secure.tampered", "An encrypted message was changed on its way, or was made with another key.")
