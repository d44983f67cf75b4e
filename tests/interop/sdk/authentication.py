"""Runs inside the environment of the official SDK: its did:wba authentication, one call a line."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anp.authentication import (  # type: ignore[import-not-found]
    DIDWbaAuthHeader,
    DidWbaVerifier,
    DidWbaVerifierConfig,
    create_did_wba_document,
    did_wba_verifier,
    generate_http_signature_headers,
    validate_did_document_method,
)
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

logging.disable(logging.CRITICAL)


def _verifier() -> Any:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return DidWbaVerifier(DidWbaVerifierConfig(jwt_private_key=private, jwt_public_key=public))


VERIFIER = _verifier()


def create(host: str, path: list[str], profile: str = "e1") -> dict[str, Any]:
    """A DID document of one of the SDK's profiles, and the private key for authentication in PEM."""
    document, keys = create_did_wba_document(host, path_segments=path, did_profile=profile)
    return {"document": document, "key": keys["key-1"][0].decode()}


def headers(document: dict[str, Any], key: str, mode: str, method: str, url: str, body: str) -> dict[str, str]:
    """What the SDK's client sends."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "did.json").write_text(json.dumps(document))
        (Path(folder) / "key.pem").write_text(key)
        client = DIDWbaAuthHeader(f"{folder}/did.json", f"{folder}/key.pem", auth_mode=mode)
        return dict(client.get_auth_header(url, method=method, body=base64.b64decode(body)))


def answer_challenge(
    document: dict[str, Any], key: str, challenge: dict[str, str], method: str, url: str, body: str
) -> dict[str, str]:
    """What the SDK's client sends after a 401 with these headers, if it would try again."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "did.json").write_text(json.dumps(document))
        (Path(folder) / "key.pem").write_text(key)
        client = DIDWbaAuthHeader(f"{folder}/did.json", f"{folder}/key.pem")
        assert client.should_retry_after_401(challenge)
        return dict(client.get_challenge_auth_header(url, challenge, method=method, body=base64.b64decode(body)))


def sign_covering(document: dict[str, Any], key: str, components: list[str], method: str, url: str) -> dict[str, str]:
    """Headers of a signature that covers these components alone."""
    private: Any = load_pem_private_key(key.encode(), None)
    headers = generate_http_signature_headers(
        document, url, method, lambda message, fragment: private.sign(message), covered_components=components
    )
    return dict(headers)


def verify(document: dict[str, Any], method: str, url: str, headers: dict[str, str], body: str) -> dict[str, Any]:
    """How the SDK's server judges a request whose sender has this document."""

    async def resolve(did: str) -> dict[str, Any]:
        return document

    did_wba_verifier.resolve_did_wba_document = resolve
    try:
        result = asyncio.run(VERIFIER.verify_request(method, url, headers, base64.b64decode(body)))
    except did_wba_verifier.DidWbaVerifierError as error:
        return {"refused": str(error), "status": error.status_code}
    return {"did": result["did"], "scheme": result["auth_scheme"]}


def validate(document: dict[str, Any]) -> bool:
    """Whether a document has the form of its method, proof and all."""
    return bool(validate_did_document_method(document, verify_proof=True))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (create, headers, answer_challenge, sign_covering, verify, validate)
}

if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr  # what the SDK prints is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": FUNCTIONS[request["call"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=out, flush=True)
