"""Count reports, vouches and implied ballots the plain way, with dictionaries and loops: the reference of the product's columns.

It reads like the specification (`docs/specification/election.md`, sections 1 to 3), and is slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from treaty_consensus.election.arithmetic import HALVINGS, decay
from treaty_consensus.election.ballot import Implied
from treaty_consensus.election.principals import PrincipalDirectory
from treaty_consensus.election.report import AgreedReport, Pair, Tally
from treaty_consensus.election.trust import Graph
from treaty_consensus.kinds import Reputation

Pairs: TypeAlias = dict[str, dict[Pair, int]]
"""Document → pair that agreed on it → the epoch of the pair's newest report."""
Failed: TypeAlias = dict[str, set[Pair]]


def pairs_of(tally: Tally) -> Pairs:
    """Return the agreed reports of a tally by names."""
    pairs: defaultdict[str, dict[Pair, int]] = defaultdict(dict)
    for document, first, second, epoch in zip(*(column.tolist() for column in tally.agreed), strict=True):
        pairs[tally.documents[document]][Pair(tally.principals[first], tally.principals[second])] = epoch
    return dict(pairs)


def failed_of(tally: Tally) -> Failed:
    """Return the failed reports of a tally by names."""
    pairs: defaultdict[str, set[Pair]] = defaultdict(set)
    for document, first, second, _ in zip(*(column.tolist() for column in tally.failed), strict=True):
        pairs[tally.documents[document]].add(Pair(tally.principals[first], tally.principals[second]))
    return dict(pairs)


def edges_of(graph: Graph) -> dict[tuple[str, str], int]:
    """Return the edges of a graph by names."""
    columns = graph.source.tolist(), graph.target.tolist(), graph.strength.tolist()
    return {(graph.principals[one], graph.principals[other]): strength for one, other, strength in zip(*columns, strict=True)}


class LoggedReport(NamedTuple):
    """A report as it was logged."""

    leaf: int
    key: str
    first: str
    second: str
    topic: str
    document: str
    agreed: bool
    epoch: int


class LoggedVouch(NamedTuple):
    """A vouch as it was logged."""

    author: str
    to: str
    epoch: int
    withdrawn: bool


@dataclass
class PlainCounting:
    """The logged reports and vouches, counted anew by every method."""

    directory: PrincipalDirectory
    reports: list[LoggedReport] = field(default_factory=list)
    vouches: list[LoggedVouch] = field(default_factory=list)

    def barred(self, epoch: int, horizon: int) -> set[str]:
        """Return the principals that weigh nothing because they equivocated."""
        seen: set[str] = set()
        since: dict[str, int] = {}
        for report in self.reports:
            if report.key in seen:
                since.update({report.first: report.epoch, report.second: report.epoch})
            seen.add(report.key)
        dids = [did for did, when in since.items() if when <= epoch < when + horizon]
        return {principal for did in dids if (principal := self.directory.principal_of(did))}

    def acquainted(self) -> dict[Pair, int]:
        """Return pair → the number of epochs in which the two principals agreed."""
        epochs: defaultdict[Pair, set[int]] = defaultdict(set)
        for report, pair in self._valid():
            if report.agreed:
                epochs[pair].add(report.epoch)
        return {pair: len(epochs_of) for pair, epochs_of in epochs.items()}

    def count(self, epoch: int, horizon: int, weights: Mapping[str, int]) -> tuple[dict[str, tuple[Pairs, Failed]], object]:
        """Return the agreed and failed reports that count, by topic, and those agreed in this epoch in the order of the log."""
        tallies: defaultdict[str, tuple[Pairs, Failed]] = defaultdict(lambda: ({}, {}))
        agreed, places_counted = [], set()
        for report, pair in self._valid():
            place = (report.topic, report.epoch, report.agreed, pair)
            if place in places_counted or not (weights.get(pair.first) and weights.get(pair.second)):
                continue
            if report.agreed and epoch - horizon < report.epoch <= epoch:
                places_counted.add(place)
                epochs = tallies[report.topic][0].setdefault(report.document, {})
                epochs[pair] = max(report.epoch, epochs.get(pair, 0))
                if report.epoch == epoch:
                    agreed.append(AgreedReport(report.leaf, pair, report.topic, report.document))
            elif not report.agreed and report.epoch == epoch:
                places_counted.add(place)
                tallies[report.topic][1].setdefault(report.document, set()).add(pair)
        return dict(tallies), agreed

    def edges(self, epoch: int, terms: Reputation, horizon: int) -> dict[tuple[str, str], int]:
        """Return the strength of each vouch that counts: (voucher, vouched) → 1 … ONE."""
        acquainted, newest = self.acquainted(), defaultdict[str, dict[str, tuple[int, LoggedVouch]]](dict)
        for place, vouch in enumerate(self.vouches):
            one, other = self.directory.principal_of(vouch.author), self.directory.principal_of(vouch.to)
            if one and other and one != other:
                newest[one][other] = place, vouch
        edges = {}
        for one, others in newest.items():
            vouches = sorted(
                ((place, other, vouch) for other, (place, vouch) in others.items() if not vouch.withdrawn), reverse=True
            )
            for _, other, vouch in vouches[: terms.max_vouches]:
                strength = decay(min(epoch - vouch.epoch, HALVINGS * horizon), horizon)
                if strength and acquainted.get(Pair.of(one, other), 0) >= terms.acquainted_epochs:
                    edges[one, other] = strength
        return edges

    def _valid(self) -> Iterator[tuple[LoggedReport, Pair]]:
        """Yield the reports that are not void, between two principals, in the order of the log."""
        keys = [report.key for report in self.reports]
        void = {key for key in keys if keys.count(key) > 1}
        for report in self.reports:
            one, other = self.directory.principal_of(report.first), self.directory.principal_of(report.second)
            if report.key not in void and one and other and one != other:
                yield report, Pair.of(one, other)


def plain_implied(
    pairs: Pairs,
    acquainted: AbstractSet[tuple[str, str]] | None,
    before: Mapping[str, Implied],
    epoch: int,
    withdrawn: AbstractSet[str] = frozenset(),
) -> dict[str, Implied]:
    """Return the implied ballot of every principal. `known`: (voucher, vouched), or None where all counterparties count."""
    newest: dict[Pair, tuple[int, str]] = {}
    for document, epochs in pairs.items():
        for pair, when in epochs.items():
            newest[pair] = max(newest.get(pair, (when, document)), (when, document))
    met: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for pair, (when, document) in newest.items():
        for principal, other in (pair, pair[::-1]):
            if acquainted is None or (principal, other) in acquainted:
                met[principal][document].append(when)
    ballots = {}
    for principal, named in met.items():
        documents = {document: epochs for document, epochs in named.items() if document not in withdrawn} or named
        most = max(map(len, documents.values()))
        leading = tuple(sorted(document for document, epochs in documents.items() if len(epochs) == most))
        earlier = before.get(principal)
        loyal = tuple(document for document in leading if earlier is not None and document in earlier.favourites)
        favourites = loyal or leading
        since = earlier.since if earlier is not None and earlier.favourites == favourites else epoch
        ballots[principal] = Implied(favourites, since, max(max(documents[document]) for document in favourites))
    return ballots


def plain_weights(pairs: Pairs, weights: Mapping[str, int], eligible: AbstractSet[str], enough: int) -> dict[str, int]:
    """Return principal → weight in a topic of an open electorate."""
    met: defaultdict[str, set[str]] = defaultdict(set)
    for one, other in {pair for epochs in pairs.values() for pair in epochs}:
        met[one] |= {other} & eligible
        met[other] |= {one} & eligible
    parts_of = {name: weights[name] * min(len(others), enough) // enough for name, others in met.items()}
    return {name: weight for name, weight in sorted(parts_of.items()) if weight}
