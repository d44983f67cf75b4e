"""Statements: one spelling, exact signatures, ids that do not depend on the signature."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rejections import rejection
from signers import NOW, ORIGIN, Signer, domain_signer, key_signer, signed

from treaty_consensus import canonical, kinds, statement
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unauthorized

ALICE, BOB = key_signer("alice"), domain_signer("bob.example")
HASH = "ab" * 32


def ballot(seq: int = 0) -> kinds.Ballot:
    return kinds.Ballot("commerce/product-info", seq, ((HASH,), (kinds.NONE,)), "note")


def report() -> kinds.Report:
    return kinds.Report("commerce/product-info", "cd" * 32, HASH, "agreed", 0, "note")


def leaf_of(payload: Any, signer: Signer = ALICE) -> bytes:
    """A leaf with a correct signature over whatever payload: dict (made canonical) or bytes."""
    data = payload if isinstance(payload, bytes) else canonical.dumps(payload)
    signature = signer.sign(statement.pre_authentication_encoding(data))
    return canonical.dumps(
        {
            "payload": canonical.b64encode(data),
            "payloadType": statement.PAYLOAD_TYPE,
            "signatures": [{"keyid": signer.key_id, "sig": canonical.b64encode(signature)}],
        }
    )


def payload_of(signed: statement.Statement) -> dict[str, Any]:
    value = json.loads(signed.payload)
    assert isinstance(value, dict)
    return value


def test_pre_authentication_encoding_is_dsse() -> None:
    encoded = statement.pre_authentication_encoding(b"hello")
    assert encoded == b"DSSEv1 40 application/vnd.treaty.statement.v1+json 5 hello"


def test_a_leaf_round_trips() -> None:
    record = ALICE.statement(ballot())
    read = statement.parse(record.leaf)
    assert read == record
    assert (read.type, read.log, read.issued, read.by) == ("ballot", ORIGIN, NOW, (ALICE.key_id,))
    assert read.author.text == ALICE.did
    assert statement.verify(read, {ALICE.key_id: ALICE.public_key}).keys == (ALICE.public_key,)


def test_two_authors_sign_in_sorted_order_whoever_signs_first() -> None:
    one, other = signed(report(), ALICE, BOB), signed(report(), BOB, ALICE)
    assert one.leaf == other.leaf
    assert one.by == tuple(sorted((ALICE.key_id, BOB.key_id)))


def test_the_id_is_of_what_is_signed() -> None:
    record = ALICE.statement(ballot())
    assert record.id == canonical.hex_digest(statement.pre_authentication_encoding(record.payload))
    assert record.id != ALICE.statement(ballot(1)).id


def test_any_flipped_bit_of_a_signature_is_refused() -> None:
    record = ALICE.statement(ballot())
    for position in range(64):
        forged = bytearray(record.signatures[0])
        forged[position] ^= 1
        changed = statement.Statement(record.body, record.log, record.by, record.issued, record.payload, (bytes(forged),))
        with pytest.raises(Unauthorized) as refusal:
            statement.verify(changed, {ALICE.key_id: ALICE.public_key})
        assert refusal.value.code == "statement.signature-invalid"


def test_verification_needs_the_key_that_by_names() -> None:
    record = ALICE.statement(ballot())
    with pytest.raises(Unauthorized) as refusal:
        statement.verify(record, {BOB.key_id: BOB.public_key})
    assert refusal.value.code == "statement.unknown-key"
    with pytest.raises(Unauthorized):
        statement.verify(record, {ALICE.key_id: BOB.public_key})


def test_a_draft_needs_every_signature() -> None:
    draft = statement.draft(report(), log=ORIGIN, by=(ALICE.key_id, BOB.key_id), issued=NOW)
    with pytest.raises(Malformed) as refusal:
        draft.seal({ALICE.key_id: ALICE.sign(draft.signing_input)})
    assert rejection(refusal.value, "statement.signatures: has not signed") == "statement.signatures: has not signed"


def test_a_cosigner_reads_what_it_is_asked_to_sign() -> None:
    draft = statement.draft(report(), log=ORIGIN, by=(ALICE.key_id, BOB.key_id), issued=NOW)
    assert statement.parse_draft(draft.payload).body == report()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"type": "unheard-of"}, "registry.newer"),
        ({"extra": 1}, "statement.form: not a statement|null or empty"),
        ({"issued": -1}, "statement.form: `issued`"),
        ({"issued": "1"}, "statement.form: not a statement|null or empty"),
        ({"by": []}, "statement.signatures: `by` must"),
        ({"by": [ALICE.key_id, ALICE.key_id]}, "statement.signatures: `by` must"),
        ({"by": ["did:wba:b.example#k", "did:wba:a.example#k"]}, "statement.signatures: `by` must"),
        ({"by": ["did:wba:a.example#k", "did:wba:b.example#k", "did:wba:c.example#k"]}, "statement.signatures: `by` must"),
        ({"by": ["alice"]}, "did.syntax"),
        ({"by": [BOB.key_id]}, "statement.signatures"),
        ({"body": {}}, "statement.form: not a statement|null or empty"),
        ({"body": []}, "statement.form: not a statement|null or empty"),
        ({"log": None}, "statement.form: not a statement|null or empty"),
    ],
)
def test_payloads_of_another_shape_are_refused(changes: dict[str, Any], code: str) -> None:
    payload = payload_of(ALICE.statement(ballot())) | changes
    with pytest.raises(Malformed) as refusal:
        statement.parse(leaf_of(payload))
    assert rejection(refusal.value, code) == code


@pytest.mark.parametrize(
    "changes",
    [
        {"unknown": 1},
        {"topic": "Commerce"},
        {"topic": "a//b"},
        {"topic": "a/b/c/d/e"},
        {"seq": -1},
        {"seq": True},
        {"tiers": [[]]},
        {"tiers": [[HASH], [HASH]]},
        {"tiers": [["abc"]]},
        {"tiers": [[HASH + "\n"]]},
        {"tiers": [[f"{n:064x}" for n in range(34)]]},
        {"seen_checkpoint": ""},
        {"seen_checkpoint": "x" * 5000},
    ],
)
def test_bodies_of_another_shape_are_refused(changes: dict[str, Any]) -> None:
    payload = payload_of(ALICE.statement(ballot()))
    payload["body"] |= changes
    with pytest.raises(TreatyError) as refusal:
        statement.parse(leaf_of(payload))
    assert refusal.value.code in (
        "statement.form",
        "ballot.tiers",
        "canonical.text",
    )


def test_optional_fields_are_left_out_never_null() -> None:
    record = ALICE.statement(kinds.Status(f"https://{ORIGIN}/protocols/{ALICE.did}/x/1.0", "yanked"))
    assert "wheel" not in payload_of(record)["body"]
    payload = payload_of(record)
    payload["body"]["wheel"] = None
    with pytest.raises(Malformed) as refusal:
        statement.parse(leaf_of(payload))
    assert (
        rejection(refusal.value, "statement.form: not a statement|null or empty")
        == "statement.form: not a statement|null or empty"
    )


def _with(leaf: bytes, change: Any) -> bytes:
    value = json.loads(leaf)
    change(value)
    return canonical.dumps(value)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(extra=1),
        lambda e: e.pop("payloadType"),
        lambda e: e.update(payloadType="application/json"),
        lambda e: e.update(signatures=[]),
        lambda e: e["signatures"].append(e["signatures"][0]),
        lambda e: e["signatures"][0].update(keyid=BOB.key_id),
        lambda e: e["signatures"][0].update(cert="x"),
        lambda e: e["signatures"][0].update(sig=canonical.b64encode(b"x" * 63)),
        lambda e: e["signatures"][0].update(sig=e["signatures"][0]["sig"].rstrip("=")),
        lambda e: e.update(payload=e["payload"] + "\n"),
        lambda e: e.update(payload=canonical.b64encode(b" " + canonical.b64decode(e["payload"], limit=9999))),
    ],
)
def test_envelopes_of_another_shape_are_refused(change: Any) -> None:
    leaf = ALICE.statement(ballot()).leaf
    with pytest.raises(TreatyError):
        statement.parse(_with(leaf, change))
    assert statement.parse(leaf).type == "ballot"


def test_a_leaf_and_a_payload_are_capped_before_they_are_parsed() -> None:
    with pytest.raises(TooLarge):
        statement.parse(b"x" * (statement.MAX_LEAF + 1))
    with pytest.raises(TooLarge):
        statement.parse(leaf_of(b"x" * (statement.MAX_PAYLOAD + 3)))


def test_the_largest_payload_fits_an_entry_bundle() -> None:
    payload = b"x" * statement.MAX_PAYLOAD
    signature = {"keyid": "did:wba:" + "a" * 376, "sig": canonical.b64encode(b"x" * 64)}
    envelope = {"payload": canonical.b64encode(payload), "payloadType": statement.PAYLOAD_TYPE, "signatures": [signature] * 2}
    assert len(canonical.dumps(envelope)) <= statement.MAX_LEAF


def test_blobs_are_named_by_the_statements_that_need_them() -> None:
    blob = kinds.Blob(HASH, 3)
    uri = f"https://{ORIGIN}/protocols/{ALICE.did}/x/1.0"
    assert kinds.blobs_of(kinds.Publish(uri, "a/b", blob, blob, "negotiated")) == (blob, blob)
    assert kinds.blobs_of(ballot()) == ()
    with pytest.raises(Malformed) as refusal:
        kinds.Publish(uri, "a/b", kinds.Blob(HASH, 10**7), blob, "negotiated").check()
    assert rejection(refusal.value, "statement.form: at most") == "statement.form: at most"
