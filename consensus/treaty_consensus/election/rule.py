"""The rule: thresholds, and the states a document goes through on its way to consensus and back.

W is the weight of all live ballots of the topic, V the pairwise count, N stands for NONE; the names in `code` are `Parameters`.

    κ    = ⌈W / (quorum_share · cluster_share)⌉                 what one cluster counts for at most; 0 only where nobody votes
    q    = cluster_share · κ                                    the quorum: that many full clusters
    Q(c) = Σ over clusters of min(weight ranking c over N, κ)   and Q'(c) the same for N over c
    x beats y by a : b   means   x > 0 and b·x ≥ a·y

    candidate     published in the topic; reported by ≥ candidate_pairs pairs, ≥ candidate_clusters clusters, and principals of
                  weight R with candidate_share · R ≥ W; the incumbent and, of these, those with the most votes over N make the
                  *field* of max_candidates
    provisional   first of the field in Schulze's order; provisional_share · Q(c) ≥ q; V[c][N] > V[N][c]
    consensus     provisional for sustain_epochs; Q(c) ≥ q; V[c][N] beats V[N][c] by over_none; no margin against it, none of 0
                  against what was published earlier; V[c][i] beats V[i][c] by over_incumbent for sustain_epochs, where there is
                  an incumbent i
    kept          the incumbent while V[i][N] ≥ V[N][i] and provisional_share · Q(i) ≥ q; after dormant_epochs without: dormant
    superseded    the incumbent when another one becomes consensus
    repealed      the incumbent once V[N][i] beats V[i][N] by over_none and Q'(i) ≥ q for sustain_epochs

The incumbent is the topic's one document in state consensus. A document makes at most one transition an epoch, so that it can be
followed: candidate, then provisional, then consensus. What leaves the field is `published` again; what was the consensus keeps
`dormant`, `superseded` or `repealed` until it is provisional anew. Epochs count in a row, this one among them; a counter starts
over when its condition fails, and `ahead` also when the incumbent changes.

A document of the field is *suspect* for `suspect_epochs`, this one among them, when it is the incumbent and meets the
condition of a repeal in this epoch, or when as many principals as make a candidate reported in this epoch that they failed
with it. That is a warning to those who choose: it changes no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..kinds import NONE, Parameters, State
from .ballot import Count
from .schulze import Ranking, beaten_by, margins, rank

FORMER: frozenset[State] = frozenset({"dormant", "superseded", "repealed"})


@dataclass(frozen=True)
class Standing:
    """A document's state in a topic and its counters of epochs in a row; `suspect`: for how many epochs a warning still stands.
    Carried from one epoch to the next."""

    state: State = "published"
    provisional: int = 0
    ahead: int = 0
    failing: int = 0
    repealing: int = 0
    suspect: int = 0


@dataclass(frozen=True)
class Support:
    """What reports and votes say for a document. `index`: the leaf that published it in the topic, if one did; `weight`: of those
    who reported it; `approval`: of the votes that rank it over NONE."""

    index: int | None
    pairs: int
    clusters: int
    weight: int
    approval: int = 0


@dataclass(frozen=True)
class Shortfall:
    """A condition that does not hold: it has a number, it needs another; `against` whom, where it is a comparison."""

    condition: str
    has: int
    needs: int
    against: str | None = None


def candidacy_shortfalls(support: Support, total: int, parameters: Parameters) -> list[Shortfall]:
    """What a document lacks to be a candidate in a topic whose ballots weigh `total`."""
    needs = {
        "published": (int(support.index is not None), 1),
        "pairs": (support.pairs, parameters.candidate_pairs),
        "clusters": (support.clusters, parameters.candidate_clusters),
        "reporter-weight": (support.weight, _ceiling(total, parameters.candidate_share)),
    }
    return [Shortfall(name, has, need) for name, (has, need) in needs.items() if has < need]


def strength(support: Support, document: str) -> tuple[int, int, int, int, str]:
    """The sort key that puts the best supported document first: by votes, for reports of clones are cheap; then by the weight and
    the number of reports, then the earlier publication."""
    index = support.index if support.index is not None else 2**63
    return -support.approval, -support.weight, -support.pairs, index, document


def field_of(
    supports: Mapping[str, Support], standings: Mapping[str, Standing], total: int, parameters: Parameters
) -> tuple[str, ...]:
    """The documents that are voted on, in the order of their publication."""
    incumbent = incumbent_of(standings)
    eligible = [
        document
        for document, support in supports.items()
        if document != incumbent and not candidacy_shortfalls(support, total, parameters)
    ]
    eligible.sort(key=lambda document: strength(supports[document], document))
    chosen = ([incumbent] if incumbent else []) + eligible
    return tuple(sorted(chosen[: parameters.max_candidates], key=lambda document: supports[document].index or 0))


def incumbent_of(standings: Mapping[str, Standing]) -> str | None:
    """The document in state consensus; a topic has at most one."""
    return next((document for document, standing in standings.items() if standing.state == "consensus"), None)


@dataclass(frozen=True)
class Poll:
    """A topic at the end of an epoch: the votes over its field, the standings it began with, and what reports warn of."""

    parameters: Parameters
    count: Count
    before: Mapping[str, Standing] = field(default_factory=dict)
    warned: AbstractSet[str] = frozenset()

    @property
    def candidates(self) -> tuple[str, ...]:
        """The field, in the order of publication."""
        return self.count.choices[:-1]

    @cached_property
    def incumbent(self) -> str | None:
        """The consensus so far."""
        return incumbent_of(self.before)

    @cached_property
    def ranking(self) -> Ranking:
        """Schulze's order of the choices; the incumbent wins ties."""
        return rank(self.count.pairwise, self._number(self.incumbent) if self.incumbent else None)

    @property
    def cap(self) -> int:
        """κ."""
        return _ceiling(self.count.total, self.parameters.quorum_share * self.parameters.cluster_share)

    @property
    def quorum(self) -> int:
        """q."""
        return self.parameters.cluster_share * self.cap

    def support(self, document: str) -> int:
        """Q(c)."""
        return self._capped(self.count.above[self._number(document)])

    def opposition(self, document: str) -> int:
        """Q'(c)."""
        return self._capped(self.count.below[self._number(document)])

    def preferring(self, document: str, other: str = NONE) -> tuple[int, int]:
        """V[c][x] and V[x][c]."""
        c, x = self._number(document), self._number(other)
        return self.count.pairwise[c][x], self.count.pairwise[x][c]

    def provisional_shortfalls(self, document: str) -> list[Shortfall]:
        """What a candidate lacks to be provisional."""
        return self._not_first(document) + self._not_kept(document, least_lead=1)

    def consensus_shortfalls(self, document: str, standing: Standing) -> list[Shortfall]:
        """What a candidate lacks to be the consensus, beyond being provisional; `standing` counts this epoch already."""
        p = self.parameters
        found = [_least("provisional-epochs", standing.provisional, p.sustain_epochs)]
        found.append(_least("quorum", self.support(document), self.quorum))
        found.append(_ratio("ratio-over-none", *self.preferring(document), p.over_none, NONE))
        own = self._number(document)
        for number in beaten_by(margins(self.count.pairwise), own):
            other = self.count.choices[number]
            has, against = self.preferring(document, other)
            found.append(Shortfall("unbeaten", has, against + (number < own), other))
        if self.incumbent:
            votes = self.preferring(document, self.incumbent)
            found.append(_ratio("ratio-over-incumbent", *votes, p.over_incumbent, self.incumbent))
            found.append(_least("ahead-epochs", standing.ahead, p.sustain_epochs, self.incumbent))
        return [shortfall for shortfall in found if shortfall]

    def kept_shortfalls(self, document: str) -> list[Shortfall]:
        """What the incumbent lacks to be kept."""
        return self._not_kept(document, least_lead=0)

    def is_rejected(self, document: str) -> bool:
        """Whether NONE beats the incumbent by enough to repeal it, in this epoch."""
        over, under = self.preferring(document)
        return beats(under, over, self.parameters.over_none) and self.opposition(document) >= self.quorum

    def leads_incumbent(self, document: str) -> bool:
        """Whether a candidate beats the incumbent by enough, in this epoch."""
        if self.incumbent is None:
            return False
        return beats(*self.preferring(document, self.incumbent), self.parameters.over_incumbent)

    def _number(self, choice: str) -> int:
        return self.count.choices.index(choice)

    def _capped(self, by_cluster: Mapping[str, int]) -> int:
        cap = self.cap
        return sum(min(weight, cap) for weight in by_cluster.values())

    def _not_first(self, document: str) -> list[Shortfall]:
        place = self.ranking.order.index(self._number(document))
        first = self.count.choices[self.ranking.order[0]]
        return [Shortfall("schulze-place", place + 1, 1, first)] if place else []

    def _not_kept(self, document: str, least_lead: int) -> list[Shortfall]:
        over, under = self.preferring(document)
        share = _least("provisional-quorum", self.support(document), _ceiling(self.quorum, self.parameters.provisional_share))
        lead = _least("majority-over-none", over, under + least_lead, NONE)
        return [shortfall for shortfall in (share, lead) if shortfall]


def beats(x: int, y: int, ratio: tuple[int, int]) -> bool:
    """Whether weight `x` outweighs `y` by the ratio; nothing never does."""
    over, under = ratio
    return x > 0 and under * x >= over * y


def advance(poll: Poll) -> dict[str, Standing]:
    """The standings after the epoch, by document; those that are merely published are left out."""
    after = {
        document: _challenger(poll, document)
        for document in [*poll.candidates, *(d for d in poll.before if d not in poll.candidates)]
        if document != poll.incumbent
    }
    promoted = incumbent_of(after)
    if poll.incumbent:
        after[poll.incumbent] = Standing("superseded") if promoted else _incumbent(poll, poll.incumbent)
    if incumbent_of(after) != poll.incumbent:
        after = {document: replace(standing, ahead=0) for document, standing in after.items()}
    return {d: replace(standing, suspect=_suspect(poll, d)) for d, standing in after.items() if standing.state != "published"}


def _challenger(poll: Poll, document: str) -> Standing:
    before = poll.before.get(document, Standing())
    former = before.state in FORMER
    if document not in poll.candidates:
        return Standing(before.state) if former else Standing()
    ahead = before.ahead + 1 if poll.leads_incumbent(document) else 0
    if before.state == "published" or poll.provisional_shortfalls(document):
        return Standing(before.state if former else "candidate", ahead=ahead)
    now = Standing("provisional", before.provisional + 1, ahead)
    if before.state == "provisional" and not poll.consensus_shortfalls(document, now):
        return Standing("consensus")
    return now


def _incumbent(poll: Poll, document: str) -> Standing:
    before, p = poll.before[document], poll.parameters
    failing = before.failing + 1 if poll.kept_shortfalls(document) else 0
    repealing = before.repealing + 1 if poll.is_rejected(document) else 0
    if repealing >= p.sustain_epochs:
        return Standing("repealed")
    if failing >= p.dormant_epochs:
        return Standing("dormant")
    return Standing("consensus", failing=failing, repealing=repealing)


def _suspect(poll: Poll, document: str) -> int:
    """For how many epochs a warning of the document stands after this one."""
    if document not in poll.candidates:
        return 0
    if document in poll.warned or (document == poll.incumbent and poll.is_rejected(document)):
        return poll.parameters.suspect_epochs
    before = poll.before.get(document, Standing())
    return max(before.suspect - 1, 0)


def _ceiling(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _least(condition: str, has: int, needs: int, against: str | None = None) -> Shortfall | None:
    return Shortfall(condition, has, needs, against) if has < needs else None


def _ratio(condition: str, has: int, other: int, ratio: tuple[int, int], against: str) -> Shortfall | None:
    over, under = ratio
    return None if beats(has, other, ratio) else Shortfall(condition, has, max(_ceiling(over * other, under), 1), against)
