"""Decide one topic: write the transcript of the epoch's outcome and the statement that names it.

The transcript is JCS; `docs/specification/election.md`, section 7, specifies its members. For example, one entry of `missing`:

    {"condition": "quorum", "has": "4294967296", "needs": "8589934592"}

`missing` is compared with the consensus after this decision.
There are at most `MAX_VOTERS` voters in `voices`, those with the largest `counts`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from .. import canonical
from ..kinds import Blob, Decision, Input, Parameters, State
from .ballot import Ballots, Implied, Votes, approvals, approved, count, implied_ballots, votes
from .electorate import Electorate, digest_of
from .evidence import Evidence
from .report import Tally
from .rule import (
    DocumentState,
    Poll,
    Shortfall,
    Support,
    advance,
    candidacy_shortfalls,
    eligible_of,
    field_of,
    in_order,
    incumbent_of,
    strength,
)
from .states import FORMER

Json: TypeAlias = dict[str, object]

# Keeps a transcript small: 256 entries of less than 1 KiB. The `weights` digest covers all voters.
MAX_VOTERS = 256


@dataclass(frozen=True)
class TopicState:
    """Hold the state of a topic between two decisions: the state of each document, and the ballots that reports implied."""

    states: Mapping[str, DocumentState] = field(default_factory=dict)
    implied: Mapping[str, Implied] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """State the question that a decision answers.

    `parameters_id`: the statement id of the parameters.
    `previous`: the statement id of the topic's previous decision.
    `before`: the state of the topic after that decision.
    """

    topic: str
    epoch: int
    parameters_id: str
    parameters: Parameters
    input: Input
    previous: str | None
    before: TopicState


@dataclass(frozen=True)
class Outcome:
    """Hold the answer.

    `states`: the document states for the statement.
    `after`: the topic's state for the next epoch.
    `has_news`: whether a report or a ballot of this epoch counts in the topic, or a ballot was withdrawn.
    """

    question: Question
    transcript: bytes
    states: tuple[tuple[str, State], ...]
    after: TopicState
    has_news: bool

    @property
    def consensus(self) -> str | None:
        """Return the consensus after this decision, or None."""
        return incumbent_of(self.after.states)

    @property
    def elected(self) -> str | None:
        """Return the document that became the consensus by this decision, or None."""
        before = incumbent_of(self.question.before.states)
        return self.consensus if self.consensus != before else None

    @property
    def is_due(self) -> bool:
        """Tell whether the epoch logs a decision: there is a candidate or a former consensus, and something changed.

        Without this rule every topic that ever had a candidate would cost a leaf and a transcript in every epoch.
        """
        before, after = _visible(self.question.before.states), _visible(self.after.states)
        return before != after or (bool(after) and self.has_news)

    def statement(self, roll: Blob, *, remaining: int) -> Decision:
        """Return the body of the decision statement.

        `remaining`: how many decisions of the epoch follow it.
        """
        asked = self.question
        return Decision(
            topic=asked.topic,
            epoch=asked.epoch,
            rule=asked.parameters.rule,
            electorate=asked.parameters.electorate,
            parameters=asked.parameters_id,
            input=asked.input,
            remaining=remaining,
            transcript=Blob(canonical.hex_digest(self.transcript), len(self.transcript)),
            roll=roll,
            states=self.states,
            consensus=self.consensus,
            previous=asked.previous,
        )


def decide(question: Question, evidence: Evidence, tally: Tally, electorate: Electorate) -> Outcome:
    """Decide one topic.

    `tally`: the reports that count in it.
    """
    topic, epoch, parameters = question.topic, question.epoch, question.parameters
    before, directory, horizon = question.before.states, electorate.directory, parameters.horizon_epochs
    weights = electorate.in_topic(tally)
    # Computed for all principals with reports, also for voters: a ballot that fades later is replaced by the implied one.
    withdrawn = evidence.withdrawn(topic)
    implied = implied_ballots(tally, electorate.vouches, question.before.implied, epoch, withdrawn)
    # A topic with reports but without ballots is decided by implied ballots alone.
    ballots = evidence.ballots.get(topic) or Ballots(directory)
    cast = votes(ballots, implied, weights, epoch, horizon if parameters.reputation else None)
    # The field depends on approval, so the votes come before it and the pairwise count after it.
    approving = approvals(cast)
    supports = _supports(evidence.published.get(topic, {}), tally, approved(approving), weights, electorate)
    eligible = in_order(eligible_of(supports, before, cast.total, parameters), supports, approving, parameters.max_candidates)
    contenders = field_of(eligible, supports, incumbent_of(before), parameters)
    warned = frozenset(d for d in contenders if _is_warned_of(d, tally, electorate, parameters))
    poll = Poll(parameters, count(cast, contenders, electorate.clusters), before, warned)
    after = advance(poll)
    transcript = canonical.dumps(
        {
            **_head(question, electorate, weights),
            **_votes(poll, cast),
            "voices": _voters(cast, weights, electorate),
            # Shortfalls are listed against the states after the decision: a reader wants to know what comes next.
            "candidates": _candidates(Poll(parameters, poll.count, after, ranked=poll.ranking), supports),
            "nominees": _nominees(poll, eligible, supports, after),
            "former": sorted((d, current.state) for d, current in after.items() if d not in contenders),
            **_result(before, after),
        }
    )
    # A document that left the field has a last entry, so that followers of the statement alone see its new state.
    left = sorted(d for d, _, _ in _transitions(before, after) if d not in contenders)
    states = tuple((document, _state(after, document)) for document in (*contenders, *left))
    has_news = tally.has_news(epoch) or ballots.has_news(weights, epoch)
    return Outcome(question, transcript, states, TopicState(after, implied), has_news)


def _visible(states: Mapping[str, DocumentState]) -> dict[str, tuple[State, bool]]:
    """Return what a statement shows of each document: its state, and whether it is suspect."""
    return {document: (current.state, bool(current.suspect)) for document, current in states.items()}


def _supports(
    published: Mapping[str, int],
    tally: Tally,
    approved: Mapping[str, int],
    weights: Mapping[str, int],
    electorate: Electorate,
) -> dict[str, Support]:
    """Return document → its evidence from reports and votes, for every document that is known in the topic."""
    names, (document, member) = tally.principals, tally.reporters
    cluster = sorted({electorate.clusters[name] for name in names})
    belongs = np.array([bisect_left(cluster, electorate.clusters[name]) for name in names], dtype=np.int64)
    together = np.unique(document * max(len(cluster), 1) + belongs[member]) // max(len(cluster), 1)
    clusters = np.bincount(together, minlength=len(tally.documents)).tolist()
    weighed = np.array([weights.get(name, 0) for name in names], dtype=np.uint64)
    sums = np.zeros(len(tally.documents), dtype=np.uint64)
    np.add.at(sums, document, weighed[member])
    said = {name: number for number, name in enumerate(tally.documents) if name in tally.agreed_pairs}
    return {
        name: Support(
            published.get(name),
            tally.agreed_pairs.get(name, 0),
            clusters[said[name]] if name in said else 0,
            int(sums[said[name]]) if name in said else 0,
            approved.get(name, 0),
        )
        for name in sorted(published.keys() | said.keys())
    }


def _is_warned_of(document: str, tally: Tally, electorate: Electorate, parameters: Parameters) -> bool:
    """Tell whether as many pairs failed with a document in this epoch as a candidate needs."""
    first, second = tally.failures(document)
    clusters = {electorate.clusters[tally.principals[place]] for place in (*first.tolist(), *second.tolist())}
    return len(first) >= parameters.candidate_pairs and len(clusters) >= parameters.candidate_clusters


def _head(question: Question, electorate: Electorate, weights: Mapping[str, int]) -> Json:
    parameters = question.parameters
    head: Json = {
        "rule": parameters.rule,
        "electorate": parameters.electorate,
        "topic": question.topic,
        "epoch": question.epoch,
        "parameters": question.parameters_id,
        "input": {"size": question.input.size, "root": question.input.root},
        "identities": electorate.identities_root,
        # A digest instead of the list: the roll holds the weights, and the transcript stays small.
        "weights": digest_of((principal, str(weight)) for principal, weight in sorted(weights.items())),
    }
    if parameters.reputation is not None:
        head |= {"anchors": digest_of(electorate.anchors), "suffixes": parameters.reputation.suffix_list.sha256}
    return head | ({"previous": question.previous} if question.previous else {})


def _votes(poll: Poll, cast: Votes) -> Json:
    choices, order = poll.count.choices, poll.ranking.order
    return {
        "ballots": {"explicit": len(cast.weight) - cast.implied, "implied": cast.implied},
        "total": str(poll.count.total),
        "cap": str(poll.cap),
        "quorum": str(poll.quorum),
        "pairwise": [[str(votes) for votes in row] for row in poll.count.pairwise],
        "order": [choices[number] for number in order],
        "ties": [
            {"rank": tie.rank, "tied": [choices[number] for number in tie.tied], "chosen": choices[order[tie.rank]]}
            for tie in poll.ranking.ties
        ],
    }


def _voters(cast: Votes, weights: Mapping[str, int], electorate: Electorate) -> list[Json]:
    """List the principals whose ballots count most."""
    counts = cast.by_principal()
    # `~` sorts descending; the row number breaks ties by the name of the principal.
    heaviest = np.lexsort((np.arange(len(counts)), ~counts))[:MAX_VOTERS]
    explicit = len(cast.weight) - cast.implied
    entries: list[Json] = []
    # One pass over all ballots, not one for each voter.
    is_listed = np.zeros(len(counts), dtype=bool)
    is_listed[heaviest] = True
    listed = np.flatnonzero(is_listed[cast.principal])
    for number in heaviest.tolist():
        rows = listed[cast.principal[listed] == number]
        if not len(rows) or not counts[number]:
            continue
        principal, freshest = cast.principals[number], int(rows[np.argmin(cast.age[rows])])
        entries.append(
            {
                "principal": principal,
                "cluster": electorate.clusters[principal],
                "weight": str(weights[principal]),
                "ballots": len(rows),
                "implied": freshest >= explicit,
                "age": int(cast.age[freshest]),
                "held": int(cast.held[freshest]),
                "counts": str(counts[number]),
            }
        )
    return entries


def _candidates(poll: Poll, supports: Mapping[str, Support]) -> list[Json]:
    """List the candidates. `poll`: the votes, with the document states after the decision."""
    entries = []
    for document in poll.candidates:
        current = poll.before[document]
        if current.state == "consensus":
            missing = poll.kept_shortfalls(document)
        else:
            missing = poll.provisional_shortfalls(document) + poll.consensus_shortfalls(document, current)
        entries.append(
            _support(document, supports[document])
            | {
                "index": supports[document].index,
                "support": str(poll.support(document)),
                "opposition": str(poll.opposition(document)),
                "state": current.state,
                "provisional": current.provisional,
                "ahead": current.ahead,
                "failing": current.failing,
                "repealing": current.repealing,
                "suspect": current.suspect,
                "missing": _missing(_without_lesser(missing)),
            }
        )
    return entries


def _without_lesser(shortfalls: Sequence[Shortfall]) -> list[Shortfall]:
    """Leave out all `unbeaten` but the one that lacks most, of equal ones the first."""
    # Each document of a full field loses to most others. All of them would be the larger part of a transcript, which a single
    # ballot causes anew; the matrix has them anyway.
    unbeaten = [shortfall for shortfall in shortfalls if shortfall.condition == "unbeaten"]
    worst = max(unbeaten, key=lambda shortfall: shortfall.needs - shortfall.has, default=None)
    return [shortfall for shortfall in shortfalls if shortfall.condition != "unbeaten" or shortfall is worst]


def _nominees(
    poll: Poll, eligible: Sequence[str], supports: Mapping[str, Support], after: Mapping[str, DocumentState]
) -> list[Json]:
    """List the documents that are nearest to a place in the field: the eligible ones in their order, then the others."""
    place = {document: number for number, document in enumerate(eligible, start=1 + bool(poll.incumbent))}
    others = [d for d in supports if d not in poll.candidates and _state(after, d) not in FORMER]
    others.sort(key=lambda document: (document not in place, place.get(document, 0), strength(supports[document], document)))
    entries = []
    for document in others[: poll.parameters.max_candidates]:
        missing = candidacy_shortfalls(supports[document], poll.count.total, poll.parameters)
        if not missing:  # it is eligible, but the field is full
            missing = [Shortfall("field", place[document], poll.parameters.max_candidates)]
        entries.append(_support(document, supports[document]) | {"missing": _missing(missing)})
    return entries


def _support(document: str, support: Support) -> Json:
    return {
        "hash": document,
        "pairs": support.pairs,
        "clusters": support.clusters,
        "weight": str(support.weight),
        "approval": str(support.approval),
    }


def _missing(shortfalls: Iterable[Shortfall]) -> list[Json]:
    entries = []
    for shortfall in shortfalls:
        entry: Json = {"condition": shortfall.condition, "has": str(shortfall.has), "needs": str(shortfall.needs)}
        entries.append(entry | ({"against": shortfall.against} if shortfall.against else {}))
    return entries


def _result(before: Mapping[str, DocumentState], after: Mapping[str, DocumentState]) -> Json:
    consensus = incumbent_of(after)
    transitions = [{"hash": d, "from": old, "to": new} for d, old, new in _transitions(before, after)]
    return {"transitions": transitions} | ({"consensus": consensus} if consensus else {})


def _transitions(before: Mapping[str, DocumentState], after: Mapping[str, DocumentState]) -> list[tuple[str, State, State]]:
    changes = ((d, _state(before, d), _state(after, d)) for d in sorted(before.keys() | after.keys()))
    return [(document, old, new) for document, old, new in changes if old != new]


def _state(states: Mapping[str, DocumentState], document: str) -> State:
    return states.get(document, DocumentState()).state
