"""Threat: an entry of the log is formed so that the watch of its victim does not see it."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from registries import publication
from signers import domain_signer

from treaty_consensus.events import Subject, event_of
from treaty_consensus.sigstore_leaf import CertificateLeaf

VICTIM = "did:wba:victim.example"


def certificate(*uris: str) -> bytes:
    """A certificate with these names, in DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    built = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(x509.Name([])).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(datetime(2026, 1, 1)).not_valid_after(datetime(2026, 1, 2))
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        built = built.add_extension(names, critical=True)
    return built.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.threat(320)
def test_every_name_of_a_certificate_is_a_subject() -> None:
    encoded = certificate(*(f"did:wba:a{number}.example" for number in range(20)), VICTIM)
    event = event_of(7, CertificateLeaf(encoded).encode())
    assert event.kind == "certificate"
    assert Subject("did", VICTIM) in event.subjects
    assert event.sentence.endswith("did:wba:a7.example and 13 more.")


@pytest.mark.threat(320)
def test_a_certificate_that_cannot_be_read_may_name_anybody() -> None:
    assert event_of(7, CertificateLeaf(certificate(VICTIM)[:-1]).encode()).kind == "unknown"
    event = event_of(7, CertificateLeaf(certificate()).encode())
    assert (event.kind, event.subjects) == ("certificate", frozenset())


@pytest.mark.threat(320)
@pytest.mark.parametrize(
    "alias",
    [
        "https://victim.example/x",
        "https://VICTIM.example./x",
        "https://a@b@victim.example/x",
        "https://victim.example:443",
        "ftp://victim.example?x",
        VICTIM,
    ],
)
def test_a_claim_of_a_name_concerns_its_owner(alias: str) -> None:
    author = domain_signer("author.example")
    body = msgspec.structs.replace(publication(author).body, aliases=(alias,))
    event = event_of(7, author.statement(body).leaf)
    assert Subject("namespace", "victim.example") in event.subjects
