"""Reports: which negotiations count as evidence for a document, and who loses the right to be counted.

A report is keyed by its two DIDs and its negotiation id (`admit.report_key`). Of each pair of principals, topic and epoch one
report counts: the first in the log that is agreed, not void, and between two different principals that both weigh something. It
counts for `horizon` epochs, its own among them. Failures are counted the same way, apart, and only in their own epoch.

A second report under the same key can only stand in the log with another document: that is equivocation, provable by the two
leaves. Both are void, whatever else they say, and both principals are barred for `horizon` epochs from the one that holds the
second.

Two principals are *acquainted* in as many epochs as hold an agreed report of theirs, in any topic, whatever they weigh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from ..did import Did
from ..kinds import Report
from .principals import Voices


class Pair(NamedTuple):
    """Two different principals, in the order of their names."""

    first: str
    second: str

    @classmethod
    def of(cls, one: str, other: str) -> Pair:
        """The pair of two principals."""
        return cls(one, other) if one < other else cls(other, one)


@dataclass(frozen=True)
class Tally:
    """The reports that count in a topic: document → the distinct pairs that agreed on it, and the epoch of each one's newest;
    and document → the pairs that failed with it in the epoch that is decided."""

    pairs: Mapping[str, Mapping[Pair, int]]
    failed: Mapping[str, AbstractSet[Pair]] = field(default_factory=dict)

    def principals(self, document: str) -> set[str]:
        """Who reported a document."""
        return {principal for pair in self.pairs.get(document, ()) for principal in pair}


class Agreed(NamedTuple):
    """A report that counts: its leaf, whose, in which topic, on which document."""

    leaf: int
    pair: Pair
    topic: str
    document: str


class _Entry(NamedTuple):
    leaf: int
    key: str
    first: str
    second: str
    document: str
    agreed: bool


@dataclass
class Reports:
    """All reports of a log. Mutable: `add` in the order of the leaves."""

    _entries: defaultdict[str, defaultdict[int, list[_Entry]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _seen: set[str] = field(default_factory=set)
    _void: set[str] = field(default_factory=set)
    _barred_since: dict[str, int] = field(default_factory=dict)
    _together: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, key: str, report: Report, authors: tuple[Did, ...], index: int, epoch: int) -> None:
        """Take in an admitted report that stands in the log at leaf `index`, in `epoch`, under `key`."""
        first, second = sorted(did.text for did in authors)
        if key in self._seen:
            self._void.add(key)
            self._barred_since.update({first: epoch, second: epoch})
            return
        self._seen.add(key)
        agreed = report.outcome == "agreed"
        self._entries[report.topic][epoch].append(_Entry(index, key, first, second, report.document, agreed))
        if agreed:
            self._together[first, second] |= 1 << epoch

    def counting(self, epoch: int, horizon: int, voices: Voices, weights: Mapping[str, int]) -> Iterator[tuple[str, Pair]]:
        """The topic and the pair of every agreed report that counts at the end of `epoch`."""
        for topic, epochs in self._entries.items():
            for past in epochs:
                if past > epoch - horizon:
                    for _, pair in self._counting(topic, past, voices, weights, agreed=True):
                        yield topic, pair

    def barred(self, epoch: int, horizon: int, voices: Voices) -> set[str]:
        """The principals that weigh nothing in `epoch` because they equivocated."""
        dids = [did for did, since in self._barred_since.items() if since <= epoch < since + horizon]
        return {principal for did in dids if (principal := voices.principal_of(did))}

    def acquainted(self, voices: Voices) -> dict[Pair, int]:
        """In how many epochs each two principals agreed."""
        epochs: defaultdict[Pair, int] = defaultdict(int)
        for (first, second), bits in self._together.items():
            one, other = voices.principal_of(first), voices.principal_of(second)
            if one and other and one != other:
                epochs[Pair.of(one, other)] |= bits
        return {pair: bits.bit_count() for pair, bits in epochs.items()}

    def tally(self, topic: str, epoch: int, horizon: int, voices: Voices, weights: Mapping[str, int]) -> Tally:
        """What counts in a topic at the end of `epoch`."""
        pairs: defaultdict[str, dict[Pair, int]] = defaultdict(dict)
        failed: defaultdict[str, set[Pair]] = defaultdict(set)
        for past in range(max(0, epoch - horizon + 1), epoch + 1):
            for entry, pair in self._counting(topic, past, voices, weights, agreed=True):
                pairs[entry.document][pair] = past
        for entry, pair in self._counting(topic, epoch, voices, weights, agreed=False):
            failed[entry.document].add(pair)
        return Tally(dict(pairs), dict(failed))

    def agreed(self, epoch: int, voices: Voices, weights: Mapping[str, int]) -> list[Agreed]:
        """The agreed reports of `epoch` that count in it, in the order of the log."""
        return sorted(
            Agreed(entry.leaf, pair, topic, entry.document)
            for topic in self._entries
            for entry, pair in self._counting(topic, epoch, voices, weights, agreed=True)
        )

    def _counting(
        self, topic: str, epoch: int, voices: Voices, weights: Mapping[str, int], *, agreed: bool
    ) -> Iterator[tuple[_Entry, Pair]]:
        """Of each pair the first report with that outcome."""
        epochs: Mapping[int, list[_Entry]] = self._entries.get(topic, {})
        counted: set[Pair] = set()
        for entry in epochs.get(epoch, ()):
            if entry.agreed != agreed or entry.key in self._void:
                continue
            pair = _pair(entry, voices)
            if pair and pair not in counted and weights.get(pair.first) and weights.get(pair.second):
                counted.add(pair)
                yield entry, pair


def _pair(entry: _Entry, voices: Voices) -> Pair | None:
    one, other = voices.principal_of(entry.first), voices.principal_of(entry.second)
    return Pair.of(one, other) if one and other and one != other else None
