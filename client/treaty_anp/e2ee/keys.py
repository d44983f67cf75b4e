"""Sign Hellos and verify their signatures, with Ed25519, P-256 or secp256k1 keys.

docs/specification/e2ee-profile.md, section 1, has the table of the three kinds. For example, an Ed25519 key has the type
`Ed25519VerificationKey2020`, a `publicKeyHex` of 64 lower-case digits, and proofs of the type `Ed25519Signature2020`. A P-256
proof with the type EcdsaSecp256k1Signature2019 is accepted too, because the official SDK writes it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from treaty_consensus.did import decode_multikey, parse_key_id, public_key_of
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_io.codes import SecureCode
from treaty_io.identity.key_binding import b64url_encode

PrivateKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey

_HALF = 32
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_ECDSA = ec.ECDSA(SHA256())


@dataclass(frozen=True)
class Kind:
    """A kind of key.

    `method`: its verificationMethod.type. `proofs`: its proof types; the first one is written. `jwk`: kty and crv. `size`: bytes
    of the public key. `curve`: None for Ed25519.
    """

    method: str
    proofs: tuple[str, ...]
    jwk: tuple[str, str]
    size: int
    curve: ec.EllipticCurve | None


ED25519 = Kind("Ed25519VerificationKey2020", ("Ed25519Signature2020",), ("OKP", "Ed25519"), _HALF, None)
SECP256R1 = Kind(
    "EcdsaSecp256r1VerificationKey2019",
    # The SDK labels its P-256 proofs as secp256k1 ones; the curve is that of the key.
    ("EcdsaSecp256r1Signature2019", "EcdsaSecp256k1Signature2019"),
    ("EC", "P-256"),
    1 + 2 * _HALF,
    ec.SECP256R1(),
)
SECP256K1 = Kind(
    "EcdsaSecp256k1VerificationKey2019",
    ("EcdsaSecp256k1Signature2019",),
    ("EC", "secp256k1"),
    1 + 2 * _HALF,
    ec.SECP256K1(),
)
_KINDS = (ED25519, SECP256R1, SECP256K1)


class HelloSigner(Protocol):
    """The signer of a Hello: its DID, its private key, and the key's id. `treaty_io.identity.Identity` implements it."""

    @property
    def did(self) -> str: ...
    @property
    def key_id(self) -> str: ...
    @property
    def private_key(self) -> PrivateKey: ...


@dataclass(frozen=True)
class PublicKey:
    """A public key: its kind and its bytes, as in publicKeyHex."""

    kind: Kind
    data: bytes

    def verify(self, proof_type: str, proof_value: str, message: bytes) -> None:
        """Check a proof. Raises `Unauthorized` (`secure.hello`)."""
        try:
            # The type is checked although the key decides: two names for one signature would be two messages.
            if proof_type not in self.kind.proofs:
                raise InvalidSignature
            signature = _decode(proof_value)
            if self.kind.curve is None:
                Ed25519PublicKey.from_public_bytes(self.data).verify(signature, message)
            else:
                r, s = (int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:]))
                point = ec.EllipticCurvePublicKey.from_encoded_point(self.kind.curve, self.data)
                point.verify(encode_dss_signature(r, s), message, _ECDSA)
        except (InvalidSignature, ValueError) as error:
            raise Unauthorized(
                SecureCode.HELLO, "The signature of this Hello does not verify under the key that it names."
            ) from error


def method_of(signer: HelloSigner) -> dict[str, str]:
    """Return the `verificationMethod` of this signer's Hellos."""
    key = public_key(signer.private_key)
    return {"id": signer.key_id, "type": key.kind.method, "publicKeyHex": key.data.hex()}


def public_key(private_key: PrivateKey) -> PublicKey:
    """Return the public key of a private key. Raises `Malformed` (`secure.key`) for an unsupported curve."""
    if isinstance(private_key, Ed25519PrivateKey):
        return PublicKey(ED25519, private_key.public_key().public_bytes_raw())
    for kind in (SECP256R1, SECP256K1):
        if kind.curve is not None and kind.curve.name == private_key.curve.name:
            return PublicKey(kind, private_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))
    raise Malformed(SecureCode.KEY, f"Keys of the curve {private_key.curve.name} cannot sign Hellos.")


def sign(private_key: PrivateKey, message: bytes) -> str:
    """Return the `proofValue` of a message."""
    if isinstance(private_key, Ed25519PrivateKey):
        return b64url_encode(private_key.sign(message))
    r, s = decode_dss_signature(private_key.sign(message, _ECDSA))
    return b64url_encode(r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big"))


def parse_key(method_type: str, public_key_hex: str) -> PublicKey:
    """Parse the key of a Hello's `verificationMethod`. Raises `Malformed` (`secure.key`)."""
    for kind in _KINDS:
        if method_type == kind.method and len(public_key_hex) == 2 * kind.size and _HEX.fullmatch(public_key_hex):
            return PublicKey(kind, bytes.fromhex(public_key_hex))
    raise Malformed(SecureCode.KEY, f"A Hello cannot be signed by a key of this type or size: {method_type[:60]!r}.")


def own_key(key_id: str) -> PublicKey | None:
    """Return the key of a did:key; None for a DID with a document. Raises `Malformed` (`did.*`)."""
    if not key_id.startswith("did:key:"):
        return None
    # The DID is the key, so no document is fetched and nothing can be revoked.
    return PublicKey(ED25519, public_key_of(parse_key_id(key_id)[0]))


def listed_key(document: Mapping[str, Any], did: str, key_id: str) -> PublicKey:
    """Return the key with this id, if the DID's document lists it for authentication. `document`: parsed JSON.

    Raises `Unauthorized` (`secure.identity`) if the document belongs to another DID, is deactivated or does not list the key.
    """
    # A document of another DID proves nothing, even if it came from this DID's host.
    if document.get("id") == did and document.get("deactivated") is not True:
        methods = {_absolute(did, method.get("id")): method for method in _objects(document.get("verificationMethod"))}
        # Only keys for authentication: one for key agreement alone must not sign a Hello.
        listed = document.get("authentication")
        for entry in listed if isinstance(listed, list) else []:
            method = methods.get(_absolute(did, entry)) if isinstance(entry, str) else entry
            if isinstance(method, dict) and _absolute(did, method.get("id")) == key_id:
                key = _material(method)
                if key is not None:
                    return key
    raise Unauthorized(SecureCode.IDENTITY, f"The document of {did[:80]} does not list {key_id[:120]} for authentication.")


def _material(method: Mapping[str, Any]) -> PublicKey | None:
    try:
        match method:
            case {"type": "Multikey" | "Ed25519VerificationKey2020", "publicKeyMultibase": str(text)}:
                return PublicKey(ED25519, decode_multikey(text))
            case {"type": str(type), "publicKeyHex": str(text)}:
                return parse_key(type, text)
            case {"publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": str(x)}}:
                return PublicKey(ED25519, _decode(x, size=_HALF))
            case {"publicKeyJwk": {"kty": "EC", "crv": str(curve), "x": str(x), "y": str(y)}}:
                kind = next(kind for kind in _KINDS if kind.jwk == ("EC", curve))
                return PublicKey(kind, b"\x04" + _decode(x, size=_HALF) + _decode(y, size=_HALF))
    except (Malformed, ValueError, StopIteration):
        return None
    return None


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _absolute(did: str, reference: object) -> str:
    if not isinstance(reference, str):
        return ""
    return did + reference if reference.startswith("#") else reference


def _decode(text: str, *, size: int = 2 * _HALF) -> bytes:
    """Decode exactly `size` bytes, in the one spelling of `b64url_encode`. Raises `ValueError`."""
    if len(text) != (size * 4 + 2) // 3:
        raise ValueError("another length")
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("not base64url") from error
    # Otherwise unused bits give one signature several spellings.
    if len(data) != size or b64url_encode(data) != text:
        raise ValueError("not the one spelling of these bytes")
    return data
