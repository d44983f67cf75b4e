"""The box of a witness: what it stamps, what it keeps over a restart, and who may fill it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rejections import rejection
from signers import NOW, ORIGIN, Signer, domain_signer, key_signer, signed
from witnesses import WITNESSES

from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_consensus.stamped import Stamped, read_page
from treaty_consensus.statement import Statement
from treaty_io import durable
from treaty_registry.witness import box as boxes
from treaty_registry.witness.box import KEPT, Boxes
from treaty_registry.witness.cosigner import Cosigner
from treaty_registry.witness.records import WitnessStore

KEY = WITNESSES[0]
LOG = SignerKey(ORIGIN, KeyType.ED25519, b"\1" * 32)
VOTER = domain_signer("voter.example")


class Witness:
    """A witness with a box, and a clock that a test sets."""

    def __init__(self, data: Path) -> None:
        self.data, self.now = data, float(NOW)
        self.boxes = self.restarted()

    def restarted(self) -> Boxes:
        cosigner = Cosigner(WitnessStore(self.data), KEY, [LOG.verifier], lambda: self.now)
        self.boxes = Boxes(self.data, cosigner, KEY, lambda: self.now)
        return self.boxes

    def shown(self) -> list[bytes]:
        """The envelopes in all pages."""
        leaves: list[bytes] = []
        start = 0
        while (page := read_page(self.boxes.page(hex_digest(ORIGIN.encode()), start)))[0] > start:
            start = page[0]
            leaves += [each.leaf for each in page[1]]
        return leaves

    def files(self) -> list[str]:
        return sorted(path.name for path in self.data.rglob("*.json"))


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path)


def ballot(seq: int = 0, *, signer: Signer = VOTER, log: str = ORIGIN) -> Statement:
    return signed(kinds.Ballot("demo/echo", seq, (("none",),), "a checkpoint"), signer, log=log)


def test_what_is_stamped_is_kept_over_a_restart_and_stamped_once(witness: Witness) -> None:
    leaves = [ballot(seq).leaf for seq in range(3)]
    notes = [witness.boxes.take(leaf, "192.0.2.1") for leaf in leaves]
    assert Stamped.of(leaves[0], notes[0]).times([KEY.verifier]) == {KEY.verifier: NOW}
    witness.now += 60
    assert witness.boxes.take(leaves[0], "198.51.100.1") == notes[0], "the first stamp, which says the earlier time"
    witness.restarted()
    assert witness.shown() == leaves and len(witness.files()) == 3
    assert witness.boxes.take(leaves[0], "198.51.100.1") == notes[0]
    witness.boxes.take(ballot(3).leaf, "192.0.2.1")
    assert witness.shown() == [*leaves, ballot(3).leaf], "numbers go on"


@pytest.mark.threat(363)
def test_nothing_else_is_stamped(witness: Witness) -> None:
    witness.boxes.take(ballot().leaf, "192.0.2.1")
    before = witness.files(), witness.shown()
    stranger = key_signer("stranger")
    for leaf, code in (
        (b"", "canonical.json"),
        (b"x" * (16 * 1024 + 1), "stamp.form: at most"),
        (ballot().leaf + b" ", "canonical.json"),
        (ballot(log="other.example").leaf, "witness.unknown-log"),
        (signed(kinds.Grant("voter.example", "did:wba:friend.example"), VOTER).leaf, "stamp.form: stamps ballots"),
        (ballot(signer=Signer(stranger.did, stranger.key_id, VOTER.private_key)).leaf, "statement.signature-invalid"),
    ):
        with pytest.raises(TreatyError) as error:
            witness.boxes.take(leaf, "192.0.2.1")
        assert rejection(error.value, code) == code, leaf[:40]
    assert (witness.files(), witness.shown()) == before


@pytest.mark.threat(363)
def test_however_many_networks_flood_it_the_next_one_finds_room(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "ROOM", 40 * len(ballot().leaf))
    seq = 0
    for network in range(4):
        while True:
            try:
                witness.boxes.take(ballot(seq).leaf, f"192.0.{network}.{seq % 250}")
            except TreatyError as error:
                assert error.code == "quota.sender"
                break
            seq += 1
    before = witness.files(), witness.shown()
    with pytest.raises(TreatyError):
        witness.boxes.take(ballot(seq).leaf, "192.0.0.1")
    assert (witness.files(), witness.shown()) == before
    witness.boxes.take(ballot(seq).leaf, "192.0.9.1")
    assert seq < 40 and witness.shown()[-1] == ballot(seq).leaf


def test_a_statement_goes_when_its_stamp_obliges_no_more(witness: Witness) -> None:
    witness.boxes.take(ballot(0).leaf, "192.0.2.1")
    witness.now += KEPT
    witness.boxes.take(ballot(1).leaf, "192.0.2.1")
    assert witness.shown() == [ballot(0).leaf, ballot(1).leaf]
    witness.now += 1
    assert witness.shown() == [ballot(1).leaf] and len(witness.files()) == 1
    assert witness.restarted() and witness.shown() == [ballot(1).leaf]


def test_without_a_synced_file_there_is_no_stamp(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(durable, "write", fail)
        with pytest.raises(TreatyError) as error:
            witness.boxes.take(ballot().leaf, "192.0.2.1")
    assert error.value.code == "witness.record" and witness.shown() == []
    witness.boxes.take(ballot().leaf, "192.0.2.1")
    assert witness.shown() == [ballot().leaf]
