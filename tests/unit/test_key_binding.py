"""DIDs bound to a key: the thumbprint, the proof in both of its spellings."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from treaty_consensus import canonical
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_io.identity import Identity
from treaty_io.identity.key_binding import bound_segment, check_binding, parse_signature

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
IDENTITY = Identity.create("alice.example", bind=True)


def base58(data: bytes) -> str:
    number, digits = int.from_bytes(data, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        digits = BASE58[rest] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits


def test_the_segment_is_the_thumbprint_of_rfc_8037() -> None:
    """Appendix A.3: the key of the examples, and its thumbprint."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    assert bound_segment(public) == "e1_kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def multibase(document: dict[str, Any], *, context: bool = True) -> dict[str, Any]:
    """The document with its proof as the cryptosuite itself has it."""
    bare = {name: value for name, value in document.items() if name != "proof"}
    options = {name: value for name, value in document["proof"].items() if name != "proofValue"}
    signed = {**options, "@context": bare["@context"]} if context else options
    digests = [hashlib.sha256(canonical.dumps(part)).digest() for part in (signed, bare)]
    return {**bare, "proof": {**options, "proofValue": "z" + base58(IDENTITY.sign(b"".join(digests)))}}


def test_both_spellings_of_the_proof_are_read() -> None:
    document = IDENTITY.did_document(created=0)
    check_binding(document, IDENTITY.parsed)
    check_binding(multibase(document), IDENTITY.parsed)
    with pytest.raises(Unauthorized, match="does not verify"):
        check_binding(multibase(document, context=False), IDENTITY.parsed)


def test_base64url_that_begins_like_multibase_is_read_too() -> None:
    documents: list[Any] = [IDENTITY.did_document(created=created) for created in range(600)]
    matches = [document for document in documents if document["proof"]["proofValue"].startswith("z")]
    assert matches
    for document in matches:
        check_binding(document, IDENTITY.parsed)


@pytest.mark.parametrize("value", ["", "z", "z" + "1" * 70, "A" * 86, "A" * 85, "!" * 86, 5, None])
def test_a_proof_that_is_none(value: object) -> None:
    document: dict[str, Any] = IDENTITY.did_document()
    with pytest.raises(Unauthorized):
        check_binding({**document, "proof": {**document["proof"], "proofValue": value}}, IDENTITY.parsed)


@pytest.mark.parametrize(
    "change",
    [
        {"cryptosuite": "eddsa-rdfc-2022"},
        {"type": "Ed25519Signature2020"},
        {"proofPurpose": "authentication"},
        {"verificationMethod": "did:wba:mallory.example#key-1"},
        {"verificationMethod": 5},
        {"created": "1999-01-01T00:00:00Z"},
        {"domain": "x"},
    ],
)
def test_every_word_of_the_proof_is_signed(change: dict[str, object]) -> None:
    document: dict[str, Any] = IDENTITY.did_document()
    with pytest.raises(Unauthorized):
        check_binding({**document, "proof": {**document["proof"], **change}}, IDENTITY.parsed)


@pytest.mark.parametrize("did", ["did:wba:alice.example", "did:wba:alice.example:e2_x", "did:web:alice.example:e1_x"])
def test_other_dids_are_bound_to_nothing(did: str) -> None:
    check_binding({}, parse_did(did))


def test_a_signature_has_one_spelling() -> None:
    assert parse_signature("A" * 86) == bytes(64)
    for text in ("A" * 85 + "B", "A" * 88, "A" * 84 + "==", "A" * 86 + "\n"):
        with pytest.raises(Malformed):
            parse_signature(text)
