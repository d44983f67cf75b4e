"""The witness: what it records and keeps, when it refuses, what becomes of it when the disk fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from witnesses import LOG, NOW, ORIGIN, OTHER_LOG, History, leaves

from treaty_consensus.errors import Conflict, Malformed, NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.equivocation import SUFFIX, Equivocation
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey
from treaty_consensus.log.witness import cosignature
from treaty_io import durable
from treaty_registry.witness.cosigner import Cosigner
from treaty_registry.witness.records import WitnessStore

HISTORY = History.of(leaves(40))
FORK = History.of(leaves(40, fork_at=5))
NAME = "w.example"


def cosigner(data: Path, *logs: VerifierKey) -> Cosigner:
    store = WitnessStore(data)
    return Cosigner(store, store.key(NAME), logs or (LOG.verifier, OTHER_LOG.verifier), lambda: NOW + 0.9)


def contents(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def refused(witness: Cosigner, body: bytes, kind: type[TreatyError], data: Path) -> TreatyError:
    """Ask for something that must be refused; nothing but evidence may have changed."""
    before = {name: value for name, value in contents(data).items() if not name.startswith("evidence/")}
    latest = witness.latest(ORIGIN)
    with pytest.raises(kind) as refusal:
        witness.add_checkpoint(body)
    assert {name: value for name, value in contents(data).items() if not name.startswith("evidence/")} == before
    assert witness.latest(ORIGIN) == latest
    return refusal.value


def test_it_cosigns_what_extends_and_remembers_it(tmp_path: Path) -> None:
    witness = cosigner(tmp_path)
    for old, new in ((0, 3), (3, 3), (3, 8), (8, 40)):
        line = witness.add_checkpoint(HISTORY.request(old, new).format())
        verified = cosignature(line, HISTORY.note(new), witness.key)
        opened = open_checkpoint(HISTORY.note(new) + verified, LOG.verifier, witness.key)
        assert (opened.checkpoint.size, opened.time) == (new, NOW)
        again = cosigner(tmp_path)
        assert again.key == witness.key
        assert again.latest(ORIGIN) == witness.latest(ORIGIN) == open_checkpoint(HISTORY.note(new), LOG.verifier)


def test_logs_do_not_touch_each_other(tmp_path: Path) -> None:
    witness = cosigner(tmp_path)
    witness.add_checkpoint(HISTORY.request(0, 9).format())
    witness.add_checkpoint(FORK.request(0, 7, OTHER_LOG).format())
    sizes = [latest.checkpoint.size for name in (ORIGIN, OTHER_LOG.name) if (latest := cosigner(tmp_path).latest(name))]
    assert sizes == [9, 7]


def test_a_fork_is_refused_and_proved(tmp_path: Path) -> None:
    witness = cosigner(tmp_path)
    witness.add_checkpoint(HISTORY.request(0, 9).format())
    with capture_logs() as logged:
        refused(witness, FORK.request(9, 9).format(), Untrusted, tmp_path)
        refused(witness, FORK.request(9, 20).format(), Untrusted, tmp_path)
        refused(witness, FORK.request(9, 20).format(), Untrusted, tmp_path)
    assert [entry["log_level"] for entry in logged] == ["critical"] * 3
    files = sorted((tmp_path / "evidence").iterdir())
    assert len(files) == 2 and all(path.name.endswith(SUFFIX) for path in files)
    heads = [Equivocation.parse(path.read_bytes()).verify() for path in files]
    assert {head.size for pair in heads for head in pair} == {9, 20}
    witness.add_checkpoint(HISTORY.request(9, 20).format())


def test_nonsense_leaves_no_evidence(tmp_path: Path) -> None:
    witness = cosigner(tmp_path)
    witness.add_checkpoint(HISTORY.request(0, 9).format())
    impostor = SignerKey(ORIGIN, KeyType.ED25519, b"\x07" * 32)
    for body in (b"", b"old 9\n\n", FORK.request(9, 9, impostor).format(), FORK.request(8, 20).format()):
        refused(witness, body, TreatyError, tmp_path)
    assert not (tmp_path / "evidence").exists()


def test_what_cannot_be_recorded_is_not_cosigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = cosigner(tmp_path)
    witness.add_checkpoint(HISTORY.request(0, 9).format())

    def full(path: Path, data: bytes, *, mode: int = 0o644) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        assert refused(witness, HISTORY.request(9, 12).format(), Unavailable, tmp_path).code == "witness.record"
        witness.add_checkpoint(HISTORY.request(9, 9).format())  # it is recorded already
    witness.add_checkpoint(HISTORY.request(9, 12).format())


def race(witness: Cosigner, *requests: bytes) -> list[int]:
    """Ask all at once; which of them were cosigned."""
    start, cosigned = threading.Barrier(len(requests)), list[int]()

    def ask(number: int) -> None:
        start.wait()
        with suppress(TreatyError):
            witness.add_checkpoint(requests[number])
            cosigned.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return cosigned


def test_of_two_at_the_same_time_one_is_cosigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    histories = (HISTORY, FORK)
    recorded = WitnessStore.record

    def slow(store: WitnessStore, signed: SignedCheckpoint) -> None:
        time.sleep(0.01)  # long enough for another thread to judge by what is still remembered
        recorded(store, signed)

    monkeypatch.setattr(WitnessStore, "record", slow)
    for number in range(10):
        data = tmp_path / str(number)
        witness = cosigner(data)
        witness.add_checkpoint(HISTORY.request(0, 3).format())
        (winner,) = race(witness, *(history.request(3, 9).format() for history in histories))
        latest = witness.latest(ORIGIN)
        assert latest is not None and latest.checkpoint == histories[winner].checkpoint(9)
        assert cosigner(data).latest(ORIGIN) == latest


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with WitnessStore(tmp_path).held():
        with pytest.raises(Unavailable) as refusal, WitnessStore(tmp_path).held():
            pytest.fail("it is held")
        assert refusal.value.code == "system.held"
    with WitnessStore(tmp_path).held():
        pass


def test_a_key_is_made_once_and_kept_secret(tmp_path: Path) -> None:
    store = WitnessStore(tmp_path)
    for name, kind, code in (
        (None, NotFound, "settings.directory"),
        ("w" * 81, Malformed, "witness.policy"),
        ("w w", Malformed, "note.form"),
    ):
        with pytest.raises(kind) as refusal:
            store.key(name)
        assert refusal.value.code == code
    assert not (tmp_path / "witness.key").exists()
    key = store.key(NAME)
    assert store.key(NAME) == store.key(None) == key
    assert (tmp_path / "witness.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Conflict) as other:
        store.key("other.example")
    assert other.value.code == "settings.directory"


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda path: path.chmod(0o640), "keys.damaged"),
        (lambda path: path.write_text("PRIVATE+KEY+"), "keys.damaged"),
        (lambda path: path.write_bytes(b"\xff"), "keys.damaged"),
        (lambda path: path.write_text(f"{SignerKey(NAME, KeyType.ED25519, bytes(32)).format()}\n"), "keys.damaged"),
    ],
)
def test_a_key_that_is_none_is_refused(tmp_path: Path, damage: Callable[[Path], object], code: str) -> None:
    WitnessStore(tmp_path).key(NAME)
    damage(tmp_path / "witness.key")
    with pytest.raises(Untrusted) as refusal:
        WitnessStore(tmp_path).key(None)
    assert refusal.value.code == code


def test_a_damaged_record_is_not_taken_for_none(tmp_path: Path) -> None:
    cosigner(tmp_path).add_checkpoint(HISTORY.request(0, 9).format())
    (record,) = (tmp_path / "logs").iterdir()
    whole = record.read_bytes()
    for damaged in (b"", whole[:-1], whole.replace(b"\n9\n", b"\n8\n"), HISTORY.note(9, OTHER_LOG)):
        record.write_bytes(damaged)
        with pytest.raises(Untrusted) as refusal:
            cosigner(tmp_path)
        assert refusal.value.code == "witness.record"
    rekeyed = SignerKey(ORIGIN, KeyType.ED25519, b"\x07" * 32).verifier
    record.write_bytes(whole)
    with pytest.raises(Untrusted):
        cosigner(tmp_path, rekeyed)


def test_each_key_of_a_log_is_named_once(tmp_path: Path) -> None:
    for logs in ((LOG.verifier, LOG.verifier), (SignerKey(ORIGIN, KeyType.COSIGNATURE, b"\x07" * 32).verifier,)):
        with pytest.raises(Malformed) as refusal:
            cosigner(tmp_path, *logs)
        assert refusal.value.code == "witness.policy"
