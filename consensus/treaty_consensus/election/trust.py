"""Compute trust: the amount that flows to each principal from the anchors along vouches.

With s the seed, c_pq the strength of p's vouch for q, L = `least` and m = `most`:

    F_x(p, q) = ⌊⌊(⌊s_p / 2⌋ + min(v_p, m)) / 2⌋ · c_pq / max(Σ_r c_pr, L · ONE)⌋    p lends this to q;  v_p = x_p − ⌊s_p / 2⌋
    x⁰_q      = ⌊s_q / 2⌋
    xᵏ⁺¹_q    = ⌊s_q / 2⌋ + Σ_p F_xᵏ(p, q)                                           trust is x after `rounds` rounds
    u_p       = x_p − min(⌊s_p / 2⌋, 2 · Σ_q F_x(p, q))                              p holds this part of it

v_p is the trust that others lent to p. An anchor's seed is meant for lending: an anchor holds only the part that it does not
lend.

Source: personalised PageRank (Page, Brin, Motwani & Winograd 1999) with a damping of 1/2, as in EigenTrust (Kamvar, Schlosser
& Garcia-Molina 2003). Trust starts at the anchors and half of it is passed on along vouches at each step. Two rules differ:

- Nothing is given back. A principal with few or weak vouches does not pass on all of its half, and the rest is dropped. So
  one vouch passes on x_p / 2L at most.
- Of the trust that others lent it, a principal lends on m / 2 at most. Without this rule, a few principals with many vouches
  could use the trust above their cap (`reputation`) to give full weight to domains of their own.

The seed must be asymmetric: no symmetric reputation function is sybilproof (Cheng & Friedman 2005).

**Bounded by inflow.** Let S be any set of principals without seed, I the flow into it along edges from outside, O the flow
out of it, both by the final trust. Then x(S) ≤ 2 · (I − O), exactly, for any number of members, any vouches among them and
any number of rounds. Proof: a round T is monotone, floors too, and x⁰ ≤ T(x⁰); hence xᵏ ≤ xᵏ⁺¹ for all k, and x ≤ T(x). So
x(S) ≤ T(x)(S) = I + (flows within S), and (flows within S) + O ≤ Σ_{p∈S} ⌊min(x_p, m) / 2⌋ ≤ x(S) / 2. What S weighs then:
`docs/specification/election-bound.md`.

**Close to the limit.** x never exceeds the fixed point x* of the same equations over the rationals. All principals together
lack less than ONE / 2^(rounds+1) + 2·E + P + A of it, with E edges, P principals that vouch and A anchors. The floors of a
round lose less than 1 for each edge and at most 1/2 for each of P and A; every round halves the earlier loss.

The sum of all trust never exceeds ONE, and no intermediate value exceeds 2^63. A round costs O(E). All functions are pure;
they do not write to the arrays that they receive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .arithmetic import ONE, Amounts

# A shift by one bit: exact on unsigned integers, and the same on every platform.
_HALVE: Final = np.uint64(1)


@dataclass(frozen=True)
class Graph:
    """Hold the vouches as a directed graph.

    Edges are sorted by (source, target). No edge occurs twice, and none goes from a principal to itself.

    `principals`: the names, sorted; principal i is the i-th.
    `source`, `target`: the numbers of the principals of each edge.
    `strength`: of each edge, 1 … ONE.
    """

    principals: tuple[str, ...]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    strength: Amounts

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Return principal → its number."""
        return {name: number for number, name in enumerate(self.principals)}

    def places(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of principals; −1 for one that is not in the graph."""
        return np.array([self.place.get(name, -1) for name in names], dtype=np.int64)

    def has(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each two numbers whether an edge leads from the first to the second."""
        if not len(self._keys):
            return np.zeros(len(source), dtype=bool)
        keys = source * len(self.principals) + target
        positions = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        holds: NDArray[np.bool_] = (source >= 0) & (target >= 0) & (self._keys[positions] == keys)
        return holds

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        # Sorted, as the edges are.
        return self.source * len(self.principals) + self.target


def graph_of(principals: tuple[str, ...], source: NDArray[np.int64], target: NDArray[np.int64], strength: Amounts) -> Graph:
    """Build a graph of distinct edges, in any order, between these `principals`, which are sorted. −1 stands for a principal that
    is not among them; its edges are left out.
    """
    inside = (source >= 0) & (target >= 0)
    source, target, strength = source[inside], target[inside], strength[inside]
    # `provenance` breaks ties by the order of the edges.
    order = np.argsort(source * len(principals) + target)
    return Graph(principals, source[order], target[order], strength[order])


def graph(principals: Iterable[str], vouches: Mapping[tuple[str, str], int]) -> Graph:
    """Build the graph of `vouches`: (voucher, vouched) → strength, 0 … ONE.

    Left out are vouches of strength 0, vouches for oneself, and vouches with an end that is not among `principals`.
    """
    names = tuple(sorted(set(principals)))
    number = {name: index for index, name in enumerate(names)}
    edges = [
        (number[voucher], number[vouched], strength)
        for (voucher, vouched), strength in vouches.items()
        if strength and voucher != vouched and voucher in number and vouched in number
    ]
    # `provenance` breaks ties by the order of the edges.
    edges.sort()
    source, target, strength = (np.array([edge[column] for edge in edges], dtype=np.uint64) for column in range(3))
    return Graph(names, source.astype(np.int64), target.astype(np.int64), strength)


def seed(graph: Graph, anchors: Sequence[str]) -> Amounts:
    """Return s: the same share of ONE for each anchor.

    The shares of anchors that are not in the graph are dropped.

    `anchors`: distinct names, at least one.
    """
    seeds = np.zeros(len(graph.principals), np.uint64)
    # An absent anchor keeps its share out of circulation: otherwise fewer anchors would each gain trust.
    seeds[_numbers(graph, anchors)] = ONE // len(anchors)
    return seeds


def trust(graph: Graph, seed: Amounts, *, rounds: int, least: int, most: int = ONE) -> Amounts:
    """Return x, 0 … ONE, for each principal of the graph.

    `seed`: s, with a sum of at most ONE.
    `least`: L, at least 1. A principal that vouches for fewer principals at full strength keeps the rest back.
    `most`: m, 0 … ONE. With ONE, each principal lends half of all it has.
    """
    own = seed >> _HALVE
    allotted = _allotted(graph, least)
    amounts = own
    for _ in range(rounds):
        before, amounts = amounts, own.copy()
        np.add.at(amounts, graph.target, _lent(graph, before, own, allotted, most))
        if np.array_equal(before, amounts):
            break  # the fixed point: further rounds change nothing
    return amounts


def flows(graph: Graph, trust: Amounts, seed: Amounts, *, least: int, most: int = ONE) -> Amounts:
    """Return F_x(p, q) of each edge, in the order of the graph.

    The edges of one principal sum up to at most half of its trust.
    """
    return _lent(graph, trust, seed >> _HALVE, _allotted(graph, least), most)


def held(graph: Graph, trust: Amounts, seed: Amounts, flows: Amounts) -> Amounts:
    """Return u of each principal, at most its trust."""
    lent = np.zeros_like(trust)
    np.add.at(lent, graph.source, flows)
    remaining: Amounts = trust - np.minimum(seed >> _HALVE, lent << _HALVE)
    return remaining


def _lent(graph: Graph, amounts: Amounts, own: Amounts, allotted: Amounts, most: int) -> Amounts:
    lendable = own + np.minimum(amounts - own, np.uint64(most))
    # At most 2^31 · 2^32, so the product fits 64 bits. Dividing last loses less than 1 for each edge.
    lent: Amounts = (lendable >> _HALVE)[graph.source] * graph.strength // allotted
    return lent


def _allotted(graph: Graph, least: int) -> Amounts:
    """Return for each edge max(Σ_r c_pr, L · ONE) of its source."""
    sums = np.zeros(len(graph.principals), np.uint64)
    np.add.at(sums, graph.source, graph.strength)
    # At most 2^10 vouches of strength 2^32: the sum stays below 2^64.
    return np.maximum(sums, np.uint64(least * ONE))[graph.source]


def _numbers(graph: Graph, names: Sequence[str]) -> NDArray[np.int64]:
    """Return the numbers of those `names` that are in the graph."""
    distinct_names = set(names)
    return np.array([index for index, name in enumerate(graph.principals) if name in distinct_names], dtype=np.int64)
