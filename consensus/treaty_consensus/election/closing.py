"""Closing an epoch: from all that a log has said so far to the decisions of every topic, and the roll that they share.

What an epoch needs of the one before is carried here and never taken from outside: where documents stand, what reports implied,
what was credited. Whoever feeds the same statements gets the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .. import canonical
from ..errors import Refused
from ..facts import LogFact
from ..kinds import Blob, Decision, Input, Parameters
from ..statement import Statement
from .agenda import agenda, heard_in
from .credit import Credits, Earned
from .decision import Carried, Outcome, Question, decide
from .electorate import Electorate, electorate_of
from .evidence import Evidence
from .principals import SuffixList
from .report import Counted
from .roll import roll


@dataclass(frozen=True)
class Due:
    """A decision that is to be logged, and the two blobs that it names."""

    decision: Decision
    transcript: bytes
    roll: bytes


@dataclass(frozen=True)
class Closing:
    """All that closes an epoch: an outcome a topic, in their order, the roll, and all credits after it."""

    outcomes: Mapping[str, Outcome]
    roll: bytes
    credits: Credits

    @cached_property
    def due(self) -> tuple[Due, ...]:
        """What is to be logged."""
        last = len(self.outcomes) - 1
        return tuple(self.due_in(topic, remaining=last - place) for place, topic in enumerate(self.outcomes))

    def due_in(self, topic: str, *, remaining: int) -> Due:
        """What is to be logged in one of the topics, with so many to follow."""
        return Due(self.outcomes[topic].statement(self._named, remaining=remaining), self.outcomes[topic].transcript, self.roll)

    @cached_property
    def _named(self) -> Blob:
        return Blob(canonical.hex_digest(self.roll), len(self.roll))


@dataclass(frozen=True)
class _Epoch:
    """An epoch that closes: its constants, who counts in it, and the reports that do."""

    number: int
    parameters: Parameters
    electorate: Electorate
    reports: Counted


class Elections:
    """The elections of a log, from epoch to epoch. Mutable: `observe` in the order of the leaves."""

    def __init__(self, blob: Callable[[str], bytes], anchors: Sequence[str] | None) -> None:
        """`blob`: the bytes of a blob, which are checked, by their SHA-256; asked for suffix lists. `anchors`: in place of
        those of the parameters."""
        self._blob = blob
        self._anchors = anchors
        self._evidence = Evidence()
        self._parameters: dict[str, Parameters] = {}
        self._carried: dict[str, Carried] = {}
        self._credits = Credits()

    def observe(self, statement: Statement, index: int, epoch: int) -> None:
        """Take in an admitted statement that is no decision: leaf `index`, logged while `epoch` was open."""
        if isinstance(statement.body, Parameters):
            self._parameters[statement.id] = statement.body
        else:
            self._evidence.observe(statement, index, epoch)

    def close(self, log: LogFact, until: Input, previous: Callable[[str], str | None]) -> Closing:
        """How the open epoch closes with the leaves so far; changes nothing. `previous`: the id of a topic's newest decision.

        Raises `Refused` when the log has no parameters yet, and what `blob` raises.
        """
        if log.parameters is None:
            raise Refused("decision.parameters", "This log has no parameters yet: there is no rule to decide by.")
        parameters = self._parameters[log.parameters]
        self._read_domains(parameters)
        epoch = self._count(log.epoch, parameters, self._anchors)
        outcomes = {}
        for topic in self._topics(epoch):
            carried = self._carried.get(topic, Carried())
            question = Question(topic, log.epoch, log.parameters, parameters, until, previous(topic), carried)
            outcomes[topic] = decide(question, self._evidence, epoch.reports.tally(topic), epoch.electorate)
        elected = {topic: outcome.elected for topic, outcome in outcomes.items() if outcome.elected}
        credits, earned = self._credited(epoch, elected)
        standings = credits.standings(log.epoch, parameters.horizon_epochs)
        return Closing(outcomes, roll(log.epoch, log.parameters, epoch.electorate, standings, earned), credits)

    def finish(self, closing: Closing) -> None:
        """The last decision of the epoch is logged: the next one begins with it."""
        self._credits = closing.credits
        self._carried.update((topic, outcome.carried) for topic, outcome in closing.outcomes.items())

    def _count(self, number: int, parameters: Parameters, anchors: Sequence[str] | None) -> _Epoch:
        electorate = electorate_of(self._evidence, number, parameters, anchors)
        reports = self._evidence.reports.count(number, parameters.horizon_epochs, electorate.voices, electorate.weights)
        return _Epoch(number, parameters, electorate, reports)

    def _topics(self, epoch: _Epoch) -> Sequence[str]:
        """What is decided; with other anchors, everything that the log may have decided."""
        if self._anchors is None:
            left = [topic for topic, carried in self._carried.items() if carried != Carried()]
            return agenda(left, self._heard(epoch))
        own = self._count(epoch.number, epoch.parameters, None)
        return sorted(self._carried.keys() | self._heard(own).keys())

    def _heard(self, epoch: _Epoch) -> dict[str, int]:
        return heard_in(self._evidence, epoch.reports, epoch.electorate, epoch.number, epoch.parameters)

    def _credited(self, epoch: _Epoch, elected: Mapping[str, str]) -> tuple[Credits, list[Earned]]:
        clusters, terms, horizon = epoch.electorate.clusters, epoch.parameters.credit, epoch.parameters.horizon_epochs
        return self._credits.close(epoch.number, clusters, epoch.reports.agreed, terms, horizon, elected)

    def _read_domains(self, parameters: Parameters) -> None:
        voices, terms = self._evidence.voices, parameters.reputation
        wanted = terms.suffix_list.sha256 if terms else None
        if wanted != voices.suffix_digest:
            voices.read_domains_by(wanted, SuffixList(self._blob(wanted)) if wanted is not None else None)
