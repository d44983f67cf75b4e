"""Signing certificates in Fulcio's profile, with an embedded signed certificate timestamp (SCT).

    subject                           empty
    validity                          600 seconds at most, from a little before it is asked for
    subjectAltName (critical)         one URI: the DID
    keyUsage (critical)               digitalSignature
    extendedKeyUsage                  codeSigning
    1.3.6.1.4.1.57264.1.1             the issuer's URL, bare bytes        (sigstore-python's `--cert-oidc-issuer` reads this one)
    1.3.6.1.4.1.57264.1.8             the issuer's URL, DER UTF8String
    1.3.6.1.4.1.11129.2.4.2           one SCT (RFC 6962 §3.3), the last extension

The SCT signs the certificate without it (RFC 6962 §3.2); for a verifier to see the same bytes, taking the last extension away
must give back exactly what was signed.
"""

from __future__ import annotations

import struct
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TypeGuard

from asn1crypto import core
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from treaty_consensus.errors import Unauthorized

from ..codes import SigstoreCode
from .keys import AuthorityKeys, public_der

# As Fulcio's: a stolen signing key is useful for minutes.
LIFETIME = timedelta(minutes=10)
CLOCK_SKEW = timedelta(seconds=30)

_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_ISSUER_V2 = ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_SCT_LIST = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_DIGITAL_SIGNATURE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def public_key_der(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as DER SubjectPublicKeyInfo."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def issue(keys: AuthorityKeys, key: ec.EllipticCurvePublicKey, *, did: str, issuer: str, now: datetime) -> x509.Certificate:
    """Issue a signing certificate for `key` in the name of `did`, with `issuer` as its identity issuer, valid from now."""
    # X.509 times have whole seconds. A little earlier, so that a verifier with a slow clock accepts it.
    start = now.replace(microsecond=0) - CLOCK_SKEW
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(keys.ca_certificate.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
        .add_extension(_DIGITAL_SIGNATURE, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys.ca_key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(did)]), critical=True)
        .add_extension(x509.UnrecognizedExtension(_ISSUER, issuer.encode()), critical=False)
        .add_extension(x509.UnrecognizedExtension(_ISSUER_V2, core.UTF8String(issuer).dump()), critical=False)
    )
    # Signed only because the library returns the inner bytes of signed certificates only. It is never issued.
    unstamped = builder.sign(keys.ca_key, hashes.SHA256()).tbs_certificate_bytes
    scts = core.OctetString(_sct_list(keys, unstamped, now)).dump()
    certificate = builder.add_extension(x509.UnrecognizedExtension(_SCT_LIST, scts), critical=False).sign(
        keys.ca_key, hashes.SHA256()
    )
    # RFC 6962 §3.2: verifiers take the last extension away, and must get the signed bytes.
    assert certificate.tbs_precertificate_bytes == unstamped
    return certificate


def check_issued(certificate: x509.Certificate, keys: AuthorityKeys, *, now: datetime) -> ec.EllipticCurvePublicKey:
    """Return the key of a signing certificate that this authority issued and that is valid now. Raises `Unauthorized`
    (`sigstore.*`)."""
    try:
        certificate.verify_directly_issued_by(keys.ca_certificate)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise _foreign() from error
    key = certificate.public_key()
    # The root also signs itself, so a certificate of this issuer is not yet a signing certificate.
    if ExtendedKeyUsageOID.CODE_SIGNING not in usage or not is_p256(key):
        raise _foreign()
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise Unauthorized(
            SigstoreCode.PROOF,
            "The signing certificate is not valid now.",
            fix="Ask for a new one; a signing certificate lives for ten minutes.",
        )
    return key


def is_p256(key: object) -> TypeGuard[ec.EllipticCurvePublicKey]:
    """Whether `key` is an ECDSA P-256 public key. Only such keys are certified."""
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


def _foreign() -> Unauthorized:
    return Unauthorized(SigstoreCode.PROOF, "This is not a signing certificate of this registry's authority.")


def _sct_list(keys: AuthorityKeys, unstamped: bytes, now: datetime) -> bytes:
    """Return a SignedCertificateTimestampList (RFC 6962 §3.3) of one v1 SCT over a precertificate's TBSCertificate (§3.2)."""
    milliseconds = int(now.timestamp() * 1000)
    # RFC 6962 §3.2: the hash of the issuer's key, then a 24-bit length.
    entry = sha256(public_der(keys.ca_key)).digest() + len(unstamped).to_bytes(3) + unstamped
    # sct_version v1(0), signature_type certificate_timestamp(0), timestamp, entry_type precert_entry(1), entry, no extensions
    signed = struct.pack(">BBQH", 0, 0, milliseconds, 1) + entry + struct.pack(">H", 0)
    signature = keys.ct_key.sign(signed, ec.ECDSA(hashes.SHA256()))
    identifier = sha256(public_der(keys.ct_key)).digest()
    # version, log id, timestamp, no extensions, then digitally-signed: sha256(4), ecdsa(3), length, signature (RFC 5246 §4.7)
    sct = struct.pack(">B32sQH", 0, identifier, milliseconds, 0) + struct.pack(">BBH", 4, 3, len(signature)) + signature
    return struct.pack(">HH", len(sct) + 2, len(sct)) + sct
