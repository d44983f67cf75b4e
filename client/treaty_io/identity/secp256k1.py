"""Read secp256k1 keys of peers' DID documents, verify their signatures, and check ANP's k1 profile of did:wba.

Older ANP agents have such keys. Only an agent whose owner sets `accept_secp256k1` reads them, and only to authenticate requests
of peers (docs/specification/identity-on-the-wire.md, section "Keys of the curve secp256k1"). A key has the type
EcdsaSecp256k1VerificationKey2019:

    "publicKeyJwk": {"kty": "EC", "crv": "secp256k1", "x": B64URL, "y": B64URL}

A signature is ECDSA with SHA-256 in 64 bytes, r ‖ s. Both s and n − s verify, so a signature is no identifier: replays are found
by DID and nonce. In the k1 profile the last path segment is `k1_` and the RFC 7638 thumbprint of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from treaty_consensus import canonical
from treaty_consensus.did import Did, listed_keys
from treaty_consensus.errors import Malformed, Unauthorized

from ..codes import ClientDidCode
from .key_binding import b64url_decode, b64url_encode, data_integrity_input

PREFIX = "k1_"
POINT_SIZE = 65
"""Bytes of a key: an uncompressed point (SEC 1 section 2.3.3). No Ed25519 key has this size."""
_FIXED = {"type": "DataIntegrityProof", "cryptosuite": "didwba-jcs-ecdsa-secp256k1-2025", "proofPurpose": "assertionMethod"}
_HALF = 32


def secp256k1_keys(document: Mapping[str, Any], did: Did, relationship: str) -> dict[str, bytes]:
    """Return the secp256k1 keys of this DID that its document lists under a verification relationship: DID URL → 65 bytes."""
    return listed_keys(document, did, relationship, _point)


def verify_secp256k1(point: bytes, signature: bytes, message: bytes) -> None:
    """Verify a signature of r ‖ s. Raises `InvalidSignature` of `cryptography`."""
    if len(signature) != 2 * _HALF:
        raise InvalidSignature
    r, s = (int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:]))
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), point)
    key.verify(encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))


def check_k1_binding(document: Mapping[str, Any], did: Did) -> None:
    """Check the proof in the document of a DID of the k1 profile; accept other DIDs. Raises `Unauthorized` (`did.binding`)."""
    if did.method != "wba" or not did.path or not did.path[-1].startswith(PREFIX):
        return
    proof = document.get("proof")
    if not isinstance(proof, dict) or not _FIXED.items() <= proof.items():
        raise _unbound(did, f"it carries no {_FIXED['cryptosuite']} proof for assertion")
    method = proof.get("verificationMethod")
    point = secp256k1_keys(document, did, "assertionMethod").get(method) if isinstance(method, str) else None
    if point is None or _segment(point) != did.path[-1]:
        raise _unbound(did, "its proof is not by the key that the DID is bound to")
    # A document of the profile lists the bound key alone: the web server must not be able to add another one.
    if list(secp256k1_keys(document, did, "authentication").values()) != [point]:
        raise _unbound(did, "it lists another key for authentication than the one that the DID is bound to")
    options = {name: value for name, value in proof.items() if name != "proofValue"}
    unproved = {name: value for name, value in document.items() if name != "proof"}
    try:
        verify_secp256k1(point, b64url_decode(proof.get("proofValue"), 64), data_integrity_input(unproved, options))
    except (InvalidSignature, Malformed) as error:
        raise _unbound(did, "its proof does not verify") from error


def _segment(point: bytes) -> str:
    """Return the path segment that binds a DID to a key."""
    x, y = point[1 : 1 + _HALF], point[1 + _HALF :]
    jwk = {"crv": "secp256k1", "kty": "EC", "x": b64url_encode(x), "y": b64url_encode(y)}
    return PREFIX + b64url_encode(canonical.sha256(canonical.dumps(jwk)))


def _point(method: Mapping[str, Any]) -> bytes | None:
    match method:
        case {
            "type": "EcdsaSecp256k1VerificationKey2019",
            "publicKeyJwk": {"kty": "EC", "crv": "secp256k1", "x": str(x), "y": str(y)},
        }:
            try:
                point = b"\x04" + b64url_decode(x, _HALF) + b64url_decode(y, _HALF)
                ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), point)  # raises ValueError off the curve
            except (Malformed, ValueError):
                return None
            return point
    return None


def _unbound(did: Did, reason: str) -> Unauthorized:
    return Unauthorized(ClientDidCode.BINDING, f"The document of {did.text} is not accepted: {reason}.")
