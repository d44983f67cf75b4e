"""Close an epoch: compute the decisions of every topic, and the roll that they share, from all statements so far.

The state between epochs is carried here and never taken from outside: document states, implied ballots and credits. The same
statements give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from .. import canonical
from ..codes import DecisionCode
from ..errors import Refused
from ..facts import LogFact
from ..kinds import Blob, Decision, Input, Parameters
from ..statement import Statement
from .agenda import can_have_candidates, counted_topics, eligible_weights, stand_in
from .credit import Credits, EarnedCredits, SavedCredits
from .decision import Outcome, Question, TopicState, decide
from .electorate import Electorate, electorate_of
from .evidence import Evidence, SavedEvidence
from .principals import SuffixList
from .report import CountedReports
from .roll import roll

Each: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Apply a function to many items, in their order, as `map` does, but perhaps at once."""


@dataclass(frozen=True)
class DueDecision:
    """Hold a decision that is to be logged, and the two blobs that it names."""

    decision: Decision
    transcript: bytes
    roll: bytes


@dataclass(frozen=True)
class EpochOutcome:
    """Hold the results that close an epoch.

    `outcomes`: topic → its outcome, for the topics that were counted and those that are decided.
    `counted`: the topics that carry their state on. A topic that only stands in (`agenda.stand_in`) does not, because its
    elections must not depend on other topics.
    `waiting`: the topics that could have been counted and were not → the epoch since which they wait.
    `decided`: the topics with a decision, in the order of the decisions.
    `credits`: all credits after the epoch.
    """

    outcomes: Mapping[str, Outcome]
    counted: Sequence[str]
    waiting: Mapping[str, int]
    decided: Sequence[str]
    roll: bytes
    credits: Credits

    @cached_property
    def due(self) -> tuple[DueDecision, ...]:
        """Return the decisions to log, in order."""
        last = len(self.decided) - 1
        return tuple(self.due_in(topic, remaining=last - place) for place, topic in enumerate(self.decided))

    def due_in(self, topic: str, *, remaining: int) -> DueDecision:
        """Return the decision of one topic. `remaining`: how many decisions follow it."""
        return DueDecision(
            self.outcomes[topic].statement(self._named, remaining=remaining), self.outcomes[topic].transcript, self.roll
        )

    @cached_property
    def _named(self) -> Blob:
        return Blob(canonical.hex_digest(self.roll), len(self.roll))


@dataclass(frozen=True)
class _Epoch:
    """Hold an epoch that closes: its constants, its electorate, and the reports that count."""

    number: int
    parameters: Parameters
    electorate: Electorate
    reports: CountedReports


@dataclass(frozen=True)
class _Counting:
    """Count one topic of an epoch. It can be sent to another process."""

    evidence: Evidence
    epoch: _Epoch

    def __call__(self, question: Question) -> Outcome:
        return decide(question, self.evidence, self.epoch.reports.tally(question.topic), self.epoch.electorate)


class NamedParameters(msgspec.Struct, frozen=True, array_like=True):
    """Hold parameters, and the epoch in which they were logged."""

    body: Parameters
    epoch: int


class SavedElections(msgspec.Struct, frozen=True, array_like=True):
    """Hold the contents of `Elections` between two epochs."""

    evidence: SavedEvidence
    parameters: dict[str, NamedParameters]
    waiting: dict[str, int]
    topics: dict[str, TopicState]
    credits: SavedCredits


class Elections:
    """Run the elections of a log, epoch by epoch. Mutable: `observe` in the order of the leaves."""

    def __init__(self, blob: Callable[[str], bytes], anchors: Sequence[str] | None, each: Each = map) -> None:
        """Start with an empty log.

        `blob`: returns the bytes of a blob for its SHA-256, and has checked them; called for suffix lists.
        `anchors`: replaces the anchors of the parameters; None keeps them.
        `each`: applies a function to many items, in their order.
        """
        self._blob = blob
        self._anchors = anchors
        self._each = each
        self._evidence = Evidence()
        self._parameters: dict[str, NamedParameters] = {}
        self._waiting: dict[str, int] = {}
        self._topic_states: dict[str, TopicState] = {}
        self._credits = Credits()

    def saved(self) -> SavedElections:
        """Return the contents."""
        credits = self._credits.saved()
        return SavedElections(self._evidence.saved(), self._parameters, self._waiting, self._topic_states, credits)

    def restore(self, saved: SavedElections) -> None:
        """Take over saved contents. The elections must be new."""
        self._evidence, self._credits = Evidence.restored(saved.evidence), Credits.restored(saved.credits)
        self._parameters, self._waiting, self._topic_states = saved.parameters, saved.waiting, saved.topics

    def observe(self, statement: Statement, index: int, epoch: int) -> None:
        """Add an admitted statement that is not a decision: leaf `index`, logged while `epoch` was open."""
        if isinstance(statement.body, Parameters):
            self._parameters[statement.id] = NamedParameters(statement.body, epoch)
        else:
            self._evidence.observe(statement, index, epoch)

    def close(self, log: LogFact, until: Input, previous: Callable[[str], str | None]) -> EpochOutcome:
        """Compute how the open epoch closes with the leaves so far. Changes no state.

        `until`: the head of the log so far.
        `previous`: topic → the id of its newest decision, or None.

        Raises `Refused` (`decision.rule`) when the log has no parameters yet, and the errors of `blob`.
        """
        if log.parameters is None:
            raise Refused(DecisionCode.RULE, "This log has no parameters yet: there is no rule to decide by.")
        parameters_id, named = log.parameters, self._parameters[log.parameters]
        parameters = named.body
        self._read_domains(parameters)
        epoch = self._count(log.epoch, named, self._anchors)
        weights = eligible_weights(self._evidence, epoch.reports, epoch.electorate, epoch.number, epoch.parameters)

        def question(topic: str) -> Question:
            before = self._topic_states.get(topic, TopicState())
            return Question(topic, epoch.number, parameters_id, parameters, until, previous(topic), before)

        # Topics are counted independently, so their order changes no result.
        counting, (counted, waiting) = _Counting(self._evidence, epoch), self._topics(epoch, named, weights)
        outcomes = dict(zip(counted, self._each(counting, [*map(question, counted)]), strict=True))
        decided = [topic for topic, result in outcomes.items() if result.is_due] or stand_in(counted, weights)
        outcomes |= {topic: counting(question(topic)) for topic in decided if topic not in outcomes}
        # After all topics: an election also pays reports of this epoch, and the roll needs every credit.
        elected = {topic: outcome.elected for topic, outcome in outcomes.items() if outcome.elected}
        credits, earned = self._credited(epoch, elected)
        standings = credits.standings(log.epoch, parameters.horizon_epochs)
        reach = None if parameters.is_v2 else _reach(outcomes[topic] for topic in counted)
        new_roll = roll(log.epoch, parameters_id, epoch.electorate, standings, earned, reach)
        return EpochOutcome(outcomes, counted, waiting, decided, new_roll, credits)

    def finish(self, closing: EpochOutcome) -> None:
        """Begin the next epoch. Call it when the last decision of the epoch is logged."""
        self._credits, self._waiting = closing.credits, {**closing.waiting}
        self._topic_states.update((topic, closing.outcomes[topic].after) for topic in closing.counted)

    def _count(self, number: int, named: NamedParameters, anchors: Sequence[str] | None) -> _Epoch:
        electorate = electorate_of(self._evidence, number, named.body, named.epoch, anchors)
        reports = self._evidence.reports.count(number, named.body.memory_epochs, electorate.weights, electorate.begun)
        return _Epoch(number, named.body, electorate, reports)

    def _topics(
        self, epoch: _Epoch, named: NamedParameters, weights: Mapping[str, int]
    ) -> tuple[Sequence[str], Mapping[str, int]]:
        """Return the topics to count, and those that wait. With replaced anchors: all topics that the log may have decided."""
        if self._anchors is not None:
            # The logged decisions were made with the logged anchors, so those define which topics were decided.
            own = self._count(epoch.number, named, None)
            return sorted(self._topic_states.keys() | own.reports.tallies.keys()), {}
        left = {topic for topic, state in self._topic_states.items() if state.states}
        open_topics = left | can_have_candidates(self._evidence, epoch.reports, epoch.number, epoch.parameters)
        counted = counted_topics(open_topics, weights, None if epoch.parameters.is_v2 else self._waiting)
        waiting = {topic: self._waiting.get(topic, epoch.number) for topic in open_topics.difference(counted)}
        return counted, {} if epoch.parameters.is_v2 else waiting

    def _credited(self, epoch: _Epoch, elected: Mapping[str, str]) -> tuple[Credits, EarnedCredits]:
        clusters, terms, horizon = epoch.electorate.clusters, epoch.parameters.credit, epoch.parameters.horizon_epochs
        credits = self._credits.since(epoch.electorate.begun)
        return credits.close(epoch.number, clusters, epoch.reports.agreed, terms, horizon, elected)

    def _read_domains(self, parameters: Parameters) -> None:
        directory, terms = self._evidence.directory, parameters.reputation
        digest = terms.suffix_list.sha256 if terms else None
        # Reading a list and mapping all DIDs anew is slow, so it happens only when the list changes.
        if digest != directory.suffix_digest:
            directory.read_domains_by(digest, SuffixList(self._blob(digest)) if digest is not None else None)


def _reach(outcomes: Iterable[Outcome]) -> tuple[int, int]:
    """Return the sums of w · w' over all topics: of the pairs that both speak a consensus, and of all pairs."""
    able, every = zip((0, 0), *(outcome.reach for outcome in outcomes), strict=True)
    return sum(able), sum(every)
