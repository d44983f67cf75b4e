"""Our way from ballots to an order against pref_voting's, on thousands of generated elections with fixed seeds.

Each model makes strict orders over 2 to 12 candidates; `SHAPES` turns them into ballots as agents cast them. pref_voting gets
the very ballots, truncated ones as truncated ones, and NONE as one candidate more: it counts them itself, by margins. So
everything is compared on margins, never on winning votes. Then pref_voting's own axioms are held against our method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from elections import Tiered, Vote, counted, tiered
from pref_voting.axiom import Axiom
from pref_voting.c1_methods import schwartz_set
from pref_voting.dominance_axioms import condorcet_loser, condorcet_winner, pareto_dominance, smith
from pref_voting.generate_profiles import get_rankings
from pref_voting.iterative_methods import instant_runoff
from pref_voting.margin_based_methods import beat_path, beat_path_defeat, split_cycle
from pref_voting.monotonicity_axioms import monotonicity
from pref_voting.other_axioms import reversal_symmetry
from pref_voting.profiles import Profile
from pref_voting.profiles_with_ties import ProfileWithTies
from pref_voting.scoring_methods import anti_plurality, plurality
from pref_voting.variable_candidate_axioms import independence_of_clones
from pref_voting.voting_method import VotingMethod
from pref_voting.weighted_majority_graphs import MarginGraph

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.schulze import margins, path_strengths, rank, undefeated

MODELS = {
    "impartial culture": "IC",
    "Mallows": "MALLOWS-RELPHI",
    "Pólya urn": "URN-R",
    "spatial": "euclidean",
}
SEEDS = 210


def complete(order: list[int], _random: Random) -> Tiered:
    """Every candidate has a place; NONE, unranked, comes after the last."""
    return tuple((choice,) for choice in order)


def truncated(order: list[int], random: Random) -> Tiered:
    """The first few, sometimes with NONE among them."""
    ranking = order[: random.randint(1, len(order))]
    if random.random() < 0.3:
        ranking.insert(random.randint(0, len(ranking)), len(order))
    return tuple((choice,) for choice in ranking)


def tied(order: list[int], random: Random) -> Tiered:
    """All choices and NONE, in tiers of several."""
    choices = [*order]
    choices.insert(random.randint(0, len(order)), len(order))
    tiers: list[tuple[int, ...]] = []
    for choice in choices:
        if tiers and random.random() < 0.4:
            tiers[-1] = (*tiers[-1], choice)
        else:
            tiers.append((choice,))
    return tuple(tiers)


def mixed(order: list[int], random: Random) -> Tiered:
    """Any of them, and truncated after ties; at times nothing but NONE."""
    if random.random() < 0.1:
        return ((len(order),),)
    shape = random.choice((complete, truncated, tied))
    tiers = shape(order, random)
    return tiers[: random.randint(1, len(tiers))]


SHAPES: dict[str, Callable[[list[int], Random], Tiered]] = {f.__name__: f for f in (complete, truncated, tied, mixed)}


def election(model: str, shape: str, seed: int) -> tuple[int, list[Vote]]:
    """So many candidates, and the votes; every second election weighs all of them alike, so that there are ties."""
    random = Random(f"{shape} {seed}")
    candidates, voters = random.randint(2, 12), random.randint(2, 25)
    orders = get_rankings(candidates, voters, probmodel=MODELS[model], seed=seed)
    ballots = [SHAPES[shape]([int(choice) for choice in order], random) for order in orders]
    return candidates, [(ballot, ONE if seed % 2 else random.randint(1, ONE)) for ballot in ballots]


def profile_of(votes: Sequence[Vote], candidates: int) -> ProfileWithTies:
    """The same ballots for pref_voting: what they do not rank stays unranked, and counts as below what they rank."""
    rankings = []
    for tiers, _ in votes:
        ranking = {choice: place for place, tier in enumerate(tiers, 1) for choice in tier}
        ranking.setdefault(candidates, len(tiers) + 1)
        rankings.append(ranking)
    profile = ProfileWithTies(rankings, rcounts=[weight for _, weight in votes], candidates=list(range(candidates + 1)))
    profile.use_extended_strict_preference()
    return profile


def margin_graph(m: Sequence[Sequence[int]]) -> MarginGraph:
    edges = [(a, b, margin) for a, row in enumerate(m) for b, margin in enumerate(row) if margin > 0]
    return MarginGraph(list(range(len(m))), edges)


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("model", MODELS)
def test_agrees_on_generated_elections(model: str, shape: str) -> None:
    undecided = cyclic = 0
    for seed in range(SEEDS):
        candidates, votes = election(model, shape, seed)
        choices = range(candidates + 1)
        profile = profile_of(votes, candidates)
        theirs = [[profile.margin(a, b) for b in choices] for a in choices]

        pairwise = counted(votes, candidates).pairwise
        assert margins(pairwise) == theirs, seed
        graph = margin_graph(theirs)
        best = list(undefeated(path_strengths(margins(pairwise)), choices))
        assert best == beat_path(profile) == beat_path(graph, algorithm="schwartz_sequential_dropping"), seed
        assert set(best) <= set(split_cycle(graph)) & set(schwartz_set(graph)), seed

        defeats = set(beat_path_defeat(graph).edges())
        check_order(rank(pairwise).order, defeats, None)
        incumbent = seed % candidates
        check_order(rank(pairwise, incumbent).order, defeats, incumbent)
        undecided += len(best) > 1
        cyclic += not any(all(m > 0 for other, m in enumerate(row) if other != a) for a, row in enumerate(theirs))
    assert undecided < SEEDS, "a model in which everybody ties proves nothing"
    assert cyclic, "nor does one in which somebody always beats all others"


def check_order(order: Sequence[int], defeats: set[tuple[int, int]], incumbent: int | None) -> None:
    """The order is the one linear extension of pref_voting's defeats that the tie rule allows."""
    remaining = set(order)
    for choice in order:
        best = {c for c in remaining if not any((other, c) in defeats for other in remaining)}
        assert choice == (incumbent if incumbent in best else min(best))
        remaining.remove(choice)
    assert not remaining


# --- pref_voting's axioms


def our_winners(profile: Profile | ProfileWithTies, curr_cands: list[int] | None = None) -> list[int]:
    """Whom nobody of `curr_cands` defeats, counted by us. The last of them is NONE."""
    choices = sorted(profile.candidates if curr_cands is None else curr_cands)
    votes: list[Vote] = []
    for ranking, weight in zip(*profile.rankings_counts, strict=True):
        ranks = ranking.rmap if isinstance(profile, ProfileWithTies) else {int(c): r for r, c in enumerate(ranking)}
        votes.append((tiered([ranks.get(choice, len(profile.candidates) + 1) for choice in choices]), int(weight)))
    m = margins(counted(votes, len(choices) - 1).pairwise)
    return [choices[winner] for winner in undefeated(path_strengths(m), range(len(choices)))]


OURS = VotingMethod(our_winners, name="ours", skip_registration=True)


def strict_profile(seed: int) -> Profile:
    """A small one, where a single ballot may matter."""
    random = Random(seed)
    return Profile(get_rankings(random.randint(3, 5), random.randint(3, 11), probmodel="IC", seed=seed))


def profile_with_clones(seed: int) -> Profile:
    """One candidate has a clone or two, next to it on every ballot."""
    random = Random(seed)
    candidates, clones = random.randint(2, 3), random.randint(1, 2)
    original = random.randrange(candidates)
    rankings = []
    for order in get_rankings(candidates, random.randint(3, 9), probmodel="IC", seed=seed):
        ranking = [int(choice) for choice in order]
        for clone in range(candidates, candidates + clones):
            ranking.insert(ranking.index(original) + random.randint(0, 1), clone)
        rankings.append(ranking)
    return Profile(rankings)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("axiom", "violator", "sample"),
    [
        (condorcet_winner, plurality, strict_profile),
        (condorcet_loser, plurality, strict_profile),
        (smith, plurality, strict_profile),
        (pareto_dominance, anti_plurality, strict_profile),
        (monotonicity, instant_runoff, strict_profile),
        (reversal_symmetry, plurality, strict_profile),
        (independence_of_clones, plurality, profile_with_clones),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_pref_voting_finds_no_violation(axiom: Axiom, violator: VotingMethod, sample: Callable[[int], Profile]) -> None:
    profiles = [sample(seed) for seed in range(120)]
    assert not any(axiom.has_violation(profile, OURS) for profile in profiles)
    assert any(axiom.has_violation(profile, violator) for profile in profiles), "a sample that anything satisfies proves nothing"


@pytest.mark.parametrize(
    "axiom",
    [condorcet_winner, condorcet_loser, smith, pareto_dominance, monotonicity, reversal_symmetry],
    ids=lambda axiom: axiom.name,
)
def test_pref_voting_finds_no_violation_among_ballots_with_ties(axiom: Axiom) -> None:
    for seed in range(60):
        random = Random(seed)
        candidates = random.randint(2, 4)
        votes: list[Vote] = []
        for _ in range(random.randint(2, 7)):
            votes.append((mixed(random.sample(range(candidates), candidates), random), random.randint(1, 3)))
        assert not axiom.has_violation(profile_of(votes, candidates), OURS), seed
