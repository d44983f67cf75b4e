"""Peers with keys of the curve secp256k1, as the official SDK's profiles k1 and plain_legacy have them."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from treaty_agent.authentication import didwba, message_signature
from treaty_agent.authentication.message_signature import Parameters, Request
from treaty_consensus import canonical


def b64url(data: bytes) -> str:
    """Unpadded base64url."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Secp256k1Peer:
    """A peer with one key. `bound`: its DID is one of the k1 profile."""

    bound: bool = True
    private: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256K1()))

    @property
    def jwk(self) -> dict[str, str]:
        """The public key."""
        numbers = self.private.public_key().public_numbers()
        x, y = (b64url(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        return {"crv": "secp256k1", "kty": "EC", "x": x, "y": y}

    @property
    def did(self) -> str:
        """Its DID."""
        segment = f"k1_{b64url(canonical.sha256(canonical.dumps(dict(self.jwk))))}" if self.bound else "u"
        return f"did:wba:old.example:{segment}"

    @property
    def key_id(self) -> str:
        """The DID URL of its key."""
        return f"{self.did}#key-1"

    def method(self, key_id: str = "") -> dict[str, Any]:
        """The verification method of its key."""
        kind = "EcdsaSecp256k1VerificationKey2019"
        return {"id": key_id or self.key_id, "type": kind, "controller": self.did, "publicKeyJwk": self.jwk}

    def document(self, **changes: Any) -> dict[str, Any]:
        """Its DID document, with the proof of the k1 profile over everything in it."""
        document: dict[str, Any] = {
            "id": self.did,
            "verificationMethod": [self.method()],
            "authentication": [self.key_id],
            "assertionMethod": [self.key_id],
            **changes,
        }
        return self.proved(document) if self.bound else document

    def proved(self, document: dict[str, Any], key_id: str = "") -> dict[str, Any]:
        """A document with a proof by this peer's key, under its own id or another."""
        options = {
            "type": "DataIntegrityProof",
            "created": "2026-01-31T12:00:00Z",
            "verificationMethod": key_id or self.key_id,
            "proofPurpose": "assertionMethod",
            "cryptosuite": "didwba-jcs-ecdsa-secp256k1-2025",
        }
        hashes = canonical.sha256(canonical.dumps(options)) + canonical.sha256(canonical.dumps(document))
        return {**document, "proof": {**options, "proofValue": b64url(self.sign(hashes))}}

    def sign(self, message: bytes) -> bytes:
        """A signature, r and s."""
        r, s = decode_dss_signature(self.private.sign(message, ec.ECDSA(SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def headers(self, method: str, url: str, body: bytes, *, created: int, nonce: str = "n" * 32) -> dict[str, str]:
        """The header fields of a signed request."""
        parameters = Parameters(self.key_id, nonce, created, created + 300)
        return message_signature.sign(Request(method, url, {}, body), parameters, self.sign)

    def didwba(self, host: str, *, created: int, nonce: str = "n" * 32) -> dict[str, str]:
        """The header field of the older form."""
        return {"Authorization": didwba.sign(self.key_id, nonce, created, host, self.sign)}
