"""The two kinds of log entry that the registry's own Sigstore services make.

A signing certificate, logged before it is handed out (`DER`: an X.509 certificate, at most 8,192 bytes):

    {"certificate": B64(DER)}

and the canonical body of a Rekor v2 `hashedrekord` entry, version 0.0.2: somebody signed a digest with a certified key:

    {"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": {
        "data": {"algorithm": "SHA2_256", "digest": B64(32 bytes)},
        "signature": {"content": B64(ECDSA P-256 signature, DER, at most 72 bytes),
                      "verifier": {"keyDetails": "PKIX_ECDSA_P256_SHA_256", "x509Certificate": {"rawBytes": B64(DER)}}}}}}

Both are JCS, base64 is standard and padded, and no other name is allowed anywhere: their names tell them apart from each other
and from a statement, whose leaf is `{"payload", "payloadType", "signatures"}`. For a DSSE envelope `digest` is the SHA-256 of
its pre-authentication encoding. The auditor's rule: the certificate of a hashedrekord leaf is itself a leaf at a lower index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from . import canonical
from .errors import Malformed

KEY_DETAILS = "PKIX_ECDSA_P256_SHA_256"
MAX_CERTIFICATE = 8_192
MAX_SIGNATURE = 72
MAX_LEAF = 16_384


@dataclass(frozen=True)
class CertificateLeaf:
    """A signing certificate that the registry's authority issued. `der` is opaque here: X.509 is for whoever verifies it."""

    der: bytes

    def encode(self) -> bytes:
        """The leaf's bytes."""
        return canonical.dumps({"certificate": canonical.b64encode(self.der)})


@dataclass(frozen=True)
class RekordLeaf:
    """A signature over a SHA-256 digest by the key of a certificate."""

    digest: bytes
    signature: bytes
    certificate: bytes

    def encode(self) -> bytes:
        """The leaf's bytes: Rekor's `canonicalizedBody`."""
        verifier = {"keyDetails": KEY_DETAILS, "x509Certificate": {"rawBytes": canonical.b64encode(self.certificate)}}
        entry = {
            "data": {"algorithm": "SHA2_256", "digest": canonical.b64encode(self.digest)},
            "signature": {"content": canonical.b64encode(self.signature), "verifier": verifier},
        }
        return canonical.dumps({"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": entry}})


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A JSON object with exactly the fields of the struct."""


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
    """Parse a leaf strictly: what comes back encodes to `data` again. Raises `Malformed` or `TooLarge` (`canonical.*`,
    `sigstore-leaf.form`); neither the certificate nor the signature is verified."""
    value = canonical.loads(data, limit=MAX_LEAF, what="Sigstore leaf")
    try:
        if isinstance(value, dict) and "certificate" in value:
            certificate = msgspec.convert(value, _Certificate)
            return CertificateLeaf(_decode(certificate.certificate, MAX_CERTIFICATE))
        rekord = msgspec.convert(value, _Entry).spec.hashed_rekord
    except msgspec.ValidationError as error:
        raise Malformed("sigstore-leaf.form", f"Neither a certificate leaf nor a hashedrekord leaf: {error}.") from error
    digest = canonical.b64decode(rekord.data.digest, limit=32)
    if len(digest) != 32:
        raise Malformed("sigstore-leaf.form", "The digest of a hashedrekord leaf has 32 bytes.")
    return RekordLeaf(
        digest,
        _decode(rekord.signature.content, MAX_SIGNATURE),
        _decode(rekord.signature.verifier.x509_certificate.raw_bytes, MAX_CERTIFICATE),
    )


def _decode(text: str, limit: int) -> bytes:
    data = canonical.b64decode(text, limit=limit)
    if not data:
        raise Malformed("sigstore-leaf.form", "A field of a Sigstore leaf is empty.")
    return data
