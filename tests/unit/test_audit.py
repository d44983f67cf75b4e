"""Elections in a whole signed log: each transition's epoch, and what a decision says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from signers import ORIGIN, key_signer
from simulated_log import LogBuilder, document_hash

from treaty_consensus import canonical, facts, kinds, statement
from treaty_consensus.audit import Replay
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import Refused, Unavailable, Untrusted
from treaty_consensus.facts import ProtocolFact
from treaty_consensus.kinds import NONE, Decision
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.merkle import leaf_hash, node_hash
from treaty_consensus.sigstore_leaf import CertificateLeaf, RekordLeaf

NO_REPORTS = [{"condition": "pairs", "has": "0", "needs": "3"}, {"condition": "clusters", "has": "0", "needs": "2"}]


@pytest.fixture
def log() -> LogBuilder:
    return LogBuilder()


@pytest.fixture
def elected(log: LogBuilder) -> tuple[LogBuilder, str]:
    """A log whose topic has a consensus since epoch 2."""
    document = log.publish(log.agents[0], "product-info")
    log.everybody_reports(document)
    log.everybody_votes(document)
    for _ in range(3):
        log.close()
    return log, document


def reference_root(leaves: list[bytes]) -> bytes:
    """RFC 6962's definition of the root, straight from its recursion."""
    if len(leaves) == 1:
        return leaf_hash(leaves[0])
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return node_hash(reference_root(leaves[:split]), reference_root(leaves[split:]))


def replayed(log: LogBuilder) -> Replay:
    """The log again, from its leaves alone, by somebody who does not have the transcripts."""
    replay = Replay()
    for leaf in log.leaves:
        replay.append(leaf)
    return replay


def weights_of(matrix: object) -> list[list[int]]:
    """A matrix of decimal strings as multiples of ONE."""
    assert isinstance(matrix, list)
    return [[int(votes) // ONE for votes in row] for row in matrix]


def candidates(log: LogBuilder) -> list[dict[str, Any]]:
    """The candidates of the newest decision."""
    entries = log.newest_transcript()["candidates"]
    assert isinstance(entries, list)
    return entries


def test_from_published_to_consensus_epoch_by_epoch(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "product-info")
    log.everybody_reports(document)
    log.everybody_votes(document)
    assert [(log.epoch, *log.states(document)) for _ in range(4)] == [
        (0, "candidate"),
        (1, "provisional"),
        (2, "consensus"),
        (3, "consensus"),
    ]
    replayed(log).check_checkpoint(log.head())


def test_a_successor_a_repeal_and_a_dormant_one_epoch_by_epoch(elected: tuple[LogBuilder, str]) -> None:
    log, first = elected
    second = log.publish(log.agents[1], "product-info-two")
    log.everybody_reports(second)
    log.everybody_votes(second, first)
    assert [(log.epoch, *log.states(first, second)) for _ in range(3)] == [
        (3, "consensus", "candidate"),
        (4, "consensus", "provisional"),
        (5, "superseded", "consensus"),
    ]
    log.everybody_votes(NONE)
    assert [(log.epoch, *log.states(second)) for _ in range(2)] == [(6, "consensus"), (7, "repealed")]
    log.everybody_votes(first)
    assert [(log.epoch, *log.states(first)) for _ in range(2)] == [(8, "provisional"), (9, "consensus")]
    for agent in log.agents[:3]:
        log.vote(agent, NONE)
    assert [(log.epoch, *log.states(first)) for _ in range(4)] == [
        (10, "consensus"),
        (11, "consensus"),
        (12, "consensus"),
        (13, "dormant"),
    ]
    replayed(log).check_checkpoint(log.head())


def test_reports_alone_elect_by_implied_ballots(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "product-info")
    log.everybody_reports(document)
    assert [log.states(document) for _ in range(3)] == [["candidate"], ["provisional"], ["consensus"]]
    transcript = log.newest_transcript()
    assert transcript["ballots"] == {"explicit": 0, "implied": 5}
    assert transcript["total"] == str(5 * ONE)


def test_an_unpublished_document_is_no_candidate(log: LogBuilder) -> None:
    document = document_hash("secret")
    log.publish(log.agents[0], "elsewhere", topic="other", text="secret")
    log.everybody_reports(document)
    log.everybody_votes(document)
    assert log.states(document) == ["published"]
    transcript = log.newest_transcript()
    assert transcript["candidates"] == []
    assert transcript["nominees"] == [
        {
            "hash": document,
            "pairs": 5,
            "clusters": 5,
            "weight": str(5 * ONE),
            "approval": str(5 * ONE),
            "missing": [{"condition": "published", "has": "0", "needs": "1"}],
        }
    ]
    log.publish(log.agents[0], "at-last", text="secret")
    assert log.states(document) == ["candidate"]


def test_a_documents_age_counts_from_its_topic(log: LogBuilder) -> None:
    alpha, bravo, *_ = log.agents
    document = log.publish(alpha, "product-info")
    first = log.replay.size - 1
    log.publish(bravo, "the-same", text="product-info")
    log.everybody_reports(document)
    log.close()
    assert [entry["index"] for entry in candidates(log)] == [first]


@pytest.mark.threat(35)
def test_equivocators_weigh_nothing(log: LogBuilder) -> None:
    alpha, bravo, charlie, *_ = log.agents
    document, other = log.publish(alpha, "one"), log.publish(bravo, "two")
    nid = log.report(alpha, bravo, document)
    log.report(bravo, charlie, document)
    log.report(alpha, charlie, document)
    assert log.states(document) == ["candidate"]
    log.report(alpha, bravo, other, nid=nid)
    assert log.states(document) == ["published"]
    assert log.newest_transcript()["nominees"] == [
        {"hash": hash, "pairs": 0, "clusters": 0, "weight": "0", "approval": "0", "missing": NO_REPORTS}
        for hash in (document, other)
    ]
    with pytest.raises(Untrusted, match="already been reported"):
        log.report(alpha, bravo, document, nid=nid)


def test_keys_without_a_domain_vote_for_nothing(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "product-info")
    keys = [key_signer(f"key {n}") for n in range(8)]
    for first, second in pairwise(keys):
        log.report(first, second, document)
        log.vote(first, document)
    assert log.close() == [], "a topic in which nobody who counts reported or voted is not decided"
    log.vote(log.agents[0], NONE)
    assert log.states(document) == ["published"]
    assert log.newest_transcript()["total"] == str(ONE)


def test_the_transcript_of_a_first_decision(log: LogBuilder) -> None:
    alpha, bravo, charlie, delta, echo = log.agents
    one, two = log.publish(alpha, "one"), log.publish(bravo, "two")
    for pair in [(alpha, bravo), (bravo, charlie), (charlie, alpha)]:
        log.report(*pair, one)
    for pair in [(charlie, delta), (delta, echo), (echo, charlie)]:
        log.report(*pair, two)
    log.vote(alpha, one)
    log.vote(bravo, one, two)
    log.vote(delta, two, one)
    log.vote(echo, (two, NONE))
    head = log.head()
    (decision,) = log.close()
    transcript = log.newest_transcript()
    published = {f.document: f.index for f in log.replay.facts.values() if isinstance(f, ProtocolFact)}
    entries = candidates(log)
    assert [(entry["hash"], entry["index"]) for entry in entries] == [(one, published[one]), (two, published[two])]
    assert transcript["input"] == {"size": head.size, "root": head.root.hex()}
    # charlie has no ballot: two reports for each, so one = two > NONE
    assert transcript["ballots"] == {"explicit": 4, "implied": 1}
    assert weights_of(transcript["pairwise"]) == [[0, 2, 4], [2, 0, 3], [1, 1, 0]]
    assert transcript["order"] == [one, two, NONE]
    assert transcript["ties"] == [{"rank": 0, "tied": [one, two], "chosen": one}]
    assert transcript["transitions"] == [
        {"hash": document, "from": "published", "to": "candidate"} for document in sorted([one, two])
    ]
    assert decision.states == ((one, "candidate"), (two, "candidate"))
    assert (decision.epoch, decision.consensus, decision.previous, decision.remaining) == (0, None, None, 0)
    assert decision.transcript.sha256 == canonical.hex_digest(log.transcripts[max(log.transcripts)])
    assert {"condition": "schulze-place", "has": "2", "needs": "1", "against": one} in entries[1]["missing"]
    assert {"condition": "unbeaten", "has": str(2 * ONE), "needs": str(2 * ONE + 1), "against": one} in entries[1]["missing"]


def test_each_decision_names_the_one_before(elected: tuple[LogBuilder, str]) -> None:
    log, document = elected
    decisions = [statement.parse(log.leaves[index]) for index in sorted(log.transcripts)]
    assert [decision.body.previous for decision in decisions if isinstance(decision.body, Decision)] == [
        None,
        decisions[0].id,
        decisions[1].id,
    ]
    assert log.newest_transcript()["previous"] == decisions[1].id
    assert log.newest_transcript()["consensus"] == document


def test_all_topics_of_an_epoch_are_decided_at_once_in_order(log: LogBuilder) -> None:
    for number, topic in enumerate(("zoo", "alpha", "middle/part")):
        log.candidate(f"protocol-{number}", topic=topic)
    until = log.head()
    decisions = log.close()
    assert [(d.topic, d.remaining) for d in decisions] == [("alpha", 2), ("middle/part", 1), ("zoo", 0)]
    assert {d.input for d in decisions} == {kinds.Input(until.size, until.root.hex())}
    assert log.epoch == 1
    replayed(log).check_checkpoint(log.head())


def test_while_an_epoch_is_being_closed_nothing_else_is_taken(log: LogBuilder) -> None:
    for topic in ("alpha", "beta"):
        log.candidate(topic, topic=topic)
    first, second = log.replay.decide()
    log.add(first.decision, log.operator)
    assert log.replay.decide() == [second], "what is still missing, after a restart too"
    assert replayed(log).decide() == [second]
    with pytest.raises(Untrusted) as refusal:
        log.vote(log.agents[0], NONE)
    assert isinstance(refusal.value.__cause__, Unavailable) and refusal.value.__cause__.code == "log.closing"
    log.append(CertificateLeaf(b"certificate").encode())
    log.add(second.decision, log.operator)
    log.vote(log.agents[0], NONE)
    assert log.epoch == 1


def test_a_log_without_reports_or_votes_has_nothing_to_decide(log: LogBuilder) -> None:
    log.publish(log.agents[0], "product-info")
    assert log.replay.decide() == []
    replay = Replay()
    with pytest.raises(Refused, match="no genesis"):
        replay.decide()
    replay.append(log.leaves[0])
    with pytest.raises(Refused, match="no parameters"):
        replay.decide()


def test_new_parameters_hold_from_the_next_epoch(log: LogBuilder) -> None:
    document = log.publish(log.agents[0], "product-info")
    log.everybody_reports(document)
    statement = log.add(msgspec.structs.replace(development_parameters(), candidate_pairs=9), log.operator)
    for topic in ("one", "two"):
        log.candidate(topic, topic=topic)
    before, *others = log.close()
    assert before.states == ((document, "candidate"),) and {d.parameters for d in others} == {before.parameters}
    assert len(others) == 2
    after, *_ = log.close()
    assert after.states == ((document, "published"),) and after.parameters == statement.id != before.parameters
    replayed(log).check_checkpoint(log.head())


def test_the_root_is_that_of_the_leaves(elected: tuple[LogBuilder, str]) -> None:
    log, _ = elected
    replay = Replay()
    for size, leaf in enumerate(log.leaves, 1):
        replay.append(leaf)
        assert replay.root() == reference_root(log.leaves[:size])
    assert replay.size == len(log.leaves)


def test_two_replays_agree_to_the_byte(elected: tuple[LogBuilder, str]) -> None:
    log, document = elected
    log.vote(log.agents[0], NONE, document)
    first, second = replayed(log), replayed(log)
    assert (first.root(), first.facts, first.decide()) == (second.root(), second.facts, second.decide())
    assert first.decide() == log.replay.decide() != []


def test_verified_statements_need_not_be_verified_again(elected: tuple[LogBuilder, str]) -> None:
    log, _ = elected
    replay = Replay()
    for leaf in log.leaves:
        entry = statement.parse(leaf)
        keys = {key: value for did in entry.authors for key, value in facts.keys_of(replay.facts, did).items()}
        replay.apply(statement.verify(entry, keys))
    assert (replay.root(), replay.facts) == (log.replay.root(), log.replay.facts)


def test_a_hashedrekord_needs_its_certificate_before_it(log: LogBuilder) -> None:
    rekord = RekordLeaf(bytes(32), b"signature", b"certificate").encode()
    size, root = log.replay.size, log.replay.root()
    with pytest.raises(Untrusted) as refusal:
        log.append(rekord)
    assert refusal.value.code == "audit.leaf"
    assert (log.replay.size, log.replay.root()) == (size, root)
    log.append(CertificateLeaf(b"certificate").encode())
    log.append(rekord)
    replayed(log).check_checkpoint(log.head())


def test_a_checkpoint_is_of_exactly_these_leaves(elected: tuple[LogBuilder, str]) -> None:
    log, _ = elected
    size, root = log.replay.size, log.replay.root()
    log.replay.check_checkpoint(Checkpoint(ORIGIN, size, root))
    for wrong in (
        Checkpoint("other.example", size, root),
        Checkpoint(ORIGIN, size - 1, root),
        Checkpoint(ORIGIN, size, bytes(32)),
    ):
        with pytest.raises(Untrusted) as refusal:
            log.replay.check_checkpoint(wrong)
        assert refusal.value.code == "audit.leaf"
