"""The certificate authority: Fulcio's `signingCert` for DIDs.

The request is JSON of at most 16 KiB with one proof that the caller holds the private key, and one token (`sigstore_token`):

    {"certificateSigningRequest": B64(PEM)}                         sigstore-python; the CSR's own signature is the proof
    {"publicKeyRequest": {"publicKey": {"algorithm": "ECDSA", "content": PEM}, "proofOfPossession": B64}}
                                                                    sigstore-go, -js; ECDSA with SHA-256 over the DID

    Authorization: Bearer TOKEN                                     or, as sigstore-js does it,
    {"credentials": {"oidcIdentityToken": TOKEN}, …}

Only ECDSA P-256 keys are certified. The reply is

    {"signedCertificateEmbeddedSct": {"chain": {"certificates": [PEM, PEM]}}}      the certificate, then the authority's root
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_public_key

from treaty_consensus import canonical, sigstore_token
from treaty_consensus.codes import TokenCode
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_consensus.sigstore_leaf import CertificateLeaf
from treaty_consensus.sigstore_token import IdentityToken

from ..codes import HttpCode, SigstoreCode
from .certificates import CLOCK_SKEW, is_p256, issue, public_key_der
from .keys import AuthorityKeys
from .ports import Append, AuthenticationKeys, Clock, Spend

MAX_REQUEST = 16_384
MAX_PEM = 8_192


class _Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    oidc_identity_token: str


class _PublicKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    algorithm: Literal["ECDSA"]
    content: str


class _PublicKeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    public_key: _PublicKey
    proof_of_possession: str


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    certificate_signing_request: str | None = None
    public_key_request: _PublicKeyRequest | None = None
    credentials: _Credentials | None = None


class CertificateAuthority:
    """Issues signing certificates to DIDs. It has no state of its own; safe for concurrent use."""

    def __init__(
        self,
        keys: AuthorityKeys,
        *,
        origin: str,
        append: Append,
        authentication_keys: AuthenticationKeys,
        spend: Spend,
        clock: Clock,
    ) -> None:
        """`origin`: the log's origin. Tokens name it as their audience, and certificates contain it in their issuer."""
        self._keys = keys
        self._origin = origin
        self.append = append
        self._authentication_keys = authentication_keys
        self._spend = spend
        self._clock = clock

    async def issue(self, body: bytes, authorization: str | None) -> bytes:
        """Answer one request: `body` and the value of its `Authorization` header. Returns the JSON of the reply.

        The certificate is a durable leaf of the log before this returns. Raises `Malformed`, `TooLarge` or `Unauthorized`
        (`sigstore.*`, `token.*`, `canonical.*`), and what the ports raise; nothing is logged then.
        """
        request = _parse(body)
        token = sigstore_token.parse(_bearer(request, authorization))
        now = self._clock()
        # Cheap checks first. The next ones verify a signature, then may fetch a DID document.
        self._check_claims(token, now)
        # Otherwise an agent could have another's key certified in its own name.
        key = _proven_key(request, token)
        # A token that was caught on its way cannot be used with another key.
        if token.bound_key is not None and canonical.hex_digest(public_key_der(key)) != token.bound_key:
            raise Unauthorized(TokenCode.INVALID, "The identity token is bound to a key that is not the one to certify.")
        sigstore_token.verify(token, await self._authentication_keys(token.did.text))
        # Stored by author and jti, so that no agent can spend the token of another.
        name = canonical.hex_digest(f"{token.did.text} {token.jti}".encode())
        # Last, so that a refusal spends nothing. It is remembered until the token is invalid for every clock.
        if not await self._spend(name, datetime.fromtimestamp(token.expires, UTC) + CLOCK_SKEW):
            raise Unauthorized(
                TokenCode.INVALID, "This identity token was used before.", fix="Sign a new token, with a new `jti`."
            )
        issuer = sigstore_token.issuer_url(self._origin)
        certificate = issue(self._keys, key, did=token.did.text, issuer=issuer, now=now)
        # Logged before it is returned, so that no certificate exists which monitors cannot see.
        await self.append(CertificateLeaf(certificate.public_bytes(Encoding.DER)).encode())
        chain = [c.public_bytes(Encoding.PEM).decode("ascii") for c in (certificate, self._keys.ca_certificate)]
        return canonical.dumps({"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}})

    def _check_claims(self, token: IdentityToken, now: datetime) -> None:
        if token.origin != self._origin:
            raise Unauthorized(
                TokenCode.INVALID,
                "The identity token is meant for another registry.",
                fix=f'Its `aud` must be ["{sigstore_token.CLIENT_ID}", "{self._origin}"].',
            )
        # Clocks of client and registry differ a little.
        skew = CLOCK_SKEW.total_seconds()
        if not token.issued - skew <= now.timestamp() <= token.expires + skew:
            raise Unauthorized(
                TokenCode.INVALID,
                "The identity token is not valid now.",
                fix="Sign a new token, and compare the clocks of both machines.",
            )


def _parse(body: bytes) -> _Request:
    value = canonical.parse_json(body, limit=MAX_REQUEST, name="certificate request")
    try:
        return msgspec.convert(value, _Request)
    except msgspec.ValidationError as error:
        raise Malformed(HttpCode.REQUEST, f"Not a certificate request: {error}.") from error


def _bearer(request: _Request, authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    in_header = authorization is not None
    if in_header and (scheme.lower() != "bearer" or not token):
        raise Unauthorized(TokenCode.INVALID, "The Authorization header is not `Bearer TOKEN`.")
    # Exactly one token: with two, another reader could take the other one.
    if in_header == (request.credentials is not None):
        raise Unauthorized(
            TokenCode.INVALID,
            "A certificate request carries one identity token, in the Authorization header or under `credentials`.",
        )
    return request.credentials.oidc_identity_token if request.credentials else token


def _proven_key(request: _Request, token: IdentityToken) -> ec.EllipticCurvePublicKey:
    """Return the key to certify, after its holder has proved possession."""
    if (request.certificate_signing_request is None) == (request.public_key_request is None):
        raise Malformed(HttpCode.REQUEST, "A certificate request holds a CSR or a public key with a proof, not both.")
    try:
        if request.public_key_request is not None:
            return _key_of_challenge(request.public_key_request, token)
        return _key_of_csr(request.certificate_signing_request or "")
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Malformed(HttpCode.REQUEST, "The key of the certificate request cannot be read.") from error


def _key_of_csr(text: str) -> ec.EllipticCurvePublicKey:
    csr = x509.load_pem_x509_csr(canonical.b64decode(text, limit=MAX_PEM))
    key = _p256(csr.public_key())
    # The CSR's own signature proves possession (RFC 2986 §3). Only SHA-256, as for everything else here.
    if not isinstance(csr.signature_hash_algorithm, hashes.SHA256) or not csr.is_signature_valid:
        raise _unproven()
    return key


def _key_of_challenge(request: _PublicKeyRequest, token: IdentityToken) -> ec.EllipticCurvePublicKey:
    key = _p256(load_pem_public_key(request.public_key.content.encode("utf-8")))
    signature = canonical.b64decode(request.proof_of_possession, limit=128)
    try:
        key.verify(signature, token.did.text.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise _unproven() from error
    return key


def _p256(key: object) -> ec.EllipticCurvePublicKey:
    if not is_p256(key):
        raise Malformed(HttpCode.REQUEST, "Only ECDSA P-256 keys are certified here.")
    return key


def _unproven() -> Unauthorized:
    return Unauthorized(SigstoreCode.PROOF, "The request does not prove that its sender holds the private key.")
