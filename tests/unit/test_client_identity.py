"""Identities: made, kept secret, read back, and speaking for nobody else."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from treaty_consensus import kinds, statement
from treaty_consensus.did import authentication_keys, did_key_id
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TooLarge, TreatyError, Unauthorized
from treaty_io.identity import Identity
from treaty_io.identity import identity as identity_module
from treaty_io.identity.key_binding import bound_segment, check_binding

NAMES = [None, "alice.example", "alice.example:agents:shop"]


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_identity_is_readable_by_its_owner_alone(tmp_path: Path, name: str | None) -> None:
    identity = Identity.create(name)
    path = tmp_path / "home" / "identity.json"
    identity.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Identity.load(path)
    assert again == identity
    assert again.public_key == identity.public_key
    assert identity.sign(b"x") == again.sign(b"x")
    assert [other.name for other in path.parent.iterdir()] == ["identity.json"]


def test_names_become_dids() -> None:
    assert Identity.create("alice.example").did == "did:wba:alice.example"
    assert Identity.create("alice.example:agents").key_id == "did:wba:alice.example:agents#key-1"
    key = Identity.create()
    assert key.key_id == did_key_id(key.public_key)
    with pytest.raises(Malformed):
        Identity.create("Alice.example")


def test_the_seed_is_in_no_text() -> None:
    identity = Identity.create()
    assert "private_key" not in repr(identity)


def test_an_identity_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    first = Identity.create()
    first.save(path)
    with pytest.raises(Conflict):
        Identity.create().save(path)
    assert Identity.load(path) == first
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.threat(91)
def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    Identity.create().save(path)
    path.chmod(0o640)
    with pytest.raises(Refused, match="chmod 600"):
        Identity.load(path)


def test_an_absent_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="treaty identity new"):
        Identity.load(tmp_path / "identity.json")


@pytest.mark.parametrize("change", [{"seed": "AAAA"}, {"seed": "!"}, {"did": "did:wba:x"}, {"key": "x"}, {"more": 1}, {"did": 1}])
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "identity.json"
    Identity.create().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}, sort_keys=True, separators=(",", ":")))
    with pytest.raises(TreatyError):
        Identity.load(path)
    path.write_text(" " * 5000)
    with pytest.raises(TooLarge):
        Identity.load(path)


def test_another_key_is_not_a_did_keys() -> None:
    identity = Identity.create()
    with pytest.raises(Malformed):
        Identity(identity.did, identity.key_id, Ed25519PrivateKey.generate())
    with pytest.raises(Malformed):
        Identity("did:wba:alice.example", identity.key_id, identity.private_key)


def test_a_statement_verifies_under_its_document() -> None:
    identity = Identity.create("alice.example")
    record = identity.statement(kinds.Grant("alice.example", "did:wba:bob.example"), log="registry.example", issued=5)
    keys = authentication_keys(identity.did_document(), identity.parsed)
    assert statement.verify(statement.parse(record.leaf), keys).keys == (identity.public_key,)
    assert (record.issued, record.log, record.author.text) == (5, "registry.example", identity.did)


def test_the_document_is_what_anp_e1_readers_look_for() -> None:
    identity = Identity.create("alice.example")
    document: dict[str, Any] = identity.did_document()
    [method] = document["verificationMethod"]
    assert method["type"] == "Multikey"
    assert method["controller"] == document["id"] == identity.did
    assert method["publicKeyMultibase"].startswith("z6Mk")
    assert document["authentication"] == document["assertionMethod"] == [method["id"]] == [identity.key_id]
    with pytest.raises(Refused):
        Identity.create().did_document()


ROTATED = [
    Identity.create("alice.example:shop").rotated(),
    Identity.create("alice.example", bind=True).rotated(),
    Identity.create("alice.example", bind=True).rotated().rotated(),
]


@pytest.mark.parametrize("identity", ROTATED)
def test_a_rotation_is_kept_with_the_keys_that_are_still_needed(tmp_path: Path, identity: Identity) -> None:
    path = tmp_path / "identity.json"
    identity.save(path)
    again = Identity.load(path)
    assert (again, again.public_key) == (identity, identity.public_key)
    assert [(pair.id, pair.public) for pair in again.kept] == [(pair.id, pair.public) for pair in identity.kept]
    assert again.did_document(created=1) == identity.did_document(created=1)
    assert path.stat().st_size < identity_module.MAX_FILE


def test_a_rotation_lists_the_new_key_alone_for_authentication() -> None:
    first = Identity.create("alice.example")
    second = first.rotated()
    third = second.rotated()
    assert [identity.key_id.partition("#")[2] for identity in (first, second, third)] == ["key-1", "key-2", "key-3"]
    assert len({identity.public_key for identity in (first, second, third)}) == 3
    for identity in (second, third):
        assert authentication_keys(identity.did_document(), identity.parsed) == {identity.key_id: identity.public_key}
    assert [pair.id for pair in third.kept] == [first.key_id, second.key_id]


@pytest.mark.parametrize("bind", [False, True])
def test_a_log_may_be_some_rotations_behind(tmp_path: Path, bind: bool) -> None:
    first = newest = Identity.create("alice.example:shop", bind=bind)
    for _ in range(7):
        newest = newest.rotated()
    fragments = [pair.id.partition("#")[2] for pair in newest.kept]
    assert fragments == [*(["key-1"] if bind else []), "key-4", "key-5", "key-6", "key-7"]
    assert newest.did == first.did and newest.key_id.endswith("#key-8")
    newest.save(tmp_path / "identity.json")
    again = Identity.load(tmp_path / "identity.json")
    assert [(pair.id, pair.public) for pair in again.kept] == [(pair.id, pair.public) for pair in newest.kept]


def test_a_bound_did_keeps_its_first_key() -> None:
    first = Identity.create("alice.example:shop", bind=True)
    assert first.did == f"did:wba:alice.example:shop:{bound_segment(first.public_key)}"
    third = first.rotated().rotated()
    document: dict[str, Any] = third.did_document()
    assert document["proof"]["verificationMethod"] == first.key_id
    assert document["assertionMethod"] == [third.key_id, first.key_id]
    assert document["authentication"] == [third.key_id]
    check_binding(document, third.parsed)
    with pytest.raises(Malformed, match="bound to is missing"):
        Identity(third.did, third.key_id, third.private_key)


def test_a_did_key_is_not_rotated() -> None:
    with pytest.raises(Refused):
        Identity.create().rotated()


def test_only_the_identity_that_was_rotated_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    first = Identity.create("alice.example")
    first.save(path)
    second, rival = first.rotated(), first.rotated().rotated()
    second.supersede(first, path)
    assert (Identity.load(path), stat.S_IMODE(path.stat().st_mode)) == (second, 0o600)
    with pytest.raises(Conflict):
        rival.supersede(first, path)
    assert Identity.load(path).public_key == second.public_key
    other = Identity.create("alice.example")  # another key under the same names
    other.save(tmp_path / "other.json")
    with pytest.raises(Conflict):
        second.supersede(first, tmp_path / "other.json")
    assert Identity.load(tmp_path / "other.json").public_key == other.public_key


def test_a_deactivated_document_lists_no_key_for_authentication() -> None:
    for identity in (Identity.create("alice.example"), *ROTATED):
        document = identity.did_document(deactivated=True)
        assert (document["deactivated"], document["authentication"]) == (True, [])
        check_binding(document, identity.parsed)


def test_services_stand_in_the_document_and_under_its_proof() -> None:
    service = {"id": "did:wba:alice.example#ad", "type": "AgentDescription", "serviceEndpoint": "https://alice.example/ad.json"}
    bound = Identity.create("alice.example", bind=True)
    for identity in (Identity.create("alice.example"), bound):
        assert identity.did_document(services=[service])["service"] == [service]
    with pytest.raises(Unauthorized):
        check_binding({**bound.did_document(services=[service]), "service": []}, bound.parsed)


@pytest.mark.parametrize(
    "stored_keys", [{}, [{}], [{"key": "did:wba:bob.example#key-1", "seed": "A" * 43 + "="}], [{"key": "x", "seed": ""}]]
)
def test_kept_keys_that_do_not_belong_are_refused(tmp_path: Path, stored_keys: object) -> None:
    path = tmp_path / "identity.json"
    Identity.create("alice.example").save(path)
    value = {**json.loads(path.read_text()), "kept": stored_keys}
    path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))
    with pytest.raises(Malformed):
        Identity.load(path)
