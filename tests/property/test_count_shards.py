"""Counting is a sum: parts of the ballots, counted apart and in any order, add up to the count of all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
from elections import tiered, voter
from hypothesis import given
from hypothesis import strategies as st

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.ballot import Ballots, Count, Implied, Votes, approvals, count, votes
from treaty_consensus.election.principals import Voices
from treaty_consensus.kinds import NONE

CANDIDATES = ("a", "b", "c", "d")
EPOCH = 20


@st.composite
def topics(draw: st.DrawFn) -> tuple[Votes, dict[str, str]]:
    """The votes of a topic, faded and ripened, explicit and implied; and everybody's cluster."""
    choices = (*CANDIDATES, "unknown", NONE)
    ranks = st.lists(st.integers(0, 3), min_size=len(choices), max_size=len(choices))
    tiers = ranks.map(lambda made: tuple(tuple(choices[c] for c in tier) for tier in tiered(made)))
    voters = [voter(number) for number in range(draw(st.integers(1, 12)))]
    ballots, implied = Ballots(), {}
    for did in voters:
        if draw(st.booleans()):
            implied[did] = Implied((draw(st.sampled_from(CANDIDATES)),), draw(st.integers(0, EPOCH)), draw(st.integers(0, EPOCH)))
        else:
            ballots.cast(did, draw(tiers), draw(st.integers(0, EPOCH)))
    weights = {did: draw(st.integers(1, ONE)) for did in voters}
    clusters = {did: draw(st.sampled_from(["one", "two", "three"])) for did in voters}
    return votes(ballots, implied, weights, Voices(), EPOCH, draw(st.sampled_from([None, 5]))), clusters


def rows(made: Votes, chosen: list[int]) -> Votes:
    """Some of the votes, in some order."""
    index = np.array(chosen, dtype=np.int64)
    columns = ("ranking", "principal", "weight", "age", "held")
    return replace(made, **{name: getattr(made, name)[index] for name in columns})


def plus(one: Count, other: Count) -> Count:
    def added(mine: list[dict[str, int]], theirs: list[dict[str, int]]) -> list[dict[str, int]]:
        return [dict(Counter(a) + Counter(b)) for a, b in zip(mine, theirs, strict=True)]

    matrix = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(one.pairwise, other.pairwise, strict=True)]
    sides = added(one.above, other.above), added(one.below, other.below)
    return Count(one.choices, one.total + other.total, matrix, *sides)


@given(topics(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_shards_add_up_in_any_order(made: tuple[Votes, dict[str, str]], random: Random, shards: int) -> None:
    cast, clusters = made
    order = list(range(len(cast.weight)))
    random.shuffle(order)
    parts = [rows(cast, order[shard::shards]) for shard in range(shards)]
    whole, counted = count(cast, CANDIDATES, clusters), [count(part, CANDIDATES, clusters) for part in parts]
    random.shuffle(counted)
    found = counted[0]
    for part in counted[1:]:
        found = plus(found, part)
    assert found == whole
    assert sum((Counter(approvals(part)) for part in parts), Counter()) == +Counter(approvals(cast))
    assert np.sum([part.by_principal() for part in parts], axis=0).tolist() == cast.by_principal().tolist()


@given(topics())
def test_no_vote_counts_twice_or_not_at_all(made: tuple[Votes, dict[str, str]]) -> None:
    """Each pair of choices divides all the weight into those for it, those against it and those who tie it."""
    cast, clusters = made
    whole = count(cast, CANDIDATES, clusters)
    assert whole.total == sum(cast.weight.tolist()) == sum(cast.by_principal().tolist())
    for a in range(len(CANDIDATES)):
        assert sum(whole.above[a].values()) == whole.pairwise[a][-1]
        assert sum(whole.below[a].values()) == whole.pairwise[-1][a]
        assert all(whole.pairwise[a][b] + whole.pairwise[b][a] <= whole.total for b in range(len(CANDIDATES) + 1))
