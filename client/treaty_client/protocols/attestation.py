"""Sign and verify attestations of handler wheels: step 8 of the verification.

An attestation is a Sigstore bundle v0.3 around a DSSE envelope with one in-toto Statement v1.
docs/specification/handler-packages.md, "The attestation", specifies it:

    {"_type": "https://in-toto.io/Statement/v1",
     "predicate": {"entryPoint": ENTRY-POINT, "protocol": {"digest": {"sha256": HEX}, "uri": PROTOCOL-URI}},
     "predicateType": "urn:treaty:attestation:handler:v1",
     "subject": [{"digest": {"sha256": HEX}, "name": FILENAME}]}

The writer uses JCS. The reader accepts any strict JSON, because other tools sign too.

The accepted signers depend on the root of trust under which the bundle verifies (`Trust`). A registry's authority certifies DIDs,
and only the DID of the publisher is accepted. The public-good instance, or a private one, certifies the OIDC identities that a
policy names.

A Sigstore trusted root gives the verifier, and says which authorities have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sigstore._internal.fulcio.client import FulcioCertificateSigningResponse, FulcioClient, FulcioSigningCert
from sigstore.dsse import Statement
from sigstore.errors import VerificationError
from sigstore.models import Bundle, ClientTrustConfig, TrustedRoot
from sigstore.oidc import IdentityToken
from sigstore.sign import SigningContext
from sigstore.verify import Verifier
from sigstore.verify.policy import AllOf, Identity, OIDCIssuerV2
from sigstore_models.trustroot.v1 import TrustedRoot as TrustedRootMessage

from treaty_consensus import canonical, sigstore_token
from treaty_consensus.codes import TrustedRootCode
from treaty_consensus.errors import TreatyError, Unavailable, Untrusted
from treaty_consensus.kinds import MAX_BUNDLE
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.sigstore_leaf import CertificateLeaf
from treaty_io.codes import AttestationCode
from treaty_io.errors import clock_difference, with_clock

if TYPE_CHECKING:
    from requests import Session


PREDICATE_TYPE = "urn:treaty:attestation:handler:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# The cap of the specification (handler-packages.md), checked before parsing.
MAX_STATEMENT = 8_192

_MEDIA_TYPES = ("application/vnd.dev.sigstore.bundle.v0.3+json", "application/vnd.dev.sigstore.bundle+json;version=0.3")


@dataclass(frozen=True)
class Binding:
    """The values that an attestation binds. `wheel`, `protocol_hash`: SHA-256 in hexadecimal. `entry_point`: `module:object`."""

    wheel: str
    uri: str
    protocol_hash: str
    entry_point: str


@dataclass(frozen=True)
class SigningIdentity:
    """The signer: the subject alternative name of the certificate, and its OIDC issuer."""

    identity: str
    issuer: str


@dataclass(frozen=True)
class Trust:
    """A root of trust (Sigstore `trusted_root.json`), and the identities that are accepted under this root only."""

    root: bytes
    accepted: tuple[SigningIdentity, ...]

    @classmethod
    def registry(cls, root: bytes, *, origin: str, publisher: str) -> Trust:
        """Trust a registry's own authority for handlers that the DID `publisher` publishes there.

        `root`: the trusted root whose SHA-256 the log's genesis pins. The caller has compared it.
        """
        return cls(root, (SigningIdentity(publisher, sigstore_token.issuer_url(origin)),))

    @classmethod
    def public_good(cls, accepted: Sequence[SigningIdentity]) -> Trust:
        """Trust the public-good instance by the root that the installed `sigstore` package contains. Fetches nothing."""
        return cls(public_good_root(), tuple(accepted))


@dataclass(frozen=True)
class Attestation:
    """A verified attestation: its signer, and the file name of the wheel in it."""

    signer: SigningIdentity
    filename: str


class _Digest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str


class _Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: _Digest
    name: str


class _Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: _Digest
    uri: str


class _Predicate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry_point: str = msgspec.field(name="entryPoint")
    protocol: _Protocol


class _Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(name="_type")
    predicate: _Predicate
    predicate_type: Literal["urn:treaty:attestation:handler:v1"] = msgspec.field(name="predicateType")
    subject: tuple[_Subject]


def identity_token(
    key_id: str, sign: Callable[[bytes], bytes], *, origin: str, now: int, jti: str, csr_key_digest: str | None = None
) -> str:
    """Return a self-issued identity token (`sigstore_token`) for the certificate authority of the registry `origin`.

    `key_id`: DID URL of an authentication key. `sign`: signs bytes with it, by Ed25519. `now`: Unix seconds. `jti`: fresh and
    random, 16 to 64 characters of `A-Za-z0-9_-`. `csr_key_digest`: hexadecimal SHA-256 of the only SubjectPublicKeyInfo that may
    be certified; without it (the stock `sigstore sign --identity-token`) the first party that sees the token can use it. Raises
    `Malformed`.
    """
    # The private key stays with the caller; this module only gets signatures.
    message = sigstore_token.signing_input(key_id, origin=origin, issued=now, jti=jti, bound_key=csr_key_digest)
    return sigstore_token.seal(message, sign(message))


def attest(
    binding: Binding,
    filename: str,
    *,
    trust_config: bytes,
    token: Callable[[str], str],
    setup: Callable[[Session], None] = lambda session: None,
) -> bytes:
    """Sign an attestation of the wheel `filename` with the services of `trust_config` (a Sigstore ClientTrustConfig).

    `token`: makes the identity token, once the signing key exists, from the hexadecimal SHA-256 of its SubjectPublicKeyInfo; with
    another instance's configuration it returns an OIDC token. `setup`: prepares the HTTP session of each service.

    Return the bundle's JSON, which verifies under the configuration's own root. Blocks on three HTTP requests without a deadline,
    so run it in a thread. Raises `Unavailable` (`attestation.not-signed`) if a service refuses or fails.
    """
    statement = Statement(encode_statement(binding, filename))
    try:
        config = ClientTrustConfig.from_json(trust_config.decode("utf-8"))
        services = config.signing_config
        fulcio = _TokenMakingFulcio(services.get_fulcio().url, token)
        rekor, timestamps = services.get_tlogs()[0], services.get_tsas()
        setup(fulcio.session)
        for service in (rekor, *timestamps):
            setup(service._session)  # type: ignore[attr-defined]  # this thread's
        context = SigningContext(fulcio=fulcio, rekor=rekor, trusted_root=config.trusted_root, tsa_clients=timestamps)
        with context.signer(_TokenToCome()) as signer:
            return signer.sign_dsse(statement).to_json().encode("utf-8")
    # Errors of `token` and `setup` are exact already.
    except TreatyError:
        raise
    except Exception as error:  # sigstore and its libraries have no common base of errors
        refusal = Unavailable(
            AttestationCode.NOT_SIGNED,
            f"The attestation was not signed: {_reason(error)}.",
            fix="Check that the registry is up, that it knows the DID's current keys, and that the clocks agree.",
        )
        response = _response(error)
        raise with_clock(refusal, clock_difference(response.headers, time.time()) if response is not None else None) from error


def verify_attestation(bundle: bytes, binding: Binding, *, publisher: str, trust: Sequence[Trust]) -> Attestation:
    """Verify that an accepted signer attested `binding`. Offline; CPU-bound, 1 to 3 ms once a root has been read.

    `publisher`: the DID that publishes the handler. A signer that is a DID must be this DID, even if `trust` accepts another.

    Raises `Untrusted`: `attestation.signature` (no such bundle or statement, it binds other values, or Sigstore's own checks
    fail: certificate, its timestamp of issue, time of signing, log inclusion, signature), `attestation.identity` (another
    signer), `trusted-root.digest` (a root of `trust` cannot be read).
    """
    signer, payload = _authenticate(_open(bundle), trust)
    # A policy may accept several DIDs, but a handler is attested by its own publisher only.
    if signer.identity.startswith("did:") and signer.identity != publisher:
        raise Untrusted(
            AttestationCode.IDENTITY, f"The attestation is signed by {signer.identity}, not by the publisher {publisher}."
        )
    statement = _parse_statement(payload)
    stated = Binding(
        statement.subject[0].digest.sha256,
        statement.predicate.protocol.uri,
        statement.predicate.protocol.digest.sha256,
        statement.predicate.entry_point,
    )
    # Compare field by field, so that the error names the field.
    for field in Binding.__dataclass_fields__:
        if getattr(stated, field) != getattr(binding, field):
            raise Untrusted(
                AttestationCode.SIGNATURE,
                f"The attestation is for another {field.replace('_', ' ')}: {getattr(stated, field)[:120]!r}.",
                fix="Do not run this handler. The publisher must attest it again.",
            )
    return Attestation(signer, statement.subject[0].name)


def logged_leaves(bundle: bytes) -> tuple[str, str]:
    """Return the hashes of the two leaves that a registry's log has of a verified attestation: certificate and signature."""
    opened = _open(bundle)
    certificate = CertificateLeaf(opened.signing_certificate.public_bytes(Encoding.DER)).encode()
    return leaf_hash(certificate).hex(), leaf_hash(opened.log_entry._inner.canonicalized_body).hex()


def _open(bundle: bytes) -> Bundle:
    try:
        # Strict JSON first: Sigstore's parser accepts duplicate members.
        value = canonical.parse_json(bundle, limit=MAX_BUNDLE, name="Sigstore bundle")
    except TreatyError as error:
        raise Untrusted(AttestationCode.SIGNATURE, str(error)) from error
    match value:
        case {"mediaType": str(media_type), "dsseEnvelope": {"payloadType": str(payload_type), "signatures": [_]}} if (
            media_type in _MEDIA_TYPES and payload_type == PAYLOAD_TYPE
        ):
            pass
        case _:
            raise Untrusted(
                AttestationCode.SIGNATURE, "An attestation is a Sigstore bundle v0.3 of an in-toto statement with one signature."
            )
    try:
        return Bundle.from_json(bundle)
    except Exception as error:  # foreign bytes, in a parser without a common base of errors
        raise Untrusted(AttestationCode.SIGNATURE, f"The Sigstore bundle cannot be read: {_reason(error)}.") from error


def _authenticate(bundle: Bundle, trust: Sequence[Trust]) -> tuple[SigningIdentity, bytes]:
    """Take Sigstore's checks under each root in turn; return signer and payload under the first root that holds."""
    refusal = Untrusted(AttestationCode.SIGNATURE, "No root of trust was given to verify the attestation with.")
    # Each root with its own identities: a registry cannot certify an OIDC identity, nor the public-good instance a DID.
    for trusted in trust:
        verifier, policy = make_verifier(trusted.root), AcceptedIdentity(trusted.accepted)
        try:
            _, payload = verifier.verify_dsse(bundle, policy)
        except IdentityRefused as error:
            refusal = Untrusted(
                AttestationCode.IDENTITY, f"The attestation is signed by {error}. The policy does not name this signer."
            )
            refusal.__cause__ = error
        except Exception as error:  # foreign certificates, in libraries without a common base of errors
            if refusal.code != AttestationCode.IDENTITY:  # keep a refused identity: it is the more precise error
                refusal = Untrusted(AttestationCode.SIGNATURE, f"The attestation does not verify: {_reason(error)}.")
                refusal.__cause__ = error
        else:
            check_in_force(trusted.root, bundle)
            assert policy.matched is not None
            return policy.matched, payload
    raise refusal


def _parse_statement(payload: bytes) -> _Statement:
    try:
        # Parsed after the signature holds: until then these bytes are anybody's.
        return msgspec.convert(canonical.parse_json(payload, limit=MAX_STATEMENT, name="in-toto statement"), _Statement)
    except (TreatyError, msgspec.ValidationError) as error:
        raise Untrusted(AttestationCode.SIGNATURE, f"The attestation is not a statement about a handler: {error}.") from error


def encode_statement(binding: Binding, filename: str) -> bytes:
    protocol = {"digest": {"sha256": binding.protocol_hash}, "uri": binding.uri}
    return canonical.dumps(
        {
            "_type": STATEMENT_TYPE,
            "predicate": {"entryPoint": binding.entry_point, "protocol": protocol},
            "predicateType": PREDICATE_TYPE,
            "subject": [{"digest": {"sha256": binding.wheel}, "name": filename}],
        }
    )


class IdentityRefused(VerificationError):
    """The certificate is valid, but its identity is not accepted."""


class AcceptedIdentity:
    """A Sigstore verification policy that accepts several identities, each with its issuer. `matched`: the one that was found."""

    def __init__(self, accepted: Sequence[SigningIdentity]) -> None:
        self._accepted = accepted
        self.matched: SigningIdentity | None = None

    def verify(self, cert: x509.Certificate) -> None:
        for candidate in self._accepted:
            try:
                # Identity and issuer together: another issuer could certify the same name to another party.
                AllOf([OIDCIssuerV2(candidate.issuer), Identity(identity=candidate.identity)]).verify(cert)
            except VerificationError:
                continue
            self.matched = candidate
            return
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        raise IdentityRefused(", ".join(str(name.value) for name in names))


# The classes below use internals of sigstore, so an upgrade may break them. It breaks with an error at signing, not silently.
class _TokenToCome(IdentityToken):
    """A placeholder for Sigstore's signer until the key exists to which the token is bound."""

    def __init__(self) -> None:  # not called on the base class, which needs a token now
        pass

    def in_validity_period(self) -> bool:
        return True


class _TokenMakingFulcio(FulcioClient):
    """A Fulcio client that makes the token after Sigstore has made the signing key, before it asks for the certificate."""

    def __init__(self, url: str, token: Callable[[str], str]) -> None:
        super().__init__(url)
        self._token = token

    @property
    def signing_cert(self) -> FulcioSigningCert:
        endpoint = super().signing_cert
        return _TokenMakingEndpoint(endpoint.url, endpoint.session, self._token)


class _TokenMakingEndpoint(FulcioSigningCert):
    def __init__(self, url: str, session: Session, token: Callable[[str], str]) -> None:
        super().__init__(url, session)
        self._token = token

    def post(self, req: x509.CertificateSigningRequest, identity: IdentityToken) -> FulcioCertificateSigningResponse:
        # The token names this key (RFC 7800 `cnf`), so a party that sees the token cannot get a certificate for its own key.
        key = req.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return super().post(req, IdentityToken(self._token(canonical.hex_digest(key))))


def _reason(error: BaseException) -> str:
    """Return the cause of an error as one line: the service's answer if there was one, else the library's message."""
    response = _response(error)
    if response is not None:
        return f"HTTP {response.status_code}, {_line(response.text)}"
    return f"{type(error).__name__}, {_line(str(error))}"


def _response(error: BaseException) -> Any:
    """Return the answer of the service that refused, or None."""
    cause: BaseException | None = error
    # It is buried in a chain of errors of its HTTP library.
    while cause is not None:
        response = getattr(cause, "response", None)
        if response is not None:
            return response
        cause = cause.__cause__ or cause.__context__
    return None


def _line(text: str) -> str:
    return " ".join(text.split())[:240].rstrip(".")


# The address only names the root inside the installed package; nothing is fetched from it.
_PUBLIC_GOOD = "https://tuf-repo-cdn.sigstore.dev"


@lru_cache(maxsize=32)
def make_verifier(root: bytes) -> Verifier:
    """Return the verifier of a root. It is cached because reading a root costs more than verifying with it."""
    try:
        return Verifier(trusted_root=TrustedRoot(TrustedRootMessage.from_json(root)))
    except Exception as error:  # three libraries without a common base of errors
        reason = " ".join(f"{type(error).__name__}, {error}".split())[:240].rstrip(".")
        raise Untrusted(TrustedRootCode.DIGEST, f"The Sigstore trusted root cannot be read: {reason}.") from error


@lru_cache(maxsize=1)
def public_good_root() -> bytes:
    """Return the root of the public-good instance that the installed `sigstore` package contains. Fetches nothing."""
    return resources.files("sigstore._store").joinpath(quote(_PUBLIC_GOOD, safe=""), "trusted_root.json").read_bytes()


def check_in_force(root: bytes, bundle: Bundle) -> None:
    """Check that the certificate's authority had not ended at any of the times of signing, as its `validFor` in the root says.

    Sigstore's Python library checks this of timestamp authorities alone. Raises `Untrusted` (`attestation.signature`).
    """
    data = bundle.verification_material.timestamp_verification_data
    stamped = [each.tst_info.gen_time for each in data.rfc3161_timestamps] if data else []
    for authority, end in _ended_authorities(root):
        try:
            bundle.signing_certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            continue
        if any(time >= end for time in stamped):
            raise Untrusted(
                AttestationCode.SIGNATURE,
                f"The attestation does not verify: the authority of its certificate ended at {end:%Y-%m-%d %H:%M:%S} UTC, "
                "before the time of signing.",
            )


@lru_cache(maxsize=32)
def _ended_authorities(root: bytes) -> list[tuple[x509.Certificate, datetime]]:
    """Return the certificates that issue signing certificates, of the authorities in a readable root that have an end."""
    authorities = TrustedRootMessage.from_json(root).certificate_authorities
    return [
        (x509.load_der_x509_certificate(certificate.raw_bytes), authority.valid_for.end)
        for authority in authorities
        if authority.valid_for and authority.valid_for.end
        for certificate in authority.cert_chain.certificates[:1]
    ]
