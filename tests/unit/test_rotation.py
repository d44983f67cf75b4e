"""The rotation of a log's keys: its rule, and checkpoints by keys that are not, or no longer, in force."""

from __future__ import annotations

import pytest
from admission_log import ALICE, OPERATOR, Log
from rejections import rejection
from signers import NOW, ORIGIN

from treaty_client.protocols.verification.log_keys import follow, proven_keys
from treaty_consensus import facts, kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError
from treaty_consensus.log.checkpoint import Checkpoint, KeyTerm, LogKeys, open_checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, open_note, sign
from treaty_consensus.log.witness import AddCheckpoint
from treaty_consensus.log_keys import MAX_OVERLAP, MAX_ROTATIONS, keys_in
from treaty_consensus.rotation import Rotation, rotation_text
from treaty_consensus.trusted_root import with_rotations, without_rotations

DAY = 24 * 3600
UNTIL = NOW + 90 * DAY


def keys(number: int, origin: str = ORIGIN) -> tuple[SignerKey, SignerKey]:
    log = SignerKey(origin, KeyType.ED25519, bytes([number]) * 32)
    return log, SignerKey(f"{origin}/clock", KeyType.COSIGNATURE, bytes([number + 100]) * 32)


FIRST, SECOND, THIRD = keys(1), keys(2), keys(3)
OTHER_LOG = keys(1, "other.example")


def term(pair: tuple[SignerKey, SignerKey], since: int = 0, until: int = 0) -> KeyTerm:
    return KeyTerm(pair[0].verifier, pair[1].verifier, since, until)


def rotation(
    before: tuple[SignerKey, SignerKey] = FIRST,
    after: tuple[SignerKey, SignerKey] = SECOND,
    signers: tuple[SignerKey, ...] | None = None,
    until: int = UNTIL,
) -> Rotation:
    text = rotation_text(term(before), after[0].verifier, after[1].verifier, until)
    proof = sign(text, signers or (*before, *after), time=NOW).decode()
    return Rotation(str(after[0].verifier), str(after[1].verifier), until, proof)


@pytest.fixture
def log() -> Log:
    log = Log()
    genesis = kinds.Genesis(ORIGIN, str(FIRST[0].verifier), str(FIRST[1].verifier), OPERATOR.did, "ab" * 32)
    log.add(genesis, OPERATOR)
    return log


@pytest.mark.threat(311)
def test_a_rotation_names_the_keys_from_its_leaf_on(log: Log) -> None:
    log.add(kinds.Withdrawal("cd" * 32, "illegal"), OPERATOR)
    log.add(rotation(), OPERATOR)
    keys = keys_in(log.facts)
    assert keys == LogKeys((term(FIRST), term(SECOND, 3, UNTIL)))
    assert [keys.at(size).log for size in (0, 2, 3, 9)] == [FIRST[0].verifier] * 2 + [SECOND[0].verifier] * 2
    # The next one: after the overlap, of the clock alone.
    clock = (SECOND[0], THIRD[1])
    log.add(rotation(SECOND, clock, (SECOND[1], THIRD[1]), UNTIL + DAY), OPERATOR, issued=UNTIL)
    assert keys_in(log.facts).newest == term(clock, 4, UNTIL + DAY)


HALVES = {
    "only the old keys": FIRST,
    "only the new keys": SECOND,
    "not the old clock": (FIRST[0], *SECOND),
    "not the new log key": (*FIRST, SECOND[1]),
}


@pytest.mark.threat(311)
@pytest.mark.parametrize("signers", HALVES.values(), ids=HALVES)
def test_every_key_that_comes_or_goes_agrees(log: Log, signers: tuple[SignerKey, ...]) -> None:
    assert log.refuses(rotation(signers=signers), OPERATOR) == "rotation.proof"


@pytest.mark.threat(312)
def test_a_proof_holds_for_one_rotation_of_one_log(log: Log) -> None:
    proof = rotation().proof
    other = rotation(after=THIRD)
    changed = Rotation(other.log_key, other.clock_key, UNTIL, proof)
    later = Rotation(str(SECOND[0].verifier), str(SECOND[1].verifier), UNTIL + 1, proof)
    elsewhere = rotation(OTHER_LOG, SECOND, (*OTHER_LOG, *SECOND))
    garbage = Rotation(str(SECOND[0].verifier), str(SECOND[1].verifier), UNTIL, "no note\n")
    assert [log.refuses(body, OPERATOR) for body in (changed, later, elsewhere, garbage)] == ["rotation.proof"] * 4
    assert log.refuses(rotation(), ALICE) in ("statement.not-operator", "statement.unknown-key")
    assert log.refuses(rotation(), OPERATOR, log="other.example") == "statement.other-log"
    log.add(rotation(), OPERATOR)
    # The same again, and after the overlap.
    assert log.refuses(rotation(), OPERATOR, issued=NOW + 1) in ("rotation.keys", "rotation.overlap")
    assert log.refuses(rotation(), OPERATOR, issued=UNTIL) == "rotation.keys"


@pytest.mark.threat(313)
def test_one_rotation_at_a_time_and_no_key_comes_back(log: Log) -> None:
    log.add(rotation(), OPERATOR)
    assert log.refuses(rotation(FIRST, THIRD), OPERATOR, issued=NOW + 1) == "rotation.overlap"
    assert log.refuses(rotation(SECOND, THIRD, until=UNTIL + DAY), OPERATOR, issued=UNTIL - 1) == "rotation.overlap"
    assert log.refuses(rotation(FIRST, THIRD, until=UNTIL + DAY), OPERATOR, issued=UNTIL) == "rotation.proof"
    assert log.refuses(rotation(SECOND, FIRST, until=UNTIL + DAY), OPERATOR, issued=UNTIL) == "rotation.keys"


def test_rotations_are_bounded(log: Log) -> None:
    first = facts.Keys(str(FIRST[0].verifier), str(FIRST[1].verifier), 0, 0)
    others = [facts.Keys(str(keys(n)[0].verifier), str(keys(n)[1].verifier), n, 0) for n in range(10, 74)]
    log.facts[facts.KEYS] = facts.KeysFact((first, *others))
    assert len(others) == MAX_ROTATIONS
    assert log.refuses(rotation(keys(73), keys(74)), OPERATOR) == "rotation.keys"


def test_bad_keys_and_times_are_refused(log: Log) -> None:
    assert log.refuses(rotation(after=keys(2, "other.example")), OPERATOR) == "rotation.keys"
    assert log.refuses(rotation(until=NOW - 1), OPERATOR) == "rotation.overlap"
    assert log.refuses(rotation(until=NOW + MAX_OVERLAP + 1), OPERATOR) == "rotation.overlap"
    with pytest.raises(TreatyError, match="type 1"):
        Rotation(str(SECOND[1].verifier), str(SECOND[0].verifier), UNTIL, "x").check()


def note(size: int, *signers: SignerKey, time: int = NOW) -> bytes:
    return sign(Checkpoint(ORIGIN, size, bytes(32)).format(), signers, time=time)


KNOWN = LogKeys((term(FIRST), term(SECOND, 3, UNTIL)))
BOTH = (*SECOND, *FIRST)


def test_an_overlap_checkpoint_verifies_by_either_key() -> None:
    signed = note(5, *BOTH)
    for pair in (FIRST, SECOND):
        assert open_checkpoint(signed, pair[0].verifier, pair[1].verifier).time == NOW
    assert KNOWN.open(signed).checkpoint.size == 5
    # A C2SP client with one vkey ignores the other line.
    assert len(open_note(signed, [FIRST[0].verifier]).signatures) == 1


ATTACKS = {
    "a thief of the old keys after the rotation": (note(5, *FIRST), "note.signature"),
    "the new keys before their leaf": (note(2, *SECOND), "note.signature"),
    "an old head, dated anew after the overlap": (note(2, *FIRST, time=UNTIL), "note.signature: retired"),
    "the new log key, the old clock": (note(5, SECOND[0], FIRST[1]), None),
}


@pytest.mark.threat(314, 315)
@pytest.mark.parametrize(("forged", "code"), ATTACKS.values(), ids=ATTACKS)
def test_keys_count_at_the_sizes_that_the_log_names(forged: bytes, code: str | None) -> None:
    if code is None:  # no time: whoever needs the age refuses it
        assert KNOWN.open(forged).time is None
        return
    with pytest.raises(TreatyError) as refused:
        KNOWN.open(forged)
    assert rejection(refused.value, code) == code


def test_one_that_was_away_longer_is_told_what_to_do() -> None:
    with pytest.raises(TreatyError) as refused:
        LogKeys.pinned(FIRST[0].verifier).open(note(5, *SECOND))
    assert "treaty trust remove" in refused.value.fix and ORIGIN in refused.value.message


@pytest.mark.threat(316)
def test_a_reader_follows_and_never_goes_back(log: Log) -> None:
    log.add(rotation(), OPERATOR)
    proven = keys_in(log.facts)
    first = LogKeys((term(FIRST),))
    for start in (LogKeys.pinned(FIRST[0].verifier), LogKeys.pinned(SECOND[0].verifier), first, proven):
        assert follow(start, proven, 2) == proven
    # An older tree shows less, and the reader keeps what it knows.
    assert follow(proven, first, 1) == proven
    for start, older in ((proven, first), (LogKeys.pinned(THIRD[0].verifier), proven)):
        with pytest.raises(TreatyError) as refused:
            follow(start, older, 2)
        assert refused.value.code == "log.other"


def test_the_leaves_of_a_log_prove_its_keys(log: Log) -> None:
    leaves_of_log = [
        OPERATOR.statement(kinds.Genesis(ORIGIN, str(FIRST[0].verifier), str(FIRST[1].verifier), OPERATOR.did, "ab" * 32))
    ]
    leaves_of_log.append(OPERATOR.statement(rotation()))
    assert proven_keys((index, each.leaf) for index, each in enumerate(leaves_of_log)) == LogKeys(
        (term(FIRST), term(SECOND, 2, UNTIL))
    )
    half = OPERATOR.statement(rotation(signers=FIRST))
    with pytest.raises(TreatyError) as refused:
        proven_keys([(0, leaves_of_log[0].leaf), (1, half.leaf)])
    assert refused.value.code == "rotation.proof"


def test_the_trusted_root_gets_the_new_key() -> None:
    root = b'{"tlogs":[{"baseUrl":"https://x","logId":{"keyId":"a"},"publicKey":{"keyDetails":"b","rawBytes":"c"}}]}'
    assert with_rotations(root, LogKeys((term(FIRST),))) == root
    extended = with_rotations(root, KNOWN)
    assert extended.count(b"baseUrl") == 2 and hex_digest(without_rotations(extended)) == hex_digest(root)


def test_facts_of_keys_survive_a_store(log: Log) -> None:
    log.add(rotation(), OPERATOR)
    fact = log.facts[facts.KEYS]
    assert facts.decode(facts.encode(fact)) == fact


def test_a_rotation_is_no_checkpoint() -> None:
    with pytest.raises(TreatyError):
        AddCheckpoint(0, (), rotation().proof.encode())
