"""Write the Sigstore bundle of a wheel as the provenance of a package index (PEP 740). Nothing is verified here.

The envelope, the certificate and the entries of the log are those of the bundle. An attestation may have more members than the
PEP lists; `rfc3161_timestamps` is one, without which a bundle of a registry's own authority has no time.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import HandlerCode
from treaty_consensus.errors import Malformed
from treaty_consensus.kinds import MAX_BUNDLE


class AttestationEnvelope(msgspec.Struct, frozen=True):
    """`statement`: the in-toto Statement, in base64. `signature`: of its DSSE pre-authentication encoding."""

    statement: str
    signature: str


class VerificationMaterial(msgspec.Struct, frozen=True):
    """`certificate`: DER, in base64. `transparency_entries`: TransparencyLogEntry messages."""

    certificate: str
    transparency_entries: list[Any]
    rfc3161_timestamps: list[str] = []


class PackageAttestation(msgspec.Struct, frozen=True):
    """An attestation object of PEP 740."""

    version: Literal[1]
    verification_material: VerificationMaterial
    envelope: AttestationEnvelope


class AttestationPublisher(msgspec.Struct, frozen=True):
    """The identity that published the file."""

    did: str
    kind: Literal["DID"] = "DID"


class AttestationBundle(msgspec.Struct, frozen=True):
    """The attestations of one publisher."""

    publisher: AttestationPublisher
    attestations: list[PackageAttestation]


class Provenance(msgspec.Struct, frozen=True):
    """A provenance object of PEP 740."""

    attestation_bundles: list[AttestationBundle]
    version: Literal[1] = 1


def read_provenance(did: str, bundle: bytes) -> Provenance:
    """Return the provenance in a Sigstore bundle that the publisher `did` attached.

    Raises `Malformed` if it is no bundle around one DSSE envelope.
    """
    value = canonical.parse_json(bundle, limit=MAX_BUNDLE, name="Sigstore bundle")
    try:
        material, envelope = value["verificationMaterial"], value["dsseEnvelope"]
        # The one certificate of a bundle v0.3, or the first of the chain of an older one.
        encoded = material["certificate"] if "certificate" in material else material["x509CertificateChain"]["certificates"][0]
        stamps = material.get("timestampVerificationData", {}).get("rfc3161Timestamps", [])
        (signature,) = envelope["signatures"]
        attestation = {
            "version": 1,
            "verification_material": {
                "certificate": encoded["rawBytes"],
                "transparency_entries": material["tlogEntries"],
                "rfc3161_timestamps": [stamp["signedTimestamp"] for stamp in stamps],
            },
            "envelope": {"statement": envelope["payload"], "signature": signature["sig"]},
        }
        return Provenance([AttestationBundle(AttestationPublisher(did), [msgspec.convert(attestation, PackageAttestation)])])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Malformed(HandlerCode.PACKAGE, "The Sigstore bundle is no attestation that an index can show.") from error
