"""Counting is a sum: parts of the ballots, counted apart and in any order, add up to the count of all of them; and each topic is
decided apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any, TypeAlias

import numpy as np
from depth import examples
from elections import tiered, voter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_log import LogBuilder

from treaty_consensus.canonical import parse_json
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.ballot import Ballots, Count, Implied, Votes, approvals, approved, count, votes
from treaty_consensus.election.principals import PrincipalDirectory
from treaty_consensus.kinds import NONE

CANDIDATES = ("a", "b", "c", "d")
EPOCH = 20


@st.composite
def topics(draw: st.DrawFn) -> tuple[Votes, dict[str, str]]:
    """The votes of a topic, faded and ripened, explicit and implied; and everybody's cluster."""
    choices = (*CANDIDATES, "unknown", NONE)
    ranks = st.lists(st.integers(0, 3), min_size=len(choices), max_size=len(choices))
    tiers = ranks.map(lambda draft: tuple(tuple(choices[c] for c in tier) for tier in tiered(draft)))
    voters = [voter(number) for number in range(draw(st.integers(1, 12)))]
    ballots, implied = Ballots(PrincipalDirectory()), {}
    for did in voters:
        if draw(st.booleans()):
            implied[did] = Implied((draw(st.sampled_from(CANDIDATES)),), draw(st.integers(0, EPOCH)), draw(st.integers(0, EPOCH)))
        else:
            ballots.cast(did, draw(tiers), draw(st.integers(0, EPOCH)))
    weights = {did: draw(st.integers(1, ONE)) for did in voters}
    clusters = {did: draw(st.sampled_from(["one", "two", "three"])) for did in voters}
    return votes(ballots, implied, weights, EPOCH, draw(st.sampled_from([None, 5]))), clusters


def rows(votes: Votes, places: list[int]) -> Votes:
    """Some of the votes, in some order."""
    index = np.array(places, dtype=np.int64)
    columns = ("ranking", "principal", "weight", "age", "held")
    return replace(votes, **{name: getattr(votes, name)[index] for name in columns})


def plus(one: Count, other: Count) -> Count:
    def added(mine: list[dict[str, int]], theirs: list[dict[str, int]]) -> list[dict[str, int]]:
        return [dict(Counter(a) + Counter(b)) for a, b in zip(mine, theirs, strict=True)]

    matrix = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(one.pairwise, other.pairwise, strict=True)]
    sides = added(one.above, other.above), added(one.below, other.below)
    return Count(one.choices, one.total + other.total, matrix, *sides)


@given(topics(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_shards_add_up_in_any_order(election: tuple[Votes, dict[str, str]], random: Random, shards: int) -> None:
    cast, clusters = election
    order = list(range(len(cast.weight)))
    random.shuffle(order)
    parts = [rows(cast, order[shard::shards]) for shard in range(shards)]
    whole, counted = count(cast, CANDIDATES, clusters), [count(part, CANDIDATES, clusters) for part in parts]
    random.shuffle(counted)
    sum_of_parts = counted[0]
    for part in counted[1:]:
        sum_of_parts = plus(sum_of_parts, part)
    # A principal may vote in several shards, so voters do not add up.
    assert replace(sum_of_parts, voters=[]) == replace(whole, voters=[])
    assert sum((Counter(approved(approvals(part))) for part in parts), Counter()) == +Counter(approved(approvals(cast)))
    assert np.sum([part.by_principal() for part in parts], axis=0).tolist() == cast.by_principal().tolist()


@given(topics())
def test_no_vote_counts_twice_or_not_at_all(election: tuple[Votes, dict[str, str]]) -> None:
    """Each pair of choices divides all the weight into those for it, those against it and those who tie it."""
    cast, clusters = election
    whole = count(cast, CANDIDATES, clusters)
    assert whole.total == sum(cast.weight.tolist()) == sum(cast.by_principal().tolist())
    for a in range(len(CANDIDATES)):
        assert sum(whole.above[a].values()) == whole.pairwise[a][-1]
        assert sum(whole.below[a].values()) == whole.pairwise[-1][a]
        assert all(whole.pairwise[a][b] + whole.pairwise[b][a] <= whole.total for b in range(len(CANDIDATES) + 1))


actions = st.tuples(
    st.sampled_from(["one", "two"]),
    st.sampled_from(list(combinations(range(5), 2))),
    st.integers(0, 1),
    st.permutations([0, 1, 2]).map(lambda order: order[:2]),
)
Script: TypeAlias = list[list[tuple[str, tuple[int, int], int, list[int]]]]
epochs = st.lists(st.lists(actions, min_size=8, max_size=16), min_size=1, max_size=4)


POSITIONS = {"epoch", "input", "previous", "parameters", "identities"}
"""What a transcript says of where in which log it stands."""


def outcome(transcript: dict[str, Any]) -> dict[str, Any]:
    """The rest of it."""
    candidates = [{name: value for name, value in entry.items() if name != "index"} for entry in transcript["candidates"]]
    return {name: value for name, value in transcript.items() if name not in POSITIONS} | {"candidates": candidates}


def decided(script: Script, topics: list[str]) -> list[dict[str, Any] | None]:
    """The decisions of the first of the topics, one an epoch or None, where only these are spoken of."""
    log = LogBuilder()
    log.identify(*log.agents)
    choices = {topic: [*(log.publish(log.agents[n], f"{topic}-{n}", topic=topic) for n in range(2)), NONE] for topic in topics}
    outcomes_of = []
    for epoch in script:
        for topic, (one, other), document, order in epoch:
            if topic in topics:
                log.report(log.agents[one], log.agents[other], choices[topic][document], topic=topic)
                log.vote(log.agents[one], *(choices[topic][choice] for choice in order), topic=topic)
        due = {due.decision.topic: due.transcript for due in log.replay.decide()}.get(topics[0])
        log.close()
        outcomes_of.append(outcome(parse_json(due, limit=2**20)) if due else None)
    return outcomes_of


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(epochs)
def test_topics_are_decided_apart(script: Script) -> None:
    """Given who counts, what is said in one topic changes nothing in another."""
    script = [[("one", (0, 1), 0, [0]), ("two", (0, 1), 0, [0]), *epoch] for epoch in script]
    for own, other in (("one", "two"), ("two", "one")):
        for both, alone in zip(decided(script, [own, other]), decided(script, [own]), strict=True):
            assert alone, "a topic that is alone is decided in every epoch"
            assert both == alone or (both is None and not alone["transitions"])
