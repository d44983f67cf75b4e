"""Our ranking against pref_voting's, margins with margins, on generated elections with fixed seeds."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from pref_voting.generate_profiles import generate_profile
from pref_voting.margin_based_methods import beat_path, split_cycle
from pref_voting.profiles_with_ties import ProfileWithTies
from pref_voting.weighted_majority_graphs import MarginGraph

from treaty_consensus.election.ballot import Ranks, pairwise
from treaty_consensus.election.schulze import margins, path_strengths, undefeated

SEEDS = range(75)


def ours(ballots: Counter[Ranks], choices: int) -> tuple[list[list[int]], list[int]]:
    m = margins(pairwise(ballots, choices))
    return m, list(undefeated(path_strengths(m), range(choices)))


def margin_graph(m: list[list[int]]) -> MarginGraph:
    edges = [(a, b, margin) for a, row in enumerate(m) for b, margin in enumerate(row) if margin > 0]
    return MarginGraph(list(range(len(m))), edges)


def check(ballots: Counter[Ranks], choices: int) -> int:
    """Compare with pref_voting, once on the margins and once on the ballots; return how many are undefeated."""
    m, best = ours(ballots, choices)
    assert best == beat_path(margin_graph(m))
    assert set(best) <= set(split_cycle(margin_graph(m)))
    rankings = [{c: r + 1 for c, r in enumerate(ranks)} for ranks in ballots]
    profile = ProfileWithTies(rankings, rcounts=list(ballots.values()), candidates=list(range(choices)))
    assert [[profile.margin(a, b) for b in range(choices)] for a in range(choices)] == m
    assert best == beat_path(profile)
    return len(best)


@pytest.mark.parametrize("model", ["IC", "MALLOWS-RELPHI", "URN-R"])
def test_agrees_on_strict_orders(model: str) -> None:
    undecided = 0
    for seed in SEEDS:
        random = Random(seed)
        choices, voters = random.randint(3, 7), random.randint(2, 21)
        profile = generate_profile(choices, voters, probmodel=model, seed=seed)
        ballots: Counter[Ranks] = Counter()
        for ranking, number in zip(*profile.rankings_counts, strict=True):
            order = [int(choice) for choice in ranking]
            ballots[tuple(order.index(c) for c in range(choices))] += int(number)
        assert ballots.total() == voters
        undecided += check(ballots, choices) > 1
    assert undecided < len(SEEDS), "a model in which everybody ties proves nothing"


def test_agrees_on_tied_and_truncated_orders() -> None:
    """Where margins and winning votes part ways; a truncated ballot has what it does not rank tied last."""
    for seed in SEEDS:
        random = Random(seed)
        choices = random.randint(3, 7)
        ballots: Counter[Ranks] = Counter()
        for _ in range(random.randint(2, 21)):
            ranks = [random.randrange(choices) for _ in range(choices)]
            kept = random.randrange(choices)
            ballots[tuple(min(r, kept) for r in ranks)] += random.randint(1, 3)
        check(ballots, choices)


def test_agrees_on_spatial_elections() -> None:
    """Voters and choices are points in a square; nearer is better."""
    for seed in SEEDS:
        random = Random(seed)
        choices = random.randint(3, 7)
        points = [(random.random(), random.random()) for _ in range(choices)]
        ballots: Counter[Ranks] = Counter()
        for _ in range(random.randint(2, 21)):
            x, y = random.random(), random.random()
            order = sorted(range(choices), key=lambda c: (points[c][0] - x) ** 2 + (points[c][1] - y) ** 2)
            ballots[tuple(order.index(c) for c in range(choices))] += 1
        check(ballots, choices)
