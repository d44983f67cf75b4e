"""Pay credits the plain way, fact by fact, with dictionaries and loops: the reference of the product's columns.

It reads like the specification (`docs/specification/election.md`, section 9), and is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from treaty_consensus.election.arithmetic import HALVINGS, ONE, decay, part
from treaty_consensus.election.credit import EarnedCredit, Reason
from treaty_consensus.election.report import AgreedReport, Pair
from treaty_consensus.kinds import Credit

_FactKey: TypeAlias = tuple[str, str]


class _Claim(NamedTuple):
    epoch: int
    leaf: int
    pair: Pair
    earlier: int


@dataclass
class _Fact:
    """A document in a topic: its claims, the clusters that have reported it, and who was paid for what."""

    claims: list[_Claim] = field(default_factory=list)
    clusters: set[str] = field(default_factory=set)
    reported: dict[str, EarnedCredit] = field(default_factory=dict)
    elected: set[str] = field(default_factory=set)


@dataclass
class PlainCredits:
    """All credits that still count. `close` changes them."""

    terms: Credit
    horizon: int
    facts: dict[_FactKey, _Fact] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    counting: list[EarnedCredit] = field(default_factory=list)

    def close(
        self, epoch: int, clusters: Mapping[str, str], reports: Iterable[AgreedReport], elected: Mapping[str, str]
    ) -> list[EarnedCredit]:
        """Close an epoch. Returns the credits that it added, in the order they were earned."""
        self.counting = [credit for credit in self.counting if self._lasts(credit, epoch)]
        by_fact: dict[_FactKey, list[AgreedReport]] = {key: [] for key in self.facts}
        for report in reports:
            by_fact.setdefault((report.topic, report.document), []).append(report)
        earned: list[EarnedCredit] = []
        for key in sorted(by_fact):
            fact = self.facts.setdefault(key, _Fact())
            fact.reported = {name: credit for name, credit in fact.reported.items() if self._lasts(credit, epoch)}
            fact.elected &= fact.reported.keys()
            fact.claims = [
                claim
                for claim in fact.claims
                if epoch - claim.epoch < self.terms.epochs and all(principal in clusters for principal in claim.pair)
            ]
            fact.claims += [_Claim(epoch, report.leaf, report.pair, len(fact.clusters)) for report in by_fact[key]]
            if by_fact[key]:
                earned += self._pay_reports(epoch, key, fact, by_fact[key], clusters)
            if not (fact.claims or fact.reported):
                del self.facts[key]
        for key in sorted(elected.items() & self.facts.keys()):
            fact = self.facts[key]
            for principal in sorted(fact.reported.keys() & clusters.keys() - fact.elected):
                paid = fact.reported[principal]
                earned.append(self._pay(epoch, principal, ONE >> paid.earlier, "elected", key, paid.corroborator, paid))
                fact.elected.add(principal)
        self.counting += earned
        return earned

    def standings(self, epoch: int) -> dict[str, int]:
        """Return principal → standing at the end of `epoch`."""
        sums: dict[str, int] = {}
        for credit in self.counting:
            sums[credit.principal] = sums.get(credit.principal, 0) + part(
                credit.amount, decay(epoch - credit.epoch, self.horizon)
            )
        return sums

    def _pay_reports(
        self, epoch: int, key: _FactKey, fact: _Fact, new: list[AgreedReport], clusters: Mapping[str, str]
    ) -> list[EarnedCredit]:
        earned, waiting = [], []
        for claim in fact.claims:
            own = {clusters[name] for name in claim.pair}
            by = next((report for report in new if not own & {clusters[name] for name in report.pair}), None)
            if by is None:
                waiting.append(claim)
                continue
            for principal in claim.pair:
                if principal not in fact.reported:
                    with_first, with_second = (self.shared.get((principal, other), 0) for other in by.pair)
                    other = by.pair.first if with_first >= with_second else by.pair.second
                    credit = self._pay(epoch, principal, ONE // self.terms.report_share, "reported", key, other, claim)
                    fact.reported[principal] = credit
                    earned.append(credit)
        fact.claims = [claim for claim in waiting if not fact.reported.keys() >= {*claim.pair}]
        fact.clusters |= {clusters[name] for report in new for name in report.pair}
        return earned

    def _pay(
        self, epoch: int, principal: str, whole: int, reason: Reason, key: _FactKey, other: str, report: _Claim | EarnedCredit
    ) -> EarnedCredit:
        shared, pairs = self.shared.get((principal, other), 0), self.terms.pairs
        self.shared[principal, other] = shared + 1
        amount = whole * pairs // (pairs + shared)
        return EarnedCredit(principal, amount, reason, *key, other, report.leaf, epoch, shared, report.earlier)

    def _lasts(self, credit: EarnedCredit, epoch: int) -> bool:
        return epoch - credit.epoch < HALVINGS * self.horizon
