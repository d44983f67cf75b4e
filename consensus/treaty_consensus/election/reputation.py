"""Reputation: from trust to weight. Nobody is more than one full voice; splitting a voice gives no more than its trust.

With x the trust of all principals and u what they hold of it (`trust`), a the age of one in epochs, n the counterparties heard
of it in a topic:

    m(u) = max { m : C · Σ min(u, m) ≤ Σ u }                         the cap, C = `cap_share`
    u⁰   = what is held where of what others lent them all lend on half
    x    = trust where they lend on half, and of more than ⌊m(u⁰) / L⌋ nothing, L = `loan_share`
    m*   = m(u) of that trust
    w    = ⌊⌊ONE · min(x, m*) / m*⌋ · min(a, A) / A⌋                 the base weight, A = `mature` epochs; 0 where m* is 0
    w_t  = ⌊w · min(n, N) / N⌋                                       in a topic, N = `counterparties`
    heard is who has x > 0 and share · x ≥ m*

A full voice weighs ONE, as in a development electorate; the election's rule compares weights with each other only, so the unit
changes nothing.

Below the cap weight is proportional to trust, never a root or logarithm of it: whoever has trust X, in whatever pieces, weighs at
most ⌊ONE · X / m*⌋, so splitting wins back at most what the cap took away; and that is not to be lent to other names either:
what one hands on is a full voice over 2L at most. The cap is of what is held, not of all trust, half of which never leaves
the anchors and would be all that such a cap takes away. docs/decisions/0021-electing-under-attack.md has the measurements.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import trust as lending
from .arithmetic import ONE, Amounts
from .trust import Graph

_ONE: Final = np.uint64(ONE)


class Settled(NamedTuple):
    """The `trust` of each principal, x, the `flows` of each edge, and the `cap`, m*."""

    trust: Amounts
    flows: Amounts
    cap: int


def settle(graph: Graph, seed: Amounts, *, rounds: int, least: int, cap_share: int, loan_share: int) -> Settled:
    """x, the flows that it makes, and m*; `trust.trust` says what goes in, and `cap`."""

    def lent(most: int) -> Settled:
        trust = lending.trust(graph, seed, rounds=rounds, least=least, most=most)
        flows = lending.flows(graph, trust, seed, least=least, most=most)
        return Settled(trust, flows, cap(lending.held(graph, trust, seed, flows), cap_share))

    return lent(lent(ONE).cap // loan_share)


def cap(held: Amounts, share: int) -> int:
    """m(u) of what all hold, each at most ONE and fewer than 2^31 of them, for a `share` C of at least 2. At most the largest
    over C; 0 where there is nothing."""
    left = int(held.sum()) // share
    if not left:
        return 0
    ascending = np.sort(held)
    below = np.cumsum(ascending)
    above = np.arange(len(ascending) - 1, -1, -1, dtype=np.uint64)
    fits = below + ascending * above <= left  # Σ min(u, m) at m = each amount, never decreasing
    count = int(fits.sum())  # so the cap lies from the last amount that fits up to the next
    spent = int(below[count - 1]) if count else 0
    return (left - spent) // (len(ascending) - count)


def base_weight(trust: Amounts, cap: int, ages: NDArray[np.integer[Any]], mature: int) -> Amounts:
    """w of each principal, 0 … ONE. `cap`: m* of this trust; `ages`: epochs since each first appeared; `mature`: 1 … 2^16."""
    if not cap:
        return np.zeros_like(trust)
    voices = np.minimum(trust, np.uint64(cap)) * _ONE // np.uint64(cap)  # m* is at most ONE / 2: no more than 2^63
    weights: Amounts = voices * np.minimum(ages, mature).astype(np.uint64) // np.uint64(mature)
    return weights


def in_topic(weight: int, heard: int, counterparties: int) -> int:
    """w_t of a principal of base weight `weight` that was heard of by `heard` different counterparties in the topic."""
    return weight * min(heard, counterparties) // counterparties


def audible(trust: Amounts, cap: int, share: int) -> NDArray[np.bool_]:
    """Whose word as a counterparty counts: x > 0 and share · x ≥ m*. `share`: 1 … 2^16."""
    heard: NDArray[np.bool_] = (trust > 0) & (trust * np.uint64(share) >= cap)
    return heard
