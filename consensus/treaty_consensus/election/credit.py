"""Standing: what it earns to report facts, and how that fades.

Standing is not weight: nothing here is read by a count. It belongs to a principal, cannot be passed on, and is recomputed from
the log like everything else. B = ONE is a full credit, D the decay (`arithmetic`), the names in `code` are `Credit`.

A report that counts (`report`) is a *claim* of its two principals about a fact: this document is spoken in this topic. Two
reports are *independent* when no cluster has a principal in both; then no principal is in both either. So a pair that
corroborates a claim lies wholly outside the clusters of the claim, and whoever fills one cluster with principals, or borrows
honest counterparties one by one, corroborates nothing.

    reported   ⌊⌊B / `report_share`⌋ · M / (M + j)⌋   to each principal of a claim of epoch e, when a report on the same document
                                                     and topic that is independent of it stands in the log in one of the epochs
                                                     e … e + `epochs` − 1, elected or not
    elected    ⌊⌊B / 2^k⌋ · M / (M + j)⌋             to the same principals, when the document becomes the topic's consensus

    standing(p), at the end of epoch n  =  Σ ⌊amount · D(n − the epoch it was earned in)⌋  over the credits of p; in the roll it
                                           is 0 while p weighs nothing

M = `pairs`. j: the credits that p earned with this *corroborator* before; it is one principal of the first independent report in
the log, of the two the one with which p has the more of them. k: the clusters of those who had reported the document there in
epochs before e; what is earlier within an epoch counts for nothing, as reports are submitted after a random delay.

Each credit is earned once a principal, topic and document: it is for news, and repeating is none. It is news again when its
credit has faded away altogether. A claim lapses when one of its two weighs nothing at the end of an epoch; so an equivocator
earns nothing while it is barred, and its standing rests too.

The pairwise bound. The n credits of p with one corroborator add up to at most a·(1 + M·ln((M + n − 1) / M)), a being the largest
of them undiminished, and to a·(1 + M·ln a) for ever, as they are 0 from j = M·a on. So the standing that a ring makes for itself
grows with the logarithm of what it reports: to keep it up while it fades takes exponentially more reports each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from ..kinds import Credit
from .arithmetic import HALVINGS, ONE, decay, part
from .report import Agreed, Pair

Reason: TypeAlias = Literal["reported", "elected"]
_FactKey: TypeAlias = tuple[str, str]
_MAX_FIRSTS = 6


class Earned(NamedTuple):
    """A credit of `principal`, earned at the end of `epoch` for its report at `leaf`. `corroborator`: the principal that it is
    shared with; `shared`: j, how many they shared before; `earlier`: k, how many clusters had reported the document."""

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
        """The credit in the roll of its epoch (`roll`)."""
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
    """A document in a topic: the claims that may yet earn, the clusters that have reported it, what each principal earned for
    its report, and who was paid for its election."""

    claims: tuple[_Claim, ...] = ()
    clusters: frozenset[str] = frozenset()
    reported: Mapping[str, Earned] = field(default_factory=dict)
    elected: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Credits:
    """All credits that still count, and what may yet earn. Immutable: `close` gives the next ones. What is kept is what can
    still earn or still counts, and a number for each two principals that ever shared a credit."""

    _facts: Mapping[_FactKey, _Fact] = field(default_factory=dict)
    _shared: Mapping[tuple[str, str], int] = field(default_factory=dict)
    _earned: Mapping[str, tuple[Earned, ...]] = field(default_factory=dict)

    def close(
        self,
        epoch: int,
        clusters: Mapping[str, str],
        reports: Iterable[Agreed],
        terms: Credit,
        horizon: int,
        elected: Mapping[str, str],
    ) -> tuple[Credits, list[Earned]]:
        """The credits after `epoch`, and those that it added, in the order they were earned.

        `clusters`: of everybody who weighs something. `reports`: those that count in this epoch, in the order of the log.
        `elected`: topic → the document that became its consensus in this epoch.
        """
        ledger = _Ledger(epoch, clusters, terms, dict(self._shared))
        added: defaultdict[_FactKey, list[Agreed]] = defaultdict(list)
        for report in reports:
            added[report.topic, report.document].append(report)
        facts = {}
        for key in sorted(self._facts.keys() | added.keys()):
            fact = ledger.reported(key, _recent(self._facts.get(key, _Fact()), epoch, horizon), added.get(key, ()))
            if fact.claims or fact.reported:
                facts[key] = fact
        for key in sorted(elected.items() & facts.keys()):
            facts[key] = ledger.elected(key, facts[key])
        earned = defaultdict(list, {name: list(_counting(credits, epoch, horizon)) for name, credits in self._earned.items()})
        for credit in ledger.earned:
            earned[credit.principal].append(credit)
        counting = {principal: tuple(credits) for principal, credits in earned.items() if credits}
        return Credits(facts, ledger.shared, counting), ledger.earned

    def credits(self, principal: str) -> Sequence[Earned]:
        """What a principal has earned and still counts, the oldest first."""
        return self._earned.get(principal, ())

    def standings(self, epoch: int, horizon: int) -> dict[str, int]:
        """The standing at the end of `epoch` of everybody who has any, in units of 1 / ONE of a full credit."""
        left = [decay(age, horizon) for age in range(epoch + 1)]
        return {
            principal: sum(part(credit.amount, left[epoch - credit.epoch]) for credit in credits)
            for principal, credits in self._earned.items()
        }


@dataclass
class _Ledger:
    """The credits of one epoch, written as they are earned."""

    epoch: int
    clusters: Mapping[str, str]
    terms: Credit
    shared: dict[tuple[str, str], int]
    earned: list[Earned] = field(default_factory=list)

    def reported(self, key: _FactKey, fact: _Fact, new: Sequence[Agreed]) -> _Fact:
        """Pay what the `new` reports on a fact corroborate; the fact with them, and without what cannot earn any more."""
        claims = [*self._live(fact.claims), *(_Claim(self.epoch, r.leaf, r.pair, len(fact.clusters)) for r in new)]
        if not new:
            return replace(fact, claims=tuple(claims))
        paid, firsts = dict(fact.reported), first_disjoint(self._clusters(report.pair) for report in new)
        waiting = []
        for claim in claims:
            own = self._clusters(claim.pair)
            place = next((place for place, theirs in firsts if own.isdisjoint(theirs)), None)
            if place is None:
                waiting.append(claim)
                continue
            for principal in claim.pair:
                if principal not in paid:
                    other = self._nearer(principal, new[place].pair)
                    paid[principal] = self._pay(principal, ONE // self.terms.report_share, "reported", key, other, claim)
        heard = fact.clusters | {self.clusters[principal] for report in new for principal in report.pair}
        open_claims = tuple(claim for claim in waiting if not (claim.pair.first in paid and claim.pair.second in paid))
        return replace(fact, claims=open_claims, clusters=heard, reported=paid)

    def elected(self, key: _FactKey, fact: _Fact) -> _Fact:
        """Pay those whose reports on a fact were corroborated for its election, each once."""
        due = [name for name in sorted(fact.reported) if name in self.clusters and name not in fact.elected]
        for principal in due:
            report = fact.reported[principal]
            self._pay(principal, ONE >> report.earlier, "elected", key, report.corroborator, report)
        return replace(fact, elected=fact.elected.union(due))

    def _pay(self, principal: str, whole: int, reason: Reason, key: _FactKey, other: str, report: _Claim | Earned) -> Earned:
        shared, pairs = self.shared.get((principal, other), 0), self.terms.pairs
        amount = whole * pairs // (pairs + shared)
        credit = Earned(principal, amount, reason, *key, other, report.leaf, self.epoch, shared, report.earlier)
        self.shared[principal, other] = shared + 1
        self.earned.append(credit)
        return credit

    def _nearer(self, principal: str, pair: Pair) -> str:
        """Of two corroborators the one with which a principal shares more, so that no ring gains by pairing up anew."""
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
    """Of sets of at most two, in their order, those that are the first one disjoint from some other set of at most two; each with
    its place.

    So whoever seeks the first one that is disjoint from its own finds it among these, and they are at most six, however many the
    sets (Bollobás, *On generalized graphs*, 1965; skew version: Frankl, 1982).
    """
    kept: list[tuple[int, frozenset[str]]] = []
    for place, members in enumerate(sets):
        if _is_first_for_some(members, [others for _, others in kept]):
            kept.append((place, members))
            if len(kept) == _MAX_FIRSTS:
                break
    return kept


def _is_first_for_some(members: frozenset[str], kept: Sequence[frozenset[str]]) -> bool:
    """Whether some two names that are not among the members meet every set that was kept."""
    if not kept:
        return True
    for name in kept[0] - members:
        rest = [others for others in kept if name not in others]
        if not rest or frozenset.intersection(*rest) - members:
            return True
    return False


def _recent(fact: _Fact, epoch: int, horizon: int) -> _Fact:
    """A fact without the credits that have faded away."""
    reported = {credit.principal: credit for credit in _counting(fact.reported.values(), epoch, horizon)}
    return replace(fact, reported=reported, elected=fact.elected & reported.keys())


def _counting(credits: Iterable[Earned], epoch: int, horizon: int) -> Iterator[Earned]:
    return (credit for credit in credits if epoch - credit.epoch < HALVINGS * horizon)
