"""Reports: which negotiations count as evidence for a document, and who loses the right to be counted.

A report is keyed by its two DIDs and its negotiation id (`admit.report_key`). Of each pair of principals, topic and epoch one
report counts: the first in the log that is agreed, not void, and between two different principals that both weigh something. It
counts for `horizon` epochs, its own among them.

A second report under the same key can only stand in the log with another document: that is equivocation, provable by the two
leaves. Both are void, whatever else they say, and both principals are barred for `horizon` epochs from the one that holds the
second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from ..did import Did
from ..kinds import Report
from .weight import principal_of


class Pair(NamedTuple):
    """Two different principals, in the order of their names."""

    first: str
    second: str


@dataclass(frozen=True)
class Tally:
    """The reports that count in a topic: document → the distinct pairs that agreed on it."""

    pairs: Mapping[str, AbstractSet[Pair]]

    def principals(self, document: str) -> set[str]:
        """Who reported a document."""
        return {principal for pair in self.pairs.get(document, ()) for principal in pair}

    def counterparties(self) -> dict[str, dict[str, int]]:
        """For each principal: document → with how many distinct principals it agreed on it."""
        counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for document, pairs in self.pairs.items():
            for pair in pairs:
                for principal in pair:
                    counts[principal][document] = counts[principal].get(document, 0) + 1
        return dict(counts)


class _Entry(NamedTuple):
    key: str
    pair: Pair
    document: str


@dataclass
class Reports:
    """All reports of a log. Mutable: `add` in the order of the leaves."""

    _agreed: defaultdict[str, defaultdict[int, list[_Entry]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _topics: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _void: set[str] = field(default_factory=set)
    _barred_since: dict[str, int] = field(default_factory=dict)

    @property
    def topics(self) -> AbstractSet[str]:
        """The topics that any report names."""
        return self._topics

    def add(self, key: str, report: Report, authors: tuple[Did, ...], epoch: int) -> None:
        """Take in an admitted report that stands in the log in `epoch` under `key`."""
        principals = sorted({principal for did in authors if (principal := principal_of(did)) is not None})
        self._topics.add(report.topic)
        if key in self._seen:
            self._void.add(key)
            self._barred_since.update(dict.fromkeys(principals, epoch))
            return
        self._seen.add(key)
        if report.outcome == "agreed" and len(principals) == 2:
            entry = _Entry(key, Pair(*principals), report.document)
            self._agreed[report.topic][epoch].append(entry)

    def barred(self, epoch: int, horizon: int) -> set[str]:
        """The principals that weigh nothing in `epoch` because they equivocated."""
        return {principal for principal, since in self._barred_since.items() if since <= epoch < since + horizon}

    def tally(self, topic: str, epoch: int, horizon: int, weights: Mapping[str, int]) -> Tally:
        """What counts in a topic at the end of `epoch`."""
        pairs: defaultdict[str, set[Pair]] = defaultdict(set)
        epochs: Mapping[int, list[_Entry]] = self._agreed.get(topic, {})
        for past in range(max(0, epoch - horizon + 1), epoch + 1):
            counted: set[Pair] = set()
            for entry in epochs.get(past, ()):
                if entry.key in self._void or entry.pair in counted or not all(weights.get(p) for p in entry.pair):
                    continue
                counted.add(entry.pair)
                pairs[entry.document].add(entry.pair)
        return Tally(dict(pairs))
