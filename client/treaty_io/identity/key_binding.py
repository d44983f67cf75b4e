"""Bind a DID to a key: ANP's e1 profile of did:wba.

The last path segment is `e1_` and the RFC 7638 thumbprint of an Ed25519 key. So control of the web server is not enough to use
the DID; the key is needed, too. The DID document lists the bound key under `assertionMethod` and carries a proof by it:

    "proof": {"type": "DataIntegrityProof", "cryptosuite": "eddsa-jcs-2022", "created": "2026-01-31T12:00:00Z",
              "verificationMethod": DID-URL, "proofPurpose": "assertionMethod", "proofValue": TEXT}

The signed bytes are SHA-256(JCS(proof without proofValue)) ‖ SHA-256(JCS(document without proof)). The proofValue is unpadded
base64url, as in the official SDK. The cryptosuite's own form is also read: `z` + base58btc, over proof options that include the
document's `@context` (W3C Data Integrity EdDSA Cryptosuites §3.3).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from treaty_consensus import canonical
from treaty_consensus.did import Did, base58_decode, listed_keys
from treaty_consensus.errors import Malformed, Unauthorized

from ..codes import ClientDidCode

PREFIX = "e1_"
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
_MULTIBASE = re.compile(r"z[1-9A-HJ-NP-Za-km-z]{64,88}")
_FIXED = {"type": "DataIntegrityProof", "cryptosuite": "eddsa-jcs-2022", "proofPurpose": "assertionMethod"}


def bound_segment(public_key: bytes) -> str:
    """Return the path segment that binds a DID to a raw Ed25519 key: `e1_` and 43 characters."""
    # RFC 7638 §3.2: only the required members, in lexicographic order, as JCS writes them.
    jwk = {"crv": "Ed25519", "kty": "OKP", "x": b64url_encode(public_key)}
    return PREFIX + b64url_encode(canonical.sha256(canonical.dumps(jwk)))


def is_bound(did: Did) -> bool:
    """Return whether this DID names a key that it is bound to."""
    return did.method == "wba" and bool(did.path) and did.path[-1].startswith(PREFIX)


def with_proof(document: Mapping[str, Any], key_id: str, sign: Callable[[bytes], bytes], *, created: int) -> dict[str, object]:
    """Return the document with a proof by the key `key_id`, made at `created` (Unix seconds)."""
    moment = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    options = {**_FIXED, "created": moment, "verificationMethod": key_id}
    value = b64url_encode(sign(data_integrity_input(document, options)))
    return {**document, "proof": {**options, "proofValue": value}}


def check_binding(document: Mapping[str, Any], did: Did) -> None:
    """Check the proof in the document of a bound DID; accept other DIDs. Raises `Unauthorized` (`did.binding`)."""
    if not is_bound(did):
        return
    proof = document.get("proof")
    if not isinstance(proof, dict) or not _FIXED.items() <= proof.items() or not isinstance(proof.get("proofValue"), str):
        raise _unbound(did, "it carries no eddsa-jcs-2022 proof for assertion")
    method = proof.get("verificationMethod")
    # The document says which key signed, but the DID says which key may: the web server controls only the document.
    key = listed_keys(document, did, "assertionMethod").get(method) if isinstance(method, str) else None
    if key is None or bound_segment(key) != did.path[-1]:
        raise _unbound(did, "its proof is not by the key that the DID is bound to")
    options = {name: value for name, value in proof.items() if name != "proofValue"}
    unproved = {name: value for name, value in document.items() if name != "proof"}
    # Two spellings of the proof exist in the field, over different bytes. One that verifies is enough.
    if not any(
        _verifies(key, signature, data_integrity_input(unproved, extended))
        for signature, extended in _readings(proof["proofValue"], options, unproved)
    ):
        raise _unbound(did, "its proof does not verify")


def b64url_encode(data: bytes) -> str:
    """Return unpadded base64url (RFC 4648 §5)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def b64url_decode(text: object, size: int) -> bytes:
    """Return exactly `size` bytes of unpadded base64url, in their only valid spelling. Raises `Malformed` (`did.binding`)."""
    if isinstance(text, str) and len(text) == (size * 4 + 2) // 3 and _BASE64URL.fullmatch(text):
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        # The last character has unused bits. Without this check one value would have several spellings.
        if b64url_encode(data) == text:
            return data
    raise Malformed(ClientDidCode.BINDING, f"This is not {size} bytes of unpadded base64url.")


def parse_signature(text: str) -> bytes:
    """Return the 64 bytes of a signature in unpadded base64url, in its only valid spelling. Raises `Malformed`."""
    return b64url_decode(text, 64)


def data_integrity_input(document: Mapping[str, Any], options: Mapping[str, Any]) -> bytes:
    """Return the signed bytes of a Data Integrity proof. `document`: without the proof. `options`: the proof without value."""
    return canonical.sha256(canonical.dumps(options)) + canonical.sha256(canonical.dumps(document))


def _readings(value: str, options: dict[str, Any], document: Mapping[str, Any]) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the possible signatures of a proofValue, each with its proof options. Base64url may begin with a z, too."""
    readings = []
    with suppress(Malformed):
        readings.append((parse_signature(value), options))
    if _MULTIBASE.fullmatch(value):
        context = {"@context": document["@context"]} if "@context" in document else {}
        readings.append((base58_decode(value[1:]), {**options, **context}))
    return readings


def _verifies(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _unbound(did: Did, reason: str) -> Unauthorized:
    return Unauthorized(ClientDidCode.BINDING, f"The document of {did.text} is not accepted: {reason}.")
