"""The bound on attack edges for every graph of up to six principals at once, in whole numbers with all floors, by an SMT solver.

Vouches are fresh or absent; the seeds, the trust, the limit m and the cap m* are any numbers. Trust is any x with own ≤ x ≤ T(x):
that is what step 1 of the proof (docs/specification/election-bound.md) says of it after any number of rounds. A principal
without vouches changes nothing, so six stand for fewer too.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import z3

from treaty_consensus.election import trust
from treaty_consensus.election.arithmetic import ONE

pytestmark = pytest.mark.deep

PEOPLE = range(6)
LEAST, LOANS = 4, 4
PART = LEAST * LOANS
"""An attack edge is worth one part of so many of a voice."""
CAP = z3.Int("cap")


def total(terms: Iterable[Any]) -> Any:
    return z3.Sum([z3.IntVal(0), *terms])


class Graph:
    """All graphs: a variable for each vouch. The first `anchors` principals have seed."""

    def __init__(self, anchors: int) -> None:
        self.anchors = PEOPLE[:anchors]
        self.vouch = {pair: z3.Bool("vouch_{}_{}".format(*pair)) for pair in permutations(PEOPLE, 2)}
        self.own = [z3.Int(f"own{p}") if p in self.anchors else z3.IntVal(0) for p in PEOPLE]
        self.most = z3.Int("m")
        self.given = [total(z3.If(self.vouch[p, q], 1, 0) for q in PEOPLE if q != p) for p in PEOPLE]

    def amounts(self, name: str) -> list[Any]:
        return [z3.Int(f"{name}{p}") for p in PEOPLE]

    @property
    def sound(self) -> Any:
        return z3.And(self.most >= 0, *(own >= 0 for own in self.own))

    def flows(self, x: list[Any]) -> dict[tuple[int, int], Any]:
        """F(p, q) of trust `x`. A division by a constant for each number of vouches, as z3 solves no other ones in general."""
        lent = []
        for p in PEOPLE:
            passed = x[p] - self.own[p]
            half = (self.own[p] + z3.If(passed <= self.most, passed, self.most)) / 2
            parts = half / LEAST
            for number in range(LEAST + 1, len(PEOPLE)):
                parts = z3.If(self.given[p] == number, half / number, parts)
            lent.append(parts)
        return {(p, q): z3.If(vouch, lent[p], 0) for (p, q), vouch in self.vouch.items()}

    def after(self, x: list[Any]) -> list[Any]:
        """T(x)."""
        flows = self.flows(x)
        return [self.own[q] + total(flow for (_, to), flow in flows.items() if to == q) for q in PEOPLE]

    def trusted(self, x: list[Any]) -> Any:
        ends = zip(self.own, x, self.after(x), strict=True)
        return z3.And(*(z3.And(own <= amount, amount <= after) for own, amount, after in ends))


def proves(*premises: Any, claim: Any) -> None:
    """Find no numbers that meet the premises and not the claim."""
    solver = z3.Solver()
    solver.add(*premises)
    assert solver.check() == z3.sat, "otherwise anything follows"
    solver.add(z3.Not(claim))
    assert solver.check() == z3.unsat, solver.model()


@pytest.mark.parametrize("anchors", [1, 2])
def test_step_1_a_round_is_monotone_and_begins_upwards(anchors: int) -> None:
    graph = Graph(anchors)
    less, more = graph.amounts("x"), graph.amounts("y")
    ordered = [z3.And(own <= x, x <= y) for own, x, y in zip(graph.own, less, more, strict=True)]
    claim = z3.And(*(x <= y for x, y in zip(graph.after(less), graph.after(more), strict=True)))
    proves(graph.sound, *ordered, claim=claim)
    proves(graph.sound, claim=z3.And(*(own <= x for own, x in zip(graph.own, graph.after(graph.own), strict=True))))


@pytest.mark.parametrize("anchors", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_step_3_a_seedless_set_has_at_most_twice_its_net_inflow(anchors: int, size: int) -> None:
    graph = Graph(anchors)
    x, inside = graph.amounts("x"), PEOPLE[-size:]
    flows = graph.flows(x)
    into = total(flow for (p, q), flow in flows.items() if p not in inside and q in inside)
    out = total(flow for (p, q), flow in flows.items() if p in inside and q not in inside)
    proves(graph.sound, graph.trusted(x), claim=total(x[p] for p in inside) <= 2 * (into - out))


@pytest.mark.parametrize("anchors", [1, 2])
def test_step_4_a_vouch_carries_at_most_an_eighth_of_the_limit(anchors: int) -> None:
    graph = Graph(anchors)
    x = graph.amounts("x")
    lent = {pair: 2 * LEAST * flow for pair, flow in graph.flows(x).items()}
    claim = z3.And(*(flow <= graph.own[p] + graph.most for (p, _), flow in lent.items()))
    proves(graph.sound, graph.trusted(x), claim=claim)


def bounded(graph: Graph, x: list[Any], corrupted: Iterable[int], domains: Iterable[int], part: int = PART) -> Any:
    """Tell that the voices are at most k + e / part, and ⌊s/2⌋ / (least · m*) more for a vouch of an anchor."""
    voices = total(z3.If(x[p] <= CAP, x[p], CAP) for p in (*corrupted, *domains))
    edges = [z3.If(graph.vouch[p, q], CAP + LOANS * graph.own[p], 0) for p in PEOPLE for q in domains if p not in domains]
    return part * voices <= part * len(tuple(corrupted)) * CAP + total(edges)  # both sides times part · m*


SPLITS = [((), (5,)), ((), (3, 4, 5)), ((2,), (4, 5)), ((2,), (3, 4, 5)), ((0, 2), (4, 5)), ((0,), (3, 4, 5))]


@pytest.mark.parametrize("anchors", [1, 2])
@pytest.mark.parametrize(("corrupted", "domains"), SPLITS)
def test_the_voices_of_the_corrupted_are_bounded(anchors: int, corrupted: tuple[int, ...], domains: tuple[int, ...]) -> None:
    graph = Graph(anchors)
    x = graph.amounts("x")
    proves(graph.sound, graph.trusted(x), CAP >= 1, LOANS * graph.most <= CAP, claim=bounded(graph, x, corrupted, domains))


@pytest.mark.parametrize(("most", "part"), [(CAP, 2 * PART), (2 * CAP, PART)])
def test_half_the_bound_and_a_limit_of_twice_the_cap_are_refuted(most: Any, part: int) -> None:
    """So the bound is tight within two for three domains, and needs m ≤ m* / loan_share. The graphs are those of the product."""
    graph = Graph(1)
    x = graph.amounts("x")
    solver = z3.Solver()
    solver.add(graph.sound, graph.trusted(x), CAP >= 1, LOANS * graph.most <= most, *(amount <= ONE for amount in x))
    solver.add(z3.Not(bounded(graph, x, (), (3, 4, 5), part)))
    assert solver.check() == z3.sat
    model = solver.model()

    def value(of: Any) -> int:
        return int(model.eval(of, model_completion=True).as_long())

    pairs = sorted(pair for pair, vouch in graph.vouch.items() if z3.is_true(model.eval(vouch, model_completion=True)))
    graph_of_pairs = trust.graph(map(str, PEOPLE), {(str(p), str(q)): ONE for p, q in pairs})
    amounts, seed = (np.array([value(of) for of in column], np.uint64) for column in (x, [2 * own for own in graph.own]))
    lent = trust.flows(graph_of_pairs, amounts, seed, least=LEAST, most=value(graph.most))
    flows = graph.flows(x)
    assert lent.tolist() == [value(flows[pair]) for pair in pairs]
