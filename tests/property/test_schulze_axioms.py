"""The axioms that make Schulze's method worth its arithmetic, on weighted weak orders over candidates and NONE.

Every election here is counted from ballots. `defeats` is the method's strict partial order, `winners` are those whom nobody
defeats; the tie rule (incumbent, then the earlier publication, NONE last) completes it to `rank(…).order`. An axiom is stated for
as much of that as it holds for: monotonicity and clones for winners and defeats, but not for who wins a tie, because numbers are
given by publication and no tie rule that anybody can recompute is neutral.
"""

from __future__ import annotations

from itertools import combinations, permutations
from itertools import pairwise as successive
from random import Random

from elections import Tiered, Vote, counted, ranks_of, tiered
from hypothesis import given
from hypothesis import strategies as st

from treaty_consensus.election.schulze import beaten_by, margins, path_strengths, rank, undefeated

Matrix = list[list[int]]


def weak_orders(choices: int) -> st.SearchStrategy[Tiered]:
    """Ballots that give a rank to every choice, NONE among them."""
    strict = st.permutations(range(choices)).map(tiered)  # they make the cycles
    return strict | st.lists(st.integers(0, choices - 1), min_size=choices, max_size=choices).map(tiered)


@st.composite
def elections(draw: st.DrawFn, *, least: int = 2, most: int = 5) -> tuple[int, list[Vote]]:
    """So many choices, and votes on them."""
    choices = draw(st.integers(least, most))
    return choices, draw(st.lists(st.tuples(weak_orders(choices), st.integers(1, 4)), min_size=1, max_size=9))


def shortened(tiers: Tiered, none: int) -> Tiered:
    """The same ballot in fewer words: without what is tied last, and NONE where it is just below what is ranked."""
    ranked = tiers if none in tiers[-1] else tiers[:-1]
    return ranked[:-1] if len(ranked) > 1 and ranked[-1] == (none,) else ranked


def votes_of(ballots: list[Vote], choices: int) -> Matrix:
    return counted(ballots, choices - 1).pairwise


def strengths_of(votes: Matrix) -> Matrix:
    return path_strengths(margins(votes))


def winners(votes: Matrix) -> set[int]:
    return set(undefeated(strengths_of(votes), range(len(votes))))


def defeats(votes: Matrix) -> set[tuple[int, int]]:
    p = strengths_of(votes)
    return {(a, b) for a, b in permutations(range(len(votes)), 2) if p[a][b] > p[b][a]}


def beats_all(votes: Matrix, group: tuple[int, ...]) -> bool:
    """Whether each of the group has a majority over everybody else."""
    return all(votes[a][b] > votes[b][a] for a in group for b in range(len(votes)) if b not in group)


# --- the count


@given(elections())
def test_the_matrix_is_what_each_ballot_says_of_each_pair(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    expected = [[0] * choices for _ in range(choices)]
    for tiers, weight in ballots:
        ranks = ranks_of(tiers, choices - 1)
        for a, b in permutations(range(choices), 2):
            expected[a][b] += weight * (ranks[a] < ranks[b])
    assert votes_of(ballots, choices) == expected


@given(elections())
def test_implied_and_explicit_ballots_are_equal(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    assert votes_of([(shortened(tiers, choices - 1), weight) for tiers, weight in ballots], choices) == votes_of(ballots, choices)


@given(elections(), st.randoms(use_true_random=False))
def test_anonymity_who_votes_and_in_which_order_does_not_matter(election: tuple[int, list[Vote]], random: Random) -> None:
    choices, ballots = election
    shuffled = [*ballots]
    random.shuffle(shuffled)
    assert votes_of(shuffled, choices) == votes_of(ballots, choices)


@given(elections(), st.integers(2, 2**30))
def test_homogeneity_only_proportions_matter(election: tuple[int, list[Vote]], factor: int) -> None:
    choices, ballots = election
    many = [(tiers, weight * factor) for tiers, weight in ballots]
    assert rank(votes_of(many, choices)) == rank(votes_of(ballots, choices))
    alone = [(tiers, 1) for tiers, weight in ballots for _ in range(weight)]
    assert votes_of(alone, choices) == votes_of(ballots, choices), "weight is the same as many who agree"


# --- the paths


@given(elections())
def test_strengths_are_the_best_path_of_all(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    m = margins(votes_of(ballots, choices))
    strengths = path_strengths(m)
    for a, b in permutations(range(choices), 2):
        rest = [c for c in range(choices) if c not in (a, b)]
        paths = [(a, *way, b) for length in range(len(rest) + 1) for way in permutations(rest, length)]
        best = max(min(m[x][y] for x, y in successive(path)) for path in paths)
        assert strengths[a][b] == max(best, 0)


@given(elections())
def test_defeat_is_a_strict_partial_order(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    losers = defeats(votes_of(ballots, choices))
    assert not any((b, a) in losers for a, b in losers)
    assert all((a, d) in losers for a, b in losers for c, d in losers if b == c)


# --- the axioms


@given(elections())
def test_condorcet_a_choice_that_beats_all_others_wins_alone(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    votes = votes_of(ballots, choices)
    for a in range(choices):
        if beats_all(votes, (a,)):
            assert winners(votes) == {a}
            assert all(rank(votes, incumbent).order[0] == a for incumbent in (None, *range(choices)))


@given(elections())
def test_condorcet_loser_a_choice_beaten_by_all_is_last(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    votes = votes_of(ballots, choices)
    for a in range(choices):
        if all(votes[a][b] < votes[b][a] for b in range(choices) if b != a):
            assert a not in winners(votes)
            assert all(rank(votes, incumbent).order[-1] == a for incumbent in (None, *range(choices)))


@given(elections())
def test_a_weak_condorcet_winner_wins(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    votes = votes_of(ballots, choices)
    for a in range(choices):
        if all(votes[a][b] >= votes[b][a] for b in range(choices)):
            assert a in winners(votes)
    unbeaten = [a for a in range(choices) if not beaten_by(margins(votes), a)]
    assert unbeaten in ([], [rank(votes).order[0]]), "at most one, and it is the first"


@given(elections())
def test_smith_every_set_that_beats_the_rest_comes_before_it(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    votes = votes_of(ballots, choices)
    groups = (group for size in range(1, choices) for group in combinations(range(choices), size))
    for group in groups:
        if beats_all(votes, group):
            assert winners(votes) <= set(group)
            assert set(rank(votes).order[: len(group)]) == set(group)


@given(elections())
def test_pareto_nobody_comes_before_what_all_prefer_to_it(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    votes = votes_of(ballots, choices)
    total = sum(weight for _, weight in ballots)
    losers, best = defeats(votes), winners(votes)
    for a, b in permutations(range(choices), 2):
        if votes[a][b] == total:
            assert (a, b) in losers
        if votes[b][a] == 0:  # nobody prefers b
            assert (b, a) not in losers
            assert a in best or b not in best


@given(elections(), st.data())
def test_monotonicity_more_support_never_hurts(election: tuple[int, list[Vote]], data: st.DataObject) -> None:
    """Whom it defeated it still defeats, and who did not defeat it still does not: a winner stays one, and a sole one alone."""
    choices, ballots = election
    raised = data.draw(st.integers(0, choices - 1))
    which = data.draw(st.integers(0, len(ballots) - 1))
    tiers, weight = ballots[which]
    ranks = [2 * r for r in ranks_of(tiers, choices - 1)]  # room for half a step
    ranks[raised] -= data.draw(st.integers(1, 2 * choices))
    part = data.draw(st.integers(1, weight))  # some of those who cast this ballot
    changed = [*ballots, (tiered(ranks), part)]
    changed[which] = (tiers, weight - part)
    votes, after = votes_of(ballots, choices), votes_of([(t, w) for t, w in changed if w], choices)
    before_it = {(a, b) for a, b in defeats(votes) if raised in (a, b)}
    after_it = {(a, b) for a, b in defeats(after) if raised in (a, b)}
    assert {pair for pair in before_it if pair[0] == raised} <= after_it
    assert {pair for pair in after_it if pair[1] == raised} <= before_it


@given(elections(most=4), st.data())
def test_clones_of_a_candidate_neither_help_nor_harm(election: tuple[int, list[Vote]], data: st.DataObject) -> None:
    """A clone, published later, is next to its original on every ballot, or as tied with others as the original is.

    The winners among the others stay the same, and one of the clones wins just when the original did; all defeats among the
    others stay as well. Who is chosen from a tie stays the same too, unless the clone defeats the original: then the original,
    which was published early, wins no tie any more, and its clone has a later number."""
    choices, ballots = election
    none, clone = choices - 1, choices
    original = data.draw(st.integers(0, none - 1))
    cloned = []
    for tiers, weight in ballots:
        ranks = [3 * r for r in ranks_of(tiers, none)]  # room for the clone on either side
        alone = ranks.count(ranks[original]) == 1
        beside = ranks[original] + (data.draw(st.integers(-1, 1)) if alone else 0)
        cloned.append((tiered([*ranks[:none], beside, ranks[none]]), weight))
    before, after = votes_of(ballots, choices), votes_of(cloned, choices + 1)

    def without_clone(choice: int) -> int:  # in `after` the clone has the number of NONE, and NONE the next one
        return {none: original, clone: none}.get(choice, choice)

    assert {without_clone(c) for c in winners(after)} == winners(before)
    others = {(without_clone(a), without_clone(b)) for a, b in defeats(after) if {a, b} != {original, none}}
    assert others == defeats(before)
    if (none, original) not in defeats(after):
        for incumbent in (None, original):
            assert without_clone(rank(after, incumbent).order[0]) == rank(before, incumbent).order[0]


@given(elections())
def test_reversal_reversed_ballots_reverse_every_defeat(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    votes, turned = votes_of(ballots, choices), votes_of([(tiers[::-1], weight) for tiers, weight in ballots], choices)
    assert strengths_of(turned) == [list(column) for column in zip(*strengths_of(votes), strict=True)]
    alone = winners(votes)
    if len(alone) == 1 < choices:
        assert not alone & winners(turned)


@given(elections(), st.data())
def test_neutrality_names_matter_only_to_ties(election: tuple[int, list[Vote]], data: st.DataObject) -> None:
    choices, ballots = election
    renamed = data.draw(st.permutations(range(choices)))
    other = [(tuple(tuple(renamed[c] for c in tier) for tier in tiers), weight) for tiers, weight in ballots]
    votes, renamed_votes = votes_of(ballots, choices), votes_of(other, choices)
    assert defeats(renamed_votes) == {(renamed[a], renamed[b]) for a, b in defeats(votes)}
    if not rank(votes).ties:
        assert rank(renamed_votes).order == tuple(renamed[c] for c in rank(votes).order)


@given(elections(most=4))
def test_resolvability_one_least_vote_settles_any_tie(election: tuple[int, list[Vote]]) -> None:
    choices, ballots = election
    doubled = [(tiers, 2 * weight) for tiers, weight in ballots]
    for tied in winners(votes_of(doubled, choices)):
        more = [(tiered([order.index(c) for c in range(choices)]), 1) for order in permutations(range(choices))]
        assert any(winners(votes_of([*doubled, vote], choices)) == {tied} for vote in more)


@given(elections(), st.data())
def test_the_order_respects_every_defeat_and_traces_every_tie(election: tuple[int, list[Vote]], data: st.DataObject) -> None:
    choices, ballots = election
    votes = votes_of(ballots, choices)
    incumbent = data.draw(st.none() | st.integers(0, choices - 1))
    strengths, ranking = strengths_of(votes), rank(votes, incumbent)
    assert sorted(ranking.order) == list(range(choices))
    for a, b in combinations(ranking.order, 2):
        assert strengths[a][b] >= strengths[b][a]
    ties = {tie.rank: tie.tied for tie in ranking.ties}
    for place, choice in enumerate(ranking.order):
        best = undefeated(strengths, ranking.order[place:])
        assert ties.get(place, best) == best and (place in ties) == (len(best) > 1)
        assert choice == (incumbent if incumbent in best else min(best))
