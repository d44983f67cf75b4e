"""Decide which documents of a topic are candidates, provisional and the consensus, from the counted votes.

Specification: `docs/specification/election.md`, sections 4 to 6. What is called a document here is a line (`line`). W is the
weight of all live ballots of the topic, w(c) the weight that ranks c over NONE, V the pairwise count, N stands for NONE. The
names in `code` are fields of `Parameters`.

    S(c)  = cluster_share · max{κ : Σ over clusters of min(weight ranking c over N, κ) ≥ cluster_share · κ}
                                                     the support: what that many equal clusters make up; S'(c), the
                                                     opposition, is the same for N over c
    q(c)  = (W − w(c)) / (quorum_share − 1)          the quorum; q'(c), of the opposition, has the weight of N over c for w(c)
    x beats y by a : b   means   x > 0 and b·x ≥ a·y

    candidate     published in the topic; reported by ≥ candidate_pairs pairs, ≥ candidate_clusters clusters, and principals of
                  weight R with candidate_share · R ≥ W − w(c); the incumbent and the first of these make the *field* of
                  max_candidates (`in_order`)
    provisional   S(c) > 0 and S(c) ≥ q(c); V[c][N] beats V[N][c] by over_none: acceptable
    consensus     provisional for sustain_epochs; first of the field in Schulze's order; no margin against it, and no margin of
                  0 against a document published earlier; V[c][i] beats V[i][c] by over_incumbent for sustain_epochs, where
                  there is an incumbent i
    kept          the incumbent while V[i][N] ≥ V[N][i] and provisional_share · S(i) ≥ q(i); after dormant_epochs without: dormant
    superseded    the incumbent when another document becomes consensus
    repealed      the incumbent once V[N][i] beats V[i][N] by over_none, S'(i) > 0 and S'(i) ≥ q'(i) for sustain_epochs, or at
                  once when all its documents were taken back

No vote more for c makes S(c) smaller or q(c) larger, so a vote for a document never costs it a place or its state.

The incumbent is the topic's one document in state consensus. A document makes at most one transition an epoch, so that
readers can follow it: candidate, then provisional, then consensus. A candidate that leaves the field is `published` again. A
former consensus keeps `dormant`, `superseded` or `repealed` until it is acceptable and first of the order, and so provisional.

Epochs count in a row and include the current one. A counter restarts at 0 when its condition fails. `ahead` also restarts
when the incumbent changes.

A document of the field is *suspect* for `suspect_epochs`, including the current one, in two cases: it is the incumbent and
meets the condition of a repeal in this epoch, or as many pairs and clusters reported a failure with it in this epoch as a
candidate needs. Suspect is a warning to agents that choose a protocol. It changes no state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nlargest

from ..kinds import NONE, Parameters, State
from .ballot import Approval, Count
from .schulze import Ranking, beaten_by, margins, rank
from .states import FORMER, DocumentEvent, follow


@dataclass(frozen=True)
class DocumentState:
    """Hold a document's state in a topic and its counters of consecutive epochs.

    It is carried from one epoch to the next.

    `provisional`: epochs in state provisional.
    `ahead`: epochs with a sufficient lead over the incumbent.
    `failing`, `repealing`: epochs in which the incumbent met the condition of dormancy, or of a repeal.
    `suspect`: epochs for which a warning still stands.
    """

    state: State = "published"
    provisional: int = 0
    ahead: int = 0
    failing: int = 0
    repealing: int = 0
    suspect: int = 0


@dataclass(frozen=True)
class Support:
    """Hold the evidence for a document in a topic.

    `index`: the leaf that published it in the topic, or None.
    `pairs`, `clusters`: the distinct pairs of principals that reported it, and the clusters among them.
    `weight`: the weight of the principals that reported it.
    `approval`: the weight of the votes that rank it over NONE.
    """

    index: int | None
    pairs: int
    clusters: int
    weight: int
    approval: int = 0


@dataclass(frozen=True)
class Shortfall:
    """Name a condition that does not hold.

    `has`, `needs`: the number it has and the number it needs.
    `against`: the other document, or NONE, where the condition compares two choices.
    """

    condition: str
    has: int
    needs: int
    against: str | None = None


def candidacy_shortfalls(support: Support, total: int, parameters: Parameters) -> list[Shortfall]:
    """List the conditions of candidacy that a document misses, in a topic with ballots of the weight `total`."""
    # Votes for a document must not cost it its place.
    against = total if parameters.is_v2 else total - support.approval
    needs = {
        "published": (int(support.index is not None), 1),
        "pairs": (support.pairs, parameters.candidate_pairs),
        "clusters": (support.clusters, parameters.candidate_clusters),
        "reporter-weight": (support.weight, ceiling(against, parameters.candidate_share)),
    }
    return [Shortfall(name, has, need) for name, (has, need) in needs.items() if has < need]


def strength(support: Support, document: str) -> tuple[int, int, int, int, str]:
    """Return the sort key that puts the document with the most votes over NONE first."""
    # Votes come first because reports of clones are cheap. Weight, reports and age of publication follow. The hash makes
    # the order total. An unpublished document sorts behind every index of a log (at most 2^63 - 1).
    index = support.index if support.index is not None else 2**63
    return -support.approval, -support.weight, -support.pairs, index, document


def eligible_of(
    supports: Mapping[str, Support], states: Mapping[str, DocumentState], total: int, parameters: Parameters
) -> set[str]:
    """Return the documents that meet the conditions of candidacy, without the incumbent.

    `supports`: document → its evidence.
    `states`: the states at the beginning of the epoch.
    `total`: W.
    """
    incumbent = incumbent_of(states)
    return {
        document
        for document, support in supports.items()
        if document != incumbent and not candidacy_shortfalls(support, total, parameters)
    }


def in_order(
    eligible: AbstractSet[str], supports: Mapping[str, Support], approvals: Iterable[Approval], places: int
) -> list[str]:
    """Return the eligible documents in the order in which they take places in the field.

    Each place goes to the document with the most approval, where a ballot that approves k documents with a place counts
    1 / (k + 1) of its weight, rounded down; ties by `strength`. So the clones of a document share the approval of their
    voters, and do not fill the field. Twice as many documents as there are `places` are ordered so, to show those that just
    missed one; the rest follow by `strength`. Where there are places for all, so do all.

    Source: sequential proportional approval voting (Thiele 1895).
    """
    rest = sorted(eligible, key=lambda document: strength(supports[document], document))
    merged: defaultdict[frozenset[str], int] = defaultdict(int)
    for approval in approvals:
        merged[approval.documents.intersection(eligible)] += approval.weight
    # Merged by the eligible documents: a share is rounded once for all ballots that are alike here.
    relevant = [Approval(documents, weight) for documents, weight in merged.items()]
    voters: defaultdict[str, list[int]] = defaultdict(list)
    score: defaultdict[str, int] = defaultdict(int)
    for number, approval in enumerate(relevant):
        for document in approval.documents:
            voters[document].append(number)
            score[document] += approval.weight
    placed = [0] * len(relevant)
    order: list[str] = []
    # A bound on the work: a place costs a pass over all documents.
    while len(eligible) > places and rest and len(order) < 2 * places:
        # `max` takes the first of equals, and `rest` is sorted by strength.
        best = max(rest, key=lambda document: score[document])
        rest.remove(best)
        order.append(best)
        for number in voters[best]:
            documents, weight = relevant[number]
            placed[number] += 1
            less = weight // placed[number] - weight // (placed[number] + 1)
            for document in documents:
                score[document] -= less
    return order + rest


def field_of(
    order: Sequence[str], supports: Mapping[str, Support], incumbent: str | None, parameters: Parameters
) -> tuple[str, ...]:
    """Return the documents to vote on, in the order of their publication.

    `order`: the eligible documents, from `in_order`.
    """
    # The incumbent always stays in the field: only its own conditions end it.
    members = [*([incumbent] if incumbent else []), *order][: parameters.max_candidates]
    return tuple(sorted(members, key=lambda document: supports[document].index or 0))


def incumbent_of(states: Mapping[str, DocumentState]) -> str | None:
    """Return the document in state consensus, or None. A topic has at most one."""
    return next((document for document, current in states.items() if current.state == "consensus"), None)


@dataclass(frozen=True)
class Poll:
    """Hold a topic at the end of an epoch, and evaluate the conditions of the rule.

    `count`: the votes over the field.
    `before`: the document states at the beginning of the epoch.
    `warned`: the documents with enough reports of failure in this epoch.
    `ranked`: the order of the decision, where `before` holds the states after it; by default the order is computed. A tie goes to
    the incumbent of the beginning, so it must not be computed with the new one.
    """

    parameters: Parameters
    count: Count
    before: Mapping[str, DocumentState] = field(default_factory=dict)
    warned: AbstractSet[str] = frozenset()
    ranked: Ranking | None = None

    @property
    def candidates(self) -> tuple[str, ...]:
        """Return the field, in the order of publication."""
        return self.count.choices[:-1]

    @cached_property
    def incumbent(self) -> str | None:
        """Return the consensus at the beginning of the epoch, or None."""
        return incumbent_of(self.before)

    @cached_property
    def ranking(self) -> Ranking:
        """Return Schulze's order of the choices; the incumbent wins ties."""
        return self.ranked or rank(self.count.pairwise, self.number(self.incumbent) if self.incumbent else None)

    def support(self, document: str) -> int:
        """Return S(c)."""
        return shared_support(self.count.above[self.number(document)], self.parameters.cluster_share)

    def opposition(self, document: str) -> int:
        """Return S'(c)."""
        return shared_support(self.count.below[self.number(document)], self.parameters.cluster_share)

    def quorum(self, document: str) -> int:
        """Return the least support that is more than 0 and meets q(c)."""
        return max(self._quorum(self.count.above[self.number(document)]), 1)

    def opposing_quorum(self, document: str) -> int:
        """Return the least opposition that is more than 0 and meets q'(c)."""
        return max(self._quorum(self.count.below[self.number(document)]), 1)

    def preferring(self, document: str, other: str = NONE) -> tuple[int, int]:
        """Return V[c][x] and V[x][c]."""
        c, x = self.number(document), self.number(other)
        return self.count.pairwise[c][x], self.count.pairwise[x][c]

    def provisional_shortfalls(self, document: str) -> list[Shortfall]:
        """List the conditions that a candidate misses to be provisional."""
        lead = ratio("ratio-over-none", *self.preferring(document), self.parameters.over_none, NONE)
        return present(least("quorum", self.support(document), self.quorum(document)), lead)

    def consensus_shortfalls(self, document: str, current: DocumentState) -> list[Shortfall]:
        """List the conditions that a provisional candidate misses to be the consensus.

        `current`: its state, with this epoch counted already.
        """
        held = least("provisional-epochs", current.provisional, self.parameters.sustain_epochs)
        return present(held) + self.not_first(document) + self.not_ahead(document, current)

    def kept_shortfalls(self, document: str) -> list[Shortfall]:
        """List the conditions that the incumbent misses to be kept."""
        # Not at least 1: where nobody says anything else, what was agreed stands.
        needed = ceiling(self._quorum(self.count.above[self.number(document)]), self.parameters.provisional_share)
        over, under = self.preferring(document)
        share = least("provisional-quorum", self.support(document), needed)
        return present(share, least("majority-over-none", over, under, NONE))

    def is_rejected(self, document: str) -> bool:
        """Tell whether NONE beats the incumbent by enough to repeal it, in this epoch."""
        over, under = self.preferring(document)
        is_beaten = beats(under, over, self.parameters.over_none)
        return is_beaten and self.opposition(document) >= self.opposing_quorum(document)

    def leads_incumbent(self, document: str) -> bool:
        """Tell whether a candidate beats the incumbent by enough, in this epoch."""
        if self.incumbent is None:
            return False
        return beats(*self.preferring(document, self.incumbent), self.parameters.over_incumbent)

    def not_first(self, document: str) -> list[Shortfall]:
        """List the condition that a document misses to be the first of the order."""
        place = self.ranking.order.index(self.number(document))
        first = self.count.choices[self.ranking.order[0]]
        return [Shortfall("schulze-place", place + 1, 1, first)] if place else []

    def not_ahead(self, document: str, current: DocumentState) -> list[Shortfall]:
        """List the conditions that a document misses against each other one, and against the incumbent.

        `current`: its state, with this epoch counted already.
        """
        shortfalls: list[Shortfall | None] = []
        own = self.number(document)
        # A tie with an earlier publication needs one vote more: without it, a copy of the document could win.
        for number in beaten_by(margins(self.count.pairwise), own):
            other = self.count.choices[number]
            has, against = self.preferring(document, other)
            shortfalls.append(Shortfall("unbeaten", has, against + (number < own), other))
        if self.incumbent:
            votes = self.preferring(document, self.incumbent)
            shortfalls.append(ratio("ratio-over-incumbent", *votes, self.parameters.over_incumbent, self.incumbent))
            shortfalls.append(least("ahead-epochs", current.ahead, self.parameters.sustain_epochs, self.incumbent))
        return present(*shortfalls)

    def number(self, choice: str) -> int:
        """Return the number of a candidate, or of NONE."""
        return self.count.choices.index(choice)

    def _quorum(self, by_cluster: Mapping[str, int]) -> int:
        return ceiling(self.count.total - sum(by_cluster.values()), self.parameters.quorum_share - 1)


def shared_support(by_cluster: Mapping[str, int], share: int) -> int:
    """Return share · max{κ : Σ min(w, κ) ≥ share · κ} over the weights w of the clusters.

    It is the support that `share` clusters of one size would give: at most all of it, 0 from fewer clusters, and never less for
    a vote more.
    """
    rest = sum(by_cluster.values())
    level = rest // share
    # Σ min(w, κ) is the least of j · κ + (the sum without the j largest), so each j < share bounds κ, and no other does.
    for number, weight in enumerate(nlargest(share - 1, by_cluster.values()), start=1):
        rest -= weight
        level = min(level, rest // (share - number))
    return share * level


def beats(x: int, y: int, ratio: tuple[int, int]) -> bool:
    """Tell whether the weight `x` exceeds `y` by the ratio. A weight of 0 never does."""
    over, under = ratio
    # Silence replaces and repeals nothing, so x needs a vote. Products of integers, because a quotient would need
    # floats.
    return x > 0 and under * x >= over * y


def take_back(before: Mapping[str, DocumentState]) -> dict[str, DocumentState]:
    """Return the states of documents after an epoch in which their publishers took them back. They are not in the field."""
    after = {document: DocumentState(follow(current.state, DocumentEvent.TAKEN_BACK)) for document, current in before.items()}
    return {document: current for document, current in after.items() if current.state != "published"}


def advance(poll: Poll) -> dict[str, DocumentState]:
    """Return the document states after the epoch. Documents in state published are left out."""
    after = {
        document: _challenger(poll, document)
        for document in [*poll.candidates, *(d for d in poll.before if d not in poll.candidates)]
        # The challengers come first: their result decides whether the incumbent is superseded.
        if document != poll.incumbent
    }
    promoted = incumbent_of(after)
    if poll.incumbent:
        after[poll.incumbent] = (
            DocumentState(follow("consensus", DocumentEvent.REPLACED)) if promoted else _incumbent(poll, poll.incumbent)
        )
    # A lead counts against one incumbent only.
    if incumbent_of(after) != poll.incumbent:
        after = {document: replace(current, ahead=0) for document, current in after.items()}
    return {d: replace(current, suspect=_suspect(poll, d)) for d, current in after.items() if current.state != "published"}


def _challenger(poll: Poll, document: str) -> DocumentState:
    before = poll.before.get(document, DocumentState())
    if document not in poll.candidates:
        return DocumentState(follow(before.state, DocumentEvent.LEFT))
    ahead = before.ahead + 1 if poll.leads_incumbent(document) else 0
    # One transition an epoch: a document that enters the field is a candidate first, even if it leads already.
    if before.state == "published":
        return DocumentState(follow(before.state, DocumentEvent.ENTERED), ahead=ahead)
    # Several documents can be acceptable. One that was replaced is in the race again only once it leads.
    if poll.provisional_shortfalls(document) or (before.state in FORMER and poll.not_first(document)):
        return DocumentState(follow(before.state, DocumentEvent.UNACCEPTABLE), ahead=ahead)
    now = DocumentState(follow(before.state, DocumentEvent.ACCEPTABLE), before.provisional + 1, ahead)
    if before.state == "provisional" and not poll.consensus_shortfalls(document, now):
        return DocumentState(follow(before.state, DocumentEvent.ELECTED))
    return now


def _incumbent(poll: Poll, document: str) -> DocumentState:
    before, p = poll.before[document], poll.parameters
    failing = before.failing + 1 if poll.kept_shortfalls(document) else 0
    repealing = before.repealing + 1 if poll.is_rejected(document) else 0
    # A repeal is tested before dormancy: it is the stronger statement when both conditions hold.
    if repealing >= p.sustain_epochs:
        return DocumentState(follow(before.state, DocumentEvent.REJECTED))
    if failing >= p.dormant_epochs:
        return DocumentState(follow(before.state, DocumentEvent.NEGLECTED))
    return DocumentState(follow(before.state, DocumentEvent.KEPT), failing=failing, repealing=repealing)


def _suspect(poll: Poll, document: str) -> int:
    """Return for how many epochs a warning stands after this one."""
    if document not in poll.candidates:
        return 0
    # Only a warning, because reporters can lie. The log has no other sign that an elected protocol stopped working.
    if document in poll.warned or (document == poll.incumbent and poll.is_rejected(document)):
        return poll.parameters.suspect_epochs
    before = poll.before.get(document, DocumentState())
    return max(before.suspect - 1, 0)


def ceiling(value: int, divisor: int) -> int:
    """Return ⌈value / divisor⌉."""
    # Integer division that rounds up: exact, unlike a float.
    return -(-value // divisor)


def least(condition: str, has: int, needs: int, against: str | None = None) -> Shortfall | None:
    """Return the shortfall of a number, or None."""
    return Shortfall(condition, has, needs, against) if has < needs else None


def present(*shortfalls: Shortfall | None) -> list[Shortfall]:
    """Return those that there are."""
    return [shortfall for shortfall in shortfalls if shortfall]


def ratio(condition: str, has: int, other: int, bounds: tuple[int, int], against: str) -> Shortfall | None:
    """Return the shortfall of a weight `has` that does not beat `other` by a ratio, or None."""
    over, under = bounds
    return None if beats(has, other, bounds) else Shortfall(condition, has, max(ceiling(over * other, under), 1), against)
