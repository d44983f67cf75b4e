"""Who weighs how much under attack by our rule: the product's own trust, caps and clusters over a graph of numbers.

Everybody is mature: age protects from the newly come, and an adversary may have waited. The honest weigh in the topic what they
have reported there with those of them that are trusted; the adversary's own need nobody for that but each other, and weigh all
they can.

`Rule` can do without one defence at a time, so that the tables say what each is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treaty_consensus.election import provenance
from treaty_consensus.election.arithmetic import Amounts
from treaty_consensus.election.defaults import open_parameters
from treaty_consensus.election.reputation import BoundedTrust, base_weight, bounded_trust, cap, eligible_counterparties
from treaty_consensus.election.trust import flows, seed, trust
from treaty_consensus.kinds import Blob, Parameters, Reputation

from .adversaries import Attacked
from .graphs import Numbers

PARAMETERS: Parameters = open_parameters((f"anchor-{number:02}.example" for number in range(16)), Blob("0" * 64, 1))


def terms() -> Reputation:
    """The constants of an open electorate."""
    assert PARAMETERS.reputation is not None
    return PARAMETERS.reputation


@dataclass(frozen=True)
class Rule:
    """Our rule, or without a defence of it: `lending` capped at a full voice; implied ballots of those `vouched` for only."""

    lending: bool = True
    vouched: bool = True


@dataclass(frozen=True)
class Electors:
    """Everybody's weight in the topic and cluster, in the order of the graph; and what the reports of the silent amount to.

    `base`: the weights of all topics; `eligible`: who counts as a counterparty.
    `sway`: for each honest principal the sign of how many more of its counterparties that count agree with it on the adversary's
    document than on the honest one. `speaks`: who has such counterparties at all.
    """

    attacked: Attacked
    weights: Amounts
    base: Amounts
    eligible: NDArray[np.bool_]
    clusters: Numbers
    labels: tuple[str, ...]
    sway: Numbers
    speaks: NDArray[np.bool_]

    @cached_property
    def share(self) -> float:
        """What the adversary weighs of all."""
        return float(self.weights[self.attacked.hostile].sum() / max(int(self.weights.sum()), 1))


def electors(attacked: Attacked, rule: Rule = Rule()) -> Electors:
    """Weigh everybody."""
    bounded = _bounded_trust(attacked, rule)
    everybody = np.full(len(bounded.trust), terms().mature_epochs)
    weights = base_weight(bounded.trust, bounded.cap, everybody, terms().mature_epochs)
    named = provenance.clusters(attacked.graph, bounded.flows, attacked.anchors)
    labels = tuple(sorted(set(named.values())))
    place = {label: number for number, label in enumerate(labels)}
    clusters = np.array([place.get(named.get(name, ""), -1) for name in attacked.graph.principals], dtype=np.int64)
    weights[clusters < 0] = 0
    eligible = eligible_counterparties(bounded.trust, bounded.cap, terms().counterparty_share)
    needed = np.uint64(terms().counterparties)
    met = np.minimum(_honest_counterparties(attacked, eligible), needed)
    met[attacked.hostile] = needed
    hostile, honest = _agreeing(attacked, weights > 0, rule)
    in_topic = weights * met // needed
    return Electors(attacked, in_topic, weights, eligible, clusters, labels, np.sign(hostile - honest), (hostile + honest) > 0)


def _bounded_trust(attacked: Attacked, rule: Rule) -> BoundedTrust:
    graph, seeds = attacked.graph, seed(attacked.graph, attacked.anchors)
    rounds, least = terms().rounds, terms().least_vouches
    if rule.lending:
        shares = {"cap_share": terms().cap_share, "loan_share": terms().loan_share}
        return bounded_trust(graph, seeds, rounds=rounds, least=least, **shares, rule=PARAMETERS.rule)
    amounts = trust(graph, seeds, rounds=rounds, least=least)
    return BoundedTrust(amounts, flows(graph, amounts, seeds, least=least), cap(amounts, terms().cap_share))


def _agreeing(attacked: Attacked, weighty: NDArray[np.bool_], rule: Rule) -> tuple[Numbers, Numbers]:
    """With how many that count each honest principal agrees on the hostile document, and on the honest one."""
    world, hostile = attacked.world, attacked.hostile
    if not rule.vouched:
        everyone = np.full(world.size, int((weighty & hostile).sum()), dtype=np.int64)
        return everyone, _honest_counterparties(attacked, weighty)[: world.size].astype(np.int64)
    counts = weighty[world.target]
    sided = hostile[world.target]
    return tuple(  # type: ignore[return-value]
        np.bincount(world.source[counts & (sided == side)], minlength=world.size) for side in (True, False)
    )


def _honest_counterparties(attacked: Attacked, those: NDArray[np.bool_]) -> Amounts:
    """How many honest ones of `those` each principal reports with."""
    counted = those & ~attacked.hostile
    one, other = attacked.world.met.T
    ends = np.concatenate([one[counted[other]], other[counted[one]]])
    return np.bincount(ends, minlength=len(those)).astype(np.uint64)
