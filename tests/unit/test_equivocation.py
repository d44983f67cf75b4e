"""The proof that a log signed two histories: what is one, what is none, and its one form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from witnesses import LOG, OTHER_LOG, WITNESSES, History, cosigned, leaves

from treaty_client.protocols.equivocation import keep
from treaty_consensus.canonical import dumps, parse_json
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Untrusted
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.equivocation import MAX_EQUIVOCATION, Equivocation, contradiction
from treaty_consensus.log.note import SignerKey, sign
from treaty_consensus.log.witness import AddCheckpoint
from treaty_registry.witness.records import WitnessStore

HISTORY = History.of(leaves(20))
FORK = History.of(leaves(20, fork_at=5))
KEY = LOG.verifier


def between(size: int, other: int, one: History = HISTORY, another: History = FORK) -> Equivocation:
    """The proof that `one` was signed at `size` and `another` at a larger size."""
    proof = another.proof(size, other)
    return Equivocation.of(KEY, one.note(size), another.note(other), root=another.root(size), proof=proof)


def seen(size: int) -> SignedCheckpoint:
    return open_checkpoint(HISTORY.note(size), KEY)


@pytest.mark.parametrize("size", [6, 8, 19, 20])
def test_two_roots_of_one_size(size: int) -> None:
    proof = Equivocation.of(KEY, HISTORY.note(size), FORK.note(size))
    assert proof == Equivocation.of(KEY, FORK.note(size), HISTORY.note(size))
    first, second = Equivocation.parse(proof.format()).verify()
    assert {first, second} == {HISTORY.checkpoint(size), FORK.checkpoint(size)}
    assert first.root < second.root


@pytest.mark.parametrize(("size", "other"), [(6, 7), (6, 8), (7, 20), (8, 9), (8, 16), (16, 20), (19, 20)])
def test_a_larger_tree_that_has_another_root_at_the_smaller_size(size: int, other: int) -> None:
    proof = between(size, other)
    assert Equivocation.parse(proof.format()) == proof
    assert proof.verify() == (HISTORY.checkpoint(size), FORK.checkpoint(other))
    with pytest.raises(Untrusted):  # with the root that it does have, it shows the contrary
        between(size, other, FORK, FORK)


def test_an_empty_tree_has_one_root() -> None:
    empty = sign(replace(HISTORY.checkpoint(0), root=b"\1" * 32).format(), [LOG])
    proof = Equivocation.of(KEY, empty, HISTORY.note(7), root=HISTORY.root(0), proof=())
    assert proof.verify()[0].size == 0


@pytest.mark.threat(345)
def test_other_signatures_do_not_matter_and_are_not_kept() -> None:
    proof = Equivocation.of(KEY, cosigned(HISTORY.note(7), *WITNESSES), FORK.note(7))
    assert proof == Equivocation.of(KEY, HISTORY.note(7), FORK.note(7))
    assert proof.verify()


@pytest.mark.threat(345)
def test_a_log_that_signs_another_root_each_time_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_client.protocols.equivocation._MAX_KEPT", 3)
    monkeypatch.setattr("treaty_registry.witness.records._MAX_KEPT", 3)
    forks = [History.of(leaves(8, fork_at=place)) for place in range(1, 7)]
    witness = WitnessStore(tmp_path / "witness")
    for fork in forks:
        proof = Equivocation.of(KEY, HISTORY.note(8), fork.note(8))
        assert keep(tmp_path / "home", proof).exists()
        assert witness.keep(proof).exists()
    for folder in (tmp_path / "home", tmp_path / "witness" / "evidence"):
        proofs = [*folder.iterdir()]
        assert len(proofs) == 3
        assert all(Equivocation.parse(file.read_bytes()).verify() for file in proofs)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "home").iterdir()} == {0o600}
    # Another log has its own.
    other = Equivocation.of(OTHER_LOG.verifier, HISTORY.note(8, OTHER_LOG), FORK.note(8, OTHER_LOG))
    assert keep(tmp_path / "home", other) not in proofs
    assert len([*(tmp_path / "home").iterdir()]) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        replace(between(6, 9), root=HISTORY.root(6)),
        replace(between(6, 9), root=b"\0" * 32),
        replace(between(6, 9), proof=between(6, 9).proof[:-1]),
        replace(between(6, 9), proof=()),
        replace(between(6, 9), root=None, proof=()),
        replace(between(6, 9), key=OTHER_LOG.verifier),
        replace(between(6, 9), first=HISTORY.note(6, OTHER_LOG)),
        replace(between(6, 9), second=HISTORY.note(9)),
        replace(between(6, 9), first=FORK.note(9), second=HISTORY.note(6)),
        Equivocation(KEY, HISTORY.note(6), HISTORY.note(6)),
        Equivocation(KEY, HISTORY.note(4), FORK.note(4)),
        Equivocation(KEY, HISTORY.note(6), HISTORY.note(9), HISTORY.root(6), HISTORY.proof(6, 9)),
        Equivocation(KEY, HISTORY.note(6), FORK.note(6), FORK.root(6), ()),
        Equivocation(KEY, HISTORY.note(6), HISTORY.note(9), FORK.root(6), HISTORY.proof(6, 9)),
        Equivocation(KEY, HISTORY.note(8), HISTORY.note(9), FORK.root(8), HISTORY.proof(8, 9)),
        Equivocation(WITNESSES[0].verifier, HISTORY.note(6), FORK.note(6)),
    ],
)
def test_what_proves_nothing(wrong: Equivocation) -> None:
    with pytest.raises(TreatyError):
        wrong.verify()
    with pytest.raises(TreatyError):
        Equivocation.parse(wrong.format()).verify()


def test_the_two_in_the_wrong_order_are_not_the_one_spelling() -> None:
    proof = Equivocation.of(KEY, HISTORY.note(6), FORK.note(6))
    with pytest.raises(Untrusted):
        replace(proof, first=proof.second, second=proof.first).verify()


@pytest.mark.parametrize(
    "change",
    [
        {"equivocation": 2},
        {"more": 1},
        {"key": "log.example"},
        {"root": "AAAA="},
        {"proof": ["AAAA"] * 64},
        {"first": None},
        {"first": "\ud800"},
    ],
)
def test_a_file_of_another_form_is_refused(change: dict[str, object]) -> None:
    value = parse_json(between(6, 9).format(), limit=MAX_EQUIVOCATION)
    value |= change
    with pytest.raises(TreatyError) as refusal:
        Equivocation.parse(dumps(value) if change != {"first": "\ud800"} else b'{"first":"\\ud800"}')
    assert isinstance(refusal.value, Malformed)


@pytest.mark.parametrize("gone", ["equivocation", "first", "second", "key", "proof", "root"])
def test_every_member_is_needed(gone: str) -> None:
    value = parse_json(between(6, 9).format(), limit=MAX_EQUIVOCATION)
    del value[gone]
    with pytest.raises(Malformed):
        Equivocation.parse(dumps(value))


def test_a_file_over_its_cap_is_not_read() -> None:
    with pytest.raises(TooLarge):
        Equivocation.parse(b" " * (MAX_EQUIVOCATION + 1))


@pytest.mark.parametrize("size", [6, 7, 9, 19])
def test_a_witness_proves_a_fork_from_what_it_is_asked(size: int) -> None:
    same = contradiction(FORK.request(size, size), KEY, seen(size))
    assert same == Equivocation.of(KEY, HISTORY.note(size), FORK.note(size))
    later = contradiction(FORK.request(size, 20), KEY, seen(size))
    assert later == between(size, 20)
    assert contradiction(FORK.request(3, size), KEY, seen(size)) == same, "whatever old size is named"


@pytest.mark.parametrize(
    ("request_", "latest"),
    [
        (HISTORY.request(6, 9), 6),
        (HISTORY.request(9, 9), 9),
        (FORK.request(8, 20), 8),  # the proof leaves a perfect tree's root out, so it does not say from which it leads
        (FORK.request(7, 20), 6),
        (FORK.request(6, 7), 9),
        (AddCheckpoint(6, HISTORY.proof(6, 9)[:-1], HISTORY.note(9)), 6),
        (AddCheckpoint(6, FORK.proof(6, 9), HISTORY.note(9)), 6),
        (AddCheckpoint(6, FORK.proof(6, 9), FORK.note(9, OTHER_LOG)), 6),
        (AddCheckpoint(9, (), FORK.note(9, SignerKey(LOG.name, LOG.type, b"\x07" * 32))), 9),
    ],
)
def test_what_proves_nothing_to_a_witness(request_: AddCheckpoint, latest: int) -> None:
    assert contradiction(request_, KEY, seen(latest)) is None
