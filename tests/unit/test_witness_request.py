"""What a witness is asked and answers, and how many have to cosign."""

from __future__ import annotations

from dataclasses import replace

import pytest
from witnesses import LOG, NOW, ORIGIN, OTHER_LOG, VKEYS, WITNESSES, History, cosigned, leaves, witness_key

from treaty_consensus.errors import Malformed, NotFound, TooLarge, TreatyError, Unauthorized, Untrusted
from treaty_consensus.log.checkpoint import SignedCheckpoint, open_checkpoint
from treaty_consensus.log.merkle import MAX_SIZE
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.log.witness import MAX_REQUEST, AddCheckpoint, Quorum, SizeConflict, cosignature, judge

HISTORY = History.of(leaves(20))
FORK = History.of(leaves(20, fork_at=5))
LOGS = {ORIGIN: LOG.verifier}


def seen(size: int, history: History = HISTORY) -> SignedCheckpoint:
    return open_checkpoint(history.note(size), LOG.verifier)


def refused(request: AddCheckpoint, latest: SignedCheckpoint | None, kind: type[TreatyError]) -> TreatyError:
    with pytest.raises(kind) as refusal:
        judge(request, LOGS, latest)
    return refusal.value


def test_the_request_of_the_specification_is_read_as_it_stands() -> None:
    body = (
        "old 20852014\n"
        "PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=\n"
        "jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=\n"
        "5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=\n"
        "/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=\n"
        "\n"
        "example.com/behind-the-sofa\n"
        "20852163\n"
        "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
        "\n"
        "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+"
        "zyWE+xeMcTOAYQ8=\n"
    ).encode()
    request = AddCheckpoint.parse(body)
    assert (request.old, len(request.proof)) == (20852014, 4)
    assert (request.claimed.origin, request.claimed.size) == ("example.com/behind-the-sofa", 20852163)
    assert request.format() == body


@pytest.mark.parametrize(("old", "new"), [(0, 0), (0, 1), (0, 20), (1, 1), (1, 20), (4, 7), (7, 8), (8, 20), (19, 20), (20, 20)])
def test_an_extension_is_cosigned_with_the_logs_signature(old: int, new: int) -> None:
    request = HISTORY.request(old, new)
    assert AddCheckpoint.parse(request.format()) == request
    decorated = replace(request, note=cosigned(request.note, *WITNESSES))
    signed = judge(decorated, LOGS, seen(old) if old else None)
    assert (signed.checkpoint, signed.note) == (HISTORY.checkpoint(new), HISTORY.note(new))


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body.removeprefix(b"old "),
        lambda body: b"new" + body[3:],
        lambda body: body.replace(b"old 4\n", b"old 04\n", 1),
        lambda body: body.replace(b"old 4\n", b"old +4\n", 1),
        lambda body: body.replace(b"old 4\n", b"old %d\n" % (MAX_SIZE + 1), 1),
        lambda body: body.replace(b"old 4\n", b"old  4\n", 1),
        lambda body: body.replace(b"old 4\n", b"old 4\r\n", 1),
        lambda body: body.replace(b"=\n", b"\n", 1),
        lambda body: body.replace(b"old 4\n", b"old 4\nAAAA\n", 1),
        lambda body: body.replace(b"\n\n", b"\n", 1),
        lambda body: body.replace(b"old 4\n", b"old 4\n" + b"A" * 43 + b"=\n" * 64, 1),
        lambda body: body[:-1],
        lambda body: b"",
        lambda body: b"old 4\n\n",
        lambda body: "old ٤\n".encode() + body[6:],
    ],
)
def test_a_body_of_another_form_is_400(damage: object) -> None:
    assert callable(damage)
    body = HISTORY.request(4, 7).format()
    with pytest.raises(Malformed):
        AddCheckpoint.parse(damage(body))


def test_a_body_over_the_cap_is_not_read() -> None:
    with pytest.raises(TooLarge):
        AddCheckpoint.parse(b"old 0\n\n" + b"x" * MAX_REQUEST)
    with pytest.raises(Malformed):
        AddCheckpoint(0, (b"\0" * 32,) * 64, HISTORY.note(3))
    with pytest.raises(Malformed):
        AddCheckpoint(0, (b"\0" * 31,), HISTORY.note(3))


def test_an_unknown_log_is_404_before_verification() -> None:
    request = AddCheckpoint(0, (), HISTORY.note(3, OTHER_LOG))
    assert refused(request, None, NotFound).code == "witness.unknown-log"


def test_without_the_logs_signature_it_is_403() -> None:
    impostor = SignerKey(ORIGIN, KeyType.ED25519, b"\x07" * 32)
    changed = HISTORY.note(3).replace(b"\n3\n", b"\n4\n")
    by_witness = sign(HISTORY.checkpoint(3).format(), [WITNESSES[0]], time=NOW)
    for note in (HISTORY.note(3, impostor), changed, by_witness):
        for old in (0, 9):
            assert refused(AddCheckpoint(old, (), note), None, Unauthorized).code == "witness.signature"


def test_an_old_size_beyond_the_checkpoint_is_400() -> None:
    assert refused(AddCheckpoint(8, (), HISTORY.note(7)), seen(8), Malformed).code == "witness.request"


@pytest.mark.parametrize(("latest", "old", "new"), [(None, 3, 7), (5, 0, 7), (5, 4, 7), (5, 6, 7), (5, 4, 4), (5, 0, 0)])
def test_another_old_size_is_409_with_the_one_that_is_known(latest: int | None, old: int, new: int) -> None:
    refusal = refused(HISTORY.request(old, new), seen(latest) if latest else None, SizeConflict)
    assert isinstance(refusal, SizeConflict) and refusal.size == (latest or 0)


def test_another_root_of_the_same_size_is_422() -> None:
    assert FORK.root(9) != HISTORY.root(9)
    empty = sign(replace(HISTORY.checkpoint(0), root=b"\1" * 32).format(), [LOG])
    for request, latest in ((FORK.request(9, 9), seen(9)), (AddCheckpoint(0, (), empty), None)):
        assert refused(request, latest, Untrusted).code == "witness.root"


@pytest.mark.parametrize(("old", "new"), [(6, 9), (8, 9), (9, 20), (16, 20)])
def test_what_does_not_extend_the_last_one_is_422(old: int, new: int) -> None:
    assert refused(FORK.request(old, new), seen(old), Untrusted).code == "log.consistency"
    shorter = AddCheckpoint(old, HISTORY.proof(old, new)[:-1], HISTORY.note(new))
    assert refused(shorter, seen(old), Untrusted).code == "log.consistency"
    longer = AddCheckpoint(old, (*HISTORY.proof(old, new), b"\0" * 32), HISTORY.note(new))
    assert refused(longer, seen(old), Untrusted).code == "log.consistency"
    assert refused(AddCheckpoint(0, (b"\0" * 32,), HISTORY.note(new)), None, Untrusted).code == "log.consistency"


def test_a_witness_line_is_verified_from_its_answer() -> None:
    note, (first, second, _) = HISTORY.note(7), WITNESSES
    answer = cosigned(note, first, second).removeprefix(note)
    line = cosignature(answer, note, first.verifier)
    assert note + line == cosigned(note, first)
    for wrong in (answer.replace(b"w1.example", b"w9.example"), cosigned(HISTORY.note(8), first)[-110:], b"", b"no line\n"):
        with pytest.raises(TreatyError):
            cosignature(wrong, note, first.verifier)


def test_an_answer_that_makes_more_of_it_text_is_refused() -> None:
    note, witness = HISTORY.note(7), WITNESSES[0]
    text = HISTORY.checkpoint(7).format() + "\n— more text\n"
    line = sign(text, [witness], time=NOW).decode().removeprefix(text + "\n")
    with pytest.raises(Malformed) as refusal:
        cosignature(f"— more text\n\n{line}".encode(), note, witness.verifier)
    assert refusal.value.code == "witness.unreachable"


def test_a_quorum_counts_distinct_witnesses_of_one_checkpoint() -> None:
    quorum, note, head = Quorum.parse(VKEYS, 2), HISTORY.note(7), HISTORY.checkpoint(7)
    for few in (note, cosigned(note, WITNESSES[0]), cosigned(note, WITNESSES[0], witness_key("stranger.example"))):
        with pytest.raises(Untrusted) as refusal:
            quorum.check(few, head)
        assert refusal.value.code == "checkpoint.not-witnessed"
    quorum.check(cosigned(note, *WITNESSES[1:]), head)
    quorum.check(cosigned(note, *WITNESSES, witness_key("stranger.example")), head)
    for other in (HISTORY.checkpoint(8), FORK.checkpoint(7), replace(head, origin="other.example")):
        with pytest.raises(Untrusted):
            quorum.check(cosigned(note, *WITNESSES), other)
    twice = cosigned(note, WITNESSES[0])
    with pytest.raises(Untrusted):
        quorum.check(twice + twice.removeprefix(note), head)


def test_a_cosignature_that_does_not_verify_fails_them_all() -> None:
    note = cosigned(HISTORY.note(7), *WITNESSES)
    with pytest.raises(Untrusted) as refusal:
        Quorum.parse(VKEYS, 1).check(cosigned(HISTORY.note(8), *WITNESSES).replace(b"\n8\n", b"\n7\n"), HISTORY.checkpoint(7))
    assert refusal.value.code == "checkpoint.not-witnessed"
    Quorum.parse(VKEYS, 3).check(note, HISTORY.checkpoint(7))


def test_old_cosignatures_do_not_count() -> None:
    note = cosigned(cosigned(HISTORY.note(7), WITNESSES[0], time=NOW - 100), WITNESSES[1], time=NOW)
    Quorum.parse(VKEYS, 2).check(note, HISTORY.checkpoint(7), since=NOW - 100)
    with pytest.raises(Untrusted) as refusal:
        Quorum.parse(VKEYS, 2).check(note, HISTORY.checkpoint(7), since=NOW - 99)
    assert "1 of 3" in refusal.value.message


@pytest.mark.parametrize(
    ("keys", "needed"),
    [
        (VKEYS, 0),
        (VKEYS, 4),
        ((), 1),
        ((VKEYS[0], VKEYS[0]), 1),
        ((str(LOG.verifier),), 1),
        ((str(witness_key("w" * 81).verifier),), 1),
        (tuple(str(witness_key(f"w{n}").verifier) for n in range(17)), 1),
        ((VKEYS[0], str(SignerKey("another-name.example", KeyType.COSIGNATURE, WITNESSES[0].seed).verifier)), 2),
        ((VKEYS[0], str(SignerKey("w1.example", KeyType.COSIGNATURE, b"\2" * 32).verifier)), 2),
        (("w1.example",), 1),
    ],
)
def test_there_are_quorums_that_cannot_be_meant(keys: tuple[str, ...], needed: int) -> None:
    with pytest.raises(Malformed):
        Quorum.parse(keys, needed)


def test_a_quorum_of_sixteen_long_names_fits_a_statement() -> None:
    origin = "a" * 253 + ":65535"
    log, clock = SignerKey(origin, KeyType.ED25519, b"\1" * 32), SignerKey(f"{origin}/clock", KeyType.COSIGNATURE, b"\2" * 32)
    keys = [witness_key(f"{number:x}" * 80) for number in range(16)]
    head = replace(HISTORY.checkpoint(1, origin), size=MAX_SIZE)
    note = sign(head.format(), [log, clock, *keys], time=NOW)
    Quorum(tuple(key.verifier for key in keys), 16).check(note, head)
    assert len(note.decode()) <= 4096
