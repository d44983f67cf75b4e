"""Trust: how much each principal can be believed to be one, by what flows to it from the anchors along vouches.

With s the seed, c_pq the strength of p's vouch for q, L = `least` and m = `most`:

    F_x(p, q) = ⌊⌊(⌊s_p / 2⌋ + min(v_p, m)) / 2⌋ · c_pq / max(Σ_r c_pr, L · ONE)⌋    what p lends to q;  v_p = x_p − ⌊s_p / 2⌋
    x⁰_q      = ⌊s_q / 2⌋
    xᵏ⁺¹_q    = ⌊s_q / 2⌋ + Σ_p F_xᵏ(p, q)                                           trust is x after `rounds` rounds
    u_p       = x_p − min(⌊s_p / 2⌋, 2 · Σ_q F_x(p, q))                              what p holds of it

v is what others lent to p. An anchor's seed is there to be lent, and is its own only as far as it lends none.

This is personalised PageRank (Page, Brin, Motwani & Winograd 1999) with a damping of 1/2, as EigenTrust has it (Kamvar,
Schlosser & Garcia-Molina 2003): what starts at the anchors is handed on along vouches, half of it at each step. It differs in
that nothing is given back: what a principal with few or weak vouches does not hand on is dropped, so a vouch passes on x_p / 2L
at most. And of what others lent it, nobody lends on more than m / 2: otherwise the few that everybody vouches for could
turn what the cap takes from them (`reputation`) into the full voices of domains of their own. The seed must be asymmetric: no
symmetric reputation function is sybilproof (Cheng & Friedman 2005).

**Bounded by inflow.** Let S be any set of principals without seed, I what flows into it along the edges from outside, O what
flows out, both by the final trust. Then x(S) ≤ 2 · (I − O), exactly, however many members S has, whatever they vouch for each
other, and after any number of rounds. Proof: a round T is monotone, floors too, and x⁰ ≤ T(x⁰); hence xᵏ ≤ xᵏ⁺¹ for all k, and
x ≤ T(x). So x(S) ≤ T(x)(S) = I + (flows within S), and (flows within S) + O ≤ Σ_{p∈S} ⌊min(x_p, m) / 2⌋ ≤ x(S) / 2.

**Close to the limit.** x never exceeds the fixed point x* of the same equations over the rationals, and all principals
together lack less than ONE / 2^(rounds+1) + 2·E + P + A of it: E edges, P principals that vouch, A anchors. A round's floors lose
less than 1 for each edge and at most 1/2 for each of P and A, and every round halves what was lacking before.

The sum of all trust never passes ONE, and no intermediate 2^63. A round costs O(E). Everything is pure; the arrays given are
not written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .arithmetic import ONE, Amounts

_HALVE: Final = np.uint64(1)


@dataclass(frozen=True)
class Graph:
    """Who vouches for whom. `principals`: the names, sorted; principal i is the i-th. Edge e goes from principal `source[e]` to
    `target[e]` with `strength[e]`, 1 … ONE; edges are sorted by (source, target), none is twice or from a principal to itself."""

    principals: tuple[str, ...]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    strength: Amounts


def graph(principals: Iterable[str], vouches: Mapping[tuple[str, str], int]) -> Graph:
    """The graph of `vouches`: (who, for whom) → strength, 0 … ONE. Left out are those of no strength, those for oneself, and
    those from or for anybody who is not among `principals`."""
    names = tuple(sorted(set(principals)))
    number = {name: index for index, name in enumerate(names)}
    edges = [
        (number[voucher], number[vouched], strength)
        for (voucher, vouched), strength in vouches.items()
        if strength and voucher != vouched and voucher in number and vouched in number
    ]
    edges.sort()
    source, target, strength = (np.array([edge[column] for edge in edges], dtype=np.uint64) for column in range(3))
    return Graph(names, source.astype(np.int64), target.astype(np.int64), strength)


def seed(graph: Graph, anchors: Sequence[str]) -> Amounts:
    """s: the same share of ONE for each of the distinct `anchors`, of which there is one at least. The shares of those that are
    not in the graph go to nobody."""
    seeds = np.zeros(len(graph.principals), np.uint64)
    seeds[_numbers(graph, anchors)] = ONE // len(anchors)
    return seeds


def trust(graph: Graph, seed: Amounts, *, rounds: int, least: int, most: int = ONE) -> Amounts:
    """x, 0 … ONE, for each principal of the graph.

    `seed`: s, of a sum of at most ONE. `least`: L, at least 1; whoever vouches for fewer at full strength keeps back the rest.
    `most`: m, 0 … ONE; with ONE everybody lends half of all it has.
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
    """F_x(p, q) of each edge of the graph, in its order; of a principal's edges together at most half of its trust."""
    return _lent(graph, trust, seed >> _HALVE, _allotted(graph, least), most)


def held(graph: Graph, trust: Amounts, seed: Amounts, flows: Amounts) -> Amounts:
    """u of each principal, at most its trust."""
    lent = np.zeros_like(trust)
    np.add.at(lent, graph.source, flows)
    kept: Amounts = trust - np.minimum(seed >> _HALVE, lent << _HALVE)
    return kept


def _lent(graph: Graph, amounts: Amounts, own: Amounts, allotted: Amounts, most: int) -> Amounts:
    lendable = own + np.minimum(amounts - own, np.uint64(most))
    lent: Amounts = (lendable >> _HALVE)[graph.source] * graph.strength // allotted  # at most 2^31 · 2^32
    return lent


def _allotted(graph: Graph, least: int) -> Amounts:
    """max(Σ_r c_pr, L · ONE), for each edge that of its source."""
    sums = np.zeros(len(graph.principals), np.uint64)
    np.add.at(sums, graph.source, graph.strength)
    return np.maximum(sums, np.uint64(least * ONE))[graph.source]


def _numbers(graph: Graph, names: Sequence[str]) -> NDArray[np.int64]:
    """The numbers of those of `names` that the graph has."""
    wanted = set(names)
    return np.array([index for index, name in enumerate(graph.principals) if name in wanted], dtype=np.int64)
