"""Drawn vouches and anchors, and the trust that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from hypothesis import strategies as st

from treaty_consensus.election.arithmetic import ONE, Amounts
from treaty_consensus.election.trust import Graph, flows, graph, seed, trust

NAMES = "abcdefgh"


@dataclass(frozen=True)
class Case:
    names: Sequence[str]
    vouches: dict[tuple[str, str], int]
    anchors: list[str]
    rounds: int
    least: int
    most: int = ONE

    @cached_property
    def graph(self) -> Graph:
        return graph(self.names, self.vouches)

    @cached_property
    def trust(self) -> dict[str, int]:
        return named(self.graph, self.amounts)

    @property
    def seed(self) -> Amounts:
        return seed(self.graph, self.anchors)

    @cached_property
    def amounts(self) -> Amounts:
        return trust(self.graph, self.seed, rounds=self.rounds, least=self.least, most=self.most)

    @cached_property
    def flows(self) -> dict[tuple[str, str], int]:
        graph = self.graph
        lent = flows(graph, self.amounts, self.seed, least=self.least, most=self.most)
        ends = zip(graph.source.tolist(), graph.target.tolist(), lent.tolist(), strict=True)
        return {(graph.principals[source], graph.principals[target]): flow for source, target, flow in ends}

    @property
    def may_lack(self) -> Fraction:
        """How much less trust there may be, in all, than in the limit over the rationals."""
        return Fraction(ONE, 2 ** (self.rounds + 1)) + self.lost_to_floors

    @property
    def lost_to_floors(self) -> int:
        return 2 * len(self.vouches) + len({voucher for voucher, _ in self.vouches}) + len(self.anchors)


def named(graph: Graph, amounts: Amounts) -> dict[str, int]:
    assert amounts.dtype == np.uint64
    return dict(zip(graph.principals, amounts.tolist(), strict=True))


STRENGTHS = st.one_of(st.just(ONE), st.integers(1, ONE), st.integers(1, 9))
ROUNDS = st.integers(0, 40)
MOST = st.one_of(st.just(ONE), st.integers(0, ONE // 4), st.integers(0, 9))
ALL = st.just(ONE)
CAP_SHARES, LOAN_SHARES = st.integers(2, 6), st.integers(1, 6)


@st.composite
def cases(
    draw: st.DrawFn, *, rounds: st.SearchStrategy[int] = ROUNDS, most: st.SearchStrategy[int] = MOST, absent: bool = True
) -> Case:
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    pairs = [(p, q) for p in names for q in names if p != q]
    vouches = draw(st.dictionaries(st.sampled_from(pairs), STRENGTHS)) if pairs else {}
    anchors = draw(st.lists(st.sampled_from(names + "xyz" * absent), min_size=1, max_size=4, unique=True))
    return Case(names, vouches, anchors, draw(rounds), draw(st.integers(1, 4)), draw(most))
