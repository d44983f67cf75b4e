"""Compute standing: the credit that principals earn by reporting facts, and its decay.

Standing is not weight: no count reads it. It belongs to a principal, cannot be transferred, and is recomputed from the log. B
= ONE is a full credit, D the decay (`arithmetic`). The names in `code` are fields of `Credit`.

A report that counts (`report`) is a *claim* of its two principals about a fact: this document is spoken in this topic. Two
reports are *independent* when no cluster has a principal in both; then no principal is in both either. So a pair that
corroborates a claim lies outside the clusters of the claim. Many principals in one cluster, or honest counterparties used one
by one, corroborate nothing.

    reported   ⌊⌊B / `report_share`⌋ · M / (M + j)⌋   to each principal of a claim of epoch e, when an independent report on the
                                                     same document and topic is in the log in one of the epochs
                                                     e … e + `epochs` − 1, elected or not
    elected    ⌊⌊B / 2^k⌋ · M / (M + j)⌋             to the same principals, when the document becomes the topic's consensus

    standing(p), at the end of epoch n  =  ⌊t · Σ ⌊amount · D(n − the epoch it was earned in)⌋ / ONE⌋ over the credits of p,
                                           t = `Electorate.trust_share` (`roll`)

M = `pairs`. j is the number of earlier credits of p with this *corroborator*: one principal of the first independent report
in the log, the one with which p shares more credits. k is the number of clusters that had reported the document there in
epochs before e. Order within an epoch does not count, because reports are submitted after a random delay.

Each credit is earned once per principal, topic and document: credit rewards news. It can be earned again when it has faded
completely. A claim lapses when one of its two principals weighs nothing at the end of an epoch. So an equivocator earns
nothing while it is barred, and its standing does not count.

The pairwise bound. The n credits of p with one corroborator add up to at most a·(1 + M·ln((M + n − 1) / M)), with a the
largest of them before the decrease by j; and to a·(1 + M·ln a) for any n, because they are 0 from j = M·a on. So the standing
that a ring gives itself grows with the logarithm of its reports: to keep it up against decay takes exponentially more reports
each time.

Specification: `docs/specification/election.md`, section 9. Claims and credits are kept in columns. An epoch is closed for all
facts together, except for the choice of the corroborators: it depends on the credits that were paid just before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..kinds import Credit
from .arithmetic import HALVINGS, ONE, decay, parts, table
from .credit_columns import (
    EMPTY,
    ClaimColumns,
    CreditColumns,
    ReportingColumns,
    SharedColumns,
    chosen,
    joined,
    paired,
    renumbered,
    split,
)
from .report import AgreedReports, Column, FactKey

Reason: TypeAlias = Literal["reported", "elected"]
_PART: Final = 4096


class EarnedCredit(NamedTuple):
    """Hold a credit of `principal`, earned at the end of `epoch` for its report at `leaf`.

    `corroborator`: the principal that the credit is shared with.
    `shared`: j, the number of credits that they shared before.
    `earlier`: k, the number of clusters that had reported the document before.
    """

    principal: str
    amount: int
    reason: Reason
    topic: str
    document: str
    corroborator: str
    leaf: int
    epoch: int
    shared: int
    earlier: int

    def entry(self) -> dict[str, object]:
        """Return the credit as an entry of the roll (`roll`)."""
        return {
            "principal": self.principal,
            "amount": str(self.amount),
            "reason": self.reason,
            "topic": self.topic,
            "document": self.document,
            "with": self.corroborator,
            "index": self.leaf,
            "shared": self.shared,
            "earlier": self.earlier,
        }


@dataclass(frozen=True, eq=False)
class EarnedCredits:
    """Hold credits in the order they were earned. Iteration builds them one by one."""

    _names: Sequence[str]
    _facts: Sequence[FactKey]
    _columns: CreditColumns

    def __len__(self) -> int:
        return len(self._columns.principal)

    def __iter__(self) -> Iterator[EarnedCredit]:
        names, facts = self._names, self._facts
        # In parts, because a roll lists only those that fit.
        for start in range(0, len(self), _PART):
            rows = zip(*(column[start : start + _PART].tolist() for column in self._columns), strict=True)
            for principal, amount, elected, fact, corroborator, leaf, epoch, shared, earlier, _ in rows:
                reason: Reason = "elected" if elected else "reported"
                by, (topic, document) = names[corroborator], facts[fact]
                yield EarnedCredit(names[principal], amount, reason, topic, document, by, leaf, epoch, shared, earlier)


class SavedCredits(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of `Credits`: the names in the order of their numbers, and all columns as bytes."""

    names: list[str]
    facts: list[FactKey]
    columns: list[bytes]


@dataclass(frozen=True, eq=False)
class Credits:
    """Hold all credits that still count, and the claims that may still earn. Immutable: `close` returns the next value.

    Faded credits are dropped. Only the number of shared credits is kept for every two principals for ever.
    """

    _names: Mapping[str, int] = field(default_factory=dict)  # principals and clusters → number
    _facts: Sequence[FactKey] = ()  # those in the columns, sorted
    _earned: CreditColumns = field(default_factory=CreditColumns)
    _claims: ClaimColumns = field(default_factory=ClaimColumns)
    _reporting: ReportingColumns = field(default_factory=ReportingColumns)
    _shared: SharedColumns = field(default_factory=SharedColumns)

    def since(self, begun: Mapping[str, int]) -> Credits:
        """Return the credits without those that a principal earned, and may still earn, before it began anew.

        `begun`: principal → the epoch in which it began.
        """
        numbers = [(self._names[name], epoch) for name, epoch in begun.items() if name in self._names]
        if not numbers:
            return self
        start = np.full(len(self._names), -1, dtype=np.int64)
        start[[number for number, _ in numbers]] = [epoch for _, epoch in numbers]
        earned, claims = self._earned, self._claims
        earned = chosen(earned, earned.epoch > start[earned.principal])
        claims = chosen(claims, claims.epoch > np.maximum(start[claims.first], start[claims.second]))
        return replace(self, _earned=earned, _claims=claims)

    def close(
        self,
        epoch: int,
        clusters: Mapping[str, str],
        reports: AgreedReports,
        terms: Credit,
        horizon: int,
        elected: Mapping[str, str],
    ) -> tuple[Credits, EarnedCredits]:
        """Return the credits after `epoch`, and the credits that it added.

        `clusters`: of every principal with weight.
        `reports`: those that count in this epoch, in the order of the log.
        `elected`: topic → the document that became its consensus in this epoch.
        """
        # Sorted: j depends on the order in which credits are paid, so every replay needs the same one.
        facts = sorted({*self._facts, *reports.facts})
        place = {fact: number for number, fact in enumerate(facts)}
        moved = np.array([place[fact] for fact in self._facts], dtype=np.int64)
        counting = epoch - self._earned.epoch < HALVINGS * horizon
        ledger = _Ledger(
            epoch,
            terms,
            dict(self._names),
            facts,
            renumbered(chosen(self._earned, counting), moved),
            renumbered(self._claims, moved),
            renumbered(self._reporting, moved),
            self._shared,
        )
        begun = len(ledger.earned.fact)
        ledger.take_clusters(clusters)
        ledger.pay_reports(reports, np.array([place[fact] for fact in reports.facts], dtype=np.int64))
        # After the reports, so that a report of the electing epoch is paid for the election too.
        ledger.pay_elections([place[fact] for fact in elected.items() if fact in place])
        added = chosen(ledger.earned, np.arange(begun, len(ledger.earned.fact)))
        return ledger.closed(), EarnedCredits([*ledger.names], facts, added)

    @property
    def earned(self) -> EarnedCredits:
        """Return the credits that still count."""
        return EarnedCredits([*self._names], self._facts, self._earned)

    def saved(self) -> SavedCredits:
        """Return the contents."""
        columns = [column.tobytes() for column in (*self._earned, *self._claims, *self._reporting, *self._shared)]
        return SavedCredits([*self._names], [*self._facts], columns)

    @classmethod
    def restored(cls, saved: SavedCredits) -> Credits:
        """Return credits with saved contents."""
        columns = iter([np.frombuffer(data, dtype=np.int64) for data in saved.columns])
        return cls(
            {name: number for number, name in enumerate(saved.names)},
            [*saved.facts],
            CreditColumns(*islice(columns, len(CreditColumns._fields))),
            ClaimColumns(*islice(columns, len(ClaimColumns._fields))),
            ReportingColumns(*islice(columns, len(ReportingColumns._fields))),
            SharedColumns(*columns),
        )

    def standings(self, epoch: int, horizon: int) -> dict[str, int]:
        """Return principal → standing at the end of `epoch`, in units of 1 / ONE of a full credit. Principals without credits
        are left out.
        """
        left = table(lambda age: decay(age, horizon), epoch + 1)
        holders, place = np.unique(self._earned.principal, return_inverse=True)
        sums = np.zeros(len(holders), dtype=np.uint64)
        np.add.at(sums, place, parts(self._earned.amount.astype(np.uint64), left[epoch - self._earned.epoch]))
        names = [*self._names]
        return {names[holder]: standing for holder, standing in zip(holders.tolist(), sums.tolist(), strict=True)}


@dataclass
class _Ledger:
    """Close one epoch: `take_clusters`, `pay_reports`, `pay_elections`, in this order.

    `earned`, `claims`, `reporting`: at first those of the epochs before, without faded credits. New credits are the last ones.
    """

    epoch: int
    terms: Credit
    names: dict[str, int]
    facts: Sequence[FactKey]
    earned: CreditColumns
    claims: ClaimColumns
    reporting: ReportingColumns
    shared: SharedColumns
    cluster: Column = field(default_factory=lambda: EMPTY)
    """The cluster of each name, by number; −1 where the name is no principal with weight."""

    def take_clusters(self, clusters: Mapping[str, str]) -> None:
        """Take the clusters of all principals with weight."""
        members, labels = self._numbers(clusters), self._numbers(clusters.values())
        self.cluster = np.full(len(self.names), -1, dtype=np.int64)
        self.cluster[members] = labels

    def pay_reports(self, reports: AgreedReports, places: Column) -> None:
        """Pay the claims that new reports corroborate, and keep those that can still earn.

        `places`: the numbers of the facts of `reports`.
        """
        live = (self.epoch - self.claims.epoch < self.terms.epochs) & self._weigh(self.claims.first, self.claims.second)
        self.claims = chosen(self.claims, live)
        # No report can corroborate an older claim in this epoch, so there is nothing to pay.
        if not len(reports):
            return
        new = self._claimed(reports, places)
        claims = joined(self.claims, new)
        claims = chosen(claims, np.argsort(claims.fact, kind="stable"))
        by = corroborators(claims, new, self.cluster, len(self.facts))
        self._pay_claims(claims, new, by)
        has_news = np.zeros(len(self.facts), dtype=bool)
        has_news[new.fact] = True
        claims = chosen(claims, by < 0)
        credited = self._reported(claims.fact, claims.first) & self._reported(claims.fact, claims.second)
        self.claims = chosen(claims, ~has_news[claims.fact] | ~credited)
        facts = np.concatenate([self.reporting.fact, new.fact, new.fact])
        clusters = np.concatenate([self.reporting.cluster, self.cluster[new.first], self.cluster[new.second]])
        self.reporting = ReportingColumns(*split(np.unique(paired(facts, clusters))))

    def pay_elections(self, elected: Sequence[int]) -> None:
        """Pay the principals with corroborated reports on these facts for their election, each once."""
        earned, names = self.earned, [*self.names]
        due = np.isin(earned.fact, elected) & (earned.elected == 0) & (earned.settled == 0)
        # A principal without weight in this epoch is not paid: an equivocator earns nothing while it is barred.
        rows = np.flatnonzero(due & self._weigh(earned.principal)).tolist()
        rows.sort(key=lambda row: (earned.fact[row], names[earned.principal[row]]))
        paid = chosen(earned, np.array(rows, dtype=np.int64))
        earned.settled[rows] = 1
        whole = ONE >> np.minimum(paid.earlier, ONE.bit_length())
        self._pay(paid._replace(elected=np.ones_like(paid.fact)), whole, paid.corroborator, paid.corroborator)

    def closed(self) -> Credits:
        """Return the credits after the epoch, without the facts that can never earn again."""
        open_facts = np.concatenate([self.claims.fact, self.earned.fact[self.earned.elected == 0]])
        reporting = chosen(self.reporting, np.isin(self.reporting.fact, open_facts))
        used = np.unique(np.concatenate([self.claims.fact, self.earned.fact]))
        place = np.zeros(len(self.facts), dtype=np.int64)
        place[used] = np.arange(len(used))
        facts = [self.facts[number] for number in used.tolist()]
        earned, claims = renumbered(self.earned, place), renumbered(self.claims, place)
        return Credits(self.names, facts, earned, claims, renumbered(reporting, place), self.shared)

    def _claimed(self, reports: AgreedReports, places: Column) -> ClaimColumns:
        """Return the claims of new reports, by fact."""
        order = np.argsort(places[reports.fact], kind="stable")
        fact, principals = places[reports.fact[order]], self._numbers(reports.principals)
        earlier = np.bincount(self.reporting.fact, minlength=len(self.facts))[fact]
        pair = principals[reports.first[order]], principals[reports.second[order]]
        return ClaimColumns(fact, np.full(len(fact), self.epoch), reports.leaf[order], *pair, earlier)

    def _pay_claims(self, claims: ClaimColumns, new: ClaimColumns, by: Column) -> None:
        """Pay both principals of each corroborated claim. `by`: the rows in `new` that corroborate."""
        corroborated = np.flatnonzero(by >= 0)
        row = np.repeat(corroborated, 2)
        principal = np.column_stack([claims.first[corroborated], claims.second[corroborated]]).ravel()
        # One credit a principal and fact: later reports on the same fact are no news.
        _, once = np.unique(paired(claims.fact[row], principal), return_index=True)
        once.sort()
        once = once[~self._reported(claims.fact[row[once]], principal[once])]
        row, principal = row[once], principal[once]
        none = np.zeros_like(row)
        earned = CreditColumns(
            principal, none, none, claims.fact[row], none, claims.leaf[row], none, none, claims.earlier[row], none
        )
        whole = np.full(len(row), ONE // self.terms.report_share)
        self._pay(earned, whole, new.first[by[row]], new.second[by[row]])

    def _pay(self, earned: CreditColumns, whole: Column, one: Column, other: Column) -> None:
        """Add credits. Each is shared with one of the principals `one` and `other`."""
        count, with_both = len(earned.principal), [paired(earned.principal, one), paired(earned.principal, other)]
        pairs, place = np.unique(np.concatenate(with_both), return_inverse=True)
        shared, taken, j = self.shared.of(pairs), *np.zeros((2, count), dtype=np.int64)
        # A credit depends on the earlier ones of its principal alone: the first ones of all are paid together, then the second.
        for rows in _in_turn(earned.principal):
            first, second = place[rows], place[count + rows]
            # The larger j gives the smaller credit, so a ring gains nothing by forming new pairs.
            taken[rows] = pair = np.where(shared[first] >= shared[second], first, second)
            j[rows] = shared[pair]
            shared[pair] += 1
        self.shared, m = self.shared.updated(pairs, shared), self.terms.pairs
        _, corroborator = split(pairs[taken])
        # Repeated credit with one corroborator shrinks, so that a ring gains little by reporting more.
        added = earned._replace(
            amount=whole * m // (m + j), corroborator=corroborator, epoch=np.full(len(j), self.epoch), shared=j
        )
        self.earned = joined(self.earned, added)

    def _reported(self, fact: Column, principal: Column) -> NDArray[np.bool_]:
        """Tell of each row whether the principal has the credit for its report on the fact."""
        earned = self.earned
        reported = earned.elected == 0
        earned_pairs, pairs = np.sort(paired(earned.fact[reported], earned.principal[reported])), paired(fact, principal)
        return np.searchsorted(earned_pairs, pairs) < np.searchsorted(earned_pairs, pairs, side="right")

    def _weigh(self, *principals: Column) -> NDArray[np.bool_]:
        weigh: NDArray[np.bool_] = np.logical_and.reduce([self.cluster[column] >= 0 for column in principals])
        return weigh

    def _numbers(self, names: Iterable[str]) -> Column:
        numbers = self.names
        return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _in_turn(principal: Column) -> list[Column]:
    """Return the first row of each principal, then the second row of each, and so on: at most one part for each fact."""
    order = np.argsort(principal, kind="stable")
    starts = np.flatnonzero(np.diff(principal[order], prepend=-1))
    earlier = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    turns = order[np.argsort(earlier, kind="stable")]
    return np.split(turns, np.cumsum(np.bincount(earlier))[:-1]) if len(turns) else []


# Bollobás's bound C(2 + 2, 2) for sets of two: no search is longer, however many reports a fact has.
_MAX_FIRSTS: Final = 6


def corroborators(claims: ClaimColumns, new: ClaimColumns, cluster: Column, facts: int) -> Column:
    """Return for each claim the row of the first independent report on its fact in `new`, or −1.

    `new`: the claims of this epoch, by fact. `cluster`: of each principal, by number. `facts`: the number of facts.
    """
    ranks = _first_rows(new, cluster, facts)
    own = cluster[claims.first], cluster[claims.second]
    corroborating = np.full(len(claims.fact), -1, dtype=np.int64)
    # At most six candidates are compared (`first_disjoint`), not every report of the epoch.
    for first in ranks:
        row = first[claims.fact]
        apart = (row >= 0) & (corroborating < 0)
        for theirs in (cluster[new.first[row]], cluster[new.second[row]]):
            apart &= (theirs != own[0]) & (theirs != own[1])
        corroborating[apart] = row[apart]
    return corroborating


def _first_rows(new: ClaimColumns, cluster: Column, facts: int) -> Column:
    """Return the rows of `first_disjoint` in `new`, by rank and fact; −1 where there are fewer."""
    rows = np.full((_MAX_FIRSTS, facts), -1, dtype=np.int64)
    starts = np.flatnonzero(np.diff(new.fact, prepend=-1)).tolist()
    one, other = cluster[new.first].tolist(), cluster[new.second].tolist()
    for start, end in pairwise([*starts, len(one)]):
        firsts = first_disjoint(zip(one[start:end], other[start:end], strict=True))
        rows[: len(firsts), new.fact[start]] = np.array(firsts) + start
    return rows


def first_disjoint(sets: Iterable[tuple[int, int]]) -> list[int]:
    """Return the places of those sets of a sequence that are the first one disjoint from some set of at most two names.

    The first set of the sequence that is disjoint from a given set of at most two names is always among them. There are at
    most six of them, for any length of the sequence.

    `sets`: sets of at most two names, in their order. The two names of a set may be the same.

    Source: Bollobás, *On generalized graphs*, 1965; skew version: Frankl, 1982.
    """
    places: list[int] = []
    candidates: list[set[int]] = []
    meeting: list[set[int]] = [set()]
    for place, (one, other) in enumerate(sets):
        # It is the first for each set that meets all kept ones and not this.
        if any(one not in names and other not in names for names in meeting):
            places.append(place)
            candidates.append({one, other})
            meeting = _meeting(candidates)
            # No later set can be the first for any.
            if not meeting:
                break
    return places


def _meeting(kept: Sequence[set[int]]) -> list[set[int]]:
    """Return sets of at most two names that meet every kept set. Each other such set has one of them in it."""
    overlaps = []
    # Two names can only meet all kept sets if one of them is in the first; this tries each of its two.
    for name in kept[0]:
        rest = [names for names in kept if name not in names]
        overlaps += [{name, other} for other in set.intersection(*rest)] if rest else [{name}]
    return overlaps
