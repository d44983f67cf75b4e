"""The keys that sign Hellos, and the key schedule: against what the official SDK made, and against what DID documents may say."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_peers import BUYER, SHOP

from treaty_anp.e2ee import key_schedule, keys
from treaty_anp.e2ee.hello import _signing_input
from treaty_anp.e2ee.keys import PrivateKey
from treaty_consensus.errors import Malformed, Unauthorized
from treaty_io.identity import Identity

VECTORS = Path(__file__).parents[1] / "vectors" / "e2ee"
SPECIFICATION = Path(__file__).parents[2] / "docs" / "specification" / "e2ee-profile.md"
SCHEDULES = json.loads((VECTORS / "schedule.json").read_text())
SIGNATURES = json.loads((VECTORS / "signatures.json").read_text())
DID = "did:wba:shop.example"
KEY_ID = f"{DID}#key-9"
PRIVATE_KEYS: list[PrivateKey] = [
    Ed25519PrivateKey.from_private_bytes(bytes(range(32))),
    ec.derive_private_key(7**80, ec.SECP256R1()),
    ec.derive_private_key(7**81, ec.SECP256K1()),
]


def ephemeral(scalar: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int(scalar, 16), ec.SECP256R1())


@pytest.mark.parametrize("vector", SCHEDULES)
def test_both_sides_derive_what_the_official_sdk_derives(vector: dict[str, str]) -> None:
    randoms = vector["sourceRandom"], vector["destinationRandom"]
    source, destination = ephemeral(vector["sourcePrivate"]), ephemeral(vector["destinationPrivate"])
    assert key_schedule.share(source) == vector["sourceShare"]
    for own, share in ((source, vector["destinationShare"]), (destination, vector["sourceShare"])):
        derived = key_schedule.derive(own, share, *randoms)
        assert derived.source.hex() == vector["sourceKey"]
        assert derived.destination.hex() == vector["destinationKey"]
        assert derived.key_id == vector["keyId"]


def test_the_example_in_the_specification_is_what_the_code_makes() -> None:
    (text,) = re.findall(r"^```json\n(\{\"sourceShare.*?)^```$", SPECIFICATION.read_text(), re.MULTILINE | re.DOTALL)
    example = json.loads(text)
    assert key_schedule.share(ephemeral("7")) == example["sourceShare"]
    assert key_schedule.share(ephemeral("9")) == example["destinationShare"]
    derived = key_schedule.derive(
        ephemeral("7"), example["destinationShare"], example["sourceRandom"], example["destinationRandom"]
    )
    assert (derived.source.hex(), derived.destination.hex()) == (example["sourceKey"], example["destinationKey"])
    assert derived.key_id == example["keyId"]


def test_the_two_directions_and_two_sessions_have_different_keys() -> None:
    derived = [key_schedule.derive(ephemeral("7"), key_schedule.share(ephemeral("9")), random * 32, "t" * 32) for random in "ab"]
    assert len({key for one in derived for key in (one.source, one.destination)}) == 4
    assert derived[0].key_id != derived[1].key_id


@pytest.mark.parametrize("seed", [bytes(48), b"\xff" * 48, bytes(range(48))])
def test_any_seed_makes_a_private_key(seed: bytes) -> None:
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    assert key_schedule.ephemeral(seed).private_numbers().private_value == int.from_bytes(seed, "big") % (order - 1) + 1


@pytest.mark.parametrize(
    "share",
    [
        "04" + "00" * 64,
        "04" + "11" * 64,
        "00",
        "02" + key_schedule.share(ephemeral("9"))[2:66],
        key_schedule.share(ephemeral("9")) + "00",
    ],
)
def test_a_key_share_that_is_no_point_of_the_group_is_refused(share: str) -> None:
    with pytest.raises(Malformed) as refusal:
        key_schedule.parse_share(share)
    assert refusal.value.code == "secure.record"


@pytest.mark.parametrize("vector", SIGNATURES)
def test_what_the_official_sdk_signed_verifies(vector: dict[str, Any]) -> None:
    key = keys.parse_key("EcdsaSecp256r1VerificationKey2019", vector["publicKeyHex"])
    message = _signing_input(vector["message"] | {"proof": {}}).replace(b',"proof":{}', b"").replace(b'"proof":{},', b"")
    for proof_type in ("EcdsaSecp256r1Signature2019", "EcdsaSecp256k1Signature2019"):
        key.verify(proof_type, vector["proofValue"], message)
    with pytest.raises(Unauthorized):
        key.verify("EcdsaSecp256r1Signature2019", vector["proofValue"], message + b" ")


@pytest.mark.parametrize("private_key", PRIVATE_KEYS)
def test_each_kind_of_key_signs_and_verifies(private_key: PrivateKey) -> None:
    key = keys.public_key(private_key)
    assert keys.parse_key(key.kind.method, key.data.hex()) == key
    signature = keys.sign(private_key, b"a Hello")
    key.verify(key.kind.proofs[0], signature, b"a Hello")
    for proof_type, value, message in (
        ("JsonWebSignature2020", signature, b"a Hello"),
        (key.kind.proofs[0], signature, b"another Hello"),
        (key.kind.proofs[0], signature[:-1], b"a Hello"),
        (key.kind.proofs[0], signature + "A", b"a Hello"),
        (key.kind.proofs[0], signature[:-1] + ("B" if signature[-1] != "B" else "C"), b"a Hello"),
        (key.kind.proofs[0], "=" * 86, b"a Hello"),
        (key.kind.proofs[0], "é" * 86, b"a Hello"),
        (key.kind.proofs[0], "A" * 86, b"a Hello"),
    ):
        with pytest.raises(Unauthorized) as refusal:
            key.verify(proof_type, value, message)
        assert refusal.value.code == "secure.hello"


def test_a_key_of_another_curve_signs_no_hello() -> None:
    with pytest.raises(Malformed):
        keys.public_key(ec.generate_private_key(ec.SECP384R1()))


@pytest.mark.parametrize(
    "type, text",
    [
        ("EcdsaSecp256r1VerificationKey2019", "04" * 64),
        ("EcdsaSecp256r1VerificationKey2019", "0" * 129),
        ("EcdsaSecp256r1VerificationKey2019", "0A" * 65),
        ("Ed25519VerificationKey2020", "00" * 65),
        ("RsaVerificationKey2018", "00" * 32),
    ],
)
def test_what_is_no_key_of_a_hello_is_refused(type: str, text: str) -> None:
    with pytest.raises(Malformed) as refusal:
        keys.parse_key(type, text)
    assert refusal.value.code == "secure.key"


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def methods(private_key: PrivateKey) -> list[dict[str, Any]]:
    """The ways in which a document may write this key."""
    key = keys.public_key(private_key)
    as_hex = {"type": key.kind.method, "publicKeyHex": key.data.hex()}
    kty, curve = key.kind.jwk
    coordinates = {"x": b64url(key.data)} if kty == "OKP" else {"x": b64url(key.data[1:33]), "y": b64url(key.data[33:])}
    return [as_hex, {"type": "JsonWebKey2020", "publicKeyJwk": {"kty": kty, "crv": curve, **coordinates}}]


@pytest.mark.parametrize("private_key", PRIVATE_KEYS)
def test_a_document_lists_a_key_in_several_ways(private_key: PrivateKey) -> None:
    for method in methods(private_key):
        for key_id in (KEY_ID, "#key-9"):
            written = method | {"id": key_id, "controller": DID}
            for document in (
                {"id": DID, "verificationMethod": [written], "authentication": [KEY_ID]},
                {"id": DID, "verificationMethod": [written], "authentication": ["#key-9"]},
                {"id": DID, "authentication": [written]},
            ):
                assert keys.listed_key(document, DID, KEY_ID) == keys.public_key(private_key)


def test_the_documents_of_our_identities_list_their_keys() -> None:
    listed = keys.listed_key(SHOP.did_document(), SHOP.did, SHOP.key_id)
    assert listed == keys.public_key(SHOP.private_key)
    assert keys.method_of(SHOP) == {
        "id": SHOP.key_id,
        "type": "Ed25519VerificationKey2020",
        "publicKeyHex": SHOP.public_key.hex(),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"id": BUYER.did},
        {"id": None},
        {"authentication": []},
        {"authentication": None},
        {"authentication": [f"{SHOP.did}#key-2"]},
        {"authentication": [7, None, {"id": 7}]},
        {"verificationMethod": []},
        {"verificationMethod": "none"},
        {"deactivated": True},
    ],
)
def test_a_key_not_listed_for_authentication_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized) as refusal:
        keys.listed_key(SHOP.did_document() | change, SHOP.did, SHOP.key_id)
    assert refusal.value.code == "secure.identity"


@pytest.mark.parametrize(
    "material",
    [
        {"type": "Multikey", "publicKeyMultibase": "zNotAKey"},
        {"type": "EcdsaSecp256r1VerificationKey2019", "publicKeyHex": "0404"},
        {"publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": "AA"}},
        {"publicKeyJwk": {"kty": "EC", "crv": "P-521", "x": b64url(bytes(32)), "y": b64url(bytes(32))}},
        {"publicKeyJwk": {"kty": "EC", "crv": "P-256", "x": b64url(bytes(32)) + "=", "y": b64url(bytes(32))}},
        {"publicKeyJwk": "key"},
        {},
    ],
)
def test_a_listed_key_that_cannot_be_read_is_no_key(material: dict[str, Any]) -> None:
    document = {"id": DID, "authentication": [material | {"id": KEY_ID}]}
    with pytest.raises(Unauthorized):
        keys.listed_key(document, DID, KEY_ID)


def test_a_did_key_needs_no_document() -> None:
    someone = Identity.create()
    assert keys.own_key(someone.key_id) == keys.public_key(someone.private_key)
    assert keys.own_key(SHOP.key_id) is None
    with pytest.raises(Malformed):
        keys.own_key("did:key:zNotAKey#zNotAKey")
