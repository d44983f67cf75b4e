"""Write, read and verify signatures of RFC 9421 (HTTP Message Signatures) with RFC 9530 (Digest Fields).

docs/specification/identity-on-the-wire.md, section "Signed requests", has the form, which is that of ANP-02 and its official SDK.
For example:

    Content-Digest: sha-256=:B64:
    Signature-Input: sig1=("@method" "@target-uri" "@authority" "content-digest");created=N;expires=N;nonce="…";keyid="DID-URL"
    Signature: sig1=:B64:

The library `http_message_signatures` reads and verifies. It does not sign here, because the official SDK requires the parameters
in one fixed order, and the library writes them in another order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import (
    ContentDigest,
    HTTPMessageSignaturesException,
    HTTPMessageVerifier,
    HTTPSignatureAlgorithm,
    MappingKeyResolver,
)

from treaty_consensus.canonical import b64encode
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_io.codes import AuthenticationCode
from treaty_io.identity.secp256k1 import POINT_SIZE, verify_secp256k1

# An honest header has some 500 characters. The cap bounds the regular expression and the parser.
MAX_HEADER = 2048
MAX_NONCE = 128
COVERED = ("@method", "@target-uri", "@authority")
_KEY_ID = re.compile(r'; *keyid="(did:[^"\\]{1,384})"')


class Parameters(NamedTuple):
    """The parameters of a signature. Times are Unix seconds; `expires` is None if it is absent."""

    key_id: str
    nonce: str
    created: int
    expires: int | None


@dataclass(frozen=True)
class Request:
    """A request to sign or verify: method in upper case, absolute URL, header fields, body."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


def sign(request: Request, parameters: Parameters, signature: Callable[[bytes], bytes]) -> dict[str, str]:
    """Return the header fields to add to a request. Its `headers` are ignored. Raises `Malformed` (`authentication.url`)."""
    target, authority = target_uri(request.url)
    values = {"@method": request.method, "@target-uri": target, "@authority": authority}
    headers_to_add = {}
    if request.body:
        headers_to_add["Content-Digest"] = values["content-digest"] = ContentDigest.create(request.body)
    covered = " ".join(f'"{name}"' for name in values)
    inputs = (
        f"({covered});created={parameters.created};expires={parameters.expires}"
        f';nonce="{parameters.nonce}";keyid="{parameters.key_id}"'
    )
    lines = [*(f'"{name}": {value}' for name, value in values.items()), f'"@signature-params": {inputs}']
    signed = signature("\n".join(lines).encode("ascii"))
    return headers_to_add | {"Signature-Input": f"sig1={inputs}", "Signature": f"sig1=:{b64encode(signed)}:"}


def target_uri(url: str) -> tuple[str, str]:
    """Return `@target-uri` and `@authority` (RFC 9421 §2.2) of an absolute URL. Raises `Malformed` (`authentication.url`)."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Malformed(AuthenticationCode.URL, f"Not a URL: {url[:120]!r}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.fragment:
        raise Malformed(AuthenticationCode.URL, f"A request is signed for an absolute http or https URL, not {url[:120]!r}.")
    authority = parsed.netloc.decode("ascii")
    return f"{parsed.scheme}://{authority}{parsed.raw_path.decode('ascii')}", authority


def claimed_key(headers: Mapping[str, str]) -> str:
    """Return the key id of a signed request, before its proof. Raises `Unauthorized` (`authentication.signature`)."""
    if max(len(headers.get(name, "")) for name in ("signature", "signature-input", "content-digest")) > MAX_HEADER:
        raise Unauthorized(AuthenticationCode.SIGNATURE, f"A signature's header has at most {MAX_HEADER} characters.")
    match = _KEY_ID.search(headers.get("signature-input", ""))
    if match is None:
        raise Unauthorized(AuthenticationCode.SIGNATURE, "Signature-Input has no key of a DID as its keyid.")
    return match[1]


def verify(request: Request, keys: Mapping[str, bytes]) -> Parameters:
    """Verify a signature by one of `keys` (DID URL → raw Ed25519, or a point of secp256k1), and return its parameters. The caller
    checks the times.

    Raises `Unauthorized`: `authentication.signature` (also if method, target or authority differ from the signed ones),
    `authentication.signature`.
    """
    digest = request.headers.get("content-digest")
    if digest is not None:
        try:
            ContentDigest.verify(digest, request.body)
        except HTTPMessageSignaturesException as error:
            raise Unauthorized(AuthenticationCode.SIGNATURE, "The Content-Digest is not that of the body.") from error
    # The label `alg` of a signature must not choose the algorithm: the key does.
    algorithm = _Secp256k1 if any(len(key) == POINT_SIZE for key in keys.values()) else _Ed25519
    verifier = _Verifier(signature_algorithm=algorithm, key_resolver=MappingKeyResolver(public_keys=dict(keys), private_keys={}))
    try:
        [result] = verifier.verify(request, max_age=None)
    except HTTPMessageSignaturesException as error:
        message = "The signature does not verify for this method, URL and key."
        raise Unauthorized(AuthenticationCode.SIGNATURE, message) from error
    needed = COVERED if digest is None and not request.body else (*COVERED, "content-digest")
    missing = [name for name in needed if f'"{name}"' not in result.covered_components]
    if missing:
        raise Unauthorized(AuthenticationCode.SIGNATURE, f"The signature does not cover {', '.join(missing)}.")
    return _parameters(result.parameters)


def verify_request_signature(key: bytes, signature: bytes, message: bytes) -> None:
    """Verify a signature by a raw Ed25519 key or a point of secp256k1. Raises `InvalidSignature` of `cryptography`."""
    if len(key) == POINT_SIZE:
        verify_secp256k1(key, signature, message)
    else:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)


class _Ed25519(HTTPSignatureAlgorithm):
    """Ed25519 with keys in bytes."""

    algorithm_id = "ed25519"

    def __init__(self, public_key: bytes) -> None:
        self._key = public_key

    def verify(self, signature: bytes, message: bytes) -> None:
        """Verify a signature. Raises `InvalidSignature` of `cryptography`."""
        verify_request_signature(self._key, signature, message)


class _Secp256k1(_Ed25519):
    """ECDSA of secp256k1 with SHA-256. RFC 9421 registers no name for it, so a signature with `alg` is refused."""

    algorithm_id = "ecdsa-secp256k1-sha256"


class _Verifier(HTTPMessageVerifier):
    """A verifier that does not check times; `RequestVerifier` checks them by its own clock."""

    def validate_created_and_expires(self, sig_input: Any, max_age: Any = None) -> None:
        """Check nothing; see `RequestVerifier`."""


def _parameters(values: Mapping[str, int | str]) -> Parameters:
    match values:
        case {"keyid": str(key_id), "nonce": str(nonce), "created": int(created)} if 0 < len(nonce) <= MAX_NONCE:
            expires = values.get("expires")
            return Parameters(key_id, nonce, created, expires if isinstance(expires, int) else None)
    raise Unauthorized(
        AuthenticationCode.SIGNATURE, f"A signature must have created, keyid and a nonce of 1 to {MAX_NONCE} characters."
    )
