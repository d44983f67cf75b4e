"""Note how the constitution of a log changed: each announcement of parameters, and each epoch with the parameters in force."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from treaty_consensus.amendment import Change, changes_between
from treaty_consensus.facts import CONSTITUTION, ConstitutionFact, Facts, find, log_of
from treaty_consensus.kinds import Decision, Parameters
from treaty_consensus.statement import Statement

AmendmentState: TypeAlias = Literal["in force", "ended", "pending", "dropped"]


class Amendment(msgspec.Struct):
    """Logged parameters. `statement`: their id. `announced`: the log's time at leaf `index`.

    `state`: `dropped` when another announcement or a withdrawal replaced them before they held, `ended` when they held once.
    `holds`: of pending ones, the time from which an epoch opens with them; None for the next epoch.
    `epoch`: the first epoch under them; None if there was none yet.
    `changes`: from the parameters that were in force then; all constants of the first ones are new, so there are none.
    """

    statement: str
    index: int
    announced: int
    state: AmendmentState
    holds: int | None = None
    epoch: int | None = None
    changes: tuple[Change, ...] = ()


class Epoch(msgspec.Struct, frozen=True):
    """A decided epoch. `opened`, `closed`: by the log's clock. `parameters`: the statement that was in force."""

    number: int
    opened: int
    closed: int
    parameters: str


class ConstitutionHistory(msgspec.Struct):
    """Collect the amendments and epochs of a log, in the order of its leaves. Mutable."""

    amendments: list[Amendment] = []
    epochs: list[Epoch] = []
    in_force: Parameters | None = None
    pending: Parameters | None = None

    def announce(self, index: int, statement: Statement, body: Parameters, facts: Facts) -> None:
        """Note parameters. `facts`: those after their leaf."""
        log = log_of(facts)
        changes = changes_between(self.in_force, body) if self.in_force else ()
        amendment = Amendment(statement.id, index, log.time, "pending", changes=changes)
        for before in self.amendments:
            if before.state == "pending":
                before.state = "dropped"
        self.amendments.append(amendment)
        if log.parameters == statement.id:
            amendment.state, amendment.epoch, self.in_force = "in force", log.epoch, body
        elif log.announced == statement.id:
            constitution = find(facts, CONSTITUTION, ConstitutionFact)
            amendment.holds, self.pending = constitution.holds if constitution else None, body
        else:  # equal to those in force, so it took another one back
            amendment.state, self.pending = "dropped", None

    def decide(self, body: Decision, opened: int, facts: Facts) -> None:
        """Note a decision. `opened`: when its epoch opened. `facts`: those after its leaf."""
        log = log_of(facts)
        if not self.epochs or self.epochs[-1].number != body.epoch:
            self.epochs.append(Epoch(body.epoch, opened, log.time, body.parameters))
        if log.parameters == body.parameters:
            return
        for one in self.amendments:
            if one.state == "in force":
                one.state = "ended"
            elif one.statement == log.parameters:
                one.state, one.epoch, one.holds = "in force", log.epoch, None
        self.in_force, self.pending = self.pending, None
