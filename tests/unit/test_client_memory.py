"""The memory of what registries have proved: what it keeps, what falls out of it, and several processes at once."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from signers import ORIGIN, Signer, domain_signer, identity_body, key_signer, signed

from treaty_client.registries.leaves import SeenLeaf
from treaty_client.registries.memory import SeenLeaves
from treaty_consensus import kinds
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import Malformed, Refused, Untrusted

ALICE, OPERATOR = domain_signer("alice.example"), key_signer("operator")
URI = f"https://{ORIGIN}/protocols/alice.example/echo/1.0"
BLOB = kinds.Blob("0" * 64, 1)
DECISION = kinds.Decision(
    "demo/echo", 0, "schulze-margins-v2", "development", "0" * 64, kinds.Input(1, "0" * 64), 0, BLOB, BLOB, ()
)


def leaf(index: int, body: kinds.Body, signer: Signer = ALICE, note: bytes = b"a checkpoint") -> SeenLeaf:
    return SeenLeaf(index, signed(body, signer, issued=index).leaf, (b"\1" * 32, b"\2" * 32), note)


def publish(index: int, uri: str = URI, topic: str = "demo/echo") -> SeenLeaf:
    return leaf(index, kinds.Publish(uri, topic, BLOB, BLOB, "negotiated"))


def identity(index: int, name: str) -> SeenLeaf:
    return leaf(index, identity_body(domain_signer(name)), OPERATOR)


def accept(seen: list[SeenLeaf]) -> None:
    """Every answer goes."""


def learn(memory: SeenLeaves, *leaves: SeenLeaf, keep: Callable[[], set[str]] = set) -> bool:
    return memory.learn(ORIGIN, leaves, (), check=accept, keep=keep)


def test_another_process_reads_the_memory_by_name(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path)
    assert memory.about(ORIGIN, {f"protocol/{URI}"}) == [] and not list(tmp_path.iterdir()), "reading makes nothing"
    leaves = [publish(5), leaf(7, kinds.Status(URI, "deprecated")), identity(3, "alice.example")]
    assert learn(memory, *leaves) and not learn(memory, *leaves)
    other = SeenLeaves(tmp_path)
    assert other.about(ORIGIN, {f"protocol/{URI}"}) == leaves[:2]
    assert other.about(ORIGIN, {"topic/demo/echo"}) == leaves[:1]
    assert other.about(ORIGIN, {"identity/did:wba:alice.example", "parameters"}) == leaves[2:]
    assert other.about("other.example", {f"protocol/{URI}"}) == []
    assert stat.S_IMODE((tmp_path / "seen.db").stat().st_mode) == 0o600


def test_only_a_newer_statement_replaces_an_older_one(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path)
    old, new = leaf(7, kinds.Status(URI, "revoked")), leaf(9, kinds.Status(URI, "active"), note=b"another checkpoint")
    other_author = leaf(8, kinds.Status(URI, "yanked", wheel="1" * 64), domain_signer("bob.example"))
    learn(memory, old, other_author)
    learn(memory, new)
    assert not learn(memory, old)
    assert memory.about(ORIGIN, {f"protocol/{URI}"}) == [other_author, new]


def test_a_checkpoint_goes_with_its_last_leaf(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path)
    for index in range(5, 50):
        learn(memory, leaf(index, kinds.Status(URI, "active"), note=b"checkpoint %d" % index))
    with closing(sqlite3.connect(tmp_path / "seen.db")) as database:
        assert database.execute("select count(*) from checkpoints").fetchone() == (1,)


def test_what_the_check_refuses_is_not_learned(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path)
    learn(memory, publish(5))
    version = memory.version()

    def refuse(seen: list[SeenLeaf]) -> None:
        assert seen == [publish(5)]
        raise Untrusted("memory.contradicted", "No.")

    with pytest.raises(Untrusted):
        memory.learn(ORIGIN, [leaf(7, kinds.Status(URI, "active"))], {f"protocol/{URI}"}, check=refuse)
    assert memory.about(ORIGIN, {f"protocol/{URI}"}) == [publish(5)] and memory.version() == version


def test_what_another_process_learns_between_is_checked_too(tmp_path: Path) -> None:
    memory, other = SeenLeaves(tmp_path), SeenLeaves(tmp_path)
    sizes: list[int] = []

    def check(seen: list[SeenLeaf]) -> None:
        sizes.append(len(seen))
        if len(sizes) == 1:
            learn(other, leaf(9, kinds.Status(URI, "revoked")))

    memory.learn(ORIGIN, [publish(5)], {f"protocol/{URI}"}, check=check)
    assert sizes == [0, 1]


def test_the_version_tells_that_anything_changed(tmp_path: Path) -> None:
    memory, other = SeenLeaves(tmp_path), SeenLeaves(tmp_path)
    versions = [memory.version()]
    learn(other, publish(5))
    versions.append(memory.version())
    assert memory.version() == versions[-1]
    learn(memory, identity(3, "alice.example"))
    versions.append(memory.version())
    other.forget(ORIGIN, f"protocol/{URI}")
    versions.append(memory.version())
    memory.close()
    versions.append(memory.version())
    assert len(set(versions)) == len(versions)


@pytest.mark.threat(19)
def test_the_oldest_memory_is_dropped_unless_kept(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path, max_leaves=40)
    for index in range(10, 110):
        learn(memory, identity(index, f"d{index}.example"), keep=lambda: {"identity/did:wba:d10.example"})
        (newest,) = memory.about(ORIGIN, {f"identity/did:wba:d{index}.example"})
        assert newest.index == index
    left = [i for i in range(10, 110) if memory.about(ORIGIN, {f"identity/did:wba:d{i}.example"})]
    assert left[0] == 10 and left[1:] == list(range(left[1], 110)) and 20 <= len(left) <= 40


def test_what_is_kept_is_bounded_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol that is run may get handlers without end; its publication and what came last stay."""
    monkeypatch.setattr("treaty_client.registries.memory.MAX_KEPT", 8)
    memory, subject = SeenLeaves(tmp_path, max_leaves=16), f"protocol/{URI}"
    learn(memory, publish(5))
    for index in range(10, 60):
        wheel = kinds.Blob(f"{index:064}", 1)
        learn(memory, leaf(index, kinds.Handler(URI, "0" * 64, "x.whl", wheel, "x:y", BLOB)), keep=lambda: {subject})
    indexes = [entry.index for entry in memory.about(ORIGIN, {subject})]
    assert indexes[0] == 5 and indexes[-8:] == list(range(52, 60)) and len(indexes) <= 17


@pytest.mark.sample(1)
@pytest.mark.threat(19)
@pytest.mark.parametrize("wheel", [None, "1" * 64])
@pytest.mark.parametrize("state", ["yanked", "revoked"])
def test_what_was_taken_back_is_never_forgotten(tmp_path: Path, state: Literal["yanked", "revoked"], wheel: str | None) -> None:
    memory = SeenLeaves(tmp_path, max_leaves=40, max_bytes=64 * 1024)
    revoked, good = leaf(7, kinds.Status(URI, state, wheel=wheel)), leaf(8, kinds.Status(f"{URI}.1", "deprecated"))
    learn(memory, publish(5), revoked, good)
    for index in range(10, 310):
        learn(memory, identity(index, f"d{index}.example"))
    assert memory.about(ORIGIN, {f"protocol/{URI}"}) == [revoked], "its publication may be forgotten, as that of any other"
    assert memory.about(ORIGIN, {f"protocol/{URI}.1"}) == []
    learn(memory, leaf(400, kinds.Status(URI, "active", wheel=wheel)))
    for index in range(410, 510):
        learn(memory, identity(index, f"d{index}.example"))
    assert memory.about(ORIGIN, {f"protocol/{URI}"}) == [], "it was given back"


@pytest.mark.threat(19)
def test_revocations_are_bounded_and_one_more_is_refused(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path, max_leaves=4, max_taken_back=8)
    for index in range(8):
        learn(memory, leaf(10 + index, kinds.Status(f"{URI}.{index}", "revoked")))
    version = memory.version()
    with pytest.raises(Refused) as failure:
        learn(memory, publish(5), leaf(18, kinds.Status(f"{URI}.8", "revoked")))
    assert failure.value.code == "memory.full" and "treaty trust remove" in failure.value.fix
    assert memory.version() == version and memory.about(ORIGIN, {f"protocol/{URI}.8", f"protocol/{URI}"}) == []
    assert all(memory.about(ORIGIN, {f"protocol/{URI}.{index}"}) for index in range(8))
    assert learn(memory, publish(5)), "all else goes on"
    assert memory.forget(ORIGIN, f"protocol/{URI}.0") == 1
    assert learn(memory, leaf(18, kinds.Status(f"{URI}.8", "revoked"))), "there is room for one again"


def test_the_topic_of_what_is_kept_and_the_parameters_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_client.registries.memory.MAX_KEPT", 8)
    memory = SeenLeaves(tmp_path, max_leaves=40)
    competitor, announced = publish(6, f"{URI}.1"), leaf(3, development_parameters(), OPERATOR)
    decided = leaf(4, DECISION, OPERATOR)
    learn(memory, announced, decided, publish(5), competitor, publish(7, f"{URI}.2", "another/topic"))
    for index in range(10, 110):
        learn(memory, identity(index, f"d{index}.example"), keep=lambda: {f"protocol/{URI}"})
    assert memory.about(ORIGIN, {"topic/demo/echo"}) == [decided, publish(5), competitor]
    assert memory.about(ORIGIN, {"parameters"}) == [announced] and memory.about(ORIGIN, {"topic/another/topic"}) == []
    for index in range(210, 260):
        learn(memory, publish(index, f"{URI}.{index}"), keep=lambda: {f"protocol/{URI}"})
    left = [entry.index for entry in memory.about(ORIGIN, {"topic/demo/echo"})]
    assert 4 in left and left[-1] == 259 and len(left) < 50, "the decision stays, however much is published"


def test_use_postpones_forgetting_and_seldom_writes(tmp_path: Path) -> None:
    now = 10**18
    memory = SeenLeaves(tmp_path, max_leaves=40, clock=lambda: now)
    first, used = identity(3, "first.example"), identity(4, "used.example")
    subject = {"identity/did:wba:used.example"}
    learn(memory, used)
    learn(memory, first)
    for index in range(10, 30):
        learn(memory, identity(index, f"d{index}.example"))

    def use() -> None:
        assert not memory.learn(ORIGIN, [used], subject, check=accept, keep=set)

    version = memory.version()
    now += 3_599 * 10**9
    use()
    assert memory.version() == version
    now += 2 * 10**9
    use()
    assert (renewed := memory.version()) != version
    use()
    assert memory.version() == renewed
    for index in range(30, 50):
        learn(memory, identity(index, f"d{index}.example"))
    assert memory.about(ORIGIN, {"identity/did:wba:first.example"}) == []
    assert memory.about(ORIGIN, subject) == [used], "first was learned later, and not used since"


def test_a_reader_does_not_wait_for_a_process_that_writes(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path)
    learn(memory, publish(5))

    def check(seen: list[SeenLeaf]) -> None:
        assert memory.about(ORIGIN, {f"protocol/{URI}"}) == [publish(5)] and memory.version()

    assert memory.learn(ORIGIN, [leaf(7, kinds.Status(URI, "active"))], (), check=check)


def test_bytes_are_bounded_for_each_registry(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path, max_bytes=64 * 1024)
    memory.learn("other.example", [publish(5)], (), check=accept, keep=set)
    for index in range(10, 300):
        learn(memory, identity(index, f"d{index}.example"))
    with closing(sqlite3.connect(tmp_path / "seen.db")) as database:
        (size,) = database.execute("select sum(length(leaf) + length(proof)) from leaves where origin = ?", (ORIGIN,)).fetchone()
    assert 16 * 1024 < size <= 64 * 1024
    assert memory.about("other.example", {f"protocol/{URI}"}) == [publish(5)]


def test_one_subject_can_be_forgotten(tmp_path: Path) -> None:
    memory = SeenLeaves(tmp_path)
    learn(memory, publish(5), leaf(7, kinds.Status(URI, "active")), identity(3, "alice.example"))
    assert memory.forget(ORIGIN, f"protocol/{URI}") == 1, "the topic still needs the publish"
    assert memory.about(ORIGIN, {f"protocol/{URI}"}) == []
    assert memory.about(ORIGIN, {"topic/demo/echo"}) == [publish(5)]
    assert memory.forget(ORIGIN) == 2 and memory.forget("other.example") == 0


@pytest.mark.parametrize("data", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_said_to_be_so(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "seen.db").write_bytes(data)
    memory = SeenLeaves(tmp_path)
    for attempt in (lambda: memory.about(ORIGIN, {"parameters"}), memory.version, lambda: learn(memory, publish(5))):
        with pytest.raises(Malformed) as failure:
            attempt()
        assert failure.value.code == "system.state"
    assert (tmp_path / "seen.db").read_bytes() == data


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "seen.db")) as database:
        database.execute("pragma user_version = 3")
    with pytest.raises(Malformed, match="another version"):
        SeenLeaves(tmp_path).about(ORIGIN, {"parameters"})


_WRITER = """
import sys
from pathlib import Path
from typing import Literal
sys.path.insert(0, {tests!r})
from test_client_memory import SeenLeaves, identity, learn
memory, first = SeenLeaves(Path({home!r})), int(sys.argv[1])
for number in range(first, first + 40):
    learn(memory, identity(number, f"d{{number}}.example"))
    print(number, flush=True)
"""


def writer(home: Path, first: int) -> subprocess.Popen[str]:
    folder = Path(__file__).parent
    script = _WRITER.format(tests=str(folder), home=str(home))
    path = os.pathsep.join([str(folder.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", script, str(first)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )


@pytest.mark.deep
def test_two_processes_and_a_kill_lose_no_memory(tmp_path: Path) -> None:
    one, other = writer(tmp_path, 100), writer(tmp_path, 200)
    assert one.stdout is not None and other.stdout is not None
    indexes = [int(one.stdout.readline()) for _ in range(10)]
    one.send_signal(signal.SIGKILL)
    indexes += [int(line) for line in one.stdout.read().split()]
    indexes += [int(line) for line in other.stdout.read().split()]
    assert (one.wait(), other.wait()) == (-signal.SIGKILL, 0)
    memory = SeenLeaves(tmp_path)
    assert all(memory.about(ORIGIN, {f"identity/did:wba:d{number}.example"}) for number in indexes) and len(indexes) >= 50
    assert learn(memory, identity(300, "d300.example"))
