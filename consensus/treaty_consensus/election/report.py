"""Select the reports that count as evidence for a document, and bar principals that equivocated.

A report is identified by its two DIDs and its negotiation id (`admit.report_key`). For each pair of principals, topic and
epoch one report counts: the first in the log that is agreed, not void, and between two different principals that both weigh
something. It counts for `horizon` epochs, including its own. Failed reports are counted separately in the same way, but only
in their own epoch.

A second report under the same key can only be admitted with another document. That is an equivocation, provable by the two
leaves. Both reports are void, with any content, and both principals are barred for `horizon` epochs, from the epoch of the
second report.

Two principals are *acquainted* in each epoch with an agreed report of theirs that is not void, in any topic and with any
weight.

Specification: `docs/specification/election.md`, section 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from ..did import Did
from ..kinds import Report
from .principals import PrincipalDirectory


class Pair(NamedTuple):
    """Name two different principals, sorted."""

    first: str
    second: str

    @classmethod
    def of(cls, one: str, other: str) -> Pair:
        """Return the pair of two principals, in either order."""
        return cls(one, other) if one < other else cls(other, one)


@dataclass(frozen=True)
class Tally:
    """Hold the reports that count in a topic.

    `pairs`: document → pair that agreed on it → the epoch of the pair's newest report.
    `failed`: document → the pairs that failed with it in the current epoch.
    """

    pairs: Mapping[str, Mapping[Pair, int]]
    failed: Mapping[str, AbstractSet[Pair]] = field(default_factory=dict)

    def principals(self, document: str) -> set[str]:
        """Return the principals that reported a document."""
        return {principal for pair in self.pairs.get(document, ()) for principal in pair}

    def has_news(self, epoch: int) -> bool:
        """Tell whether a report of the current `epoch` counts."""
        return bool(self.failed) or any(epoch in epochs.values() for epochs in self.pairs.values())


class AgreedReport(NamedTuple):
    """Name a report that counts: its leaf, its pair, its topic and its document."""

    leaf: int
    pair: Pair
    topic: str
    document: str


@dataclass(frozen=True)
class CountedReports:
    """Hold all reports that count at the end of an epoch.

    `tallies`: by topic.
    `agreed`: those of the current epoch, in the order of the log.
    """

    tallies: Mapping[str, Tally]
    agreed: Sequence[AgreedReport]

    def tally(self, topic: str) -> Tally:
        """Return the tally of one topic; empty where nothing counts."""
        return self.tallies.get(topic, Tally({}))


class _Entry(NamedTuple):
    leaf: int
    key: str
    first: str
    second: str
    document: str
    agreed: bool


@dataclass
class Reports:
    """Store all reports of a log. Mutable: `add` in the order of the leaves."""

    _entries: defaultdict[str, defaultdict[int, list[_Entry]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _seen: set[str] = field(default_factory=set)
    _void: set[str] = field(default_factory=set)
    _barred_since: dict[str, int] = field(default_factory=dict)
    _together: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    _stale: set[tuple[str, str]] = field(default_factory=set)

    def add(self, key: str, report: Report, authors: tuple[Did, ...], index: int, epoch: int) -> None:
        """Add an admitted report: leaf `index`, logged in `epoch`, under `key`."""
        first, second = sorted(did.text for did in authors)
        # The first report stays in its list: `_void` hides it from every count.
        if key in self._seen:
            self._void.add(key)
            self._barred_since.update({first: epoch, second: epoch})
            # Its bits may include the report that is void now. They are rebuilt once an epoch, not for every equivocation.
            self._stale.add((first, second))
            return
        self._seen.add(key)
        agreed = report.outcome == "agreed"
        self._entries[report.topic][epoch].append(_Entry(index, key, first, second, report.document, agreed))
        # Failures build no acquaintance: anyone can fail with anyone.
        if agreed:
            # One bit an epoch: several reports in an epoch count once, and a principal's DIDs merge by a bitwise or.
            self._together[first, second] |= 1 << epoch

    def barred(self, epoch: int, horizon: int, directory: PrincipalDirectory) -> set[str]:
        """Return the principals that weigh nothing in `epoch` because they equivocated."""
        dids = [did for did, since in self._barred_since.items() if since <= epoch < since + horizon]
        return {principal for did in dids if (principal := directory.principal_of(did))}

    def acquainted(self, directory: PrincipalDirectory) -> dict[Pair, int]:
        """Return pair → the number of epochs in which the two principals agreed."""
        self._forget_void()
        epochs: defaultdict[Pair, int] = defaultdict(int)
        for (first, second), bits in self._together.items():
            one, other = directory.principal_of(first), directory.principal_of(second)
            if one and other and one != other:
                epochs[Pair.of(one, other)] |= bits
        return {pair: bits.bit_count() for pair, bits in epochs.items()}

    def count(self, epoch: int, horizon: int, directory: PrincipalDirectory, weights: Mapping[str, int]) -> CountedReports:
        """Return the reports that count at the end of `epoch`, in all topics.

        `weights`: principal → weight; a report counts only between principals with weight.
        """
        tallies, agreed = {}, []
        for topic, epochs in self._entries.items():
            pairs: defaultdict[str, dict[Pair, int]] = defaultdict(dict)
            failed: defaultdict[str, set[Pair]] = defaultdict(set)
            # In ascending order, so the newest epoch of a pair overwrites the earlier ones.
            for past in sorted(past for past in epochs if epoch - horizon < past <= epoch):
                for entry, pair in self._counting(epochs[past], directory, weights, agreed=True):
                    pairs[entry.document][pair] = past
                    if past == epoch:
                        agreed.append(AgreedReport(entry.leaf, pair, topic, entry.document))
            for entry, pair in self._counting(epochs.get(epoch, ()), directory, weights, agreed=False):
                failed[entry.document].add(pair)
            if pairs or failed:
                tallies[topic] = Tally(dict(pairs), dict(failed))
        return CountedReports(tallies, sorted(agreed))

    def _forget_void(self) -> None:
        """Rebuild the epochs of the DIDs that equivocated, without the void reports."""
        if not self._stale:
            return
        self._together.update(dict.fromkeys(self._stale, 0))
        for epochs in self._entries.values():
            for epoch, entries in epochs.items():
                for entry in entries:
                    if entry.agreed and entry.key not in self._void and (entry.first, entry.second) in self._stale:
                        self._together[entry.first, entry.second] |= 1 << epoch
        self._stale.clear()

    def _counting(
        self, entries: Iterable[_Entry], directory: PrincipalDirectory, weights: Mapping[str, int], *, agreed: bool
    ) -> Iterator[tuple[_Entry, Pair]]:
        """Yield the first report of each pair with the given outcome."""
        counted: set[Pair] = set()
        for entry in entries:
            # Void reports are skipped before the rule of one report a pair: they must not displace a valid one.
            if entry.agreed != agreed or entry.key in self._void:
                continue
            one, other = directory.principal_of(entry.first), directory.principal_of(entry.second)
            # Reports within one principal, or with one without weight, cost nothing to produce.
            if one is None or other is None or one == other or not (weights.get(one) and weights.get(other)):
                continue
            pair = Pair.of(one, other)
            if pair not in counted:
                counted.add(pair)
                yield entry, pair
