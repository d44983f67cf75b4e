"""Trust against independent computations of the same formula, and the law that makes rings of sybils worthless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import networkx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from trust_cases import ALL, CAP_SHARES, LOAN_SHARES, NAMES, Case, cases, named

from treaty_consensus.election.arithmetic import ONE, Amounts
from treaty_consensus.election.reputation import bounded_trust, cap
from treaty_consensus.election.trust import flows, graph, held, seed, trust
from treaty_consensus.kinds import RULES, Rule

NOBODY = "-"
"""The node of a PageRank graph that takes what a principal does not hand on."""


def allotted(case: Case, voucher: str) -> int:
    return max(sum(c for (p, _), c in case.vouches.items() if p == voucher), case.least * ONE)


def by_hand(case: Case) -> dict[str, int]:
    """The formula, letter by letter, on integers of Python."""
    own = {q: ONE // len(case.anchors) // 2 if q in case.anchors else 0 for q in case.names}
    x = own
    for _ in range(case.rounds):
        lendable = {p: own[p] + min(x[p] - own[p], case.most) for p in case.names}
        lent = {(p, q): lendable[p] // 2 * c // allotted(case, p) for (p, q), c in case.vouches.items()}
        x = {q: own[q] + sum(flow for (_, to), flow in lent.items() if to == q) for q in case.names}
    return x


def shares(case: Case) -> dict[tuple[str, str], Fraction]:
    return {(p, q): Fraction(c, 2 * allotted(case, p)) for (p, q), c in case.vouches.items()}


def own(case: Case) -> dict[str, Fraction]:
    return {q: Fraction(ONE // len(case.anchors), 2) if q in case.anchors else Fraction(0) for q in case.names}


def over_the_rationals(case: Case) -> dict[str, Fraction]:
    """The same rounds without rounding."""
    x = start = own(case)
    for _ in range(case.rounds):
        lent = {(p, q): (start[p] + min(x[p] - start[p], Fraction(case.most))) * share for (p, q), share in shares(case).items()}
        x = {q: start[q] + sum(flow for (_, to), flow in lent.items() if to == q) for q in case.names}
    return x


def in_the_limit(case: Case) -> dict[str, Fraction]:
    """The fixed point, by elimination: of the smallest solution over who lends all that it may and who all that it has."""
    start, full = own(case), set[str]()
    while True:
        x = solution(case, full)
        now = {p for p in case.names if x[p] - start[p] > case.most}
        if now == full:
            return x
        full = now


def solution(case: Case, full: set[str]) -> dict[str, Fraction]:
    """x where those in `full` lend s/2 + m, and others x."""
    start, part = own(case), shares(case)
    fixed = {q: start[q] + sum((start[p] + case.most) * part.get((p, q), Fraction(0)) for p in full) for q in case.names}
    lending = {(p, q): share for (p, q), share in part.items() if p not in full}
    rows = [[Fraction(p == q) - lending.get((p, q), 0) for p in case.names] + [fixed[q]] for q in case.names]
    for pivot in range(len(rows)):  # 1 - M has a dominant diagonal: no pivot is zero
        rows[pivot] = [cell / rows[pivot][pivot] for cell in rows[pivot]]
        for number, row in enumerate(rows):
            if number != pivot and row[pivot]:
                rows[number] = [cell - row[pivot] * top for cell, top in zip(row, rows[pivot], strict=True)]
    return {q: row[-1] for q, row in zip(case.names, rows, strict=True)}


@given(cases())
def test_trust_is_the_formula_to_the_unit(case: Case) -> None:
    assert case.trust == by_hand(case)


@given(cases())
def test_floors_lose_no_more_than_is_said(case: Case) -> None:
    exact, trust_of = over_the_rationals(case), case.trust
    assert all(trust_of[q] <= exact[q] for q in case.names)
    assert sum(exact[q] - trust_of[q] for q in case.names) < case.lost_to_floors


@given(cases())
def test_trust_is_below_its_limit_and_close_to_it(case: Case) -> None:
    limit, trust_of = in_the_limit(case), case.trust
    assert all(trust_of[q] <= limit[q] for q in case.names)
    assert sum(limit[q] - trust_of[q] for q in case.names) < case.may_lack


@settings(deadline=None)  # the first PageRank imports SciPy
@given(cases(rounds=st.just(33), most=ALL))
def test_trust_is_pagerank_without_the_undelivered_rest(case: Case) -> None:
    """PageRank gives back to the seed what a node hands on to nobody. Let every principal hand what it keeps back to one more
    node, m its PageRank y. Then y = (1 + m)/2 · s/σ + My, σ being the sum of s, so that x = σ·y / (1 + m) solves x = s/2 + Mx."""
    present = [name for name in case.anchors if name in case.names]
    if not present:
        assert set(case.trust.values()) == {0}
        return
    web = networkx.DiGraph()
    web.add_nodes_from([*case.names, NOBODY])
    for (p, q), c in case.vouches.items():
        web.add_edge(p, q, weight=c)
    for p in case.names:
        if rest := allotted(case, p) - sum(c for (voucher, _), c in case.vouches.items() if voucher == p):
            web.add_edge(p, NOBODY, weight=rest)
    seeds = dict.fromkeys(present, 1)
    y = networkx.pagerank(web, alpha=0.5, personalization=seeds, max_iter=200, tol=1e-14)
    total = ONE // len(case.anchors) * len(present)
    for name, amount in case.trust.items():
        assert amount == pytest.approx(total * y[name] / (1 + y[NOBODY]), abs=float(case.may_lack) + 1e-3)


@settings(deadline=None)
@given(st.data(), st.integers(5, 8), st.integers(1, 4))
def test_trust_is_pagerank_itself_where_everybody_hands_on_all(data: st.DataObject, people: int, least: int) -> None:
    names = NAMES[:people]
    subjects = st.lists(st.sampled_from(names), min_size=least + 1, max_size=people, unique=True)
    vouches = {(p, q): ONE for p in names for q in data.draw(subjects) if q != p}
    anchors = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    case = Case(names, vouches, anchors, rounds=33, least=least)
    web = networkx.DiGraph(list(vouches))
    y = networkx.pagerank(web, alpha=0.5, personalization=dict.fromkeys(anchors, 1), max_iter=200, tol=1e-14)
    for name, amount in case.trust.items():
        assert amount == pytest.approx(ONE * y[name], abs=float(case.may_lack) + len(anchors) + 1e-3)


def across(case: Case, inside: set[str]) -> tuple[int, int]:
    """What flows into a set, and out of it."""
    into = sum(flow for (p, q), flow in case.flows.items() if p not in inside and q in inside)
    out = sum(flow for (p, q), flow in case.flows.items() if p in inside and q not in inside)
    return into, out


@given(cases(), st.data())
def test_a_set_without_seed_has_at_most_twice_its_net_inflow(case: Case, data: st.DataObject) -> None:
    unseeded = [name for name in case.names if name not in case.anchors]
    inside = data.draw(st.sets(st.sampled_from(unseeded)) if unseeded else st.just(set()))
    into, out = across(case, inside)
    assert sum(case.trust[name] for name in inside) <= 2 * (into - out)


@given(cases(absent=False), st.integers(1, 60), st.booleans(), st.data())
def test_sybils_have_only_their_makers_forwarded_trust(case: Case, sybils: int, closed: bool, data: st.DataObject) -> None:
    """Sybils behind one vouch, who vouch for each other in a circle, and, unless `closed`, for everybody who is real."""
    ring = [f"sybil{number:02}" for number in range(sybils)]
    bought = data.draw(st.sampled_from(case.names))
    vouches = {**case.vouches, (bought, ring[0]): ONE}
    vouches |= {(p, q): ONE for p, q in zip(ring, ring[1:] + ring[:1], strict=True) if p != q}
    vouches |= {} if closed else {(p, q): ONE for p in ring for q in case.names}
    attacked = Case([*case.names, *ring], vouches, case.anchors, 33, case.least, case.most)
    total = sum(attacked.trust[name] for name in ring)
    into = attacked.flows[bought, ring[0]]
    assert total <= 2 * into <= 2 * (attacked.trust[bought] // 2 // case.least)
    assert into <= (ONE // len(case.anchors) * (bought in case.anchors) // 2 + case.most) // 2 // case.least


@given(cases())
def test_all_trust_together_never_passes_one(case: Case) -> None:
    assert sum(case.trust.values()) <= ONE
    assert all(amount >= ONE // len(case.anchors) // 2 for name, amount in case.trust.items() if name in case.anchors)


@given(cases())
def test_another_round_takes_trust_from_nobody(case: Case) -> None:
    further = Case(case.names, case.vouches, case.anchors, case.rounds + 1, case.least, case.most)
    assert all(case.trust[name] <= further.trust[name] for name in case.names)


@given(cases(), st.permutations(NAMES))
def test_names_do_not_matter(case: Case, others: Sequence[str]) -> None:
    new = dict(zip(NAMES, others, strict=True)) | {name: name for name in "xyz"}
    renamed = Case(
        "".join(new[name] for name in case.names),
        {(new[p], new[q]): c for (p, q), c in case.vouches.items()},
        [new[name] for name in case.anchors],
        case.rounds,
        case.least,
        case.most,
    )
    assert renamed.trust == {new[name]: amount for name, amount in case.trust.items()}


@given(cases(), st.data())
def test_a_stronger_vouch_takes_no_trust(case: Case, data: st.DataObject) -> None:
    if not case.vouches:
        return
    pair = data.draw(st.sampled_from(sorted(case.vouches)))
    spent = sum(c for (p, _), c in case.vouches.items() if p == pair[0])
    room = min(ONE - case.vouches[pair], max(case.least * ONE - spent, 0))
    more = {**case.vouches, pair: case.vouches[pair] + data.draw(st.integers(0, room))}
    stronger = Case(case.names, more, case.anchors, case.rounds, case.least, case.most)
    assert all(case.trust[name] <= stronger.trust[name] for name in case.names)


# What is held, and trust settled


def held_by_hand(case: Case) -> dict[str, int]:
    lent = {p: sum(flow for (voucher, _), flow in case.flows.items() if voucher == p) for p in case.names}
    own = {p: ONE // len(case.anchors) // 2 if p in case.anchors else 0 for p in case.names}
    return {p: amount - min(own[p], 2 * lent[p]) for p, amount in case.trust.items()}


def held_of(case: Case) -> Amounts:
    lent = flows(case.graph, case.amounts, case.seed, least=case.least, most=case.most)
    return held(case.graph, case.amounts, case.seed, lent)


@given(cases())
def test_an_anchor_holds_its_seed_as_far_as_it_does_not_lend_it(case: Case) -> None:
    trust_of = named(case.graph, held_of(case))
    assert trust_of == held_by_hand(case)
    vouching = {voucher for voucher, _ in case.vouches}
    for name, amount in case.trust.items():
        assert 0 <= trust_of[name] <= amount
        if name not in case.anchors or name not in vouching:
            assert trust_of[name] == amount


def cap_by_hand(case: Case, cap_share: int) -> int:
    """The cap by its definition."""
    amounts = held_by_hand(case).values()
    low, high = 0, ONE
    while low < high:  # the largest m that fits
        middle = (low + high + 1) // 2
        fits = cap_share * sum(min(u, middle) for u in amounts) <= sum(amounts)
        low, high = (middle, high) if fits else (low, middle - 1)
    return low if any(amounts) else 0


def settled_by_hand(case: Case, cap_share: int, loan_share: int, rule: Rule) -> tuple[Case, int]:
    """All passes of the rule, and m*."""
    caps = [cap_by_hand(case, cap_share)]
    for _ in range(1 if rule == "schulze-margins-v2" else 2):
        case = replace(case, most=min(caps) // loan_share)
        caps.append(cap_by_hand(case, cap_share))
    return case, caps[-1] if rule == "schulze-margins-v2" else max(min(caps[:2]), caps[2])


@given(cases(most=ALL), CAP_SHARES, LOAN_SHARES, st.sampled_from(RULES))
def test_trust_is_settled_in_two_or_three_passes(case: Case, cap_share: int, loan_share: int, rule: Rule) -> None:
    terms = {"rounds": case.rounds, "least": case.least, "cap_share": cap_share, "loan_share": loan_share}
    bounds = bounded_trust(case.graph, case.seed, **terms, rule=rule)
    assert (bounds.trust <= case.amounts).all(), "nobody gains when surplus cannot be lent"
    case, most = settled_by_hand(case, cap_share, loan_share, rule)
    assert bounds.cap == most
    assert named(case.graph, bounds.trust) == by_hand(case)
    ends = zip(bounds.flows.tolist(), case.graph.source.tolist(), case.graph.target.tolist(), strict=True)
    assert {(case.graph.principals[p], case.graph.principals[q]): flow for flow, p, q in ends} == case.flows


@given(cases(most=ALL), CAP_SHARES, LOAN_SHARES, st.data())
def test_nobody_turns_its_surplus_into_full_voices_of_others(
    case: Case, cap_share: int, loan_share: int, data: st.DataObject
) -> None:
    """Behind one principal without seed, whatever trust it has, a set has no more trust than a full voice over the loan share."""
    most = cap(held_of(case), cap_share) // loan_share
    unseeded = [name for name in case.names if name not in case.anchors]
    assume(unseeded)
    bought = data.draw(st.sampled_from(unseeded))
    vouches = {(p, q): c for (p, q), c in case.vouches.items() if p != bought} | {(bought, name): ONE for name in ("r", "s", "t")}
    vouches |= {(p, q): ONE for p in "rst" for q in "rst" if p != q}
    bigger = graph([*case.names, *"rst"], vouches)
    trust_of = named(bigger, trust(bigger, seed(bigger, case.anchors), rounds=33, least=case.least, most=most))
    assert sum(trust_of[name] for name in "rst") <= most
