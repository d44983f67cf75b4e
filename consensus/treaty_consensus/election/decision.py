"""Decide one topic: write the transcript of the epoch's outcome and the statement that names it.

The transcript is JCS; `docs/specification/election.md`, section 7, specifies its members. For example, one entry of `missing`:

    {"condition": "quorum", "has": "4294967296", "needs": "8589934592"}

`missing` is compared with the consensus after this decision.
There are at most `MAX_VOTERS` voters in `voices`, those with the largest `counts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from .. import canonical
from ..kinds import NONE, Blob, Decision, Input, Parameters, State
from .ballot import Approval, Ballots, Implied, Votes, approvals, approved, count, implied_ballots, votes
from .earlier import EarlierPoll
from .electorate import Electorate, digest_of
from .evidence import Evidence
from .line import ALONE, Lines
from .report import Tally, distinct
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
    take_back,
)
from .states import FORMER
from .versions import lines_of

Json: TypeAlias = dict[str, object]

# Keeps a transcript small: 256 entries of less than 1 KiB. The `weights` digest covers all voters.
MAX_VOTERS = 256
# Of the versions of a line the newest. A publisher may publish many.
MAX_VERSIONS = 16


@dataclass(frozen=True)
class TopicState:
    """Hold the state of a topic between two decisions.

    `states`: line → its state.
    `implied`: principal → the ballot that its reports implied.
    `versions`: line → the version to speak, of the lines in `states` that do not speak their first document.
    """

    states: Mapping[str, DocumentState] = field(default_factory=dict)
    implied: Mapping[str, Implied] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def by_line(self, first: Mapping[str, str]) -> TopicState:
        """Return the state with lines for documents: the rule before left states of documents.

        A line has the state of the consensus, if that is one of its documents, else that of its first document.

        `first`: later document → the first one of its line.
        """
        is_by_line = first.keys().isdisjoint(self.states)
        if not first or (is_by_line and all(first.keys().isdisjoint(one.favourites) for one in self.implied.values())):
            return self
        states = {document: current for document, current in self.states.items() if document not in first}
        versions = dict(self.versions)
        consensus = incumbent_of(self.states)
        if consensus is not None and consensus in first:
            line = first[consensus]
            states[line], versions[line] = self.states[consensus], consensus
        implied = {
            principal: one._replace(favourites=tuple(sorted({first.get(document, document) for document in one.favourites})))
            for principal, one in self.implied.items()
        }
        return TopicState(states, implied, versions)

    @property
    def documents(self) -> dict[str, DocumentState]:
        """Return the version to speak of each line → the state of the line."""
        return {self.versions.get(line, line): current for line, current in self.states.items()}


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
    `elected`: the document that became the consensus by this decision, or None. A new version of it is not elected.
    `has_news`: whether enough weight reported, voted or withdrew a ballot in this epoch.
    `reach`: the sum of w · w' over the pairs of principals in the topic that both speak its consensus, and over all pairs.
    """

    question: Question
    transcript: bytes
    states: tuple[tuple[str, State], ...]
    after: TopicState
    elected: str | None
    has_news: bool
    reach: tuple[int, int] = (0, 0)

    @property
    def consensus(self) -> str | None:
        """Return the document of the consensus to speak after this decision, or None."""
        return incumbent_of(self.after.documents)

    @property
    def is_due(self) -> bool:
        """Tell whether the epoch logs a decision: there is a candidate or a former consensus, and something changed.

        Without this rule every topic that ever had a candidate would cost a leaf and a transcript in every epoch.
        """
        before, after = _visible(self.question.before.documents), _visible(self.after.documents)
        return before != after or (bool(after) and self.has_news)

    def statement(self, roll: Blob, *, remaining: int) -> Decision:
        """Return the body of the decision statement.

        `remaining`: how many decisions of the epoch follow it.
        """
        question = self.question
        return Decision(
            topic=question.topic,
            epoch=question.epoch,
            rule=question.parameters.rule,
            electorate=question.parameters.electorate,
            parameters=question.parameters_id,
            input=question.input,
            remaining=remaining,
            transcript=Blob(canonical.hex_digest(self.transcript), len(self.transcript)),
            roll=roll,
            states=self.states,
            consensus=self.consensus,
            previous=question.previous,
        )


def decide(question: Question, evidence: Evidence, tally: Tally, electorate: Electorate) -> Outcome:
    """Decide one topic.

    `tally`: the reports that count in it.
    """
    topic = _Topic.of(question, evidence, tally, electorate)
    lines, weights = topic.lines, topic.weights
    # Computed for all principals with reports, also for voters: a ballot that fades later is replaced by the implied one.
    implied = topic.implied()
    cast = topic.votes(implied)
    # The field depends on approval, so the votes come before it and the pairwise count after it.
    approving = approvals(cast)
    supports = topic.supports(approved(approving))
    eligible = topic.eligible(supports, approving, cast.total)
    poll = topic.poll(cast, supports, eligible)
    states = advance(poll) | take_back(topic.gone)
    after = TopicState(states, implied, {line: lines.version(line) for line in states if lines.version(line) != line})
    changes = _changes(question.before.documents, topic.before, after)
    elected = incumbent_of(after.documents) if incumbent_of(states) != incumbent_of(topic.before.states) else None
    # From here on a line is called by its version to speak, which is what a reader looks for.
    spoken_poll = replace(
        poll, count=replace(poll.count, choices=(*map(lines.version, poll.count.choices),)), before=after.documents
    )
    spoken_poll = replace(spoken_poll, ranked=poll.ranking)
    named = {lines.version(line): support for line, support in supports.items()}
    transcript = canonical.dumps(
        {
            **_head(question, electorate, weights),
            **_votes(poll, spoken_poll, cast, weights, electorate),
            "voices": _voters(cast, weights, electorate),
            # Shortfalls are listed against the states after the decision: a reader wants to know what comes next.
            "candidates": _candidates(spoken_poll, named, poll.candidates, lines),
            "nominees": _nominees(spoken_poll, [*map(lines.version, eligible)], named, bool(poll.incumbent)),
            "former": sorted((d, current.state) for d, current in after.documents.items() if d not in spoken_poll.candidates),
            **_result(changes, after),
        }
    )
    # A document that left the field has a last entry, so that followers of the statement alone see its new state.
    left = [(document, new) for document, _, new in changes if document not in spoken_poll.candidates]
    entries = (*((document, _state(after.documents, document)) for document in spoken_poll.candidates), *left)
    return Outcome(
        question, transcript, entries, after, elected, topic.has_news(), _reach(topic.recent, weights, incumbent_of(states))
    )


@dataclass(frozen=True)
class _Topic:
    """Hold one topic at the end of an epoch, by lines.

    `weights`: principal → weight in it. `tally`: the reports that count. `before`: its state at the beginning.
    """

    question: Question
    evidence: Evidence
    electorate: Electorate
    weights: Mapping[str, int]
    lines: Lines
    tally: Tally
    before: TopicState

    @classmethod
    def of(cls, question: Question, evidence: Evidence, tally: Tally, electorate: Electorate) -> _Topic:
        """`tally`: by document."""
        parameters, weights = question.parameters, electorate.in_topic(tally)
        if parameters.is_v2:
            return cls(question, evidence, electorate, weights, ALONE, tally, question.before)
        lines = lines_of(evidence, question.topic, tally, weights, electorate, question.epoch, parameters)
        before = question.before.by_line(lines.first)
        # What was taken back as a whole is called as it was last.
        lasting = {line: version for line, version in before.versions.items() if line in lines.taken_back}
        lines = replace(lines, versions={**lines.versions, **lasting})
        return cls(question, evidence, electorate, weights, lines, tally.by_line(lines.first), before)

    @cached_property
    def recent(self) -> Tally:
        """Return the tally of the last `horizon_epochs` epochs."""
        return self.tally.since(self.question.epoch - self.question.parameters.horizon_epochs + 1)

    @cached_property
    def ballots(self) -> Ballots:
        """Return the ballots of the topic."""
        # A topic with reports but without ballots is decided by implied ballots alone.
        return self.evidence.ballots.get(self.question.topic) or Ballots(self.electorate.directory)

    @property
    def gone(self) -> dict[str, DocumentState]:
        """Return the lines with a state that were taken back."""
        return {line: current for line, current in self.before.states.items() if line in self.lines.taken_back}

    def implied(self) -> dict[str, Implied]:
        """Return what use says: principal → its implied ballot."""
        question = self.question
        withdrawn = self.evidence.withdrawn(question.topic) if question.parameters.is_v2 else frozenset()
        vouches, heirs = self.electorate.vouches, self.lines.successors
        return implied_ballots(self.tally, vouches, self.before.implied, question.epoch, withdrawn, heirs)

    def votes(self, implied: Mapping[str, Implied]) -> Votes:
        """Return the ballots that count."""
        parameters = self.question.parameters
        horizon = parameters.horizon_epochs if parameters.reputation else None
        begun = None if parameters.is_v2 else self.electorate.begun
        return votes(self.ballots, implied, self.weights, self.question.epoch, horizon, self.lines, begun)

    def supports(self, approval: Mapping[str, int]) -> dict[str, Support]:
        """Return line → the evidence for it. `approval`: the weight that ranks it over NONE."""
        # What was taken back counts as not published.
        hidden = self.lines.first.keys() | self.lines.taken_back
        published = self.evidence.published.get(self.question.topic, {})
        visible = {document: index for document, index in published.items() if document not in hidden}
        return _supports(visible, self.recent, approval, self.weights, self.electorate)

    def eligible(self, supports: Mapping[str, Support], approving: Sequence[Approval], total: int) -> list[str]:
        """Return the lines that can take places in the field, in their order. `total`: W."""
        parameters = self.question.parameters
        eligible = eligible_of(supports, self._states, total, parameters)
        return in_order(eligible, supports, approving, parameters.max_candidates)

    def poll(self, cast: Votes, supports: Mapping[str, Support], eligible: Sequence[str]) -> Poll:
        """Count the votes over the field."""
        parameters, states = self.question.parameters, self._states
        contenders = field_of(eligible, supports, incumbent_of(states), parameters)
        warned = frozenset(d for d in contenders if _is_warned_of(d, self.tally, self.electorate, parameters))
        conditions = EarlierPoll if parameters.is_v2 else Poll
        return conditions(parameters, count(cast, contenders, self.electorate.clusters), states, warned)

    def has_news(self) -> bool:
        """Tell whether enough weight reported, voted or withdrew a ballot in this epoch for a decision that shows it."""
        epoch = self.question.epoch
        reporting = self.tally.active(epoch)
        # In a large topic the reports alone are enough.
        return self._is_news(reporting) or self._is_news(reporting | self.ballots.active(self.weights, epoch))

    def _is_news(self, active: AbstractSet[str]) -> bool:
        parameters = self.question.parameters
        if parameters.is_v2:
            return bool(active)
        # A transcript of a large topic has the size of eighty ballots. Otherwise one ballot an epoch would cost all readers one.
        weight = sum(self.weights.get(name, 0) for name in active)
        return weight > 0 and parameters.candidate_share * weight >= sum(self.weights.values())

    @property
    def _states(self) -> dict[str, DocumentState]:
        return {line: current for line, current in self.before.states.items() if line not in self.lines.taken_back}


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
    labels = [electorate.clusters[name] for name in names]
    cluster = {label: number for number, label in enumerate({*labels})}
    belongs = np.array([cluster[label] for label in labels], dtype=np.int64)
    together = distinct(document * max(len(cluster), 1) + belongs[member]) // max(len(cluster), 1)
    clusters = np.bincount(together, minlength=len(tally.documents)).tolist()
    weighed = np.array([weights.get(name, 0) for name in names], dtype=np.uint64)
    sums = np.zeros(len(tally.documents), dtype=np.uint64)
    np.add.at(sums, document, weighed[member])
    agreed = {name: number for number, name in enumerate(tally.documents) if name in tally.agreed_pairs}
    return {
        name: Support(
            published.get(name),
            tally.agreed_pairs.get(name, 0),
            clusters[agreed[name]] if name in agreed else 0,
            int(sums[agreed[name]]) if name in agreed else 0,
            approved.get(name, 0),
        )
        for name in sorted(published.keys() | agreed.keys())
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


def _votes(poll: Poll, shown: Poll, cast: Votes, weights: Mapping[str, int], electorate: Electorate) -> Json:
    choices, order = shown.count.choices, shown.ranking.order
    summary: Json = {
        "ballots": {"explicit": len(cast.weight) - cast.implied, "implied": cast.implied},
        "total": str(poll.count.total),
        "pairwise": [[str(votes) for votes in row] for row in poll.count.pairwise],
        "order": [choices[number] for number in order],
        "ties": [
            {"rank": tie.rank, "tied": [choices[number] for number in tie.tied], "chosen": choices[order[tie.rank]]}
            for tie in shown.ranking.ties
        ],
    }
    if isinstance(poll, EarlierPoll):
        return summary | {"cap": str(poll.cap), "quorum": str(poll.quorum(NONE))}
    voters = int(np.count_nonzero(cast.by_principal()))
    # A few principals in a topic of their own are unanimous too, so a reader needs the whole beside the part.
    turnout = {
        "roll": [len(electorate.weights), str(sum(electorate.weights.values()))],
        "topic": [len(weights), str(sum(weights.values()))],
        "votes": [voters, str(poll.count.total)],
    }
    return summary | {"turnout": turnout}


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


def _candidates(poll: Poll, supports: Mapping[str, Support], contenders: Sequence[str], lines: Lines) -> list[Json]:
    """List the candidates.

    `poll`: the votes, with the document states after the decision. `contenders`: the lines of its candidates, in their order.
    """
    entries = []
    for line, document in zip(contenders, poll.candidates, strict=True):
        current = poll.before[document]
        if current.state == "consensus":
            missing = poll.kept_shortfalls(document)
        else:
            missing = poll.provisional_shortfalls(document) + poll.consensus_shortfalls(document, current)
        entries.append(
            _support(document, supports[document])
            | (_line(line, document, lines) if not isinstance(poll, EarlierPoll) else {})
            | (_quorums(poll, document) if not isinstance(poll, EarlierPoll) else {})
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


def _line(line: str, document: str, lines: Lines) -> Json:
    """Name the line of a candidate, where it has another document than the one to speak."""
    users = [[version, str(weight)] for version, weight in lines.users.get(line, {}).items()]
    return ({"line": line} if line != document else {}) | ({"versions": users[-MAX_VERSIONS:]} if users else {})


def _quorums(poll: Poll, document: str) -> Json:
    return {
        "voters": poll.count.voters[poll.number(document)],
        "quorum": str(poll.quorum(document)),
        "opposing_quorum": str(poll.opposing_quorum(document)),
    }


def _without_lesser(shortfalls: Sequence[Shortfall]) -> list[Shortfall]:
    """Leave out all `unbeaten` but the one that lacks most, of equal ones the first."""
    # Each document of a full field loses to most others. All of them would be the larger part of a transcript, which a single
    # ballot causes anew; the matrix has them anyway.
    unbeaten = [shortfall for shortfall in shortfalls if shortfall.condition == "unbeaten"]
    worst = max(unbeaten, key=lambda shortfall: shortfall.needs - shortfall.has, default=None)
    return [shortfall for shortfall in shortfalls if shortfall.condition != "unbeaten" or shortfall is worst]


def _nominees(poll: Poll, eligible: Sequence[str], supports: Mapping[str, Support], had_incumbent: bool) -> list[Json]:
    """List the documents that are nearest to a place in the field: the eligible ones in their order, then the others.

    `poll`: the votes, with the document states after the decision. `had_incumbent`: before it.
    """
    place = {document: number for number, document in enumerate(eligible, start=1 + had_incumbent)}
    others = [d for d in supports if d not in poll.candidates and _state(poll.before, d) not in FORMER]
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


def _result(changes: Iterable[tuple[str, State, State]], after: TopicState) -> Json:
    consensus = incumbent_of(after.documents)
    transitions = [{"hash": document, "from": old, "to": new} for document, old, new in changes]
    return {"transitions": transitions} | ({"consensus": consensus} if consensus else {})


def _changes(old: Mapping[str, DocumentState], before: TopicState, after: TopicState) -> list[tuple[str, State, State]]:
    """Return the documents with another state than before, sorted: each with the state before and after.

    `old`: the documents as they were. `before`: the lines as they were.
    """
    new = after.documents
    # A consensus that speaks another version supersedes the one before; no other state passes on.
    superseded = {
        before.versions.get(line, line)
        for line, current in after.states.items()
        if current.state == "consensus" and before.states.get(line, DocumentState()).state == "consensus"
    } - new.keys()
    states = {document: "superseded" if document in superseded else _state(new, document) for document in old.keys() | new.keys()}
    return [(d, _state(old, d), state) for d, state in sorted(states.items()) if _state(old, d) != state]


def _reach(tally: Tally, weights: Mapping[str, int], consensus: str | None) -> tuple[int, int]:
    """Return the sum of w · w' over the pairs that speak the consensus, and over all pairs that speak anything in the topic."""
    document, member = tally.reporters
    speaks = document == (tally.documents.index(consensus) if consensus in tally.documents else -1)
    speakers = [weights.get(tally.principals[place], 0) for place in member[speaks].tolist()]
    reporting = [weights.get(tally.principals[place], 0) for place in np.flatnonzero(np.bincount(member)).tolist()]
    able, every = (sum(some) ** 2 - sum(weight * weight for weight in some) for some in (speakers, reporting))
    return able // 2, every // 2


def _state(states: Mapping[str, DocumentState], document: str) -> State:
    return states.get(document, DocumentState()).state
