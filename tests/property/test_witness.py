"""A witness never cosigns two histories of one log, whatever it is asked, however often it dies; and the formats around it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from witnesses import LOG, NOW, ORIGIN, History, leaves

from treaty_consensus.errors import TreatyError
from treaty_consensus.log.checkpoint import Checkpoint, open_checkpoint
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.merkle import MAX_SIZE, consistency_roots, verify_consistency
from treaty_consensus.log.note import sign
from treaty_consensus.log.witness import AddCheckpoint, SizeConflict, cosignature
from treaty_io import durable
from treaty_registry.witness.cosigner import Cosigner
from treaty_registry.witness.records import WitnessStore

SIZE = 40
HISTORIES = (History.of(leaves(SIZE)), *(History.of(leaves(SIZE, fork_at=at)) for at in (0, 7, 16, 33)))

histories = st.sampled_from(HISTORIES)
sizes = st.integers(0, SIZE)
hashes = st.binary(min_size=32, max_size=32)
checkpoints = st.builds(Checkpoint, st.just(ORIGIN), st.integers(0, MAX_SIZE), hashes)
requests = st.builds(
    AddCheckpoint,
    st.integers(0, MAX_SIZE),
    st.lists(hashes, max_size=63).map(tuple),
    checkpoints.map(lambda checkpoint: sign(checkpoint.format(), [LOG])),
)


mutations = st.tuples(st.integers(0), st.sampled_from(["delete", "replace", "insert"]), st.binary(min_size=1, max_size=2))


def mutated(data: bytes, mutation: tuple[int, str, bytes]) -> bytes:
    place, how, new = mutation
    place %= len(data) + 1
    rest = data[place:] if how == "insert" else data[place + 1 :]
    return data[:place] + (b"" if how == "delete" else new) + rest


@given(requests)
@settings(deadline=None)
def test_requests_round_trip(request: AddCheckpoint) -> None:
    assert AddCheckpoint.parse(request.format()) == request


@given(requests, mutations)
@settings(deadline=None)
def test_a_request_has_one_spelling(request: AddCheckpoint, mutation: tuple[int, str, bytes]) -> None:
    data = mutated(request.format(), mutation)
    try:
        parsed = AddCheckpoint.parse(data)
    except TreatyError:
        return
    assert parsed.format() == data


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_arbitrary_bytes_are_refused_and_no_more(data: bytes) -> None:
    for parse in (AddCheckpoint.parse, Equivocation.parse, lambda body: cosignature(body, HISTORIES[0].note(3), LOG.verifier)):
        with pytest.raises(TreatyError):
            parse(data)


@st.composite
def equivocations(draw: st.DrawFn) -> Equivocation:
    """A proof from two histories at sizes where they differ."""
    one, another = draw(st.tuples(histories, histories).filter(lambda pair: pair[0] is not pair[1]))
    differ = next(n for n in range(SIZE + 1) if one.root(n) != another.root(n))
    small = draw(st.integers(differ, SIZE))
    large = draw(st.integers(small, SIZE))
    if small == large:
        return Equivocation.of(LOG.verifier, one.note(small), another.note(large))
    proof = another.proof(small, large)
    return Equivocation.of(LOG.verifier, one.note(small), another.note(large), root=another.root(small), proof=proof)


@given(equivocations())
@settings(deadline=None)
def test_every_fork_has_a_proof_that_stands_alone(proof: Equivocation) -> None:
    parsed = Equivocation.parse(proof.format())
    assert parsed == proof
    first, second = parsed.verify()
    assert first.size <= second.size and first != second


@given(equivocations(), mutations)
@settings(deadline=None)
def test_a_changed_proof_proves_nothing_else(proof: Equivocation, mutation: tuple[int, str, bytes]) -> None:
    data = mutated(proof.format(), mutation)
    try:
        parsed = Equivocation.parse(data)
        heads = parsed.verify()
    except TreatyError:
        return
    assert parsed.format() == data
    assert heads == proof.verify(), "a log cannot be made to have said something else"


@pytest.mark.threat(13)
@given(histories, st.data())
@settings(deadline=None)
def test_an_honest_log_cannot_be_accused(history: History, data: st.DataObject) -> None:
    """Whatever root and proof somebody invents between two heads of one history."""
    small = data.draw(st.integers(0, SIZE))
    large = data.draw(st.integers(small, SIZE))
    proof = data.draw(st.just(history.proof(small, large)) | st.lists(hashes, max_size=8).map(tuple))
    root = data.draw(hashes | histories.map(lambda other: other.root(small)) | st.none())
    with pytest.raises(TreatyError):
        Equivocation.of(LOG.verifier, history.note(small), history.note(large), root=root, proof=proof)


@given(histories, st.data())
@settings(deadline=None)
def test_a_consistency_proof_says_which_roots_it_is_between(history: History, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, SIZE - 1))
    new = data.draw(st.integers(old + 1, SIZE))
    proof = history.proof(old, new)
    path = [history.root(old), *proof] if old & (old - 1) == 0 else proof
    assert consistency_roots(old, new, path) == (history.root(old), history.root(new))


class Witnessing(RuleBasedStateMachine):
    """Requests of all kinds, from five histories of one log, to a witness that dies between any two of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.data = Path(tempfile.mkdtemp())
        self.cosigned: list[Checkpoint] = []
        self.restart()

    def teardown(self) -> None:
        shutil.rmtree(self.data)

    @rule()
    def restart(self) -> None:
        store = WitnessStore(self.data)
        self.witness = Cosigner(store, store.key("w.example"), [LOG.verifier], lambda: NOW)

    @rule(history=histories, new=sizes, old=st.none() | sizes)
    def ask(self, history: History, new: int, old: int | None) -> None:
        self.submit(history, new, old)

    @rule(history=histories, new=sizes, old=sizes, decoy=histories)
    def ask_with_the_proof_of_another_history(self, history: History, new: int, old: int, decoy: History) -> None:
        small = min(old, new)
        self.send(replace(history.request(small, new), proof=decoy.proof(small, new)), history.checkpoint(new))

    @rule(history=histories, new=sizes)
    def die_before_the_answer(self, history: History, new: int) -> None:
        """The record is written; nobody ever sees the cosignature."""
        before = list(self.cosigned)
        self.submit(history, new, None)
        self.cosigned = before
        self.restart()

    @rule(history=histories, new=sizes)
    def die_before_the_record(self, history: History, new: int) -> None:
        whole = durable.write

        def killed(path: Path, data: bytes, *, mode: int = 0o644) -> None:
            raise OSError(5, "Input/output error")

        durable.write = killed
        try:
            self.submit(history, new, None)
        finally:
            durable.write = whole
        self.restart()

    @invariant()
    def everything_cosigned_is_of_one_history(self) -> None:
        for one, next_one in zip(self.cosigned, self.cosigned[1:], strict=False):
            assert one.size <= next_one.size
        newest = self.cosigned[-1:]
        assert any(all(history.checkpoint(head.size) == head for head in self.cosigned) for history in HISTORIES)
        for head in newest:
            latest = self.witness.latest(ORIGIN)
            assert latest is not None and latest.checkpoint.size >= head.size

    def submit(self, history: History, new: int, old: int | None) -> None:
        latest = self.witness.latest(ORIGIN)
        size = latest.checkpoint.size if latest else 0
        small = min(size if old is None else old, new)
        self.send(history.request(small, new), history.checkpoint(new))

    def send(self, request: AddCheckpoint, head: Checkpoint) -> None:
        latest = self.witness.latest(ORIGIN)
        try:
            line = self.witness.add_checkpoint(request.format())
        except SizeConflict as conflict:
            assert conflict.size == (latest.checkpoint.size if latest else 0)
            return
        except TreatyError:
            return
        assert open_checkpoint(request.note + line, LOG.verifier, self.witness.key).time == NOW
        if latest is not None:
            checkpoint = latest.checkpoint
            verify_consistency(checkpoint.size, head.size, checkpoint.root, head.root, request.proof)
        self.cosigned.append(head)


TestWitnessing = Witnessing.TestCase
TestWitnessing.settings = settings(deadline=None, max_examples=examples(60), stateful_step_count=25)


@pytest.mark.threat(12)
def test_the_machine_does_cosign() -> None:
    """A machine whose every request is refused would prove nothing."""
    machine = Witnessing()
    try:
        for size in (3, 8, 8, 20, SIZE):
            machine.submit(HISTORIES[0], size, None)
        machine.submit(HISTORIES[1], SIZE, None)
        assert [head.size for head in machine.cosigned] == [3, 8, 8, 20, SIZE]
        assert len(list((machine.data / "evidence").iterdir())) == 1
    finally:
        machine.teardown()
