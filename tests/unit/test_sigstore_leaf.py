"""Sigstore leaves: one spelling each, told apart from each other and from statements."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from signers import domain_signer, identity_body

from treaty_consensus import canonical, statement
from treaty_consensus.errors import Malformed, TooLarge, TreatyError
from treaty_consensus.sigstore_leaf import (
    MAX_CERTIFICATE,
    MAX_LEAF,
    MAX_SIGNATURE,
    CertificateLeaf,
    RekordLeaf,
    parse_sigstore_leaf,
)

CERTIFICATE = CertificateLeaf(b"\x30" + bytes(600))
REKORD = RekordLeaf(b"\x11" * 32, b"\x22" * 71, b"\x30" + bytes(600))


def changed(leaf: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(leaf)
    change(value)
    return canonical.dumps(value)


@pytest.mark.parametrize("leaf", [CERTIFICATE, REKORD, CertificateLeaf(b"\0" * MAX_CERTIFICATE)])
def test_a_leaf_comes_back_as_it_was(leaf: CertificateLeaf | RekordLeaf) -> None:
    assert parse_sigstore_leaf(leaf.encode()) == leaf


def test_the_largest_leaf_fits_its_cap() -> None:
    largest = RekordLeaf(bytes(32), bytes(MAX_SIGNATURE), bytes(MAX_CERTIFICATE))
    assert len(largest.encode()) <= MAX_LEAF
    assert parse_sigstore_leaf(largest.encode()) == largest


def test_the_rekor_body_is_spelt_as_rekor_spells_it() -> None:
    assert json.loads(REKORD.encode()) == {
        "apiVersion": "0.0.2",
        "kind": "hashedrekord",
        "spec": {
            "hashedRekordV002": {
                "data": {"algorithm": "SHA2_256", "digest": canonical.b64encode(REKORD.digest)},
                "signature": {
                    "content": canonical.b64encode(REKORD.signature),
                    "verifier": {
                        "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                        "x509Certificate": {"rawBytes": canonical.b64encode(REKORD.certificate)},
                    },
                },
            }
        },
    }


@pytest.mark.parametrize(
    "data",
    [
        changed(CERTIFICATE.encode(), lambda v: v.update(payload="AA==")),
        changed(CERTIFICATE.encode(), lambda v: v.update(certificate="")),
        changed(CERTIFICATE.encode(), lambda v: v.update(certificate=7)),
        changed(REKORD.encode(), lambda v: v.update(extra=1)),
        changed(REKORD.encode(), lambda v: v.update(kind="dsse")),
        changed(REKORD.encode(), lambda v: v.update(apiVersion="0.0.1")),
        changed(REKORD.encode(), lambda v: v["spec"]["hashedRekordV002"]["data"].update(algorithm="SHA2_512")),
        changed(REKORD.encode(), lambda v: v["spec"]["hashedRekordV002"]["data"].update(digest="AAAA")),
        changed(REKORD.encode(), lambda v: v["spec"]["hashedRekordV002"]["signature"].update(content="")),
        changed(REKORD.encode(), lambda v: v["spec"]["hashedRekordV002"]["signature"]["verifier"].update(publicKey={})),
        changed(REKORD.encode(), lambda v: v.pop("kind")),
        REKORD.encode().replace(b'"kind":', b'"kind": '),
        b"[]",
        b"{}",
        b"null",
        b"",
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_sigstore_leaf(data)


def test_caps_come_before_parsing() -> None:
    with pytest.raises(TooLarge):
        parse_sigstore_leaf(b'{"certificate":"' + b"A" * MAX_LEAF + b'"}')
    with pytest.raises(TooLarge):
        parse_sigstore_leaf(CertificateLeaf(bytes(MAX_CERTIFICATE + 3)).encode())
    with pytest.raises(TooLarge):
        parse_sigstore_leaf(RekordLeaf(bytes(32), bytes(MAX_SIGNATURE + 3), b"\x30").encode())


def test_no_leaf_is_two_things() -> None:
    signer = domain_signer("alice.example")
    leaf = signer.statement(identity_body(signer)).leaf
    with pytest.raises(Malformed):
        parse_sigstore_leaf(leaf)
    for sigstore_leaf in (CERTIFICATE, REKORD):
        with pytest.raises(TreatyError):
            statement.parse(sigstore_leaf.encode())
