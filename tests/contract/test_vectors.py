"""The vectors for other implementations: the code gives exactly those that it made, and holds those of other origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bundle_vectors
import httpx
import made_records
import made_vectors
import pytest
from docs.generate import ROOT, DriftError, vectors

from treaty_client.protocols.verification.log_keys import proven_keys
from treaty_client.protocols.verification.ten_steps import examine, read_bundle
from treaty_client.protocols.verification.topic import view_topic
from treaty_client.registries.trust import TrustedRegistry, parse_registry_name
from treaty_consensus import canonical, did, statement
from treaty_consensus.audit import Replay
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.trusted_root import with_rotations, without_rotations
from treaty_handoff import Seal

HTTP = ROOT / "tests" / "vectors" / "http" / "requests.json"
PROJECTS = sorted(path for root in ("protocols", "examples") for path in (ROOT / root).rglob("vectors"))
PAGES = sorted(path.stem for path in (ROOT / "docs" / "specification").glob("*.md"))
WITHOUT = ("README", "compatibility", "conformance", "election-bound", "election-v2", "home-caches")
"""Pages that specify no format: the list of the others, the rules of the source documents with their tests, and a proof."""


def load(name: str) -> Any:
    return json.loads((made_vectors.VECTORS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", made_vectors.MADE)
def test_the_code_makes_the_same_bytes(name: str) -> None:
    assert (made_vectors.VECTORS / name).read_text(encoding="utf-8") == made_vectors.encoded(name), "see `make vectors`"


def test_a_reader_of_the_statements_needs_nothing_else() -> None:
    vectors = load("statements/statements.json")
    keys = {name: did.decode_multikey(key["multikey"]) for name, key in vectors["keys"].items()}
    for vector in vectors["accepted"]:
        entry = statement.verify(statement.parse(vector["leaf"].encode()), keys).statement
        assert (entry.type, entry.id) == (vector["kind"], vector["id"])
        assert leaf_hash(vector["leaf"].encode()).hex() == vector["leaf_hash"]
    for vector in vectors["refused"]:
        leaf = vector["leaf"].encode()
        assert made_records.refusal(lambda: statement.verify(statement.parse(leaf), keys)) == vector["code"]  # noqa: B023


def test_a_reader_of_a_rotation_computes_the_trusted_root() -> None:
    vectors = load("log/authority.json")
    genesis, rotation = (leaf.encode() for leaf in vectors["leaves"])
    keys = proven_keys([(0, genesis), (1, rotation)])
    root = vectors["pinned_root"].encode()
    assert (
        with_rotations(root, keys) == vectors["trusted_root"].encode()
        and without_rotations(vectors["trusted_root"].encode()) == root
    )
    for vector in vectors["refused"]:
        leaf = vector["leaf"].encode()
        assert made_records.refusal(lambda: proven_keys([(0, genesis), (1, leaf)])) == vector["code"], vector["title"]  # noqa: B023


def test_a_reader_of_the_log_recomputes_its_decisions() -> None:
    vectors, replay = load("election/log.json"), Replay()
    expected = {vector["leaf"]: vector for vector in vectors["decisions"]}
    for index, leaf in enumerate(vectors["leaves"]):
        if index in expected:
            (due,) = replay.decide()
            assert (due.transcript.decode(), due.roll.decode()) == (expected[index]["transcript"], expected[index]["roll"])
        replay.append(leaf.encode())
    assert replay.root().hex() == vectors["root"]
    assert len(expected) == 3


def test_sealed_messages_open() -> None:
    vectors = load("handoff/messages.json")
    seal = Seal(bytes.fromhex(vectors["storage_key"]))
    for place, sealed in vectors["sealed"].items():
        assert seal.open(bytes.fromhex(sealed), place).decode() == vectors["envelope"]


@pytest.mark.parametrize(
    "change", json.loads((bundle_vectors.FOLDER / "changes.json").read_text()), ids=lambda change: str(change["title"])
)
def test_a_changed_bundle_is_refused_at_its_step(change: dict[str, Any]) -> None:
    expected = {name: change[name] for name in ("step", "code") if name in change}
    assert bundle_vectors.outcome(change) == expected


def test_the_changes_of_a_bundle_reach_the_steps_of_a_bundle() -> None:
    steps = {change.get("step") for change in json.loads((bundle_vectors.FOLDER / "changes.json").read_text())}
    assert steps == {None, 1, 2, 3, 4, 5, 6, 7, 8}


def test_the_bundle_of_a_topic_holds() -> None:
    example = bundle_vectors.facts()
    bundle = read_bundle((bundle_vectors.FOLDER / "topic.bundle.json").read_bytes(), topic=example["topic"])
    trusted = TrustedRegistry(parse_registry_name(example["registry"]), None)
    view = view_topic(bundle, example["topic"], examine(bundle, trusted, now=example["now"], max_age=60))
    assert [protocol.uri for protocol in view.protocols] == [example["uri"]]


@pytest.mark.parametrize("vector", json.loads(HTTP.read_text()), ids=lambda vector: str(vector["title"]))
async def test_a_registry_answers_so(api: httpx.AsyncClient, vector: dict[str, Any]) -> None:
    answer = await api.request(
        vector["method"], vector["path"], headers=vector.get("headers", {}), content=vector.get("body", "").encode() or None
    )
    assert answer.status_code == vector["status"], answer.text
    if "type" in vector:
        assert answer.headers["content-type"].partition(";")[0] == vector["type"]
    if "code" in vector:
        assert answer.json()["code"] == vector["code"]
    if "members" in vector:
        assert set(vector["members"]) <= set(answer.json())


# The list of them


def test_every_page_of_a_format_has_vectors() -> None:
    assert sorted(vectors.load()) == [page for page in PAGES if page not in WITHOUT]


def test_every_vector_is_listed() -> None:
    listed = {path for group in vectors.load().values() for row in group.rows for path in row.files}
    present = {path for path in made_vectors.VECTORS.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    helpers = {path for path in present if path.name in ("generate.py", "README.md", "index.toml")}
    assert present - helpers <= listed


@pytest.mark.parametrize("page", sorted(vectors.load()))
def test_a_test_that_is_named_reads_the_vectors(page: str) -> None:
    group = vectors.load()[page]
    assert group.tests
    texts = {name: (ROOT / "tests" / name).read_text(encoding="utf-8") for name in group.tests}
    names = {Path(row.pattern).parts[-2] for row in group.rows} | {row.pattern.split("/")[1] for row in group.rows}
    assert [name for name, text in texts.items() if not any(part in text for part in (*names, "made_vectors"))] == []


def test_a_row_without_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "index.toml").write_text(
        '[log]\ntests = ["contract/test_vectors.py"]\nfiles = [{path = "absent/*", holds = "x"}]\n'
    )
    with pytest.raises(DriftError, match=r"absent/\*"):
        vectors.load(tmp_path / "index.toml")


def test_the_digest_of_a_file_is_that_of_its_bytes() -> None:
    index = json.loads(vectors.index())
    (entry,) = (entry for entry in index["log"] if entry["file"] == "log/rfc6962.json")
    assert entry["sha256"] == canonical.hex_digest((made_vectors.VECTORS / "log" / "rfc6962.json").read_bytes())


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_session_is_written_once_for_each_role(folder: Path) -> None:
    """Such a vector has `roles`."""
    sessions: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        vector = json.loads(path.read_text(encoding="utf-8"))
        if "steps" in vector:
            session = {name: value for name, value in vector.items() if name not in ("title", "role", "roles")}
            sessions.setdefault(json.dumps(session, sort_keys=True), []).append(path.name)
    assert [names for names in sessions.values() if len(names) > 1] == []
