"""What both sides derive from their key shares, as the official SDK does: all with HMAC-SHA-256, in the manner of TLS 1.3.

    group         secp256r1; a share is the uncompressed point, 65 bytes: 04, x, y
    shared        ECDH: the x coordinate, 32 bytes
    master        HKDF(salt = 32 zero bytes, input = shared, info = "", 32 bytes)                     RFC 5869, extract and expand
    randoms       the source's `random`, then the destination's, as UTF-8
    secret S, D   HKDF-Expand(master, label(32, "s ap traffic" or "d ap traffic", randoms), 32 bytes)
    key S, D      HKDF(salt = 32 zero bytes, input = secret, info = label(32, "key", secret), 16 bytes)
    key id        HKDF(salt = 32 zero bytes, input = randoms, info = "", 8 bytes), 16 hexadecimal digits

    label(n, name, context) = u16(n), u8(length), "als10 " and name, u8(length), context

S is what the source encrypts with, D the destination. (The labels say 32 bytes where the key has 16: so does the SDK.)
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from treaty_consensus.errors import Malformed

GROUP = "secp256r1"
CIPHER_SUITE = "TLS_AES_128_GCM_SHA256"

_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_SECRET_SIZE = 32
_KEY_SIZE = 16
_KEY_ID_SIZE = 8
_SHARE_SIZE = 65
SEED_SIZE = 48


class SessionKeys(NamedTuple):
    """The key of each direction, 16 bytes, and the public name of both."""

    source: bytes
    destination: bytes
    key_id: str


def ephemeral(seed: bytes) -> ec.EllipticCurvePrivateKey:
    """The private key of one handshake from `SEED_SIZE` random bytes, 128 bits more than it has (FIPS 186-5 A.2.1)."""
    return ec.derive_private_key(int.from_bytes(seed, "big") % (_ORDER - 1) + 1, _CURVE)


def share(private_key: ec.EllipticCurvePrivateKey) -> str:
    """The `keyExchange` of a key share: the point in hexadecimal."""
    return private_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint).hex()


def parse_share(text: str) -> ec.EllipticCurvePublicKey:
    """The point of a `keyExchange`, in hexadecimal. Raises `Malformed` (`secure.key-share`)."""
    try:
        if len(text) != 2 * _SHARE_SIZE:
            raise ValueError("another length")
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, bytes.fromhex(text))
    except ValueError as error:
        raise Malformed("secure.key-share", f"A key share is not a point of {GROUP}, {_SHARE_SIZE} bytes.") from error


def derive(private_key: ec.EllipticCurvePrivateKey, peer_share: str, source_random: str, destination_random: str) -> SessionKeys:
    """The keys of a session. Raises `Malformed` (`secure.key-share`)."""
    point = parse_share(peer_share)
    randoms = (source_random + destination_random).encode()
    master = _hkdf(private_key.exchange(ec.ECDH(), point), b"", _SECRET_SIZE)
    return SessionKeys(
        _key(master, b"s ap traffic", randoms),
        _key(master, b"d ap traffic", randoms),
        _hkdf(randoms, b"", _KEY_ID_SIZE).hex(),
    )


def _key(master: bytes, label: bytes, randoms: bytes) -> bytes:
    secret = HKDFExpand(SHA256(), _SECRET_SIZE, _label(label, randoms)).derive(master)
    return _hkdf(secret, _label(b"key", secret), _KEY_SIZE)


def _label(name: bytes, context: bytes) -> bytes:
    full = b"als10 " + name
    return _SECRET_SIZE.to_bytes(2, "big") + bytes([len(full)]) + full + bytes([len(context)]) + context


def _hkdf(material: bytes, info: bytes, size: int) -> bytes:
    return HKDF(SHA256(), size, salt=None, info=info).derive(material)
