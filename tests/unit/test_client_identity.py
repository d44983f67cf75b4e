"""Identities: made, kept secret, read back, and speaking for nobody else."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from treaty_client.identity import Identity
from treaty_consensus import kinds, statement
from treaty_consensus.did import authentication_keys, did_key_id
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TooLarge, TreatyError

NAMES = [None, "alice.example", "alice.example:agents:shop"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_the_identity_back_and_only_its_owner_reads_it(tmp_path: Path, name: str | None) -> None:
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
    made = identity.statement(kinds.Grant("alice.example", "did:wba:bob.example"), log="registry.example", issued=5)
    keys = authentication_keys(identity.did_document(), identity.parsed)
    assert statement.verify(statement.parse(made.leaf), keys).keys == (identity.public_key,)
    assert (made.issued, made.log, made.author.text) == (5, "registry.example", identity.did)


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
