"""Names of topics are free: whoever invents them by the thousand, or the million, keeps no epoch from being closed."""

from __future__ import annotations

from itertools import product

import pytest
from signers import domain_signer, key_signer
from simulated_log import TOPIC, LogBuilder, open_log, suffix_blob

from treaty_consensus.audit import Replay
from treaty_consensus.election import agenda
from treaty_consensus.kinds import NONE

INVENTED = [f"invented/{number}" for number in range(12)]


def decided(log: LogBuilder) -> list[str]:
    """Close the epoch, and audit the log; the topics that were decided."""
    topics = [decision.topic for decision in log.close()]
    replay = Replay(suffix_blob)
    for leaf in log.leaves:
        replay.append(leaf)
    replay.check_checkpoint(log.head())
    return topics


@pytest.mark.threat(75)
def test_whoever_is_not_heard_opens_no_topic() -> None:
    log = open_log()
    document = log.publish(log.agents[0], "one")
    strangers = domain_signer("stranger.example"), domain_signer("sub.anchor-00.example"), key_signer("nobody")
    for number, topic in enumerate(INVENTED):
        log.vote(strangers[number % 3], document, topic=topic)
        log.report(strangers[number % 3], strangers[(number + 1) % 3], document, topic=topic)
        log.report(log.agents[0], strangers[number % 3], document, topic=topic)
    assert decided(log) == []
    log.vote(log.agents[1], document)
    assert decided(log) == [TOPIC]


def test_ballots_alone_open_no_topic() -> None:
    """One member casts a ballot in each of a dozen invented topics; its weight in them is 0."""
    log = open_log()
    document = log.publish(log.agents[0], "one")
    for topic in INVENTED:
        log.vote(log.agents[0], NONE, topic=topic)
    log.vote(log.agents[1], document)
    # Epochs go on by one decision each, for the topic with the most weight.
    assert [len(decided(log)) for _ in range(4)] == [1, 1, 1, 1]


def test_an_epoch_that_changes_nothing_costs_one_decision() -> None:
    log = LogBuilder()
    for topic in INVENTED:
        log.candidate(topic.replace("/", "-"), topic=topic)
    elected = [decided(log) for _ in range(3)]
    assert elected == [sorted(INVENTED)] * 3, "candidate, provisional, consensus"
    assert [len(decided(log)) for _ in range(3)] == [1, 1, 1], "nothing changes any more"
    log.vote(log.agents[0], NONE, topic=INVENTED[7])
    assert decided(log) == [INVENTED[7]], "a ballot is news, once"
    assert decided(log) == [min(INVENTED)]


def test_a_state_that_changes_without_news_is_decided() -> None:
    """After a vote against it a consensus is dormant in the fourth epoch, in which nothing else happens."""
    log = LogBuilder()
    documents = {topic: log.candidate(topic.replace("/", "-"), topic=topic) for topic in INVENTED[:3]}
    for _ in range(3):
        log.close()
    for agent, topic in product(log.agents[:3], documents):
        log.vote(agent, NONE, topic=topic)
    closed = [{d.topic: dict(d.states)[documents[d.topic]] for d in log.close()} for _ in range(4)]
    assert closed == [
        dict.fromkeys(documents, "consensus"),
        {INVENTED[0]: "consensus"},
        {INVENTED[0]: "consensus"},
        dict.fromkeys(documents, "dormant"),
    ]


@pytest.mark.threat(75)
def test_an_epoch_decides_the_most_spoken_topics_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agenda, "MAX_TOPICS", 3)
    log = LogBuilder()
    for number in (4, 2, 0):
        log.candidate(f"light-{number}", topic=INVENTED[number])
    document = log.candidate("heavy", topic=INVENTED[5])
    newcomer = domain_signer("newcomer.example")
    log.report(log.agents[0], newcomer, document, topic=INVENTED[5])
    assert decided(log) == [INVENTED[0], INVENTED[2], INVENTED[5]]


def test_a_topic_that_waits_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogBuilder()
    document = log.candidate("first", topic=TOPIC)
    assert log.states(document) == ["candidate"]
    assert log.states(document) == ["provisional"]
    log.candidate("second", topic="busy")
    with monkeypatch.context() as patch:
        patch.setattr(agenda, "MAX_TOPICS", 1)
        assert decided(log) == ["busy"], "as many speak of both, and it sorts first"
    assert log.states(document) == ["consensus"]
