"""The axioms that make Schulze's method worth its arithmetic, on random weak orders with weights."""

from __future__ import annotations

from itertools import combinations, permutations
from itertools import pairwise as successive

from hypothesis import given
from hypothesis import strategies as st

from treaty_consensus.election.ballot import Ranks, pairwise
from treaty_consensus.election.schulze import margins, path_strengths, rank, undefeated

Profile = list[tuple[Ranks, int]]


@st.composite
def profiles(draw: st.DrawFn, *, least: int = 2, most: int = 5) -> tuple[int, Profile]:
    choices = draw(st.integers(least, most))
    orders = st.one_of(
        st.permutations(range(choices)).map(tuple),  # strict orders make the cycles
        st.tuples(*[st.integers(0, choices - 1)] * choices),
    )
    return choices, draw(st.lists(st.tuples(orders, st.integers(1, 4)), min_size=1, max_size=9))


def votes_of(profile: Profile, choices: int) -> list[list[int]]:
    matrix = [[0] * choices for _ in range(choices)]
    for ranks, weight in profile:
        for row, added in zip(matrix, pairwise({ranks: weight}, choices), strict=True):
            row[:] = [n + more for n, more in zip(row, added, strict=True)]
    return matrix


def winners(votes: list[list[int]]) -> set[int]:
    return set(undefeated(path_strengths(margins(votes)), range(len(votes))))


@given(profiles())
def test_counting_alike_ballots_together_changes_nothing(made: tuple[int, Profile]) -> None:
    choices, profile = made
    together: dict[Ranks, int] = {}
    for ranks, weight in profile:
        together[ranks] = together.get(ranks, 0) + weight
    assert pairwise(together, choices) == votes_of(profile, choices)


@given(profiles())
def test_strengths_are_the_best_path_of_all(made: tuple[int, Profile]) -> None:
    choices, profile = made
    m = margins(votes_of(profile, choices))
    found = path_strengths(m)
    for a, b in permutations(range(choices), 2):
        rest = [c for c in range(choices) if c not in (a, b)]
        paths = [(a, *way, b) for length in range(len(rest) + 1) for way in permutations(rest, length)]
        best = max(min(m[x][y] for x, y in successive(path)) for path in paths)
        assert found[a][b] == max(best, 0)


@given(profiles())
def test_condorcet_a_choice_that_beats_all_others_wins_alone(made: tuple[int, Profile]) -> None:
    choices, profile = made
    votes = votes_of(profile, choices)
    for a in range(choices):
        if all(votes[a][b] > votes[b][a] for b in range(choices) if b != a):
            assert winners(votes) == {a}
            assert rank(votes).order[0] == a


@given(profiles())
def test_smith_winners_come_from_the_smallest_set_that_beats_the_rest(made: tuple[int, Profile]) -> None:
    choices, profile = made
    votes = votes_of(profile, choices)
    smith = next(
        set(group)
        for size in range(1, choices + 1)
        for group in combinations(range(choices), size)
        if all(votes[a][b] > votes[b][a] for a in group for b in range(choices) if b not in group)
    )
    assert winners(votes) <= smith
    assert set(rank(votes).order[: len(smith)]) == smith


@given(profiles(), st.data())
def test_monotonicity_more_support_never_hurts_a_winner(made: tuple[int, Profile], data: st.DataObject) -> None:
    choices, profile = made
    winner = data.draw(st.sampled_from(sorted(winners(votes_of(profile, choices)))))
    which = data.draw(st.integers(0, len(profile) - 1))
    ranks, weight = profile[which]
    raised = [2 * r for r in ranks]  # room for half a step
    raised[winner] -= data.draw(st.integers(1, 2 * choices))
    changed = [*profile[:which], (tuple(raised), weight), *profile[which + 1 :]]
    assert winner in winners(votes_of(changed, choices))


@given(profiles(most=4), st.data())
def test_clones_of_a_choice_neither_help_nor_harm(made: tuple[int, Profile], data: st.DataObject) -> None:
    choices, profile = made
    original = data.draw(st.integers(0, choices - 1))
    cloned: Profile = []
    for ranks, weight in profile:
        wide = [3 * r for r in ranks]  # room for the clone on either side
        alone = ranks.count(ranks[original]) == 1
        cloned.append(((*wide, wide[original] + (data.draw(st.integers(-1, 1)) if alone else 0)), weight))
    before, after = winners(votes_of(profile, choices)), winners(votes_of(cloned, choices + 1))
    clones = {original, choices}
    assert before - clones == after - clones
    assert (original in before) == bool(after & clones)


@given(profiles())
def test_reversal_turning_every_ballot_round_turns_every_defeat_round(made: tuple[int, Profile]) -> None:
    choices, profile = made
    turned = [(tuple(-r for r in ranks), weight) for ranks, weight in profile]
    forward = path_strengths(margins(votes_of(profile, choices)))
    backward = path_strengths(margins(votes_of(turned, choices)))
    assert backward == [list(column) for column in zip(*forward, strict=True)]
    alone = winners(votes_of(profile, choices))
    if len(alone) == 1:
        assert not alone & winners(votes_of(turned, choices))


@given(profiles(), st.data())
def test_neutrality_names_do_not_matter(made: tuple[int, Profile], data: st.DataObject) -> None:
    choices, profile = made
    renamed = data.draw(st.permutations(range(choices)))
    other = [(tuple(ranks[renamed[c]] for c in range(choices)), weight) for ranks, weight in profile]
    assert {renamed[c] for c in winners(votes_of(other, choices))} == winners(votes_of(profile, choices))


@given(profiles(), st.data())
def test_the_order_respects_every_defeat_and_traces_every_tie(made: tuple[int, Profile], data: st.DataObject) -> None:
    choices, profile = made
    votes = votes_of(profile, choices)
    incumbent = data.draw(st.none() | st.integers(0, choices - 1))
    strengths, ranking = path_strengths(margins(votes)), rank(votes, incumbent)
    assert sorted(ranking.order) == list(range(choices))
    for a, b in combinations(ranking.order, 2):
        assert strengths[a][b] >= strengths[b][a]
    ties = {tie.rank: tie.tied for tie in ranking.ties}
    for place, choice in enumerate(ranking.order):
        best = undefeated(strengths, ranking.order[place:])
        assert ties.get(place, best) == best and (place in ties) == (len(best) > 1)
        assert choice == (incumbent if incumbent in best else min(best))
