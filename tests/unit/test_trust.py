"""Trust worked by hand; the tables are those of tests/vectors/election/worked.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.provenance import clusters
from treaty_consensus.election.reputation import base_weight, bounded_trust, cap
from treaty_consensus.election.trust import flows, graph, held, seed, trust
from treaty_consensus.kinds import RULE, RULES, Rule

SPECIFICATION = Path(__file__).parents[2] / "tests" / "vectors" / "election" / "worked.md"
ANCHORS = ("a", "b")
VOUCHES = "a→c, a→e, b→c, b→d, c→f, d→f, e→r, r→s, s→t, t→r"
ROUNDS, LEAST = 33, 4
# principal, trust where everybody lends all, what is held of it, trust, weight, cluster
TABLE = [
    ("a", 1073741824, 536870912, 1073741824, 4294967296, "a"),
    ("b", 1073741824, 536870912, 1073741824, 4294967296, "b"),
    ("c", 268435456, 268435456, 268435456, 4294967296, "a"),
    ("d", 134217728, 134217728, 134217728, 4294967296, "b"),
    ("e", 134217728, 134217728, 134217728, 4294967296, "a"),
    ("f", 50331648, 50331648, 6131672, 248237034, "a"),
    ("r", 16810048, 16810048, 3071835, 124361383, "a"),
    ("s", 2101256, 2101256, 383979, 15545157, "a"),
    ("t", 262657, 262657, 47997, 1943129, "a"),
]
FIRST_CAP, CAP = 98106767, 106089451

WEB = graph("abcdefrst", {(pair[0], pair[2]): ONE for pair in VOUCHES.split(", ")})
SEED = seed(WEB, ANCHORS)


def column(number: int) -> list[object]:
    return [row[number] for row in TABLE]


@pytest.mark.parametrize("rule", RULES)
def test_trust_and_weights_worked_by_hand(rule: Rule) -> None:
    first = trust(WEB, SEED, rounds=ROUNDS, least=LEAST)
    holding = held(WEB, first, SEED, flows(WEB, first, SEED, least=LEAST))
    bounded = bounded_trust(WEB, SEED, rounds=ROUNDS, least=LEAST, cap_share=3, loan_share=4, rule=rule)
    weights = base_weight(bounded.trust, bounded.cap, np.full(len(TABLE), 52), 52)
    assert list(WEB.principals) == column(0)
    assert first.tolist() == column(1)
    assert holding.tolist() == column(2)
    assert bounded.trust.tolist() == column(3)
    assert (cap(holding, 3), bounded.cap) == (FIRST_CAP, CAP)
    assert weights.tolist() == column(4)
    assert list(clusters(WEB, bounded.flows, ANCHORS).values()) == column(5)


def test_the_specification_shows_these_tables() -> None:
    text = SPECIFICATION.read_text(encoding="utf-8")
    rows = [
        f"{name} {first:>11} {holding:>10} {x:>11} {weight:>11}  {cluster}" for name, first, holding, x, weight, cluster in TABLE
    ]
    assert VOUCHES in text
    assert "\n".join(rows) in text
    assert str(FIRST_CAP) in text
    assert str(CAP) in text


# What a p, an r and an f has is the same for all of them.
FALLING = graph(
    ["a", "b", "c", "d", *(f"p{n:02}" for n in range(1, 25)), *(f"r{n}" for n in range(1, 7)), *(f"f{n}" for n in range(1, 5))],
    {("a", f"p{n:02}"): ONE for n in range(1, 25)}
    | {(anchor, f"r{n}"): ONE for anchor in "bcd" for n in range(1, 7)}
    | {(f"r{n}", f"f{m}"): ONE for n in range(1, 7) for m in range(1, 5)},
)
# principal, and of each pass trust and what is held of it; weight
FALLING_TABLE = [
    ("a", 536870912, 32, 536870912, 32, 536870912, 32, 4294967296),
    ("b–d", 536870912, 8, 536870912, 8, 536870912, 8, 4294967296),
    ("p01–", 11184810, 11184810, 11184810, 11184810, 11184810, 11184810, 3474581017),
    ("r1–", 134217726, 134217726, 134217726, 134217726, 134217726, 134217726, 4294967296),
    ("f1–", 100663290, 100663290, 4194300, 4194300, 2446674, 2446674, 760063607),
]
FALLING_CAPS = [22369617, 13048942, 13825665]


def test_a_third_pass_worked_by_hand() -> None:
    seeds = seed(FALLING, tuple("abcd"))
    kinds = FALLING.places([row[0].partition("–")[0] for row in FALLING_TABLE])
    for number, most in enumerate([ONE, FALLING_CAPS[0] // 4, FALLING_CAPS[1] // 4]):
        x = trust(FALLING, seeds, rounds=ROUNDS, least=LEAST, most=most)
        u = held(FALLING, x, seeds, flows(FALLING, x, seeds, least=LEAST, most=most))
        assert x[kinds].tolist() == [row[1 + 2 * number] for row in FALLING_TABLE]
        assert u[kinds].tolist() == [row[2 + 2 * number] for row in FALLING_TABLE]
        assert cap(u, 3) == FALLING_CAPS[number]
    weights = {}
    for rule in RULES:
        bounded = bounded_trust(FALLING, seeds, rounds=ROUNDS, least=LEAST, cap_share=3, loan_share=4, rule=rule)
        weights[rule] = base_weight(bounded.trust, bounded.cap, np.full(len(bounded.trust), 52), 52)[kinds].tolist()
    assert weights["schulze-margins-v3"] == [row[7] for row in FALLING_TABLE]
    assert weights["schulze-margins-v2"][4] == 1380524285


def test_the_specification_shows_the_third_pass() -> None:
    text = SPECIFICATION.read_text(encoding="utf-8")
    rows = [f"{name:<4}" + "".join(f" {amount:>10}" for amount in amounts) for name, *amounts in FALLING_TABLE]
    assert "\n".join(rows) in text
    assert all(str(number) in text for number in (*FALLING_CAPS, FALLING_CAPS[0] // 4, FALLING_CAPS[1] // 4, 1380524285))


def test_what_is_not_a_vouch_between_principals_is_left_out() -> None:
    graph_of_vouches = graph("ba", {("a", "b"): 7, ("b", "a"): 0, ("a", "a"): ONE, ("a", "x"): ONE, ("x", "b"): ONE})
    assert graph_of_vouches.principals == ("a", "b")
    assert (graph_of_vouches.source.tolist(), graph_of_vouches.target.tolist(), graph_of_vouches.strength.tolist()) == (
        [0],
        [1],
        [7],
    )


def test_the_share_of_an_absent_anchor_goes_to_nobody() -> None:
    assert seed(WEB, ("a", "b", "x")).tolist() == [ONE // 3, ONE // 3, 0, 0, 0, 0, 0, 0, 0]


def test_nobody_at_all_has_nothing() -> None:
    empty = graph((), {})
    nothing = bounded_trust(empty, seed(empty, ANCHORS), rounds=ROUNDS, least=LEAST, cap_share=3, loan_share=4, rule=RULE)
    assert (len(nothing.trust), len(nothing.flows), nothing.cap) == (0, 0, 0)
    assert clusters(empty, nothing.flows, ANCHORS) == {}


def test_without_a_cap_nobody_weighs_anything() -> None:
    """A single unit cannot be cut in half."""
    units = np.array([1, 0], np.uint64)
    assert cap(units, 3) == 0
    assert base_weight(units, 0, np.array([52, 52]), 52).tolist() == [0, 0]


def test_a_voice_ripens_to_its_whole() -> None:
    ages = np.array([0, 1, 26, 52, 53], np.int64)
    weights = base_weight(np.full(5, 10, np.uint64), 10, ages, 52)
    assert weights.tolist() == [0, ONE // 52, ONE // 2, ONE, ONE]
    assert weights.dtype == np.uint64, "an array of ages must not make floats of it"
