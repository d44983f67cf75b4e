"""Encode and parse the two kinds of log entry that the registry's Sigstore services write.

A certificate leaf holds a signing certificate, logged before it is issued:

    {"certificate": B64(DER)}

A hashedrekord leaf is the canonical body of a Rekor v2 `hashedrekord` entry, version 0.0.2: a signature of a digest by a
certified key. Its digest for a DSSE envelope is the SHA-256 of the pre-authentication encoding.

The member names distinguish the leaves from each other and from a statement. Specification: `docs/specification/log.md`,
"Leaves".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from . import canonical
from .codes import LogCode
from .errors import Malformed

KEY_DETAILS = "PKIX_ECDSA_P256_SHA_256"
# Our certificates are much smaller; the cap leaves room for long DIDs and extensions.
MAX_CERTIFICATE = 8_192
# The longest DER encoding of an ECDSA signature on P-256: two integers of 33 bytes and six bytes of headers.
MAX_SIGNATURE = 72
# A certificate and a signature in base64, with names.
MAX_LEAF = 16_384


@dataclass(frozen=True)
class CertificateLeaf:
    """Hold a signing certificate that the registry's authority issued.

    `der`: the certificate, not parsed here; its verifier checks X.509.
    """

    der: bytes

    def encode(self) -> bytes:
        """Return the leaf's bytes."""
        return canonical.dumps({"certificate": canonical.b64encode(self.der)})


@dataclass(frozen=True)
class RekordLeaf:
    """Hold a signature over a SHA-256 digest by the key of a certificate."""

    digest: bytes
    signature: bytes
    certificate: bytes

    def encode(self) -> bytes:
        """Return the leaf's bytes: Rekor's `canonicalizedBody`."""
        verifier = {"keyDetails": KEY_DETAILS, "x509Certificate": {"rawBytes": canonical.b64encode(self.certificate)}}
        entry = {
            "data": {"algorithm": "SHA2_256", "digest": canonical.b64encode(self.digest)},
            "signature": {"content": canonical.b64encode(self.signature), "verifier": verifier},
        }
        return canonical.dumps({"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": entry}})


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of JSON objects with exactly the fields of the struct."""


class _Certificate(_Record, frozen=True):
    certificate: str


class _RawBytes(_Record, frozen=True):
    raw_bytes: str


class _Verifier(_Record, frozen=True):
    key_details: Literal["PKIX_ECDSA_P256_SHA_256"]
    x509_certificate: _RawBytes = msgspec.field(name="x509Certificate")


class _Signature(_Record, frozen=True):
    content: str
    verifier: _Verifier


class _Data(_Record, frozen=True):
    algorithm: Literal["SHA2_256"]
    digest: str


class _HashedRekord(_Record, frozen=True):
    data: _Data
    signature: _Signature


class _Spec(_Record, frozen=True):
    hashed_rekord: _HashedRekord = msgspec.field(name="hashedRekordV002")


class _Entry(_Record, frozen=True):
    api_version: Literal["0.0.2"]
    kind: Literal["hashedrekord"]
    spec: _Spec


def parse_sigstore_leaf(data: bytes) -> CertificateLeaf | RekordLeaf:
    """Parse a leaf strictly: the result encodes to `data` again. Verifies neither certificate nor signature.

    Raises `Malformed` or `TooLarge` (`canonical.*`, `log.form`).
    """
    value = canonical.loads(data, limit=MAX_LEAF, name="Sigstore leaf")
    try:
        if isinstance(value, dict) and "certificate" in value:
            certificate = msgspec.convert(value, _Certificate)
            return CertificateLeaf(_decode(certificate.certificate, MAX_CERTIFICATE))
        rekord = msgspec.convert(value, _Entry).spec.hashed_rekord
    except msgspec.ValidationError as error:
        raise Malformed(LogCode.FORM, f"This is neither a certificate leaf nor a hashedrekord leaf: {error}.") from error
    digest = canonical.b64decode(rekord.data.digest, limit=32)
    if len(digest) != 32:
        raise Malformed(LogCode.FORM, "The digest of a hashedrekord leaf has 32 bytes.")
    return RekordLeaf(
        digest,
        _decode(rekord.signature.content, MAX_SIGNATURE),
        _decode(rekord.signature.verifier.x509_certificate.raw_bytes, MAX_CERTIFICATE),
    )


def _decode(text: str, limit: int) -> bytes:
    data = canonical.b64decode(text, limit=limit)
    if not data:
        raise Malformed(LogCode.FORM, "A field of a Sigstore leaf is empty.")
    return data
