"""Which topics are counted when there are too many: half by weight, half by how long they wait."""

from __future__ import annotations

import pytest
from signers import domain_signer
from simulated_log import LogBuilder

from treaty_consensus.election import agenda
from treaty_consensus.election.agenda import counted_topics


@pytest.fixture(autouse=True)
def four_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agenda, "MAX_TOPICS", 4)


WEIGHTS = {"a": 9, "b": 8, "c": 7, "d": 6, "e": 5, "f": 4}


def test_where_there_are_places_for_all_all_are_counted() -> None:
    assert counted_topics("dcba", WEIGHTS, {"d": 3}) == ["a", "b", "c", "d"]


def test_half_of_the_places_go_to_the_heaviest() -> None:
    assert counted_topics("abcdef", WEIGHTS, {}) == ["a", "b", "c", "d"], "nobody waits, so the heavier come first"
    assert counted_topics("abcdef", WEIGHTS, {"e": 2, "f": 2}) == ["a", "b", "e", "f"]
    assert counted_topics("abcdef", WEIGHTS, {"f": 1, "e": 2, "d": 3}) == ["a", "b", "e", "f"]


def test_equal_topics_are_ordered_by_name() -> None:
    assert counted_topics("fedcba", dict.fromkeys("abcdef", 1), {}) == ["a", "b", "c", "d"]


def test_under_the_rule_before_only_weight_counts() -> None:
    assert counted_topics("abcdef", WEIGHTS, None) == ["a", "b", "c", "d"]


def test_no_topic_starves_whatever_is_heavier() -> None:
    """Four heavy topics more in each epoch do not keep a light one out for ever."""
    waiting: dict[str, int] = {}
    weights = {"light": 1}
    seen = []
    for epoch in range(12):
        weights |= {f"heavy-{epoch}-{number}": 9 for number in range(4)} if epoch < 4 else {}
        topics = counted_topics(weights, weights, waiting)
        seen.append("light" in topics)
        waiting = {topic: waiting.get(topic, epoch) for topic in weights.keys() - topics}
    assert any(seen[1:])


def test_a_decision_shows_news_of_a_twentieth_of_the_weight() -> None:
    log = LogBuilder()
    log.agents = tuple(domain_signer(f"member-{number:02}.example") for number in range(24))
    documents = {topic: log.candidate(topic, topic=topic) for topic in ("one", "two")}
    for _ in range(3):
        for topic, document in documents.items():
            log.everybody_reports(document, topic=topic)
        assert [decision.topic for decision in log.close()] == ["one", "two"]
    log.vote(log.agents[0], documents["two"], topic="two")
    assert [decision.topic for decision in log.close()] == ["one"], "it stands in: one of 24 is less than a twentieth"
    for agent in log.agents[:2]:
        log.vote(agent, topic="two")
    assert [decision.topic for decision in log.close()] == ["two"], "two are more, also by withdrawing"
    log.report(log.agents[0], log.agents[1], documents["two"], topic="two", outcome="failed")
    assert [decision.topic for decision in log.close()] == ["two"]
