"""Compute weight from trust: cap the trust, limit lending by the cap, and scale by age and counterparties.

With x(m) the trust where each principal lends on half of at most m of the trust that others lent it, u(m) the part of it that
each holds (`trust`), a the age of a principal in epochs, and n the number of its eligible counterparties in a topic:

    m(u) = max { m : C · Σ min(u, m) ≤ Σ u }                         the cap of held trust, C = `cap_share`
    m₁   = m(u(ONE)),  m₂ = m(u(⌊m₁ / L⌋))                           without a limit, and with one; L = `loan_share`
    x    = x(⌊min(m₁, m₂) / L⌋),  m₃ = m(u(⌊min(m₁, m₂) / L⌋))       the trust that counts
    m*   = max(min(m₁, m₂), m₃)                                      the cap
    w    = ⌊⌊ONE · min(x, m*) / m*⌋ · min(a, A) / A⌋                 the base weight, A = `mature` epochs; 0 where m* is 0
    w_t  = ⌊w · min(n, N) / N⌋                                       the weight in a topic, N = `counterparties`
    a counterparty is eligible if x > 0 and share · x ≥ m*

A full weight is ONE, as in a development electorate. The election compares weights with each other only, so the unit does not
matter.

Below the cap weight is proportional to trust, never a root or logarithm of it, because those reward splitting. Principals
with the trust X in total weigh at most ⌊ONE · X / m*⌋ together. So splitting recovers at most the part that the cap removed.
The cap is computed from held trust, not from all trust: half of all trust never leaves the anchors, and a cap on all trust
would only remove that half.

**A bound on attack edges.** Nobody lends more than ⌊m* / L⌋ / 2 of the trust that others lent it. So one vouch of a principal
that is no anchor gives full weight to 1 / (`least` · L) domains at most, whatever the domains do: by default to a sixteenth of
one. Proof: `docs/specification/election-bound.md`. The rule `schulze-margins-v2` has no such bound: it lends by m₁, weighs by
m₂, and m₁ / m₂ grows with the number of principals that anchors vouch for.

Measurements: docs/decisions/resistance-to-attacks.md. Specification: `docs/specification/election.md`, section 2.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kinds import Rule
from . import trust as lending
from .arithmetic import ONE, Amounts
from .trust import Graph

_ONE: Final = np.uint64(ONE)


class BoundedTrust(NamedTuple):
    """Hold the trust with limited lending: x of each principal, the flow of each edge, and the cap m*."""

    trust: Amounts
    flows: Amounts
    cap: int


def bounded_trust(
    graph: Graph, seed: Amounts, *, rounds: int, least: int, cap_share: int, loan_share: int, rule: Rule
) -> BoundedTrust:
    """Compute x, its flows and m*.

    `trust.trust` describes `graph`, `seed`, `rounds` and `least`; `cap` describes `cap_share`.

    `loan_share`: L.
    `rule`: `schulze-margins-v2` has x = x(⌊m₁ / L⌋) and m* = m₂.
    """

    def with_loans_up_to(most: int) -> BoundedTrust:
        trust = lending.trust(graph, seed, rounds=rounds, least=least, most=most)
        flows = lending.flows(graph, trust, seed, least=least, most=most)
        return BoundedTrust(trust, flows, cap(lending.held(graph, trust, seed, flows), cap_share))

    # The limit on loans needs a cap, and the cap needs trust without that limit.
    first = with_loans_up_to(ONE).cap
    bounded = with_loans_up_to(first // loan_share)
    if rule == "schulze-margins-v2" or bounded.cap >= first:
        return bounded  # a third pass would repeat the second
    # The second cap, the smaller one, limits loans now, and bounds m* from below: otherwise a vouch would lend more than a
    # fixed part of m*.
    last = with_loans_up_to(bounded.cap // loan_share)
    return last._replace(cap=max(bounded.cap, last.cap))


def cap(held: Amounts, share: int) -> int:
    """Return m(u): the cap that leaves 1 / `share` of the held amounts. It is at most the largest amount; 0 where all amounts
    are 0.

    `held`: u, each at most ONE, for fewer than 2^31 principals.
    `share`: C, at least 2.
    """
    left = int(held.sum()) // share
    if not left:
        return 0
    ascending = np.sort(held)
    below = np.cumsum(ascending)
    above = np.arange(len(ascending) - 1, -1, -1, dtype=np.uint64)
    # Σ min(u, m) for m = each amount. It never decreases, so the cap lies between the last amount that fits and the next.
    fits = below + ascending * above <= left
    count = int(fits.sum())
    spent = int(below[count - 1]) if count else 0
    return (left - spent) // (len(ascending) - count)


def base_weight(trust: Amounts, cap: int, ages: NDArray[np.integer[Any]], mature: int) -> Amounts:
    """Return w of each principal, 0 … ONE.

    `cap`: m* of this trust.
    `ages`: epochs since each principal first appeared.
    `mature`: 1 … 2^16.
    """
    if not cap:
        return np.zeros_like(trust)
    # m* is at most ONE / 2, so the product is at most 2^63.
    shares = np.minimum(trust, np.uint64(cap)) * _ONE // np.uint64(cap)
    weights: Amounts = shares * np.minimum(ages, mature).astype(np.uint64) // np.uint64(mature)
    return weights


def in_topic(weight: int, met: int, counterparties: int) -> int:
    """Return w_t of a principal.

    `weight`: its base weight.
    `met`: the number of its eligible counterparties in the topic.
    `counterparties`: the number that gives full weight.
    """
    return weight * min(met, counterparties) // counterparties


def eligible_counterparties(trust: Amounts, cap: int, share: int) -> NDArray[np.bool_]:
    """Tell for each principal whether it counts as a counterparty: x > 0 and share · x ≥ m*.

    `share`: 1 … 2^16.
    """
    eligible: NDArray[np.bool_] = (trust > 0) & (trust * np.uint64(share) >= cap)
    return eligible
