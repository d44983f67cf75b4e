"""Describe this authority to Sigstore clients: the trusted root, and the URLs of its services.

The trusted root (`application/vnd.dev.sigstore.trustedroot+json;version=0.1`) is JCS, and depends only on public values: the
authority's certificates, the log's key and the log's origin. So its bytes never change, and the log's genesis statement pins
their SHA-256; `treaty_consensus.trusted_root` adds what rotations name. Its validity starts with the authority's certificate and
has no end, because verifiers also check old signatures.

The trust configuration (`application/vnd.dev.sigstore.clienttrustconfig.v0.1+json`) adds a signing configuration v0.2 with the
URLs of the services. They depend on the registry's base URL and are therefore not pinned. It names no OIDC provider, because a
DID issues its own tokens.
"""

from __future__ import annotations

from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from treaty_consensus import canonical
from treaty_consensus.log.note import KeyType, VerifierKey
from treaty_consensus.sigstore_token import issuer_url
from treaty_consensus.trusted_root import MAX_TRUSTED_ROOT, log_id

from .keys import AuthorityKeys, public_der

TRUSTED_ROOT_TYPE = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
SIGNING_CONFIG_TYPE = "application/vnd.dev.sigstore.signingconfig.v0.2+json"
TRUST_CONFIG_TYPE = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"


def trusted_root(keys: AuthorityKeys, *, origin: str, log_key: bytes) -> bytes:
    """Return the trusted root in its canonical form. `log_key`: the log's raw Ed25519 public key."""
    # Without an end: verifiers also check signatures that were made years ago.
    valid = {"start": _start(keys)}
    log_der = Ed25519PublicKey.from_public_bytes(log_key).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ct_der = public_der(keys.ct_key)
    return canonical.dumps(
        {
            "mediaType": TRUSTED_ROOT_TYPE,
            "tlogs": [_log(origin, log_der, "PKIX_ED25519", log_id(VerifierKey(origin, KeyType.ED25519, log_key)), valid)],
            "ctlogs": [_log(origin, ct_der, "PKIX_ECDSA_P256_SHA_256", sha256(ct_der).digest(), valid)],
            "certificateAuthorities": [_authority(origin, (keys.ca_certificate,), valid)],
            "timestampAuthorities": [_authority(origin, keys.tsa_chain, valid)],
        }
    )


def trust_config(root: bytes, *, origin: str, base_url: str) -> bytes:
    """Return the client trust configuration of a registry reached at `base_url`, such as `https://HOST`, with its
    trusted root."""
    trusted = canonical.loads(root, limit=MAX_TRUSTED_ROOT, name="trusted root")
    services = base_url.rstrip("/") + "/sigstore"
    valid = trusted["tlogs"][0]["publicKey"]["validFor"]

    def service(path: str, version: int) -> list[dict[str, object]]:
        return [{"url": services + path, "majorApiVersion": version, "validFor": valid, "operator": origin}]

    signing_config = {
        "mediaType": SIGNING_CONFIG_TYPE,
        "caUrls": service("", 1),
        # A DID issues its own tokens, so there is no provider to ask.
        "oidcUrls": [],
        "rekorTlogUrls": service("", 2),
        "rekorTlogConfig": {"selector": "ANY"},
        "tsaUrls": service("/api/v1/timestamp", 1),
        "tsaConfig": {"selector": "ANY"},
    }
    return canonical.dumps({"mediaType": TRUST_CONFIG_TYPE, "trustedRoot": trusted, "signingConfig": signing_config})


def trust_bundle(root: bytes) -> bytes:
    """Return Fulcio's TrustBundle: the chains above signing certificates, which the trusted root has."""
    authorities = canonical.loads(root, limit=MAX_TRUSTED_ROOT, name="trusted root")["certificateAuthorities"]
    return canonical.dumps({"chains": [{"certificates": _pem_chain(each)} for each in authorities]})


def timestamp_chain(root: bytes) -> bytes:
    """Return the certificate of each timestamp authority and the one above it, as PEM."""
    authorities = canonical.loads(root, limit=MAX_TRUSTED_ROOT, name="trusted root")["timestampAuthorities"]
    return "".join(pem for each in authorities for pem in _pem_chain(each)).encode("ascii")


def _pem_chain(authority: dict[str, dict[str, list[dict[str, str]]]]) -> list[str]:
    ders = [canonical.b64decode(each["rawBytes"], limit=MAX_TRUSTED_ROOT) for each in authority["certChain"]["certificates"]]
    return [x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM).decode("ascii") for der in ders]


def _start(keys: AuthorityKeys) -> str:
    return keys.ca_certificate.not_valid_before_utc.strftime("%Y-%m-%dT%H:%M:%SZ")


def _log(origin: str, key: bytes, details: str, identifier: bytes, valid: dict[str, str]) -> dict[str, object]:
    return {
        "baseUrl": f"https://{origin}",  # clients derive the origin of the log's checkpoints from it
        "hashAlgorithm": "SHA2_256",
        "publicKey": {"rawBytes": canonical.b64encode(key), "keyDetails": details, "validFor": valid},
        "logId": {"keyId": canonical.b64encode(identifier)},
    }


def _authority(origin: str, chain: tuple[x509.Certificate, ...], valid: dict[str, str]) -> dict[str, object]:
    subject = chain[0].subject
    return {
        "subject": {
            "organization": subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value,
            "commonName": subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value,
        },
        "uri": issuer_url(origin),
        "certChain": {"certificates": [{"rawBytes": canonical.b64encode(c.public_bytes(Encoding.DER))} for c in chain]},
        "validFor": valid,
    }
