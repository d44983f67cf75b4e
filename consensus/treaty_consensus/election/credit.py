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

Specification: `docs/specification/election.md`, section 9.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ..kinds import Credit
from .arithmetic import HALVINGS, ONE, decay, part
from .report import AgreedReport, Pair

Reason: TypeAlias = Literal["reported", "elected"]
_FactKey: TypeAlias = tuple[str, str]
# Bollobás's bound C(2 + 2, 2) for sets of two: no search is longer, however many reports a fact has.
_MAX_FIRSTS = 6


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


class _Claim(NamedTuple):
    epoch: int
    leaf: int
    pair: Pair
    earlier: int


@dataclass(frozen=True)
class _Fact:
    """Hold a document in a topic.

    `claims`: those that may still earn.
    `clusters`: the clusters that have reported it.
    `reported`: principal → the credit for its report.
    `elected`: the principals that were paid for its election.
    """

    claims: tuple[_Claim, ...] = ()
    clusters: frozenset[str] = frozenset()
    reported: Mapping[str, EarnedCredit] = field(default_factory=dict)
    elected: frozenset[str] = frozenset()


class SavedCredits(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of `Credits`, each list sorted by name."""

    facts: list[tuple[_FactKey, _Fact]]
    shared: list[tuple[tuple[str, str], int]]
    earned: list[tuple[str, tuple[EarnedCredit, ...]]]


@dataclass(frozen=True)
class Credits:
    """Hold all credits that still count, and the claims that may still earn. Immutable: `close` returns the next value.

    Faded credits are dropped. Only the number of shared credits is kept for every two principals for ever.
    """

    _facts: Mapping[_FactKey, _Fact] = field(default_factory=dict)
    _shared: Mapping[tuple[str, str], int] = field(default_factory=dict)
    _earned: Mapping[str, tuple[EarnedCredit, ...]] = field(default_factory=dict)

    def close(
        self,
        epoch: int,
        clusters: Mapping[str, str],
        reports: Iterable[AgreedReport],
        terms: Credit,
        horizon: int,
        elected: Mapping[str, str],
    ) -> tuple[Credits, list[EarnedCredit]]:
        """Return the credits after `epoch`, and the credits that it added, in the order they were earned.

        `clusters`: of every principal with weight.
        `reports`: those that count in this epoch, in the order of the log.
        `elected`: topic → the document that became its consensus in this epoch.
        """
        ledger = _Ledger(epoch, clusters, terms, dict(self._shared))
        added: defaultdict[_FactKey, list[AgreedReport]] = defaultdict(list)
        for report in reports:
            added[report.topic, report.document].append(report)
        facts = {}
        # Sorted: j depends on the order in which credits are paid, so every replay needs the same one.
        for key in sorted(self._facts.keys() | added.keys()):
            fact = ledger.reported(key, _recent(self._facts.get(key, _Fact()), epoch, horizon), added.get(key, ()))
            # A fact without open claims and without credits that count can never earn again, so it is dropped.
            if fact.claims or fact.reported:
                facts[key] = fact
        # After the reports, so that a report of the electing epoch is paid for the election too.
        for key in sorted(elected.items() & facts.keys()):
            facts[key] = ledger.elected(key, facts[key])
        earned = defaultdict(list, {name: list(_counting(credits, epoch, horizon)) for name, credits in self._earned.items()})
        for credit in ledger.earned:
            earned[credit.principal].append(credit)
        counting = {principal: tuple(credits) for principal, credits in earned.items() if credits}
        return Credits(facts, ledger.shared, counting), ledger.earned

    def saved(self) -> SavedCredits:
        """Return the contents."""
        name = itemgetter(0)
        facts = sorted(self._facts.items(), key=name)
        return SavedCredits(facts, sorted(self._shared.items(), key=name), sorted(self._earned.items(), key=name))

    @classmethod
    def restored(cls, saved: SavedCredits) -> Credits:
        """Return credits with saved contents."""
        return cls(dict(saved.facts), dict(saved.shared), dict(saved.earned))

    def credits(self, principal: str) -> Sequence[EarnedCredit]:
        """Return the credits of a principal that still count, the oldest first."""
        return self._earned.get(principal, ())

    def standings(self, epoch: int, horizon: int) -> dict[str, int]:
        """Return principal → standing at the end of `epoch`, in units of 1 / ONE of a full credit. Principals without credits
        are left out.
        """
        left = [decay(age, horizon) for age in range(epoch + 1)]
        return {
            principal: sum(part(credit.amount, left[epoch - credit.epoch]) for credit in credits)
            for principal, credits in self._earned.items()
        }


@dataclass
class _Ledger:
    """Write the credits of one epoch as they are earned."""

    epoch: int
    clusters: Mapping[str, str]
    terms: Credit
    shared: dict[tuple[str, str], int]
    earned: list[EarnedCredit] = field(default_factory=list)

    def reported(self, key: _FactKey, fact: _Fact, new: Sequence[AgreedReport]) -> _Fact:
        """Pay the claims that the `new` reports on a fact corroborate.

        Returns the fact with these reports, without the claims that can no longer earn.
        """
        claims = [*self._live(fact.claims), *(_Claim(self.epoch, r.leaf, r.pair, len(fact.clusters)) for r in new)]
        # No report can corroborate an older claim in this epoch, so there is nothing to pay.
        if not new:
            return replace(fact, claims=tuple(claims))
        paid, firsts = dict(fact.reported), first_disjoint(self._clusters(report.pair) for report in new)
        waiting = []
        for claim in claims:
            # Nothing is left to pay, and the claim would be dropped below.
            if claim.pair.first in paid and claim.pair.second in paid:
                continue
            own = self._clusters(claim.pair)
            # At most six candidates are compared (`first_disjoint`), not every report of the epoch.
            place = next((place for place, theirs in firsts if own.isdisjoint(theirs)), None)
            if place is None:
                waiting.append(claim)
                continue
            for principal in claim.pair:
                # One credit a principal and fact: later reports on the same fact are no news.
                if principal not in paid:
                    other = self._most_shared(principal, new[place].pair)
                    paid[principal] = self._pay(principal, ONE // self.terms.report_share, "reported", key, other, claim)
        clusters = fact.clusters | {self.clusters[principal] for report in new for principal in report.pair}
        open_claims = tuple(claim for claim in waiting if not (claim.pair.first in paid and claim.pair.second in paid))
        return replace(fact, claims=open_claims, clusters=clusters, reported=paid)

    def elected(self, key: _FactKey, fact: _Fact) -> _Fact:
        """Pay the principals with corroborated reports on a fact for its election, each once."""
        # A principal without weight in this epoch is not paid: an equivocator earns nothing while it is barred.
        due = [name for name in sorted(fact.reported) if name in self.clusters and name not in fact.elected]
        for principal in due:
            report = fact.reported[principal]
            self._pay(principal, ONE >> report.earlier, "elected", key, report.corroborator, report)
        return replace(fact, elected=fact.elected.union(due))

    def _pay(
        self, principal: str, whole: int, reason: Reason, key: _FactKey, other: str, report: _Claim | EarnedCredit
    ) -> EarnedCredit:
        shared, pairs = self.shared.get((principal, other), 0), self.terms.pairs
        # Repeated credit with one corroborator shrinks, so that a ring gains little by reporting more.
        amount = whole * pairs // (pairs + shared)
        credit = EarnedCredit(principal, amount, reason, *key, other, report.leaf, self.epoch, shared, report.earlier)
        self.shared[principal, other] = shared + 1
        self.earned.append(credit)
        return credit

    def _most_shared(self, principal: str, pair: Pair) -> str:
        """Return the principal of a corroborating pair with which `principal` shares more credits."""
        # The larger j gives the smaller credit, so a ring gains nothing by forming new pairs.
        first, second = (self.shared.get((principal, other), 0) for other in pair)
        return pair.first if first >= second else pair.second

    def _live(self, claims: Iterable[_Claim]) -> Iterator[_Claim]:
        for claim in claims:
            first, second = claim.pair
            if self.epoch - claim.epoch < self.terms.epochs and first in self.clusters and second in self.clusters:
                yield claim

    def _clusters(self, pair: Pair) -> frozenset[str]:
        return frozenset((self.clusters[pair.first], self.clusters[pair.second]))


def first_disjoint(sets: Iterable[frozenset[str]]) -> list[tuple[int, frozenset[str]]]:
    """Return those sets of a sequence that are the first one disjoint from some set of at most two names, with their places.

    The first set of the sequence that is disjoint from a given set of at most two names is always among them. There are at
    most six of them, for any length of the sequence.

    `sets`: sets of at most two names, in their order.

    Source: Bollobás, *On generalized graphs*, 1965; skew version: Frankl, 1982.
    """
    kept: list[tuple[int, frozenset[str]]] = []
    for place, members in enumerate(sets):
        if _is_first_for_some(members, [others for _, others in kept]):
            kept.append((place, members))
            if len(kept) == _MAX_FIRSTS:
                break
    return kept


def _is_first_for_some(members: frozenset[str], kept: Sequence[frozenset[str]]) -> bool:
    """Tell whether two names that are not members exist that meet every kept set."""
    if not kept:
        return True
    # Two names can only meet all kept sets if one of them is in the first; this tries each of its two.
    for name in kept[0] - members:
        rest = [others for others in kept if name not in others]
        if not rest or frozenset.intersection(*rest) - members:
            return True
    return False


def _recent(fact: _Fact, epoch: int, horizon: int) -> _Fact:
    """Return a fact without the credits that have faded completely."""
    reported = {credit.principal: credit for credit in _counting(fact.reported.values(), epoch, horizon)}
    return replace(fact, reported=reported, elected=fact.elected & reported.keys())


def _counting(credits: Iterable[EarnedCredit], epoch: int, horizon: int) -> Iterator[EarnedCredit]:
    return (credit for credit in credits if epoch - credit.epoch < HALVINGS * horizon)
