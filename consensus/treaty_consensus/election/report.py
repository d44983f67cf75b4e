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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class Counted:
    """All reports that count at the end of an epoch: by topic, and those of this very epoch, in the order of the log."""

    tallies: Mapping[str, Tally]
    agreed: Sequence[Agreed]

    def tally(self, topic: str) -> Tally:
        """Of one topic; empty where nothing counts."""
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

    def count(self, epoch: int, horizon: int, voices: Voices, weights: Mapping[str, int]) -> Counted:
        """What counts at the end of `epoch`, in all topics."""
        tallies, agreed = {}, []
        for topic, epochs in self._entries.items():
            pairs: defaultdict[str, dict[Pair, int]] = defaultdict(dict)
            failed: defaultdict[str, set[Pair]] = defaultdict(set)
            for past in sorted(past for past in epochs if epoch - horizon < past <= epoch):
                for entry, pair in self._counting(epochs[past], voices, weights, agreed=True):
                    pairs[entry.document][pair] = past
                    if past == epoch:
                        agreed.append(Agreed(entry.leaf, pair, topic, entry.document))
            for entry, pair in self._counting(epochs.get(epoch, ()), voices, weights, agreed=False):
                failed[entry.document].add(pair)
            if pairs or failed:
                tallies[topic] = Tally(dict(pairs), dict(failed))
        return Counted(tallies, sorted(agreed))

    def _counting(
        self, entries: Iterable[_Entry], voices: Voices, weights: Mapping[str, int], *, agreed: bool
    ) -> Iterator[tuple[_Entry, Pair]]:
        """Of each pair the first report with that outcome."""
        counted: set[Pair] = set()
        for entry in entries:
            if entry.agreed != agreed or entry.key in self._void:
                continue
            one, other = voices.principal_of(entry.first), voices.principal_of(entry.second)
            if one is None or other is None or one == other or not (weights.get(one) and weights.get(other)):
                continue
            pair = Pair.of(one, other)
            if pair not in counted:
                counted.add(pair)
                yield entry, pair
