"""Read the claims of a handler's Sigstore bundle about its signing. They are not verified here: each agent does that."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import msgspec
from asn1crypto import core
from cryptography import x509
from cryptography.x509.oid import ObjectIdentifier

from treaty_consensus import canonical
from treaty_consensus.codes import HandlerCode
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import MAX_BUNDLE
from treaty_consensus.sigstore_leaf import MAX_CERTIFICATE

# Fulcio's extensions with the issuer of the identity: DER, and the older one as bare bytes.
_ISSUER_V2 = ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
MAX_NAME = 300


class SignatureView(msgspec.Struct, frozen=True):
    """The claims of a bundle. `signed`: when the certificate began, Unix seconds; it lives for minutes. `entry`: the index in the
    Rekor log, and its log's name if the bundle has it."""

    identity: str
    issuer: str
    signed: int
    entry: int | None


def read_signature(bundle: bytes) -> SignatureView:
    """Return the claims of a Sigstore bundle. Raises `Malformed` when it has no certificate or cannot be read."""
    value = canonical.parse_json(bundle, limit=MAX_BUNDLE, name="Sigstore bundle")
    try:
        material = value["verificationMaterial"]
        # The one certificate of a bundle v0.3, or the first of the chain of an older one.
        encoded = material["certificate"] if "certificate" in material else material["x509CertificateChain"]["certificates"][0]
        raw = canonical.b64decode(encoded["rawBytes"], limit=MAX_CERTIFICATE)
        certificate = x509.load_der_x509_certificate(raw)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        identity = next(str(name.value) for name in names)
        entries = material.get("tlogEntries") or [{}]
        return SignatureView(
            identity[:MAX_NAME],
            _issuer(certificate)[:MAX_NAME],
            int(certificate.not_valid_before_utc.astimezone(UTC).timestamp()),
            _index(entries[0].get("logIndex")),
        )
    # Libraries without a common base of errors read a foreign certificate here.
    except Exception as error:
        raise Malformed(HandlerCode.PACKAGE, "The Sigstore bundle has no certificate that can be read.") from error


def _issuer(certificate: x509.Certificate) -> str:
    extensions = {extension.oid: extension.value for extension in certificate.extensions}
    newer, older = extensions.get(_ISSUER_V2), extensions.get(_ISSUER)
    if isinstance(newer, x509.UnrecognizedExtension):
        return str(core.UTF8String.load(newer.value).native)
    if isinstance(older, x509.UnrecognizedExtension):
        return older.value.decode("utf-8")
    return ""


def _index(value: Any) -> int | None:
    # Protobuf's JSON writes a 64-bit integer as a text.
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else None
