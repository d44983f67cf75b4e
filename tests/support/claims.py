"""Blobs of handlers, for what a catalogue shows of them: bundles that name a signer, and vectors that reach operations."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ObjectIdentifier

from treaty_consensus.handler import DECLARATIVE, HandlerMetadata, build_wheel

ISSUER, ISSUER_V2 = ObjectIdentifier("1.3.6.1.4.1.57264.1.1"), ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
SUBJECT = "did:wba:alice.example"
OPERATION: dict[str, Any] = {
    "arguments": {"type": "object"},
    "result": {},
    "errors": {"404": "There is none."},
    "idempotent": True,
    "timeout": 15,
}
_FORMS = {
    "request": {"type": "request", "id": "$id", "operation": "$operation", "arguments": "$arguments"},
    "response": {"type": "response", "id": "$id", "result": "$result"},
    "error": {"type": "error", "id": "$id", "code": "$code", "message": "$message"},
}


def bundle_by(issuer: str, *, chain: bool = False, v1: bool = False, identity: str = SUBJECT) -> bytes:
    """A bundle whose certificate names an OIDC issuer. Its signature is worth nothing: a registry does not check it."""
    return bundle_of(certificate_by(issuer, v1=v1, identity=identity), chain=chain)


def bundle_of(certificate: bytes, *, chain: bool = False) -> bytes:
    """A bundle with these bytes as its certificate."""
    encoded = {"rawBytes": base64.b64encode(certificate).decode()}
    material = {"x509CertificateChain": {"certificates": [encoded]}} if chain else {"certificate": encoded}
    return json.dumps({"verificationMaterial": material}).encode()


def certificate_by(issuer: str | None, *, v1: bool = False, identity: str = SUBJECT) -> bytes:
    """A certificate in Fulcio's profile, as far as its identity and its issuer go."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    nobody = x509.Name([])
    built = x509.CertificateBuilder().subject_name(nobody).issuer_name(nobody).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(minutes=10))
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)])
    built = built.add_extension(names, critical=True)
    if issuer is not None:
        raw = issuer.encode()
        value = raw if v1 else bytes((0x0C, len(raw))) + raw
        built = built.add_extension(x509.UnrecognizedExtension(ISSUER if v1 else ISSUER_V2, value), critical=False)
    return built.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def vector(role: str, *operations: str, error: object = None) -> bytes:
    """A vector in which a role's calls of these operations return."""
    ended = {"error": {"code": error, "message": ""}} if error is not None else {"value": 1}
    steps = [
        {
            "event": {"call": {"call": str(number), "operation": operation, "arguments": {}}},
            "effects": [{"return": {"call": str(number), **ended}}],
        }
        for number, operation in enumerate(operations)
    ]
    return json.dumps({"title": "t", "role": role, "steps": steps}).encode()


def answered(role: str, operation: str) -> bytes:
    """A vector in which a role answers a call of its peer."""
    steps = [
        {
            "event": {"received": {"data": {"json": {}}}},
            "effects": [{"invoke": {"call": "1", "operation": operation, "arguments": {}}}],
        },
        {"event": {"result": {"call": "1", "value": 1}}, "effects": []},
    ]
    return json.dumps({"title": "t", "role": role, "steps": steps}).encode()


def wheel_with(
    vectors: Mapping[str, bytes], *, uri: str, document: str, is_code_free: bool = False, release: str = "1"
) -> tuple[str, bytes, str]:
    """A wheel of a protocol with the operations `ask` and `tell`: its file name, its bytes, its entry point."""
    names = ["ask", "tell"]
    manifest: dict[str, Any] = {
        "operations": dict.fromkeys(names, OPERATION),
        "roles": {
            "client": {"peer": "server", "calls": names, "invokes": []},
            "server": {"peer": "client", "calls": [], "invokes": names},
        },
    }
    sources = {f"vectors/{name}": data for name, data in vectors.items()}
    entry_point = DECLARATIVE if is_code_free else "treaty_handler_asked:handler"
    if is_code_free:
        manifest["messages"] = {"*": _FORMS}
    else:
        sources["__init__.py"] = b"handler = None\n"
    metadata = HandlerMetadata(
        name="asked",
        version=release,
        summary="Ask.",
        licence="Apache-2.0",
        entry_point=entry_point,
        protocol_uri=uri,
        protocol_hash=document,
        manifest=manifest,
    )
    return (*build_wheel(sources, metadata), entry_point)
