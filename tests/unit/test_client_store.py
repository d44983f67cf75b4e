"""The store and the lock: nothing half written, nothing damaged read, nobody's change lost."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from treaty_client.protocols.store import (
    LockedProtocol,
    LockedSigner,
    LockedVersion,
    Lockfile,
    Store,
    line_of,
)
from treaty_client.protocols.verification.pins import check_unchanged
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed, TreatyError, Untrusted
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io import durable
from treaty_io.home import default_home

SIGNER = LockedSigner("did:wba:alice.example", "https://registry.example/sigstore")
VERSION = LockedVersion("1" * 64, "x:handler", "x-1-py3-none-any.whl", "2" * 64)
ENTRY = LockedProtocol("did:wba:alice.example", 1, SIGNER, {"1.0": VERSION})


def test_what_is_put_is_got_under_its_digest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put(b"data")
    assert digest == hex_digest(b"data")
    assert Store(tmp_path).get(digest) == b"data"
    assert store.get("0" * 64) is None
    assert store.put(b"data") == digest
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / "store" / "sha256" / digest[:2] / digest]


@pytest.mark.parametrize("damage", [b"", b"dat", b"datb", b"data\n"])
def test_damage_is_noticed_removed_and_mended(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    digest = store.put(b"data")
    path = tmp_path / "store" / "sha256" / digest[:2] / digest
    path.write_bytes(damage)
    assert store.get(digest) is None
    assert not path.exists()
    path.write_bytes(damage)
    store.put(b"data")
    assert store.get(digest) == b"data"


def test_what_is_discarded_is_gone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put(b"data")
    store.discard(digest)
    store.discard(digest)
    assert store.get(digest) is None


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "0" * 63, "0" * 63 + "G", "../" + "0" * 61])
def test_only_digests_are_names(tmp_path: Path, digest: str) -> None:
    with pytest.raises(Malformed):
        Store(tmp_path).get(digest)


def test_a_crash_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    durable.write(path, b"old")

    def crash(self: Path, target: Path) -> Path:
        raise OSError("power cut")

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        durable.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_created_once(tmp_path: Path) -> None:
    durable.create(tmp_path / "file", b"one", mode=0o600)
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def _put_many(home: Path) -> None:
    for number in range(30):
        Store(home).put(b"shared %d" % number * 1000)


def test_concurrent_processes_write_whole_files(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_put_many, args=(tmp_path,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    for number in range(30):
        data = b"shared %d" % number * 1000
        assert Store(tmp_path).get(hex_digest(data)) == data
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 30


def test_a_lock_remembers(tmp_path: Path) -> None:
    assert Lockfile(tmp_path).read() == {}
    with Lockfile(tmp_path).changing() as entries:
        entries["line"] = ENTRY
    assert Lockfile(tmp_path).read() == {"line": ENTRY}


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    lock = Lockfile(tmp_path)
    with lock.changing() as entries:
        entries["line"] = ENTRY
    before = (tmp_path / "treaty.lock").read_bytes()
    with pytest.raises(RuntimeError), lock.changing() as entries:
        del entries["line"]
        raise RuntimeError
    assert (tmp_path / "treaty.lock").read_bytes() == before


def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    def change(number: int) -> None:
        with Lockfile(tmp_path).changing() as entries:
            entries[f"line {number}"] = ENTRY

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(32)))
    assert set(Lockfile(tmp_path).read()) == {f"line {number}" for number in range(32)}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"lock":2,"protocols":{}}', '{"lock":1}', '{"lock":1,"protocols":{"x":{}}}', '{"lock":1.5}']
)
def test_a_damaged_lock_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "treaty.lock").write_text(text)
    with pytest.raises(TreatyError), Lockfile(tmp_path).changing():
        raise AssertionError
    assert (tmp_path / "treaty.lock").read_text() == text


def test_a_line_is_a_protocol_without_its_version() -> None:
    uri = parse_protocol_uri("https://registry.example/protocols/alice.example/echo/1.0")
    assert line_of(uri) == "https://registry.example/protocols/alice.example/echo"


def test_only_a_changed_origin_of_code_is_asked_about() -> None:
    check_unchanged(None, ENTRY, "line")
    check_unchanged(ENTRY, LockedProtocol(ENTRY.publisher, 1, SIGNER), "line")
    for changed in (
        LockedProtocol("did:wba:bob.example", 1, SIGNER),
        LockedProtocol(ENTRY.publisher, 2, SIGNER),
        LockedProtocol(ENTRY.publisher, 1, LockedSigner("x", SIGNER.issuer)),
        LockedProtocol(ENTRY.publisher, 1, LockedSigner(SIGNER.identity, "x")),
    ):
        with pytest.raises(Untrusted, match=r"--allow-(publisher|signer)-change"):
            check_unchanged(ENTRY, changed, "line")


def test_the_home_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREATY_HOME", "/somewhere")
    assert default_home() == Path("/somewhere")
    monkeypatch.delenv("TREATY_HOME")
    assert default_home() == Path.home() / ".treaty"
