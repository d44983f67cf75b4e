"""The bound on attack edges: each step of its proof (docs/specification/election-bound.md), in whole numbers, and for every set
of principals without seed.
"""

from __future__ import annotations

import random
import re
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from bench.edges import BOUND, climbed, drawn, falling_caps
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trust_cases import ALL, CAP_SHARES, LOAN_SHARES, Case, cases

from treaty_consensus.election.arithmetic import ONE, Amounts
from treaty_consensus.election.reputation import BoundedTrust, base_weight, bounded_trust
from treaty_consensus.election.trust import flows, trust

Whole: TypeAlias = NDArray[Any]
"""Integers of Python, which do not overflow."""

SEARCH = settings(max_examples=examples(500))


class Sets(NamedTuple):
    """Every set of principals without seed: a row each, and whether each principal, and each end of an edge, is in it."""

    members: NDArray[np.bool_]
    source: NDArray[np.bool_]
    target: NDArray[np.bool_]

    @property
    def entered(self) -> NDArray[np.bool_]:
        """Return for each set and edge whether the edge leads into the set."""
        return self.target & ~self.source

    @property
    def left(self) -> NDArray[np.bool_]:
        return self.source & ~self.target


def sets_of(case: Case) -> Sets:
    names = case.graph.principals
    unseeded = [place for place, name in enumerate(names) if name not in case.anchors]
    bits = np.arange(2 ** len(unseeded))[:, None] >> np.arange(len(unseeded)) & 1
    members = np.zeros((len(bits), len(names)), dtype=np.bool_)
    members[:, unseeded] = bits == 1
    return Sets(members, members[:, case.graph.source], members[:, case.graph.target])


def whole(amounts: NDArray[Any]) -> Whole:
    return amounts.astype(object)


class Electorate:
    """A drawn graph by the rule that has the bound."""

    def __init__(self, case: Case, cap_share: int, loan_share: int) -> None:
        self.case, self.cap_share, self.loan_share = case, cap_share, loan_share

    @cached_property
    def bounded(self) -> BoundedTrust:
        terms = {"rounds": self.case.rounds, "least": self.case.least, "cap_share": self.cap_share}
        return bounded_trust(self.case.graph, self.case.seed, **terms, loan_share=self.loan_share, rule="schulze-margins-v3")

    def lent(self) -> Amounts:
        """Return what each principal lends in all."""
        sums = np.zeros_like(self.bounded.trust)
        np.add.at(sums, self.case.graph.source, self.bounded.flows)
        return sums


ELECTORATES = st.builds(Electorate, cases(most=ALL), CAP_SHARES, LOAN_SHARES)


@SEARCH
@given(cases(), st.data())
def test_step_1_a_round_is_monotone_and_starts_at_nothing(case: Case, data: st.DataObject) -> None:
    own = (case.seed >> np.uint64(1)).tolist()
    less = [data.draw(st.integers(amount, ONE)) for amount in own]
    more = [data.draw(st.integers(amount, ONE)) for amount in less]
    low, high = (
        flows(case.graph, np.array(amounts, np.uint64), case.seed, least=case.least, most=case.most) for amounts in (less, more)
    )
    assert (low <= high).all()
    rounds = [trust(case.graph, case.seed, rounds=n, least=case.least, most=case.most) for n in range(case.rounds % 6 + 2)]
    assert all((before <= after).all() for before, after in pairwise(rounds))


@SEARCH
@given(cases())
def test_step_2_a_principal_lends_half_shared_by_its_vouches(case: Case) -> None:
    lent = flows(case.graph, case.amounts, case.seed, least=case.least, most=case.most)
    own = case.seed >> np.uint64(1)
    lendable = own + np.minimum(case.amounts - own, np.uint64(case.most))
    sums = np.zeros_like(case.amounts)
    np.add.at(sums, case.graph.source, lent)
    assert (2 * sums <= lendable).all()
    assert (2 * case.least * lent <= lendable[case.graph.source]).all()


@SEARCH
@given(cases())
def test_step_3_a_seedless_set_has_at_most_twice_its_net_inflow(case: Case) -> None:
    lent = whole(flows(case.graph, case.amounts, case.seed, least=case.least, most=case.most))
    sets = sets_of(case)
    assert (sets.members @ whole(case.amounts) <= 2 * (sets.entered @ lent - sets.left @ lent)).all()


@SEARCH
@given(ELECTORATES)
def test_step_4_relent_trust_is_a_fixed_part_of_the_cap(electorate: Electorate) -> None:
    """It fails for `schulze-margins-v2`, and where m* is the last cap alone."""
    own = (electorate.case.seed >> np.uint64(1)).astype(object)
    cap, loans = electorate.bounded.cap, electorate.loan_share
    assert (2 * loans * whole(electorate.lent()) <= loans * own + cap).all()
    by_one_vouch = 2 * electorate.case.least * loans * whole(electorate.bounded.flows)
    assert (by_one_vouch <= (loans * own + cap)[electorate.case.graph.source]).all()


@SEARCH
@given(ELECTORATES, st.data())
def test_step_5_a_weight_is_at_most_one_and_the_capped_trust(electorate: Electorate, data: st.DataObject) -> None:
    ages = np.array([data.draw(st.integers(0, 60)) for _ in electorate.case.names])
    weights = whole(base_weight(electorate.bounded.trust, electorate.bounded.cap, ages, 52))
    assert (weights <= ONE).all()
    assert (weights * electorate.bounded.cap <= ONE * whole(electorate.bounded.trust)).all()


@SEARCH
@given(ELECTORATES, st.integers(0, 2**16))
def test_the_weight_of_the_corrupted_is_bounded(electorate: Electorate, corrupted: int) -> None:
    """Every set of domains, with corrupted principals drawn among all others, anchors too."""
    case, cap, loans, graph = electorate.case, electorate.bounded.cap, electorate.loan_share, electorate.case.graph
    weights = whole(base_weight(electorate.bounded.trust, cap, np.full(len(case.names), 52), 52))
    sets = sets_of(case)
    bought = (corrupted >> np.arange(len(case.names)) & 1 == 1) & ~sets.members
    voucher = (np.arange(len(case.names)) == graph.source[:, None]).astype(np.int64)
    # Of each principal outside, at most `least` of its vouches for the domains.
    vouches = np.minimum(sets.entered.astype(np.int64) @ voucher, case.least)
    edges, from_anchors = whole(vouches.sum(axis=1)), whole(vouches[:, case.seed > 0].sum(axis=1))
    own = int(case.seed.max() >> np.uint64(1))
    # Both sides times least · loan_share · m*, so that nothing is rounded.
    part = case.least * loans * cap
    allowed = whole(bought.sum(axis=1)) * part + edges * cap + from_anchors * loans * own
    assert ((sets.members | bought) @ weights * part <= ONE * allowed).all()


@pytest.mark.parametrize(("spread", "rich", "factor"), [(6, 4, 3), (4, 32, 2)])
def test_the_older_rule_exceeds_the_bound_which_is_tight(spread: int, rich: int, factor: int) -> None:
    network = falling_caps(spread, rich)
    assert network.worth("schulze-margins-v2") > factor * BOUND
    assert BOUND / 2 < network.worth("schulze-margins-v3") <= BOUND


@pytest.mark.parametrize("people", [20, pytest.param(40, marks=pytest.mark.deep)])
def test_no_climb_passes_the_bound(people: int) -> None:
    draw = random.Random(people)
    bounds = climbed(drawn(people, draw), "schulze-margins-v3", examples(1500), draw)
    assert BOUND / 2 < bounds.worth("schulze-margins-v3") <= BOUND


def test_the_proof_names_the_tests_of_its_steps() -> None:
    page = Path(__file__).parents[2] / "docs" / "specification" / "election-bound.md"
    named = re.findall(r"^\| \d \| `(\w+)` \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    theorem = test_the_weight_of_the_corrupted_is_bounded.__name__
    assert named == [*(name for name in globals() if name.startswith("test_step_")), theorem]
