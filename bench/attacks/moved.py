"""A network that moved: everyone used one document, and from now on they use another. Nobody votes.

In each epoch a pair that reports at all does so with a certain probability, its *rate*. The corrupted stay: they agree on the
former document with everyone they meet, in every epoch, and the others let them. The product's own implied ballots and states
are run, epoch after epoch.

    epochs/RATE   epochs until the new document is the consensus
    stay/RATE     the share of the honest that must be corrupted for the former one to be the consensus after a horizon
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property, partial

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.ballot import Ballots, Implied, approvals, approved, count, implied_ballots, votes
from treaty_consensus.election.principals import PrincipalDirectory
from treaty_consensus.election.report import Pair, Tally
from treaty_consensus.election.rule import DocumentState, Poll, Support, advance, incumbent_of
from treaty_consensus.election.trust import Graph, graph

from .adversaries import Coalition, attacked
from .campaigns import HORIZON
from .laboratory import Laboratory, Row, Way, least_of
from .ours import PARAMETERS, Electors, electors
from .search import least

RATES = (1.0, 0.5, 0.25)
WAYS: tuple[Way, ...] = ((0, "kept"), (200, "domains"))
FORMER, NEW = "a" * 64, "b" * 64


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """How soon it elects, and what keeps it from that."""
    size = lab.world.size
    peaceful = Network(electors(attacked(lab.world, Coalition())))
    for rate in RATES:
        moved = peaceful.epochs_until_elected(rate)
        yield Row("moved", size, "epochs", detail=f"{rate:g}"), moved
        shares = [_least(lab, way, rate) for way in WAYS]
        yield Row("moved", size, "stay", detail=f"{rate:g}"), least_of(shares)


def _least(lab: Laboratory, way: Way, rate: float) -> float | None:
    most = int(0.6 * lab.world.size) // lab.step
    number = least(partial(_stays, lab, way, rate), most)
    return None if number is None else number * lab.step / lab.world.size


def _stays(lab: Laboratory, way: Way, rate: float, number: int) -> bool:
    network = Network(lab.weighed(number * lab.step, way))
    return network.epochs_until_elected(rate) is None


class Network:
    """Principals with weights, the pairs that report to each other, and those whose reports count for each."""

    def __init__(self, electors: Electors) -> None:
        self._electors = electors
        graph, hostile = electors.attacked.graph, electors.attacked.hostile
        self._names = graph.principals
        self._weights = {name: weight for name, weight in zip(self._names, electors.weights.tolist(), strict=True) if weight}
        places = electors.clusters.tolist()
        self._clusters = {
            name: electors.labels[place] for name, place in zip(self._names, places, strict=True) if name in self._weights
        }
        self._hostile = {name for name, owned in zip(self._names, hostile.tolist(), strict=True) if owned}

    @cached_property
    def _known(self) -> dict[str, set[str]]:
        graph = self._electors.attacked.graph
        known: defaultdict[str, set[str]] = defaultdict(set)
        for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True):
            known[self._names[source]].add(self._names[target])
        return known

    @cached_property
    def _vouches(self) -> Graph:
        vouches = {(one, other): ONE for one, others in self._known.items() for other in others}
        return graph([name for pair in vouches for name in pair], vouches)

    @cached_property
    def _meetings(self) -> tuple[list[Pair], list[Pair]]:
        """The pairs of two honest principals, and those with a corrupted one. A vouch that counts needs reports, too."""
        met = {Pair.of(self._names[one], self._names[other]) for one, other in self._electors.attacked.world.met.tolist()}
        met |= {Pair.of(one, other) for one, others in self._known.items() for other in others}
        pairs = sorted(pair for pair in met if pair.first in self._weights and pair.second in self._weights)
        mixed = [pair for pair in pairs if self._hostile.intersection(pair)]
        return [pair for pair in pairs if not self._hostile.intersection(pair)], mixed

    def epochs_until_elected(self, rate: float) -> float | None:
        """Return how many epochs after the move the new document is the consensus; None where it is not after a horizon."""
        draw = random.Random(f"meetings/{self._electors.attacked.world.seed}")
        honest, mixed = self._meetings
        # Everyone reported just before the move, and has been counted for the former document for a horizon.
        reports: dict[str, dict[Pair, int]] = {FORMER: dict.fromkeys([*honest, *mixed], HORIZON - 1), NEW: {}}
        implied = implied_ballots(Tally.of(reports), self._vouches, {}, 0)
        states = {FORMER: DocumentState("consensus")}
        for epoch in range(HORIZON, 2 * HORIZON):
            reports[FORMER].update(dict.fromkeys(mixed, epoch))
            reports[NEW].update((pair, epoch) for pair in honest if draw.random() < rate)
            implied, states = self._advance(reports, implied, states, epoch)
            if incumbent_of(states) == NEW:
                return float(epoch - HORIZON + 1)
        return None

    def _advance(
        self, reports: dict[str, dict[Pair, int]], before: dict[str, Implied], states: dict[str, DocumentState], epoch: int
    ) -> tuple[dict[str, Implied], dict[str, DocumentState]]:
        counted = {
            document: {pair: when for pair, when in pairs.items() if when > epoch - HORIZON}
            for document, pairs in reports.items()
        }
        implied = implied_ballots(Tally.of(counted), self._vouches, before, epoch)
        cast = votes(Ballots(PrincipalDirectory()), implied, self._weights, epoch, HORIZON)
        weight = approved(approvals(cast))
        supports = {
            document: Support(index, len(counted[document]), 3, cast.total, weight.get(document, 0))
            for index, document in enumerate((FORMER, NEW))
        }
        field = [document for document in (FORMER, NEW) if supports[document].pairs >= PARAMETERS.candidate_pairs]
        return implied, advance(Poll(PARAMETERS, count(cast, field, self._clusters), states))
