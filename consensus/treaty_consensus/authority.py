"""Define the keys of a registry's Sigstore services, as a `rotation` names them, and judge them.

The certificates have one profile, that of the authority that a registry makes: P-256, SHA-256, names with the log's origin, and
exactly the extensions of `extensions_of`. So no certificate of another authority has it. Each key signs the rotation itself,
which names the log. Specification: `docs/specification/log.md`, "Rotation of keys".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from . import canonical
from .codes import RotationCode
from .errors import Malformed, TreatyError, Untrusted

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA, TSA, TSA_ROOT = "certificate authority", "timestamp authority", "timestamp authority root"
"""The roles in the names of the certificates."""
MAX_CERTIFICATE = 1024  # bytes; that of an origin of 64 characters has 600
_MAX_KEY = 128  # bytes; a P-256 SubjectPublicKeyInfo has 91
_MAX_PROOF = 72  # bytes; the longest ECDSA signature on P-256

Certificate: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=1368)]
Short: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=172)]


class Authority(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Name the keys of an authority, in base64 of DER.

    `ca`: the self-signed certificate above every signing certificate.
    `ct_key`: the key of the timestamps in signing certificates (SCTs), a SubjectPublicKeyInfo.
    `tsa`: the certificate of the timestamp authority, then the self-signed one above it.
    `proofs`: ECDSA signatures of the rotation's text with SHA-256, by the keys of `ca`, `ct_key` and `tsa`.
    """

    ca: Certificate
    ct_key: Short
    tsa: tuple[Certificate, Certificate]
    proofs: tuple[Short, Short, Short]

    def check(self) -> None:
        """Check the sizes of the texts and their base64. Raises `Malformed`."""
        for text in (self.ca, *self.tsa):
            canonical.b64decode(text, limit=MAX_CERTIFICATE)
        canonical.b64decode(self.ct_key, limit=_MAX_KEY)
        for text in self.proofs:
            canonical.b64decode(text, limit=_MAX_PROOF)

    @property
    def digest(self) -> str:
        """Return the SHA-256 that the text of a rotation names: of the JCS form without the proofs."""
        return canonical.hex_digest(canonical.dumps({"ca": self.ca, "ct_key": self.ct_key, "tsa": list(self.tsa)}))

    @property
    def public(self) -> tuple[str, str, str, str]:
        """Return the certificates and the key, by which two authorities are compared."""
        return self.ca, self.ct_key, *self.tsa

    def check_certificates(self, origin: str, *, issued: int, until: int) -> None:
        """Check the profile of the certificates, and that they are valid from `issued` to after `until` (POSIX seconds).

        Raises `Malformed` (`rotation.keys`).
        """
        try:
            ca, tsa, root = self._certificates()
            profiles = ((ca, CA, ca), (tsa, TSA, root), (root, TSA_ROOT, root))
            is_ours = all(_has_profile(each, origin, role, issuer) for each, role, issuer in profiles)
            begins = max(each.not_valid_before_utc.timestamp() for each in (ca, tsa, root))
            ends = min(each.not_valid_after_utc.timestamp() for each in (ca, tsa, root))
            different = len({*map(_key_bytes, (ca, tsa, root)), canonical.b64decode(self.ct_key, limit=_MAX_KEY)}) == 4
        except TreatyError:
            raise
        except Exception as error:  # on foreign certificates the library raises any exception
            raise _unfit("a certificate cannot be read") from error
        if not is_ours:
            raise _unfit(f"a certificate is not one of an authority of {origin}")
        if not (begins <= issued and until < ends):
            raise _unfit("a certificate is not valid from the rotation to the end of the overlap")
        if not different:
            raise _unfit("two of its keys are the same")

    def check_proofs(self, text: str) -> None:
        """Check that each key signed the text of the rotation. Raises `Untrusted` (`rotation.proof`)."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_der_public_key

        try:
            ca, tsa, _ = self._certificates()
            ct_key = load_der_public_key(canonical.b64decode(self.ct_key, limit=_MAX_KEY))
            for key, proof in zip((ca.public_key(), ct_key, tsa.public_key()), self.proofs, strict=True):
                if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
                    raise _unfit("a key is not of the curve P-256")
                key.verify(canonical.b64decode(proof, limit=_MAX_PROOF), text.encode(), ec.ECDSA(hashes.SHA256()))
        except TreatyError:
            raise
        except Exception as error:  # an invalid signature, or a foreign key
            raise Untrusted(RotationCode.PROOF, "A key of the next authority has not signed the rotation.") from error

    def _certificates(self) -> tuple[x509.Certificate, x509.Certificate, x509.Certificate]:
        # Imported here: it takes 20 ms, and few logs have rotated their authority.
        from cryptography import x509

        ders = (canonical.b64decode(text, limit=MAX_CERTIFICATE) for text in (self.ca, *self.tsa))
        ca, tsa, root = map(x509.load_der_x509_certificate, ders)
        return ca, tsa, root


def name_of(origin: str, role: str) -> x509.Name:
    """Return the subject of a certificate of the authority at `origin`."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, origin[:64]),  # RFC 5280's upper bound
            x509.NameAttribute(NameOID.COMMON_NAME, f"Treaty {role}"),
        ]
    )


def extensions_of(
    key: ec.EllipticCurvePublicKey, issuer: ec.EllipticCurvePublicKey, *, is_ca: bool
) -> list[tuple[x509.ExtensionType, bool]]:
    """Return the extensions of a certificate of an authority (`is_ca`) or a timestamp authority, and which are critical.

    RFC 5280, and RFC 3161 §2.3.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    usage = x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        # path_length=0: the authority cannot make further authorities.
        (x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), True),
        (usage, True),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), False),
    ]
    if not is_ca:
        # RFC 3161 §2.3: exactly this usage, and critical.
        extensions.append((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), True))
    return extensions


def _has_profile(certificate: x509.Certificate, origin: str, role: str, issuer: x509.Certificate) -> bool:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key, above = certificate.public_key(), issuer.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(above, ec.EllipticCurvePublicKey):
        return False
    certificate.verify_directly_issued_by(issuer)
    extensions = [(extension.value, extension.critical) for extension in certificate.extensions]
    return (
        isinstance(key.curve, ec.SECP256R1)
        and isinstance(certificate.signature_hash_algorithm, hashes.SHA256)
        and certificate.subject == name_of(origin, role)
        and extensions == extensions_of(key, above, is_ca=role != TSA)
    )


def _key_bytes(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _unfit(why: str) -> Malformed:
    return Malformed(RotationCode.KEYS, f"The next authority does not fit: {why}.")
