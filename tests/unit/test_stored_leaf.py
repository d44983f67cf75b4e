"""How a leaf is stored: it comes back to the byte, and damage gives another leaf, whose hash is not in the tree."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from signers import domain_signer

from treaty_consensus import kinds, statement
from treaty_registry.storage.stored_leaf import DICTIONARY, restored, stored

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "statements" / "statements.json").read_text())
LEAVES = [vector["leaf"].encode() for vector in VECTORS["accepted"]]
ALICE = domain_signer("alice.example")


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_kind_of_statement_comes_back_to_the_byte(leaf: bytes) -> None:
    encoded = stored(leaf, statement.parse(leaf))
    assert restored(encoded) == leaf
    assert len(encoded) < 0.7 * len(leaf)


def test_leaves_of_earlier_releases_are_stored_unchanged() -> None:
    for leaf in (b'{"certificate":"MII="}', LEAVES[0]):
        assert stored(leaf, None) == leaf == restored(leaf)


def test_damage_gives_other_bytes() -> None:
    leaf = ALICE.statement(kinds.Vouch("did:wba:bob.example", 0)).leaf
    encoded = stored(leaf, statement.parse(leaf))
    for place in range(len(encoded) - 1):  # the last byte has bits after the end of DEFLATE's last block, which mean nothing
        for bit in range(8):
            changed = bytearray(encoded)
            changed[place] ^= 1 << bit
            assert restored(bytes(changed)) != leaf, f"bit {bit} of byte {place}"
    for damaged in (b"", encoded[:-1], encoded + b"x", encoded[:1], encoded[:65], bytes((2,)) + encoded[1:]):
        assert restored(damaged) != leaf


def test_the_form_never_changes() -> None:
    """The bytes that this release stored first. DEFLATE may write others for one payload, so only reading them is fixed."""
    assert hashlib.sha256(DICTIONARY).hexdigest() == "f71f9293ec46ec1cbafc82f835c8dd6e2ec1ed948efbbb70fc4a3fa06418553f"
    leaf = ALICE.statement(kinds.Vouch("did:wba:bob.example", 0)).leaf
    encoded = (
        "01b85f7705f0cf923ea6f7ad19c7f9c0f3e421c2731d098f2beb8e95387d9334875f63e9de62e46f30f03150bac9de6adb457c4412e993"
        "e517267cd29f6687420e43f605960490949f040b1d4c6b137332935361d258ec37b73480000c77c0d22fdc39d0440200"
    )
    assert restored(bytes.fromhex(encoded)) == leaf
