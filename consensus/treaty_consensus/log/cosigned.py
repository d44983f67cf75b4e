"""Build the bytes that a cosigner signs (C2SP tlog-cosignature), and sign them by each of the two algorithms.
`ed25519` verifies the first kind, and this module the second.

A signature is `time ‖ signature`: 8 bytes, big-endian POSIX seconds, and 64 bytes of Ed25519 or 2,420 of ML-DSA-44 (FIPS 204, the
empty context). The signed messages:

    0x04, Ed25519       "cosignature/v1" LF "time " TIME LF and the whole text of the note
    0x06, ML-DSA-44     "subtree/v1" LF NUL ‖ length ‖ cosigner's name ‖ time ‖ length ‖ log's origin ‖ 0 ‖ size ‖ root hash

A length is one byte; time, 0 and size are 8 bytes, big-endian. So an ML-DSA-44 cosignature is of a checkpoint alone: it says
nothing about extension lines, and it commits to the cosigner's name.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..canonical import b64decode, parse_decimal

ML_DSA_PUBLIC, ML_DSA_SIGNATURE = 1312, 2420
"""Bytes of a public key and of a signature. A secret key is a seed of 32 bytes, as of Ed25519."""
MAX_NAME = 255
"""Bytes of the name of an ML-DSA-44 cosigner, and of the origin of a log that it cosigns."""
_MAX_SIZE = 2**63 - 1
_LABEL = b"subtree/v1\n\0"


def ed25519_message(text: bytes, time: int) -> bytes:
    """Return the message of an Ed25519 cosignature of a note with this text."""
    return b"cosignature/v1\ntime %d\n%b" % (time, text)


def ml_dsa_message(name: str, text: bytes, time: int) -> bytes:
    """Return the message of an ML-DSA-44 cosignature by the cosigner `name` of the checkpoint whose note has this text.

    Raises `ValueError` when the text is not that of a checkpoint, or a name is too long.
    """
    lines = text.decode().split("\n")
    if len(lines) < 4:
        raise ValueError("the text has fewer than three lines")
    origin, size, root = lines[0].encode(), parse_decimal(lines[1], limit=_MAX_SIZE), b64decode(lines[2], limit=32)
    cosigner = name.encode()
    if len(root) != 32 or not 1 <= len(origin) <= MAX_NAME or not 1 <= len(cosigner) <= MAX_NAME:
        raise ValueError("a name is too long, or the root hash has another length")
    parts = (
        *(_LABEL, bytes([len(cosigner)]), cosigner, time.to_bytes(8, "big")),
        *(bytes([len(origin)]), origin, bytes(8), size.to_bytes(8, "big"), root),
    )
    return b"".join(parts)


class PrivateKey(Protocol):
    """A key that signs. ML-DSA-44 draws randomness for it, so two of its signatures of one message differ."""

    def sign(self, data: bytes, /) -> bytes:
        """Return the signature."""
        ...

    def public_key(self) -> PublicKey:
        """Return the public half."""
        ...


class PublicKey(Protocol):
    """The public half of a key."""

    def public_bytes_raw(self) -> bytes:
        """Return its bytes."""
        ...


def private_key(seed: bytes, *, ml_dsa: bool) -> PrivateKey:
    """Return the private key of a seed, of ML-DSA-44 or of Ed25519."""
    if not ml_dsa:
        return Ed25519PrivateKey.from_private_bytes(seed)
    from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey  # most processes meet no such key

    return MLDSA44PrivateKey.from_seed_bytes(seed)


def ml_dsa_holds(public: bytes, signature: bytes, message: bytes) -> bool:
    """Tell whether an ML-DSA-44 signature verifies."""
    from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

    try:
        MLDSA44PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True
