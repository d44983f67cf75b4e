"""Derive the keys of a session from both key shares, and encrypt and decrypt with them.

docs/specification/e2ee-profile.md, section 2, has the key schedule, with an example. It is that of the official SDK: HKDF with
SHA-256, in the manner of TLS 1.3. The labels name a length of 32 bytes, also for keys of 16 bytes, because the SDK does so.

A ciphertext is AES-128-GCM in JSON, for example `{"iv": "AAAAAAAAAAAAAAAB", "tag": "…", "ciphertext": "…"}`. The iv is the number
of the message under the sender's key, 12 bytes, big-endian: 0 for `finished`, then 1, 2, 3 for records. So no iv is used twice
(NIST SP 800-38D §8.2.1).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_io.codes import SecureCode

GROUP = "secp256r1"
CIPHER_SUITE = "TLS_AES_128_GCM_SHA256"

_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_SECRET_SIZE = 32
_KEY_SIZE = 16
# As the SDK has it. The id names the keys and protects nothing.
_KEY_ID_SIZE = 8
_SHARE_SIZE = 65
# 32 bytes of key and 16 more, see `ephemeral`.
SEED_SIZE = 48


class SessionKeys(NamedTuple):
    """The keys of both directions, 16 bytes each, and their common public name."""

    source: bytes
    destination: bytes
    key_id: str


def ephemeral(seed: bytes) -> ec.EllipticCurvePrivateKey:
    """Make the private key of one handshake from `SEED_SIZE` random bytes.

    They have 128 bits more than the key, so the result has no measurable bias (FIPS 186-5 A.2.1).
    """
    return ec.derive_private_key(int.from_bytes(seed, "big") % (_ORDER - 1) + 1, _CURVE)


def share(private_key: ec.EllipticCurvePrivateKey) -> str:
    """Return the `keyExchange` of a key share: the point in hexadecimal."""
    return private_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint).hex()


def parse_share(text: str) -> ec.EllipticCurvePublicKey:
    """Parse the point of a `keyExchange`, in hexadecimal. Raises `Malformed` (`secure.record`)."""
    try:
        # Compressed points are refused: the SDK writes uncompressed ones, and one point has one spelling here.
        if len(text) != 2 * _SHARE_SIZE:
            raise ValueError("another length")
        # This checks that the point is on the curve, against invalid-curve attacks (RFC 8446 §4.2.8.2).
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, bytes.fromhex(text))
    except ValueError as error:
        raise Malformed(SecureCode.RECORD, f"A key share is not a point of {GROUP}, {_SHARE_SIZE} bytes.") from error


def derive(private_key: ec.EllipticCurvePrivateKey, peer_share: str, source_random: str, destination_random: str) -> SessionKeys:
    """Derive the keys of a session. Raises `Malformed` (`secure.record`)."""
    point = parse_share(peer_share)
    randoms = (source_random + destination_random).encode()
    # The randoms enter below, in the keys of the directions, as in the SDK.
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


IV_SIZE = 12
TAG_SIZE = 16


class Sealed(msgspec.Struct, frozen=True):
    """A ciphertext as written in a message, in padded standard base64."""

    iv: str
    tag: str
    ciphertext: str


def iv_of(number: int) -> bytes:
    """Return the iv of this side's message with that number."""
    return number.to_bytes(IV_SIZE, "big")


def seal(key: bytes, number: int, plaintext: bytes, covered: bytes | None) -> dict[str, str]:
    """Encrypt. `number`: of the message under the key. `covered`: additional authenticated data, or None."""
    iv = iv_of(number)
    sealed = AESGCM(key).encrypt(iv, plaintext, covered)
    parts = {"iv": iv, "tag": sealed[-TAG_SIZE:], "ciphertext": sealed[:-TAG_SIZE]}
    return {name: canonical.b64encode(part) for name, part in parts.items()}


def unseal(key: bytes, sealed: Sealed, covered: bytes | None, *, limit: int) -> bytes:
    """Decrypt at most `limit` bytes. `covered`: additional authenticated data, or None.

    Raises `Unauthorized` (`secure.record`), `Malformed` and `TooLarge` (`canonical.*`).
    """
    # The caps go before decryption, so that a stranger's ciphertext costs no more than its limit.
    iv, tag = canonical.b64decode(sealed.iv, limit=IV_SIZE), canonical.b64decode(sealed.tag, limit=TAG_SIZE)
    data = canonical.b64decode(sealed.ciphertext, limit=limit)
    # A shorter tag would be easier to forge (NIST SP 800-38D §5.2.1.2).
    if (len(iv), len(tag)) == (IV_SIZE, TAG_SIZE):
        try:
            return AESGCM(key).decrypt(iv, data + tag, covered)
        except InvalidTag as error:
            raise _tampered() from error
    raise _tampered()


def _tampered() -> Unauthorized:
    return Unauthorized(SecureCode.RECORD, "An encrypted message was changed, or was encrypted with another key.")
