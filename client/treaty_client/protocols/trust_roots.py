"""Read Sigstore trusted roots: verifiers, the root of the public-good instance, and authorities that have ended."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from importlib import resources
from urllib.parse import quote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier
from sigstore_models.trustroot.v1 import TrustedRoot as TrustedRootMessage

from treaty_consensus.errors import Untrusted
from treaty_io.codes import AttestationCode

# The address only names the root inside the installed package; nothing is fetched from it.
_PUBLIC_GOOD = "https://tuf-repo-cdn.sigstore.dev"


@lru_cache(maxsize=32)
def make_verifier(root: bytes) -> Verifier:
    """Return the verifier of a root. It is cached because reading a root costs more than verifying with it."""
    try:
        return Verifier(trusted_root=TrustedRoot(TrustedRootMessage.from_json(root)))
    except Exception as error:  # three libraries without a common base of errors
        reason = " ".join(f"{type(error).__name__}, {error}".split())[:240].rstrip(".")
        raise Untrusted(AttestationCode.ROOT, f"The Sigstore trusted root cannot be read: {reason}.") from error


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
