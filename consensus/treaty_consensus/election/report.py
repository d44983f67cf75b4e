"""Select the reports that count as evidence for a document, and bar principals that equivocated.

A report is identified by its two DIDs and its negotiation id (`admit.report_key`). For each pair of principals, topic and
epoch one report counts: the first in the log that is agreed, not void, and between two different principals that both weigh
something. It is recent for `horizon_epochs`, and counts for the use of its pair for `Parameters.memory_epochs`, its own epoch
among them. Failed reports are counted separately in the same way, but only in their own epoch.

A second report under the same key can only be admitted with another document. That is an equivocation, provable by the two
leaves. Both reports are void, with any content, and both principals are barred for `horizon` epochs, from the epoch of the
second report.

Two principals are *acquainted* in each epoch with an agreed report of theirs that is not void, in any topic and with any
weight.

Specification: `docs/specification/election.md`, section 1. Reports are stored in columns as they are logged, and counted
together at the end of an epoch. All comparisons are of integers, so every platform selects the same reports.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..did import Did
from ..kinds import Report
from .principals import PrincipalDirectory

Column: TypeAlias = NDArray[np.int64]
FactKey: TypeAlias = tuple[str, str]
"""A topic, and a document that is spoken there."""
_EMPTY: Column = np.zeros(0, dtype=np.int64)
_AGREED, _VOID = 1, 2


class Pair(NamedTuple):
    """Name two different principals, sorted."""

    first: str
    second: str

    @classmethod
    def of(cls, one: str, other: str) -> Pair:
        """Return the pair of two principals, in either order."""
        return cls(one, other) if one < other else cls(other, one)


class PairColumns(NamedTuple):
    """Hold pairs that reported documents, one row a document and pair, in no order.

    `document`: a place in `Tally.documents`. `first`, `second`: places in `Tally.principals`, the first one smaller.
    `epoch`: of the pair's newest report.
    """

    document: Column = _EMPTY
    first: Column = _EMPTY
    second: Column = _EMPTY
    epoch: Column = _EMPTY

    def of(self, document: int) -> tuple[Column, Column]:
        """Return both principals of each pair that reported a document."""
        rows = self.document == document
        return self.first[rows], self.second[rows]


_NO_PAIRS = PairColumns()


@dataclass(frozen=True, eq=False)
class Tally:
    """Hold the reports that count in a topic.

    `principals`, `documents`: the names in them, sorted; the columns point there.
    `agreed`: the pairs that agreed on a document.
    `failed`: the pairs that failed with a document in the current epoch.
    """

    principals: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    agreed: PairColumns = _NO_PAIRS
    failed: PairColumns = _NO_PAIRS

    @classmethod
    def of(cls, pairs: Mapping[str, Mapping[Pair, int]]) -> Tally:
        """Build a tally without failures from document → pair that agreed on it → the epoch of the pair's newest report."""
        principals = sorted({name for epochs in pairs.values() for pair in epochs for name in pair})
        place, documents = {name: number for number, name in enumerate(principals)}, sorted(pairs)
        rows = [
            (number, place[pair.first], place[pair.second], epoch)
            for number, document in enumerate(documents)
            for pair, epoch in pairs[document].items()
        ]
        table = np.array(rows, dtype=np.int64).reshape(len(rows), 4)
        return cls(tuple(principals), tuple(documents), PairColumns(*table.T))

    @cached_property
    def agreed_pairs(self) -> dict[str, int]:
        """Return document → the number of pairs that agreed on it, where there are any."""
        counts = np.bincount(self.agreed.document, minlength=len(self.documents)).tolist()
        return {document: count for document, count in zip(self.documents, counts, strict=True) if count}

    @cached_property
    def reporters(self) -> tuple[Column, Column]:
        """Return each document that was agreed on with each of its principals, as two columns, sorted."""
        agreed, width = self.agreed, max(len(self.principals), 1)
        keys = distinct(np.concatenate([agreed.document * width + agreed.first, agreed.document * width + agreed.second]))
        return keys // width, keys % width

    def since(self, epoch: int) -> Tally:
        """Return the tally of the reports of an epoch and later ones."""
        return replace(self, agreed=PairColumns(*(column[self.agreed.epoch >= epoch] for column in self.agreed)))

    def by_line(self, lines: Mapping[str, str]) -> Tally:
        """Return the tally of lines: each document counts as the first of its line. `lines`: later document → the first one."""
        if lines.keys().isdisjoint(self.documents):
            return self
        firsts = [lines.get(document, document) for document in self.documents]
        documents = sorted({*firsts})
        place = np.array([bisect_left(documents, first) for first in firsts], dtype=np.int64)
        agreed, failed = (_newest_of_each(part._replace(document=place[part.document])) for part in (self.agreed, self.failed))
        return replace(self, documents=tuple(documents), agreed=agreed, failed=failed)

    def failures(self, document: str) -> tuple[Column, Column]:
        """Return both principals of each pair that failed with a document, as places."""
        if not len(self.failed.document) or document not in self.documents:
            return _EMPTY, _EMPTY
        return self.failed.of(self.documents.index(document))

    def active(self, epoch: int) -> set[str]:
        """Return the principals with a report of the current `epoch` that counts."""
        new = self.agreed.epoch == epoch
        both = (self.failed.first, self.failed.second, self.agreed.first[new], self.agreed.second[new])
        return {self.principals[place] for place in np.flatnonzero(np.bincount(np.concatenate(both))).tolist()}


class AgreedReport(NamedTuple):
    """Name a report that counts: its leaf, its pair, its topic and its document."""

    leaf: int
    pair: Pair
    topic: str
    document: str


@dataclass(frozen=True, eq=False)
class AgreedReports:
    """Hold reports that count, a row each, in the order of the log. Iteration builds them one by one.

    `principals`, `facts`: the columns `first` and `second`, and `fact`, are places there. The first name of a pair is the
    smaller one.
    """

    principals: Sequence[str]
    facts: Sequence[FactKey]
    leaf: Column
    fact: Column
    first: Column
    second: Column

    @classmethod
    def of(cls, reports: Iterable[AgreedReport]) -> AgreedReports:
        """Build the columns of reports."""
        principals, facts = defaultdict[str, int](count().__next__), defaultdict[FactKey, int](count().__next__)
        rows = [
            (report.leaf, facts[report.topic, report.document], *(principals[name] for name in report.pair)) for report in reports
        ]
        table = np.array(rows, dtype=np.int64).reshape(len(rows), 4)
        return cls([*principals], [*facts], *table.T)

    def __len__(self) -> int:
        return len(self.leaf)

    def __iter__(self) -> Iterator[AgreedReport]:
        columns = (column.tolist() for column in (self.leaf, self.fact, self.first, self.second))
        for leaf, fact, first, second in zip(*columns, strict=True):
            yield AgreedReport(leaf, Pair(self.principals[first], self.principals[second]), *self.facts[fact])


@dataclass(frozen=True)
class CountedReports:
    """Hold all reports that count at the end of an epoch.

    `tallies`: by topic.
    `agreed`: those of the current epoch.
    """

    tallies: Mapping[str, Tally]
    agreed: AgreedReports

    def tally(self, topic: str) -> Tally:
        """Return the tally of one topic; empty where nothing counts."""
        return self.tallies.get(topic, Tally())


@dataclass(frozen=True)
class Acquaintance:
    """Hold the pairs that are acquainted, by the numbers of their principals in the directory.

    `key`: smaller number · `width` + larger number, sorted. `epochs`: the number of epochs of each.
    """

    width: int
    key: Column
    epochs: Column

    def between(self, one: Column, other: Column) -> Column:
        """Return in how many epochs the two principals of each row agreed."""
        if not len(self.key):
            return np.zeros(len(one), dtype=np.int64)
        keys = np.minimum(one, other) * self.width + np.maximum(one, other)
        positions = np.minimum(np.searchsorted(self.key, keys), len(self.key) - 1)
        return np.where(self.key[positions] == keys, self.epochs[positions], 0)


class _Rows(NamedTuple):
    """Hold some reports between two principals, in the order of the log. `pair`: one number for both principals."""

    row: Column
    pair: Column

    def where(self, mask: NDArray[np.bool_] | NDArray[np.intp]) -> _Rows:
        return _Rows(self.row[mask], self.pair[mask])


class SavedReports(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of `Reports`: its names in their order, and its columns as bytes."""

    keys: list[str]
    barred: dict[str, int]
    topics: list[str]
    documents: list[str]
    columns: list[bytes]
    state: bytes


@dataclass
class Reports:
    """Store all reports of a log, in columns. Mutable: `add` in the order of the leaves."""

    directory: PrincipalDirectory
    _rows: dict[str, int] = field(default_factory=dict)
    _barred_since: dict[str, int] = field(default_factory=dict)
    _topics: dict[str, int] = field(default_factory=dict)
    _documents: dict[str, int] = field(default_factory=dict)
    _leaf: array[int] = field(default_factory=lambda: array("q"))
    _first: array[int] = field(default_factory=lambda: array("q"))
    _second: array[int] = field(default_factory=lambda: array("q"))
    _topic: array[int] = field(default_factory=lambda: array("q"))
    _document: array[int] = field(default_factory=lambda: array("q"))
    _epoch: array[int] = field(default_factory=lambda: array("q"))
    _state: bytearray = field(default_factory=bytearray)

    def add(self, key: str, report: Report, authors: tuple[Did, ...], index: int, epoch: int) -> None:
        """Add an admitted report: leaf `index`, logged in `epoch`, under `key`."""
        one, other = (did.text for did in authors)
        row = self._rows.setdefault(key, len(self._state))
        # The first report stays in its row: the mark hides it from every count.
        if row != len(self._state):
            self._state[row] |= _VOID
            self._barred_since.update({one: epoch, other: epoch})
            return
        self._leaf.append(index)
        self._first.append(self.directory.number(one))
        self._second.append(self.directory.number(other))
        self._topic.append(self._topics.setdefault(report.topic, len(self._topics)))
        self._document.append(self._documents.setdefault(report.document, len(self._documents)))
        self._epoch.append(epoch)
        self._state.append(_AGREED if report.outcome == "agreed" else 0)

    def saved(self) -> SavedReports:
        """Return the contents."""
        columns = [column.tobytes() for column in self._columns()]
        return SavedReports([*self._rows], self._barred_since, [*self._topics], [*self._documents], columns, bytes(self._state))

    def restore(self, saved: SavedReports) -> None:
        """Take over saved contents. The store must be new."""
        self._rows, self._topics, self._documents = (
            {name: number for number, name in enumerate(names)} for names in (saved.keys, saved.topics, saved.documents)
        )
        self._barred_since, self._state = saved.barred, bytearray(saved.state)
        for column, data in zip(self._columns(), saved.columns, strict=True):
            column.frombytes(data)

    def barred(self, epoch: int, horizon: int) -> set[str]:
        """Return the principals that weigh nothing in `epoch` because they equivocated."""
        dids = [did for did, since in self._barred_since.items() if since <= epoch < since + horizon]
        return {principal for did in dids if (principal := self.directory.principal_of(did))}

    def acquainted(self) -> Acquaintance:
        """Return the number of epochs in which each two principals agreed."""
        # Failures build no acquaintance: anyone can fail with anyone.
        owners = self.directory.owners
        rows = np.flatnonzero(self._states() == _AGREED)
        one, other = owners(self._column("first")[rows]), owners(self._column("second")[rows])
        width = self.directory.size
        counts = (one >= 0) & (other >= 0) & (one != other)
        pair = (np.minimum(one, other) * width + np.maximum(one, other))[counts]
        epoch = self._column("epoch")[rows[counts]]
        # Several reports in an epoch count once.
        order = np.lexsort((epoch, pair))
        pair, epoch = pair[order], epoch[order]
        distinct = _starts(pair, epoch)
        key, epochs = np.unique(pair[distinct], return_counts=True)
        return Acquaintance(width, key, epochs)

    def count(
        self, epoch: int, memory: int, weights: Mapping[str, int], begun: Mapping[str, int] = MappingProxyType({})
    ) -> CountedReports:
        """Return the reports that count at the end of `epoch`, in all topics.

        `memory`: for how many epochs an agreed report counts for the use of its pair, its own among them.
        `weights`: principal → weight; a report counts only between principals with weight.
        `begun`: principal → the epoch in which its tenure began; its earlier reports do not count.
        """
        names = sorted(name for name, weight in weights.items() if weight)
        logged, states = self._column("epoch"), self._states()
        recent = (epoch - memory < logged) & (logged <= epoch) & (states & _VOID == 0)
        rows = self._between(np.flatnonzero(recent), names)
        if begun:
            start = np.array([begun.get(name, -1) for name in names], dtype=np.int64)
            newer = np.maximum(start[rows.pair // len(names)], start[rows.pair % len(names)]) < logged[rows.row]
            rows = rows.where(newer)
        is_agreed = states[rows.row] == _AGREED
        agreed = self._first_of_each(rows.where(is_agreed))
        failed = self._first_of_each(rows.where(~is_agreed & (logged[rows.row] == epoch)))
        newest = agreed.where(logged[agreed.row] == epoch)
        newest = newest.where(np.argsort(self._column("leaf")[newest.row], kind="stable"))
        return CountedReports(dict(self._tallies(agreed, failed, names)), self._agreed(newest, names))

    def _between(self, rows: Column, names: Sequence[str]) -> _Rows:
        """Return those reports that are between two different principals of `names`."""
        places = self.directory.places(names)
        one = places[self.directory.owners(self._column("first")[rows])]
        other = places[self.directory.owners(self._column("second")[rows])]
        # Reports within one principal, or with one without weight, cost nothing to produce.
        counts = (one >= 0) & (other >= 0) & (one != other)
        pair = np.minimum(one, other) * len(names) + np.maximum(one, other)
        return _Rows(rows[counts], pair[counts])

    def _first_of_each(self, rows: _Rows) -> _Rows:
        """Return the first report in the log of each pair, topic and epoch."""
        topic, epoch = self._column("topic")[rows.row], self._column("epoch")[rows.row]
        # `lexsort` is stable, so equal rows keep the order of the log.
        order = np.lexsort((rows.pair, epoch, topic))
        return rows.where(order[_starts(topic[order], epoch[order], rows.pair[order])])

    def _tallies(self, agreed: _Rows, failed: _Rows, names: Sequence[str]) -> Iterator[tuple[str, Tally]]:
        topics, documents = [*self._topics], [*self._documents]
        both = self._by_topic(self._newest(agreed)), self._by_topic(self._newest(failed))
        for topic in sorted(both[0].keys() | both[1].keys()):
            yield topics[topic], _tally([part.get(topic) for part in both], names, documents)

    def _newest(self, rows: _Rows) -> tuple[Column, PairColumns]:
        """Return topics, and the newest report of each pair on each document there. Principals are the places in a pair."""
        topic, document, epoch = (self._column(name)[rows.row] for name in ("topic", "document", "epoch"))
        # The newest epoch of a pair and document comes first.
        order = np.lexsort((-epoch, rows.pair, document, topic))
        newest = order[_starts(topic[order], document[order], rows.pair[order])]
        return topic[newest], PairColumns(document[newest], rows.pair[newest], rows.pair[newest], epoch[newest])

    def _by_topic(self, rows: tuple[Column, PairColumns]) -> dict[int, PairColumns]:
        topic, columns = rows
        starts = np.flatnonzero(_starts(topic)).tolist()
        ends = [*starts[1:], len(topic)]
        return {
            number: PairColumns(*(column[start:end] for column in columns))
            for number, start, end in zip(topic[starts].tolist(), starts, ends, strict=False)
        }

    def _agreed(self, rows: _Rows, names: Sequence[str]) -> AgreedReports:
        topics, documents, width = [*self._topics], [*self._documents], max(len(names), 1)
        facts = self._column("topic")[rows.row] * len(documents) + self._column("document")[rows.row]
        used, fact = np.unique(facts, return_inverse=True)
        keys = [(topics[number // len(documents)], documents[number % len(documents)]) for number in used.tolist()]
        return AgreedReports(names, keys, self._column("leaf")[rows.row], fact, rows.pair // width, rows.pair % width)

    def _columns(self) -> tuple[array[int], ...]:
        return self._leaf, self._first, self._second, self._topic, self._document, self._epoch

    def _column(self, name: str) -> Column:
        return np.array(getattr(self, f"_{name}"), dtype=np.int64)

    def _states(self) -> NDArray[np.uint8]:
        return np.array(self._state, dtype=np.uint8)


def _tally(parts: Sequence[PairColumns | None], names: Sequence[str], documents: Sequence[str]) -> Tally:
    """Return the tally of one topic, whose principals and documents get places of their own.

    So the work on a topic grows with its reports, not with the electorate.
    """
    agreed, failed = (part or _NO_PAIRS for part in parts)
    width = max(len(names), 1)
    pairs = np.concatenate([agreed.first, failed.first])
    members, ends = np.unique(np.concatenate([pairs // width, pairs % width]), return_inverse=True)
    used, alike = np.unique(np.concatenate([agreed.document, failed.document]), return_inverse=True)
    used_documents = [documents[number] for number in used.tolist()]
    place = np.empty(len(used_documents), dtype=np.int64)
    place[np.array(sorted(range(len(used_documents)), key=used_documents.__getitem__), dtype=np.int64)] = np.arange(
        len(used_documents)
    )
    one, other, split = ends[: len(pairs)], ends[len(pairs) :], len(agreed.first)
    return Tally(
        tuple(names[number] for number in members.tolist()),
        tuple(sorted(used_documents)),
        PairColumns(place[alike[:split]], one[:split], other[:split], agreed.epoch),
        PairColumns(place[alike[split:]], one[split:], other[split:], failed.epoch),
    )


def _newest_of_each(pairs: PairColumns) -> PairColumns:
    """Return one row for each document and pair, with the epoch of the newest."""
    order = np.lexsort((-pairs.epoch, pairs.second, pairs.first, pairs.document))
    newest = order[_starts(pairs.document[order], pairs.first[order], pairs.second[order])]
    return PairColumns(*(column[newest] for column in pairs))


def distinct(values: Column) -> Column:
    """Return the distinct values, sorted."""
    # `np.unique` hashes, which takes ten times as long for a million integers.
    ordered = np.sort(values)
    return ordered[_starts(ordered)]


def _starts(*columns: Column) -> NDArray[np.bool_]:
    """Tell of each row of sorted columns whether it differs from the row before."""
    differs = np.ones(len(columns[0]), dtype=bool)
    if len(differs):
        differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs
