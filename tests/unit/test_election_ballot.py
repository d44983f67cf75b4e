"""What a ballot says about each pair of choices, NONE among them, and whose ballot it is."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_log import SUFFIXES

from treaty_consensus.election.arithmetic import conviction, decay, part
from treaty_consensus.election.ballot import Ballots, Implied, Votes, approvals, approved, count, implied_ballots, ranks, votes
from treaty_consensus.election.line import Tiers
from treaty_consensus.election.principals import PrincipalDirectory, SuffixList
from treaty_consensus.election.report import Pair, Tally
from treaty_consensus.election.trust import graph
from treaty_consensus.kinds import NONE

CHOICES = ("a", "b", "c", NONE)


def relation(tiers: Tiers) -> str:
    """The weak order over a, b, c and NONE, best first."""
    (ranking,) = ranks([tiers], CHOICES).tolist()
    levels = [[c for c, r in zip(CHOICES, ranking, strict=True) if r == level] for level in sorted(set(ranking))]
    return " > ".join(" = ".join(level) for level in levels)


@pytest.mark.parametrize(
    ("tiers", "order"),
    [
        ((("a",),), "a > none > b = c"),
        ((("a",), ("b",)), "a > b > none > c"),
        ((("a", "b"),), "a = b > none > c"),
        ((("a",), ("b",), ("c",)), "a > b > c > none"),
        ((("a",), (NONE,), ("b",)), "a > none > b > c"),
        (((NONE,), ("a",)), "none > a > b = c"),
        (((NONE,),), "none > a = b = c"),
        ((("a", NONE),), "a = none > b = c"),
        ((("a",), ("b", "c", NONE)), "a > b = c = none"),
        ((("a", "b", "c", NONE),), "a = b = c = none"),
        ((("unknown",),), "none > a = b = c"),
        ((("unknown",), ("a",), ("other", "b")), "a > b > none > c"),
    ],
)
def test_a_ballot_is_a_weak_order_with_none(tiers: Tiers, order: str) -> None:
    assert relation(tiers) == order


def cast(*rows: tuple[str, int, Tiers]) -> Votes:
    """Votes of principals named for themselves, one each unless a name returns."""
    principals = tuple(sorted({principal for principal, _, _ in rows}))
    zeros = np.zeros(len(rows), dtype=np.int64)
    return Votes(
        principals,
        [tiers for _, _, tiers in rows],
        np.arange(len(rows), dtype=np.int64),
        np.array([principals.index(principal) for principal, _, _ in rows], dtype=np.int64),
        np.array([weight for _, weight, _ in rows], dtype=np.uint64),
        zeros,
        zeros,
        0,
    )


def test_counts_only_strict_preferences_and_sides_by_cluster() -> None:
    votes = cast(("p", 10, (("a",), ("b", "c"))), ("q", 4, (("b",), (NONE,), ("a",))), ("r", 1, (("a", NONE),)))
    tally = count(votes, ("a", "b"), {"p": "x", "q": "x", "r": "y"})
    assert tally.choices == ("a", "b", NONE)
    assert tally.total == 15
    assert tally.pairwise == [[0, 11, 10], [4, 0, 14], [4, 1, 0]]
    assert tally.above == [{"x": 10}, {"x": 14}]
    assert tally.below == [{"x": 4}, {"y": 1}]


def test_without_candidates_ballots_still_have_a_total() -> None:
    tally = count(cast(("p", 7, (("a",),))), (), {"p": "p"})
    assert (tally.choices, tally.total, tally.pairwise) == ((NONE,), 7, [[0]])


def test_without_ballots_everything_is_nothing() -> None:
    tally = count(cast(), ("a",), {})
    assert (tally.total, tally.pairwise, tally.above, tally.below) == (0, [[0, 0], [0, 0]], [{}], [{}])
    assert approvals(cast()) == [] and approved([]) == {}


def test_weights_of_a_whole_world_are_counted_to_the_unit() -> None:
    """Beyond the 53 bits of a float."""
    votes = cast(*((f"p{n}", (1 << 60) + n, (("a",),)) for n in range(3)), ("q", 1, (("b",),)))
    tally = count(votes, ("a", "b"), dict.fromkeys(votes.principals, "x"))
    assert tally.pairwise[0][1] == 3 * (1 << 60) + 3 and tally.above[0] == {"x": 3 * (1 << 60) + 3}


def test_a_vote_approves_of_what_it_ranks_over_none() -> None:
    votes = cast(("p", 10, (("a",), ("b", "c"))), ("q", 4, (("b",), (NONE,), ("a",))), ("r", 1, (("a", NONE),)))
    assert set(approvals(votes)) == {(frozenset("abc"), 10), (frozenset("b"), 4)}
    assert approved(approvals(votes)) == {"a": 10, "b": 14, "c": 10}


ALPHA, BRAVO, CHARLIE = (f"did:wba:{name}.example" for name in ("alpha", "bravo", "charlie"))
KEY = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
WEIGHTS = {ALPHA: 8, BRAVO: 8}
A, B, C = Pair(ALPHA, BRAVO), Pair(ALPHA, CHARLIE), Pair(BRAVO, CHARLIE)


def test_an_implied_ballot_names_the_most_agreed_document() -> None:
    implied = implied_ballots(Tally.of({"x": {A: 4, B: 2}, "y": {C: 5}}), None, {}, 5)
    assert implied == {
        ALPHA: Implied(("x",), 5, 4),
        BRAVO: Implied(("x", "y"), 5, 5),
        CHARLIE: Implied(("x", "y"), 5, 5),
    }


def test_the_newest_report_of_each_pair_counts_alone() -> None:
    reports = {"x": {A: 4, B: 2}, "y": {A: 5}, "z": {B: 3, C: 1}}
    implied = implied_ballots(Tally.of(reports), None, {}, 5)
    assert implied[BRAVO] == Implied(("y", "z"), 5, 5), "it moved from x to y with alpha"
    assert implied[CHARLIE] == Implied(("z",), 5, 3)


def test_a_withdrawn_document_is_named_without_an_alternative() -> None:
    reports = {"x": {A: 4, B: 4}, "y": {C: 1}}
    implied = implied_ballots(Tally.of(reports), None, {}, 5, {"x"})
    assert implied == {ALPHA: Implied(("x",), 5, 4), BRAVO: Implied(("y",), 5, 1), CHARLIE: Implied(("y",), 5, 1)}


def test_a_document_and_its_heir_count_together_against_others() -> None:
    pairs = {
        name: [Pair.of(ALPHA, f"{name}{number}") for number in range(count)] for name, count in (("x", 2), ("y", 3), ("z", 2))
    }
    tally = Tally.of({name: dict.fromkeys(met, 4) for name, met in pairs.items()})

    def named(before: tuple[str, ...], heirs: dict[str, str]) -> tuple[str, ...]:
        earlier = {ALPHA: Implied(before, 0, 3)} if before else {}
        return implied_ballots(tally, None, earlier, 5, heirs=heirs)[ALPHA].favourites

    assert named((), {}) == ("y",)
    assert named((), {"x": "z"}) == ("x", "z") and named(("z",), {"x": "z"}) == ("z",)
    more = Tally.of({"x": {Pair.of(ALPHA, "x0"): 4}, "y": dict.fromkeys(pairs["y"], 4), "z": dict.fromkeys(pairs["z"], 4)})
    for before, favourites in (((), ("y", "z")), (("y",), ("y",)), (("x",), ("z",))):
        earlier = {ALPHA: Implied(before, 0, 3)} if before else {}
        assert implied_ballots(more, None, earlier, 5, heirs={"x": "z"})[ALPHA].favourites == favourites


def test_only_counterparties_that_are_known_imply_anything() -> None:
    reports = {"x": {A: 4}, "y": {B: 5, A: 1}}
    assert implied_ballots(Tally.of(reports), graph([ALPHA, BRAVO], {(ALPHA, BRAVO): 1}), {}, 5) == {ALPHA: Implied(("x",), 5, 4)}


def test_an_implied_ballot_ripens_while_it_stays_the_same() -> None:
    first = implied_ballots(Tally.of({"x": {A: 0}}), None, {}, 0)
    later = implied_ballots(Tally.of({"x": {A: 3}, "y": {B: 3}}), None, first, 3)
    assert (later[BRAVO].since, later[CHARLIE].since) == (0, 3)


def test_an_implied_ballot_stays_until_another_leads() -> None:
    first = implied_ballots(Tally.of({"x": {A: 0}}), None, {}, 0)
    as_many = implied_ballots(Tally.of({"x": {A: 0}, "y": {B: 1}}), None, first, 1)
    assert as_many[ALPHA] == Implied(("x",), 0, 0)
    more = implied_ballots(Tally.of({"x": {A: 0}, "y": {A: 2, B: 1}}), None, as_many, 2)
    assert more[ALPHA] == Implied(("y",), 2, 2)
    again = implied_ballots(Tally.of({"x": {A: 3}, "y": {A: 2, B: 1}}), None, more, 3)
    assert again[ALPHA] == Implied(("y",), 2, 1)


def live(
    ballots: Ballots, implied: dict[str, Implied], *, epoch: int = 0, horizon: int | None = None
) -> list[tuple[str, int, Tiers]]:
    """Principal, weight and tiers of everything that is counted."""
    ballots_in_force = votes(ballots, implied, WEIGHTS, epoch, horizon)
    rows = zip(
        ballots_in_force.principal.tolist(), ballots_in_force.weight.tolist(), ballots_in_force.ranking.tolist(), strict=True
    )
    return [
        (ballots_in_force.principals[principal], weight, ballots_in_force.rankings[ranking])
        for principal, weight, ranking in rows
    ]


def ballots_of(tiers: dict[str, Tiers], directory: PrincipalDirectory | None = None) -> Ballots:
    ballots = Ballots(directory or PrincipalDirectory())
    for did, ranked in tiers.items():
        ballots.cast(did, ranked, 0)
    return ballots


def test_a_ballot_replaces_what_its_principal_did() -> None:
    implied = {ALPHA: Implied(("b",), 0, 0), BRAVO: Implied(("b",), 0, 0)}
    assert live(ballots_of({ALPHA: (("a",),)}), implied) == [(ALPHA, 8, (("a",),)), (BRAVO, 8, (("b",),))]


def test_a_withdrawn_ballot_is_none_at_all() -> None:
    withdrawn = ballots_of({ALPHA: ()})
    assert live(withdrawn, {}) == []
    assert live(withdrawn, {ALPHA: Implied(("b",), 0, 0)}) == [(ALPHA, 8, (("b",),))]


def test_who_weighs_nothing_has_no_ballot() -> None:
    nobodies = [CHARLIE, KEY, "did:wba:localhost"]
    assert live(ballots_of(dict.fromkeys(nobodies, (("a",),))), {CHARLIE: Implied(("a",), 0, 0)}) == []


def test_the_ballots_of_one_principal_share_its_weight() -> None:
    """In an electorate where a domain stands behind all the DIDs that it granted its name to."""
    directory = PrincipalDirectory()
    directory.read_domains_by("list", SuffixList(SUFFIXES))
    dids = [f"did:wba:alpha.example{rest}" for rest in ("", ":a", ":b", ":c", ":d")]
    for did in dids[1:4]:
        directory.grant("alpha.example", did, "did:wba:alpha.example")
    one, other = (("a",),), (("b",),)
    cast_by = ballots_of(dict(zip(dids, (one, other, one, (), one), strict=True)), directory)
    ballots = votes(cast_by, {"alpha.example": Implied(("c",), 0, 0)}, {"alpha.example": 8}, 0, None)
    assert ballots.weight.tolist() == [2, 2, 2] and ballots.implied == 0
    assert [ballots.rankings[number] for number in ballots.ranking] == [one, other, one]


def test_in_an_open_electorate_ballots_fade_and_ripen() -> None:
    ballots = Ballots(PrincipalDirectory())
    ballots.cast(ALPHA, (("a",),), 0)
    weights = [live(ballots, {}, epoch=epoch, horizon=4) for epoch in (0, 1, 4, 8)]
    expected = [part(part(8, decay(epoch, 4)), conviction(epoch)) for epoch in (0, 1, 4, 8)]
    assert [rows[0][1] for rows in weights] == expected == [4, 5, 3, 1]
    ballots.cast(ALPHA, (("a",),), 8)
    assert live(ballots, {}, epoch=8, horizon=4) == [(ALPHA, part(8, conviction(8)), (("a",),))], "reaffirmed: fresh, and as ripe"
    ballots.cast(ALPHA, (("b",),), 9)
    assert live(ballots, {}, epoch=9, horizon=4) == [(ALPHA, 4, (("b",),))], "changed: half"


def test_a_ballot_that_has_faded_away_gives_way_to_reports() -> None:
    ballots = ballots_of({ALPHA: (("a",),)})
    implied = {ALPHA: Implied(("b",), 31, 32)}
    assert live(ballots, implied, epoch=31, horizon=4)[0][2] == (("a",),)
    assert live(ballots, implied, epoch=32, horizon=4) == [(ALPHA, part(8, conviction(1)), (("b",),))]
