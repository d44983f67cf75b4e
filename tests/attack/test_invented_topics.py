"""Names of topics are free: whoever invents them by the thousand, or the million, keeps no epoch from being closed."""

from __future__ import annotations

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


def test_a_topic_is_closed_for_good_when_nobody_speaks_of_it_any_more() -> None:
    log = open_log()
    document = log.publish(log.agents[0], "one")
    log.vote(log.agents[0], document, topic=INVENTED[0])
    log.vote(log.agents[1], NONE)
    assert decided(log) == [TOPIC, INVENTED[0]]
    log.vote(log.agents[0], topic=INVENTED[0])
    assert decided(log) == [TOPIC]


@pytest.mark.threat(75)
def test_an_epoch_decides_so_many_topics_and_those_that_most_speak_of_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agenda, "MAX_TOPICS", 3)
    log = open_log()
    document = log.publish(log.agents[0], "one")
    for topic in INVENTED:
        log.vote(log.agents[0], document, topic=topic)
    for agent in log.agents[1:3]:
        log.vote(agent, document)
    assert decided(log) == [TOPIC, INVENTED[0], INVENTED[1]]


def test_a_topic_that_waits_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogBuilder()
    document = log.publish(log.agents[0], "one")
    log.everybody_reports(document)
    assert log.states(document) == ["candidate"]
    assert log.states(document) == ["provisional"]
    log.everybody_reports(document, topic="busy")
    with monkeypatch.context() as patch:
        patch.setattr(agenda, "MAX_TOPICS", 1)
        assert decided(log) == ["busy"], "as many speak of both, and it sorts first"
    assert log.states(document) == ["consensus"]
