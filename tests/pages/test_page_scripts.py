"""The scripts of the pages in Node.js: proofs and ballots as in Python, and messages read as by the interpreter of agents."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from signers import NOW, ORIGIN, Signer, domain_signer, key_signer

from treaty_consensus import canonical, kinds
from treaty_consensus.did import encode_multikey
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import encode_manifest
from treaty_consensus.log import merkle
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import Frontier, Node
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.log.proof import Receipt
from treaty_handler import Received, Timer
from treaty_io.identity import Identity
from treaty_registry.catalogue.conversations import message_text
from treaty_sandbox import parse_vector

HERE = Path(__file__).parent
LOG_KEY = SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"log").digest())
CLOCK_KEY = SignerKey(f"{ORIGIN}/clock", KeyType.COSIGNATURE, hashlib.sha256(b"clock").digest())
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 31, 32, 33, 255, 256, 257, 600)


def run_node(script: str, cases: dict[str, object], folder: Path) -> None:
    """Run a file of tests, which reads these cases."""
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    about = {"PATH": os.environ["PATH"], "CASES": str(file), "NODE_NO_WARNINGS": "1"}
    done = subprocess.run(["node", "--test", HERE / script], env=about, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Tree:
    """A log in memory: its leaves, and the hashes of all its perfect subtrees."""

    def __init__(self, size: int) -> None:
        self.leaves = [b"leaf %d" % index for index in range(size)]
        self.hashes: dict[Node, bytes] = {}
        frontier = Frontier()
        for index, leaf in enumerate(self.leaves):
            for level, value in enumerate(frontier.append(merkle.leaf_hash(leaf))):
                self.hashes[Node(level, index >> level)] = value
        self.checkpoint = Checkpoint(ORIGIN, size, frontier.root())
        self.note = sign(self.checkpoint.format(), [LOG_KEY, CLOCK_KEY], time=NOW)

    def receipt(self, index: int) -> Receipt:
        return Receipt(index, tuple(merkle.inclusion_proof(index, len(self.leaves), self.hashes)), self.note)


def _wrong_receipts() -> list[dict[str, str]]:
    tree = Tree(13)
    right, leaf = tree.receipt(5), tree.leaves[5]
    other = SignerKey(ORIGIN, KeyType.ED25519, hashlib.sha256(b"other").digest())
    renamed = SignerKey("other.example", KeyType.ED25519, LOG_KEY.seed)
    smaller = Checkpoint(ORIGIN, 8, tree.checkpoint.root)
    foreign = Checkpoint("other.example", 13, tree.checkpoint.root)
    text = right.format().decode()
    cases_of = [("another leaf", right, tree.leaves[6])]
    cases_of += [(f"another index {index}", replace(right, index=index), leaf) for index in (0, 4, 6, 12, 13, 2**62)]
    for place in range(len(right.hashes)):
        changed = list(right.hashes)
        changed[place] = bytes(32)
        cases_of.append((f"hash {place}", replace(right, hashes=tuple(changed)), leaf))
    cases_of += [
        ("too short", replace(right, hashes=right.hashes[:-1]), leaf),
        ("too long", replace(right, hashes=(*right.hashes, bytes(32))), leaf),
        ("unsigned", replace(right, checkpoint=sign(tree.checkpoint.format(), [CLOCK_KEY], time=NOW)), leaf),
        ("another key", replace(right, checkpoint=sign(tree.checkpoint.format(), [other])), leaf),
        ("another name", replace(right, checkpoint=sign(tree.checkpoint.format(), [renamed])), leaf),
        ("another size", replace(right, checkpoint=sign(smaller.format(), [LOG_KEY])), leaf),
        ("another log", replace(right, checkpoint=sign(foreign.format(), [LOG_KEY])), leaf),
        ("changed text", replace(right, checkpoint=tree.note.replace(b"\n13\n", b"\n14\n")), leaf),
    ]
    # The roots fit these paths, so only the length of the path tells that they are wrong.
    hash_ = merkle.leaf_hash(leaf)
    short, long = Checkpoint(ORIGIN, 13, hash_), Checkpoint(ORIGIN, 1, merkle.node_hash(bytes(32), hash_))
    cases_of += [
        ("a path without its end", Receipt(5, (), sign(short.format(), [LOG_KEY])), leaf),
        ("a path above the root", Receipt(0, (bytes(32),), sign(long.format(), [LOG_KEY])), leaf),
    ]
    for what, receipt, data in cases_of:
        with pytest.raises(TreatyError):
            receipt.verify(data, LOG_KEY.verifier)
            pytest.fail(f"Python accepts {what}")
    cases = [{"what": what, "receipt": receipt.format().decode(), "leaf": data.hex()} for what, receipt, data in cases_of]
    signature = next(line for line in text.splitlines() if line.startswith(f"— {ORIGIN} "))
    broken = {
        "empty": "",
        "no header": text.replace("tlog-proof@v1", "tlog-proof@v2"),
        "no index": text.replace("index 5\n", ""),
        "index with a zero": text.replace("index 5", "index 05"),
        "a hash that is no base64": text.replace("index 5\n", "index 5\n!\n"),
        "no newline at the end": text[:-1],
        "signed twice": text + signature + "\n",
        "too large": text.replace("index 5\n", "index 5\n" + "A" * 500_000 + "\n"),
        "65 hashes": text.replace("index 5\n", "index 5\n" + f"{canonical.b64encode(bytes(32))}\n" * 65),
    }
    cases += [{"what": what, "receipt": receipt, "leaf": leaf.hex()} for what, receipt in broken.items()]
    return [*cases, {"what": "the key of another", "receipt": text, "leaf": leaf.hex(), "by": str(other.verifier)}]


def _cosigned_receipts() -> list[dict[str, object]]:
    """Receipts whose clock is wrong, and one with two witnesses, which a page does not know."""
    tree = Tree(13)
    text, leaf = tree.receipt(5).format().decode(), tree.leaves[5].hex()
    line = next(line for line in text.splitlines() if line.startswith(f"— {CLOCK_KEY.name} "))
    data = canonical.b64decode(line.split()[2], limit=1_000)

    def with_clock(data: bytes) -> str:
        return text.replace(line, f"— {CLOCK_KEY.name} {canonical.b64encode(data)}")

    other = SignerKey(CLOCK_KEY.name, KeyType.COSIGNATURE, hashlib.sha256(b"other").digest())
    witnesses = [SignerKey(f"w.example/{n}", KeyType.COSIGNATURE, hashlib.sha256(b"%d" % n).digest()) for n in (1, 2)]
    forged = other.sign(tree.checkpoint.format().encode(), time=NOW)
    # Well signed, with a time that no reader accepts.
    late = b"cosignature/v1\ntime %d\n%b" % (2**63, tree.checkpoint.format().encode())
    signature = Ed25519PrivateKey.from_private_bytes(CLOCK_KEY.seed).sign(late)
    changed = {
        "no clock": text.replace(line + "\n", ""),
        "a later time": with_clock(data[:11] + bytes([data[11] ^ 1]) + data[12:]),
        "a time beyond all": with_clock(data[:4] + (2**63).to_bytes(8, "big") + signature),
        "the signature of another key": with_clock(data[:4] + forged),
        "another key": with_clock(other.verifier.id + forged),
        "signed twice": text + line + "\n",
        "cut": with_clock(data[:-1]),
    }
    cases: list[dict[str, object]] = [{"what": what, "receipt": receipt, "leaf": leaf} for what, receipt in changed.items()]
    note = sign(tree.checkpoint.format(), [LOG_KEY, CLOCK_KEY, *witnesses], time=NOW)
    witnessed = replace(tree.receipt(5), checkpoint=note).format().decode()
    return [*cases, {"what": "two witnesses", "receipt": witnessed, "leaf": leaf, "unchecked": 2}]


def test_proofs_are_checked_as_in_python(tmp_path: Path) -> None:
    receipts: list[dict[str, object]] = []
    for size in SIZES:
        tree = Tree(size)
        for index in range(size) if size < 64 else (0, 1, 127, 128, 254, size - 2, size - 1):
            receipt = tree.receipt(index)
            receipt.verify(tree.leaves[index], LOG_KEY.verifier)
            case_of = {"receipt": receipt.format().decode(), "leaf": tree.leaves[index].hex()}
            receipts.append({**case_of, "index": str(index), "size": str(size)})
    key = str(LOG_KEY.verifier)
    keys = ["", "a+b", key[:-1], key.replace(ORIGIN, "other.example"), str(CLOCK_KEY.verifier), f"{key}=", key.upper()]
    cases: dict[str, object] = {"key": key, "clock": str(CLOCK_KEY.verifier), "time": NOW, "receipts": receipts, "keys": keys}
    run_node("proof.test.mjs", {**cases, "wrong": _wrong_receipts(), "cosigned": _cosigned_receipts()}, tmp_path)


def test_ballots_of_the_browser_have_the_bytes_of_python(tmp_path: Path) -> None:
    generator = random.Random(16)
    signers = [domain_signer("alice.example"), key_signer("k"), domain_signer("xn--fiq228c.example", "web")]
    ballots: list[dict[str, object]] = []
    for number in range(150):
        signer = signers[number % len(signers)]
        choices = [hashlib.sha256(b"%d" % choice).hexdigest() for choice in range(generator.randint(0, 32))]
        choices.append(kinds.NONE)
        generator.shuffle(choices)
        tiers: list[list[str]] = []
        for choice in choices:
            if tiers and generator.random() < 0.3:
                tiers[-1].append(choice)
            else:
                tiers.append([choice])
        topic, seq, issued = f"a/b-{number}", generator.choice([0, 7, 2**53 - 1]), generator.choice([0, NOW, 2**53 - 1])
        seen = f"{ORIGIN}\n{number}\n{'é中😀' if number % 2 else ''}\n\n— {ORIGIN} AAAA\n"
        body = kinds.Ballot(topic, seq, tuple(map(tuple, tiers)), seen)
        statement = signer.statement(body, issued=issued)
        case = {"topic": topic, "seq": seq, "tiers": tiers, "seen": seen, "log": ORIGIN, "issued": issued}
        ballots.append({**case, "file": _identity_file(signer, tmp_path), "leaf": statement.leaf.decode(), "id": statement.id})
    values: list[object] = [{"b": [1, -2, True], "a": {"é": '\u2028\x7f\x00"\\/', "\U0001f600": 1, "\ufb33": 2}}, [], {}, "中"]
    a, b = "a" * 64, "b" * 64
    many = [[hashlib.sha256(b"%d" % place).hexdigest()] for place in range(34)]
    cases: dict[str, object] = {
        "ballots": ballots,
        "refused": [[[a], [a]], [[]], [[a], []], [["A" * 64]], [["x"]], many, [[a, b, a]]],
        "keys": [_forms(signer, tmp_path) for signer in signers],
        "canonical": [{"value": value, "expected": canonical.dumps(value).decode()} for value in values],
    }
    run_node("ballot.test.mjs", cases, tmp_path)


def test_messages_are_read_as_the_interpreter_reads_them(tmp_path: Path) -> None:
    manifests = [
        path
        for root in ("examples", "protocols")
        for path in sorted((HERE.parents[1] / root).rglob("manifest.json"))
        if "messages" in json.loads(path.read_text())
    ]
    assert len(manifests) > 5
    protocols = [
        {
            "name": path.parent.as_posix().removeprefix(f"{HERE.parents[1]}/"),
            "manifest": json.loads(encode_manifest(json.loads(path.read_text()), "", "")),  # with its interface, as in a wheel
            "vectors": [_vector(file) for file in sorted(path.parent.glob("vectors/*.json"))],
        }
        for path in manifests
    ]
    run_node("declarative.test.mjs", {"protocols": protocols, "schemas": list(_judged(random.Random(36)))}, tmp_path)


@pytest.mark.threat(271)
@pytest.mark.parametrize("script", ["proof.js", "log-proof.js", "ballot.js", "voting.js", "declarative.js", "console.js"])
def test_scripts_write_text_and_never_markup(script: str) -> None:
    source = (HERE.parents[1] / "registry/treaty_registry/pages/static" / script).read_text()
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage", "sessionStorage"):
        assert unsafe not in source


def _vector(file: Path) -> dict[str, object]:
    """A vector with the text of each message."""
    vector = parse_vector(file.name, file.read_bytes())
    steps = [
        {
            "event": type(step.event).__name__.lower(),
            "data": step.event.data.decode(errors="replace") if isinstance(step.event, Received) else None,
            "timer": step.event.name if isinstance(step.event, Timer) else None,
            "effects": [
                (tag, {**fields, "data": message_text(fields["data"])} if tag == "send" else fields)
                for tag, fields in step.effects
            ],
        }
        for step in vector.steps
    ]
    return {"file": f"{file.parents[1].name}/{file.name}", "role": vector.roles[0], "steps": steps}


def _judged(chosen: random.Random) -> Iterator[dict[str, object]]:
    """Schemas of all keywords with values, and the judgement of the validator of agents."""
    parts: list[dict[str, object]] = [
        {"type": "string", "minLength": 2, "maxLength": 3},
        {"type": ["integer", "null"]},
        {"type": "number"},
        {"enum": [1, "a", None]},
        {"const": {"a": [1]}},
        {"minimum": 1, "exclusiveMaximum": 3},
        {"multipleOf": 0.5},
        {"pattern": "^[a-c]+$"},
        {"not": {"type": "string"}},
        {"items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        {"uniqueItems": True},
        {"prefixItems": [{"const": 1}], "items": False},
        {"contains": {"const": 1}, "maxContains": 1},
        {"required": ["a"], "properties": {"a": {"type": "integer"}}},
        {"additionalProperties": False, "properties": {"a": True}},
        {"patternProperties": {"^b": {"type": "string"}}, "additionalProperties": {"type": "null"}},
        {"propertyNames": {"maxLength": 1}},
        {"minProperties": 1, "maxProperties": 1},
        {"dependentRequired": {"a": ["b"]}},
        {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": "string"}},
        {"$ref": "#/$defs/short"},
    ]
    values: list[object] = [None, True, 0, 1, 2, 2.5, "", "a", "ab", "abcd", "é😀", [], [1], [1, 1], [1, 2], ["a", 1.0]]
    values += [{}, {"a": 1}, {"a": "x"}, {"a": [1]}, {"b": "x"}, {"a": 1, "b": None}, {"bb": 1}]
    combined: list[dict[str, object]] = [{how: chosen.sample(parts, 2)} for how in ("allOf", "anyOf", "oneOf") for _ in range(8)]
    for schema in [*parts, *combined]:
        whole = {**schema, "$defs": {"short": {"maxLength": 2}}}
        validator = jsonschema_rs.Draft202012Validator(whole)
        for value in chosen.sample(values, 8):
            yield {"schema": whole, "value": value, "fits": validator.is_valid(value)}


def _identity_file(signer: Signer, folder: Path) -> str:
    """The file that the command line keeps."""
    path = folder / f"{hashlib.sha256(signer.did.encode()).hexdigest()}.json"
    if not path.exists():
        Identity(signer.did, signer.key_id, signer.private_key).save(path)
    return path.read_text()


def _forms(signer: Signer, folder: Path) -> dict[str, str]:
    encoding, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pem = signer.private_key.private_bytes(encoding, pkcs8, serialization.NoEncryption()).decode()
    seed = canonical.b64encode(signer.private_key.private_bytes_raw())
    named = {"did": signer.did, "keyId": signer.key_id, "multikey": encode_multikey(signer.public_key)}
    return {**named, "file": _identity_file(signer, folder), "seed": seed, "pem": pem}
