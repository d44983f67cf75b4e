"""What others published: RFC 6962 reference trees, real logs' proofs and checkpoints, Go's signed note."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from treaty_consensus.errors import Untrusted
from treaty_consensus.log.checkpoint import Checkpoint, open_checkpoint
from treaty_consensus.log.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_nodes,
    consistency_proof,
    inclusion_nodes,
    inclusion_proof,
    leaf_hash,
    verify_consistency,
    verify_inclusion,
)
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, add_signatures, open_note, sign
from treaty_consensus.log.proof import Receipt
from treaty_consensus.log.tiles import Bundle, TreeEdge, encode_bundle, node_hashes

VECTORS = Path(__file__).parents[1] / "vectors" / "log"
SHARED_NOTE = Path(__file__).parents[2].parent / "shared" / "vectors" / "signed-note" / "sumdb-example.json"


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))


RFC6962 = load("rfc6962.json")
NOTES = load("signed-notes.json")
ENTRIES = [bytes.fromhex(entry) for entry in RFC6962["leaves"]]
ROOTS = [EMPTY_ROOT, *(bytes.fromhex(value) for value in RFC6962["roots"])]
TREE, TILES = TreeEdge().appended(leaf_hash(entry) for entry in ENTRIES)
UNKNOWN = SignerKey("unknown.example", KeyType.ED25519, bytes(32))


def test_rfc6962_roots() -> None:
    assert EMPTY_ROOT.hex() == RFC6962["empty_root"]
    frontier = Frontier()
    for entry, expected in zip(ENTRIES, ROOTS[1:], strict=True):
        frontier.append(leaf_hash(entry))
        assert frontier.root() == expected


@pytest.mark.parametrize("vector", RFC6962["inclusion"])
def test_rfc6962_inclusion(vector: dict[str, Any]) -> None:
    index, size = vector["index"], vector["size"]
    proof = [bytes.fromhex(value) for value in vector["proof"]]
    tree, tiles = TreeEdge().appended(leaf_hash(entry) for entry in ENTRIES[:size])
    assert tree.root() == ROOTS[size]
    assert inclusion_proof(index, size, node_hashes(inclusion_nodes(index, size), size, tiles)) == proof
    verify_inclusion(index, size, leaf_hash(ENTRIES[index]), proof, ROOTS[size])


@pytest.mark.parametrize("vector", RFC6962["consistency"])
def test_rfc6962_consistency(vector: dict[str, Any]) -> None:
    old, new = vector["old"], vector["new"]
    proof = [bytes.fromhex(value) for value in vector["proof"]]
    _, tiles = TreeEdge().appended(leaf_hash(entry) for entry in ENTRIES[:new])
    assert consistency_proof(old, new, node_hashes(consistency_nodes(old, new), new, tiles)) == proof
    verify_consistency(old, new, ROOTS[old], ROOTS[new], proof)


def test_proofs_of_a_certificate_transparency_log() -> None:
    vector = load("argon2020.json")
    decoded = {name: base64.b64decode(vector[name]) for name in ("entry", "root", "old_root")}
    inclusion = [base64.b64decode(value) for value in vector["inclusion"]]
    consistency = [base64.b64decode(value) for value in vector["consistency"]]
    index, size, old_size = vector["index"], vector["size"], vector["old_size"]
    verify_inclusion(index, size, leaf_hash(decoded["entry"]), inclusion, decoded["root"])
    verify_consistency(old_size, size, decoded["old_root"], decoded["root"], consistency)
    with pytest.raises(Untrusted):
        verify_inclusion(index + 1, size, leaf_hash(decoded["entry"]), inclusion, decoded["root"])
    with pytest.raises(Untrusted):
        verify_consistency(old_size - 1, size, decoded["old_root"], decoded["root"], consistency)
    assert len(inclusion_nodes(index, size)) >= len(inclusion)


@pytest.mark.parametrize("vector", NOTES, ids=lambda vector: vector["source"].split()[0])
def test_published_notes(vector: dict[str, Any]) -> None:
    note = vector["note"].encode()
    keys = {VerifierKey.parse(entry["vkey"]): entry["time"] for entry in vector["keys"]}
    assert [str(key) for key in keys] == [entry["vkey"] for entry in vector["keys"]]
    if keys:
        opened = open_note(note, keys)
        assert opened.text == vector["text"]
        assert {signature.key: signature.time for signature in opened.signatures} == keys
    for key in keys:
        with pytest.raises(Untrusted):
            open_note(note.replace(vector["text"].encode(), b"another text\n"), [key])
    with pytest.raises(Untrusted, match="none of the trusted keys"):
        open_note(note, [UNKNOWN.verifier])
    # Lines whose keys are unknown are kept as they are.
    cosigned = add_signatures(note, [UNKNOWN])
    assert cosigned.startswith(note)
    assert open_note(cosigned, [UNKNOWN.verifier]).text == vector["text"]


def test_go_signs_the_same_bytes() -> None:
    vector = NOTES[0]
    signer = SignerKey.parse(vector["signer_key"])
    assert signer.format() == vector["signer_key"]
    assert str(signer.verifier) == vector["keys"][0]["vkey"]
    only_first = vector["note"].encode().rsplit("— ".encode(), 1)[0]
    assert sign(vector["text"], [signer]) == only_first


def test_a_cosigned_checkpoint_of_a_public_log() -> None:
    vector = next(entry for entry in NOTES if len(entry["keys"]) > 2)
    log_key, *witnesses = (VerifierKey.parse(entry["vkey"]) for entry in vector["keys"])
    for witness in witnesses:
        signed = open_checkpoint(vector["note"].encode(), log_key, witness)
        assert (signed.checkpoint.size, signed.time) == (1432088532, 1779573024)
        assert signed.checkpoint.format() == vector["text"]


def test_the_specification_s_checkpoint() -> None:
    checkpoint = Checkpoint.parse(NOTES[-1]["text"])
    assert (checkpoint.origin, checkpoint.size) == ("example.com/behind-the-sofa", 20852163)


def test_the_shared_copy_of_go_s_example() -> None:
    if not SHARED_NOTE.exists():
        pytest.skip("no folder of shared vectors beside this clone")
    vector = json.loads(SHARED_NOTE.read_text(encoding="utf-8"))
    signer = SignerKey.parse(vector["signer_key"])
    verifier = VerifierKey.parse(vector["verifier_key"])
    assert signer.verifier == verifier
    opened = open_note(vector["signed_note"].encode(), [verifier])
    assert sign(opened.text, [signer]) == vector["signed_note"].encode()


def test_a_log_made_without_this_package() -> None:
    """tests/vectors/log/generate.py follows the specifications on its own; every byte agrees."""
    vector = load("treaty-log.json")
    entries = [f"entry {number}".encode() for number in range(vector["size"])]
    log = SignerKey("registry.example", KeyType.ED25519, bytes.fromhex(vector["log_seed"]))
    clock = SignerKey("registry.example/clock", KeyType.COSIGNATURE, bytes.fromhex(vector["clock_seed"]))
    assert (str(log.verifier), str(clock.verifier)) == (vector["log_vkey"], vector["clock_vkey"])

    edge, tiles = TreeEdge().appended(leaf_hash(entry) for entry in entries)
    assert edge.root().hex() == vector["root"]
    digests = {tile.path: hashlib.sha256(content).hexdigest() for tile, content in tiles.items()}
    assert digests == vector["tiles_sha256"]
    bundle = Bundle(edge.size // 256, edge.size % 256)
    assert bundle.path == vector["bundle"]["path"]
    content = encode_bundle(entries[bundle.index * 256 :])
    assert hashlib.sha256(content).hexdigest() == vector["bundle"]["sha256"]

    head = Checkpoint(log.name, edge.size, edge.root())
    note = sign(head.format(), [log, clock], time=vector["time"])
    assert note.decode() == vector["checkpoint"]
    index = vector["index"]
    hashes = node_hashes(inclusion_nodes(index, edge.size), edge.size, tiles)
    receipt = Receipt(index, tuple(inclusion_proof(index, edge.size, hashes)), note)
    assert receipt.format().decode() == vector["receipt"]
    signed = Receipt.parse(vector["receipt"].encode()).verify(
        entries[index], VerifierKey.parse(vector["log_vkey"]), VerifierKey.parse(vector["clock_vkey"])
    )
    assert (signed.checkpoint, signed.time) == (head, vector["time"])
