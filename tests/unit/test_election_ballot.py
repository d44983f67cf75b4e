"""What a ballot says about each pair of choices, NONE among them, and whose ballot it is."""

from __future__ import annotations

import pytest

from treaty_consensus.election import ballot
from treaty_consensus.election.ballot import Cast, Tiers, count, implied_tiers, live_ballots, ranks
from treaty_consensus.kinds import NONE

CHOICES = ("a", "b", "c", NONE)


def relation(tiers: Tiers) -> str:
    """The weak order over a, b, c and NONE, best first."""
    ranking = ranks(tiers, CHOICES)
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


def test_counts_only_strict_preferences_and_sides_by_cluster() -> None:
    cast = [
        Cast("p", 10, (("a",), ("b", "c")), implied=False),
        Cast("q", 4, (("b",), (NONE,), ("a",)), implied=False),
        Cast("r", 1, (("a", NONE),), implied=True),
    ]
    counted = count(cast, ("a", "b"), {"p": "x", "q": "x", "r": "y"})
    assert counted.choices == ("a", "b", NONE)
    assert counted.total == 15
    assert counted.pairwise == [[0, 11, 10], [4, 0, 14], [4, 1, 0]]
    assert counted.above == [{"x": 10}, {"x": 14}]
    assert counted.below == [{"x": 4}, {"y": 1}]


def test_without_candidates_ballots_still_have_a_total() -> None:
    counted = count([Cast("p", 7, (("a",),), implied=False)], (), {"p": "p"})
    assert (counted.choices, counted.total, counted.pairwise) == ((NONE,), 7, [[0]])


def test_an_implied_ballot_ranks_by_counterparties() -> None:
    assert implied_tiers({"b": 2, "a": 2, "c": 5, "d": 1}) == (("c",), ("a", "b"), ("d",))


ALPHA, BRAVO, CHARLIE = (f"did:wba:{name}.example" for name in ("alpha", "bravo", "charlie"))
WEIGHTS = {ALPHA: 8, BRAVO: 8}


def test_a_ballot_replaces_what_its_principal_did() -> None:
    cast = live_ballots({ALPHA: (("a",),)}, {ALPHA: {"b": 3}, BRAVO: {"b": 3}}, WEIGHTS)
    assert cast == [Cast(ALPHA, 8, (("a",),), implied=False), Cast(BRAVO, 8, (("b",),), implied=True)]


def test_a_withdrawn_ballot_is_none_at_all() -> None:
    assert live_ballots({ALPHA: ()}, {}, WEIGHTS) == []
    assert live_ballots({ALPHA: ()}, {ALPHA: {"b": 1}}, WEIGHTS) == [Cast(ALPHA, 8, (("b",),), implied=True)]


def test_who_weighs_nothing_has_no_ballot() -> None:
    key = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    nobodies = [CHARLIE, key, "did:wba:192.0.2.1", "did:wba:localhost"]
    assert live_ballots(dict.fromkeys(nobodies, (("a",),)), {CHARLIE: {"a": 3}}, WEIGHTS) == []


def test_the_ballots_of_one_principal_share_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an electorate where a domain stands behind all the DIDs below it."""
    monkeypatch.setattr(ballot, "principal_of", lambda did: f"did:wba:{did.host}")
    ballots: dict[str, Tiers] = {f"{ALPHA}:a": (("a",),), f"{ALPHA}:b": (("b",),), f"{ALPHA}:c": (), ALPHA: (("a",),)}
    cast = live_ballots(ballots, {ALPHA: {"c": 1}}, WEIGHTS)
    assert cast == [
        Cast(ALPHA, 2, (("a",),), implied=False),
        Cast(ALPHA, 2, (("a",),), implied=False),
        Cast(ALPHA, 2, (("b",),), implied=False),
    ]
