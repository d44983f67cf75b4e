"""Threat: the operator, or whoever holds the log, lies about an election. An auditor with the leaves alone finds out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
from signers import ORIGIN, domain_signer, key_signer, signed
from simulated_log import TOPIC, LogBuilder, document_hash

from treaty_consensus import canonical, statement
from treaty_consensus.audit import Replay
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import NotFound, Refused, TreatyError, Unauthorized, Untrusted
from treaty_consensus.kinds import NONE, Ballot, Blob, Decision, Input, Status


@pytest.fixture(scope="module")
def honest() -> LogBuilder:
    """An election with a consensus at the end. Nobody writes to it."""
    log = LogBuilder()
    document = log.publish(log.agents[0], "product-info")
    log.everybody_reports(document)
    log.everybody_votes(document)
    for _ in range(3):
        log.close()
    return log


@pytest.fixture
def log() -> LogBuilder:
    """The same, open to be written to and one epoch short of its consensus."""
    log = LogBuilder()
    document = log.publish(log.agents[0], "product-info")
    log.everybody_reports(document)
    log.everybody_votes(document)
    log.close()
    log.close()
    return log


def rejects(leaves: Sequence[bytes], *blobs: bytes) -> tuple[int, Untrusted]:
    """Replay until a leaf is refused, see that the refusal changed nothing, and return where and why. `blobs`: what is served."""
    replay = Replay(serving(*blobs))
    for index, leaf in enumerate(leaves):
        before = replay.size, replay.root(), dict(replay.facts)
        try:
            replay.append(leaf)
        except Untrusted as refusal:
            assert (replay.size, replay.root(), dict(replay.facts)) == before
            return index, refusal
    pytest.fail("the auditor took it all")


def serving(*blobs: bytes) -> Callable[[str], bytes]:
    by_digest = {hex_digest(data): data for data in blobs}

    def blob(sha256: str) -> bytes:
        if sha256 not in by_digest:
            raise NotFound("blob.missing", f"There is no blob {sha256}.")
        return by_digest[sha256]

    return blob


def decision_indexes(log: LogBuilder) -> list[int]:
    return sorted(log.transcripts)


def resigned(log: LogBuilder, index: int, **changes: object) -> bytes:
    """A decision with other contents, signed by the operator as if nothing were."""
    decision = statement.parse(log.leaves[index])
    body = msgspec.structs.replace(decision.body, **changes)
    return signed(body, log.operator, issued=decision.issued).leaf


def test_the_honest_log_is_accepted(honest: LogBuilder) -> None:
    replay = Replay()
    for leaf in honest.leaves:
        replay.append(leaf)
    replay.check_checkpoint(honest.head())


@pytest.mark.threat(23)
def test_any_byte_of_any_leaf_flipped(honest: LogBuilder) -> None:
    """The bytes of a leaf are bound by its form and its signatures, so nothing can be changed without a key."""
    for index, leaf in enumerate(honest.leaves):
        for at in range(0, len(leaf), 97):
            flipped = leaf[:at] + bytes([leaf[at] ^ 1]) + leaf[at + 1 :]
            where, refusal = rejects([*honest.leaves[:index], flipped])
            assert where == index and refusal.code == "audit.leaf", at


@pytest.mark.threat(22)
@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("body.consensus = ", {"consensus": document_hash("another one")}),
        ("body.consensus = ", {"consensus": None}),
        ("body.states[0][1] = ", {"states": ((document_hash("product-info"), "repealed"),)}),
        ("body.states.length = 0", {"states": ()}),
        ("body.remaining = 1", {"remaining": 1}),
        ("body.transcript.sha256 = ", {"transcript": Blob("0" * 64, 5)}),
    ],
)
def test_a_decision_that_is_not_what_was_voted(honest: LogBuilder, path: str, changes: dict[str, object]) -> None:
    last = decision_indexes(honest)[-1]
    where, refusal = rejects([*honest.leaves[:last], resigned(honest, last, **changes)])
    assert (where, refusal.code) == (last, "audit.decision")
    assert f"Leaf {last} is a decision, of {TOPIC} in epoch 2, with {path}" in refusal.message
    missing = "its transcript is not served, so no place in it can be named" in refusal.message
    assert missing == ("transcript" in changes)


def test_a_decision_with_a_root_that_is_not_its_input(honest: LogBuilder) -> None:
    last = decision_indexes(honest)[-1]
    _, refusal = rejects([*honest.leaves[:last], resigned(honest, last, input=Input(last, "0" * 64))])
    assert refusal.code == "audit.decision" and "body.input.root = " in refusal.message


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("decision.rule", {"epoch": 3}),
        ("decision.rule", {"epoch": 1}),
        ("decision.rule", {"input": Input(5, "0" * 64)}),
        ("statement.previous", {"previous": "0" * 64}),
        ("statement.previous", {"previous": None}),
        ("statement.previous", {"topic": "another/topic"}),
        ("decision.rule", {"parameters": "0" * 64}),
    ],
)
def test_a_decision_out_of_place(honest: LogBuilder, code: str, changes: dict[str, object]) -> None:
    last = decision_indexes(honest)[-1]
    where, refusal = rejects([*honest.leaves[:last], resigned(honest, last, **changes)])
    assert (where, refusal.code) == (last, "audit.leaf")
    assert isinstance(refusal.__cause__, Refused) and refusal.__cause__.code == code


def test_an_epoch_left_out(honest: LogBuilder) -> None:
    first, second, _ = decision_indexes(honest)
    where, refusal = rejects([*honest.leaves[:first], *honest.leaves[second:]])
    assert (where, refusal.code) == (first, "audit.leaf")


def test_a_decision_where_nobody_voted(honest: LogBuilder) -> None:
    first = decision_indexes(honest)[0]
    head = honest.leaves[:2]
    replay = Replay()
    for leaf in head:
        replay.append(leaf)
    early = resigned(honest, first, input=Input(2, replay.root().hex()))
    _, refusal = rejects([*head, early])
    assert refusal.code == "audit.decision"


def test_a_decision_by_somebody_else(honest: LogBuilder) -> None:
    last = decision_indexes(honest)[-1]
    body = statement.parse(honest.leaves[last]).body
    for signer in (key_signer("another operator"), honest.agents[0]):
        _, refusal = rejects([*honest.leaves[:last], signed(body, signer).leaf])
        assert isinstance(refusal.__cause__, Unauthorized)


def lying(blob: bytes, *path: str | int) -> bytes:
    """The same transcript or roll, but for one number."""
    value = canonical.parse_json(blob, limit=2**20)
    *way, last = path
    place = value
    for name in way:
        place = place[name]
    assert place[last] != "7"
    place[last] = "7"
    return canonical.dumps(value)


def named(blob: bytes) -> Blob:
    return Blob(hex_digest(blob), len(blob))


def test_a_wrong_transcript_is_explained(honest: LogBuilder) -> None:
    last = decision_indexes(honest)[-1]
    wrong = lying(honest.transcripts[last], "pairwise", 0, 1)
    leaf = resigned(honest, last, transcript=named(wrong))
    where, refusal = rejects([*honest.leaves[:last], leaf], wrong)
    assert (where, refusal.code) == (last, "audit.decision")
    choices = f"{document_hash('product-info')[:12]} over none"
    assert f'transcript.pairwise[0][1] ({choices}) = "7"; recomputed from the log it is "21474836480"' in refusal.message


@pytest.mark.threat(22)
def test_a_wrong_weight_is_explained(honest: LogBuilder) -> None:
    """The roll comes before the transcript that follows from it."""
    last = decision_indexes(honest)[-1]
    wrong, follows = lying(honest.rolls[2], "principals", 0, 3), lying(honest.transcripts[last], "total")
    leaf = resigned(honest, last, roll=named(wrong), transcript=named(follows))
    where, refusal = rejects([*honest.leaves[:last], leaf], follows, wrong)
    assert (where, refusal.code) == (last, "audit.decision")
    meaning = f"weight of {honest.agents[0].did}"
    assert f'roll.principals[0][3] ({meaning}) = "7"; recomputed from the log it is "4294967296"' in refusal.message


@pytest.mark.threat(22)
def test_all_wrong_decisions_are_found_where_that_is_asked_for() -> None:
    """An operator that lies twice, with honest epochs between. The replay goes on from its own result."""
    lies: list[Untrusted] = []
    log = LogBuilder(replay=Replay(differing=lies.append))
    document = log.publish(log.agents[0], "product-info")
    log.everybody_reports(document)
    for epoch in range(4):
        (due,) = log.replay.decide()
        decision = due.decision if epoch % 2 else msgspec.structs.replace(due.decision, consensus="ab" * 32)
        log.add(decision, log.operator)
    assert [error.code for error in lies] == ["audit.decision"] * 2
    again: list[Untrusted] = []
    replay = Replay(differing=again.append)
    for leaf in log.leaves:
        replay.append(leaf)
    replay.check_checkpoint(log.head())
    assert [error.message for error in again] == [error.message for error in lies]
    assert all(f"in epoch {epoch}" in error.message for epoch, error in zip((0, 2), lies, strict=True))
    where, refusal = rejects(log.leaves)
    assert (log.leaves[where], refusal.message) == (log.leaves[where], lies[0].message)


@pytest.mark.threat(22)
def test_a_wrong_decision_may_withhold_its_evidence(honest: LogBuilder) -> None:
    last = decision_indexes(honest)[-1]
    for garbage in (b"", b"{", honest.transcripts[last] + b" ", b"\xff" * 100):
        for name in ("roll", "transcript"):
            leaf = resigned(honest, last, **{name: named(garbage)})
            where, refusal = rejects([*honest.leaves[:last], leaf])
            assert (where, refusal.code) == (last, "audit.decision")
            assert f"body.{name}.sha256 = " in refusal.message
            where, refusal = rejects([*honest.leaves[:last], leaf], garbage)
            assert (where, refusal.code) == (last, "audit.decision") and refusal.__cause__ is not None


def test_a_blob_other_than_the_decisions_is_served(honest: LogBuilder) -> None:
    """What is not what it is called explains nothing."""
    last = decision_indexes(honest)[-1]
    wrong = lying(honest.transcripts[last], "total")
    leaf = resigned(honest, last, transcript=named(wrong))
    replay = Replay(lambda _: lying(wrong, "epoch"))
    for before in honest.leaves[:last]:
        replay.append(before)
    with pytest.raises(Untrusted) as refusal:
        replay.append(leaf)
    assert "body.transcript.sha256 = " in refusal.value.message


def test_a_statement_dropped(honest: LogBuilder) -> None:
    """A log with a hole: the next decision, if not a rule before it, no longer fits."""
    for index in range(2, decision_indexes(honest)[0]):
        where, refusal = rejects([*honest.leaves[:index], *honest.leaves[index + 1 :]])
        assert index <= where < len(honest.leaves) - 1 and refusal.code == "audit.leaf"


def test_a_ballot_suppressed_by_the_operator(log: LogBuilder) -> None:
    """The operator logs everything but one ballot, yet decides as if it were there; or the other way round."""
    silent, loud = Replay(), Replay()
    against = log.vote(log.agents[0], NONE).leaf
    for leaf in log.leaves[:-1]:
        silent.append(leaf)
        loud.append(leaf)
    loud.append(against)
    (quiet,), (heard,) = ([due.decision for due in replay.decide()] for replay in (silent, loud))
    assert quiet.consensus is not None
    for logged, true, pretended in ((silent, quiet, heard), (loud, heard, quiet)):
        lie = msgspec.structs.replace(pretended, input=true.input)
        with pytest.raises(Untrusted) as refusal:
            logged.append(signed(lie, log.operator).leaf)
        assert refusal.value.code == "audit.decision"
        logged.append(signed(true, log.operator).leaf)


def test_leaves_reordered(honest: LogBuilder) -> None:
    """Any two neighbours swapped: a rule, an input root or the final checkpoint tells."""
    for index in range(len(honest.leaves) - 1):
        leaves = list(honest.leaves)
        leaves[index], leaves[index + 1] = leaves[index + 1], leaves[index]
        where, refusal = rejects(leaves)
        assert where >= index and refusal.code in ("audit.leaf", "audit.decision")


def test_a_forged_ballot(log: LogBuilder) -> None:
    victim = log.agents[0]
    thief = key_signer("thief")
    body = Ballot(TOPIC, 1, ((NONE,),), "checkpoint")
    draft = statement.draft(body, log=ORIGIN, by=(victim.key_id,), issued=0)
    forged = draft.seal({victim.key_id: thief.sign(draft.signing_input)})
    index, refusal = rejects([*log.leaves, forged.leaf])
    assert (index, refusal.code) == (len(log.leaves), "audit.leaf")
    assert isinstance(refusal.__cause__, Unauthorized) and refusal.__cause__.code == "statement.signature-invalid"


def test_a_ballot_of_a_stranger_or_for_another_log(log: LogBuilder) -> None:
    body = Ballot(TOPIC, 0, ((NONE,),), "checkpoint")
    _, refusal = rejects([*log.leaves, signed(body, domain_signer("stranger.example")).leaf])
    assert refusal.code == "audit.leaf"
    elsewhere = signed(Ballot(TOPIC, 1, ((NONE,),), "checkpoint"), log.agents[0], log="other.example")
    _, refusal = rejects([*log.leaves, elsewhere.leaf])
    assert cause(refusal) == "statement.other-log"


@pytest.mark.threat(23)
def test_a_statement_logged_twice(log: LogBuilder) -> None:
    """An old status, logged once more, would undo the newer one."""
    uri = f"https://{ORIGIN}/protocols/alpha.example/product-info/1.0"
    old = log.add(Status(uri, "active"), log.agents[0])
    log.add(Status(uri, "revoked"), log.agents[0])
    index, refusal = rejects([*log.leaves, old.leaf])
    assert (index, refusal.code) == (len(log.leaves), "audit.leaf")


@pytest.mark.threat(22)
def test_a_topic_hidden_from_its_epoch(log: LogBuilder) -> None:
    """Two topics are due. The operator decides one and says that was all, or decides them in another order."""
    log.candidate("zoo-keeping", topic="zoo")
    first, second = (due.decision for due in log.replay.decide())
    alone = msgspec.structs.replace(first, remaining=0)
    _, refusal = rejects([*log.leaves, signed(alone, log.operator).leaf])
    assert refusal.code == "audit.decision" and "body.remaining = 0" in refusal.message
    hidden: Decision = msgspec.structs.replace(second, remaining=0)
    _, refusal = rejects([*log.leaves, signed(hidden, log.operator).leaf])
    assert refusal.code == "audit.decision"
    _, refusal = rejects([*log.leaves, signed(first, log.operator).leaf, signed(first, log.operator, issued=1).leaf])
    assert cause(refusal) in ("decision.rule", "statement.previous")


def cause(refusal: Untrusted) -> str:
    assert isinstance(refusal.__cause__, TreatyError)
    return refusal.__cause__.code
