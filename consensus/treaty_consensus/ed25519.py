"""Verify Ed25519 signatures (RFC 8032 §5.1.7). OpenSSL defines which are valid; libsodium finds most of them sooner.

OpenSSL checks without the cofactor: S is below the order of the group, and the encoding of [S]B - [k]A is R, byte by byte.
libsodium checks the same in two thirds of the time. It also refuses keys and points of small order, and keys that are not encoded
canonically. So OpenSSL accepts each signature that libsodium accepts. After a refusal of libsodium, OpenSSL decides. The valid
signatures are the same with and without libsodium, which the extra `audit` installs (PyNaCl).

A check with the cofactor accepts more. `WITH_COFACTOR` is valid for such a check only. A libsodium that accepts it is not used.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

KEY_BYTES = 32
SIGNATURE_BYTES = 64

# R has a component of order 8, so [S]B - [k]A is not R, but eight times it is.
WITH_COFACTOR = (
    bytes.fromhex("43a3d53df7c64e2568f765c706cfdefe9d4a7dac7f3bc11404e41c908c1bb3a3"),
    bytes.fromhex(
        "186ed2bdbd1a36f6437c5168b0221914018ea4f32a1c3fcd1c1794d64fbd596e1f4d348aa25e2e2632c26b53b71ac28e0d808799051e2addf6a642980f0d8f06"
    ),
    b"Only a check with the cofactor accepts this.",
)


def verify(key: bytes, signature: bytes, message: bytes) -> bool:
    """Tell whether `signature` (64 bytes) of `message` by `key` (32 raw bytes) is valid. Releases the GIL.

    A key or a signature of another length, or a key that is no point of the curve, makes the result False.
    """
    # libsodium reads the signature and the message as one text, so a shorter signature would take a byte of the message.
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    return (has_libsodium() and _libsodium_accepts(key, signature, message)) or _openssl_accepts(key, signature, message)


@cache
def has_libsodium() -> bool:
    """Tell whether libsodium is installed and checks without the cofactor. Decided once."""
    return find_spec("nacl") is not None and not _libsodium_accepts(*WITH_COFACTOR)


def _openssl_accepts(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _libsodium_accepts(key: bytes, signature: bytes, message: bytes) -> bool:
    # At the first signature, because most commands verify none and the import takes longer than a hundred of them.
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError

    try:
        crypto_sign_open(signature + message, key)
    except BadSignatureError:
        return False
    return True
