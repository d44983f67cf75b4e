"""What an operator gains by new parameters, with a quarter of the members. A real log is built, with a clock.

All members report and vote for the consensus, every week. The operator states other parameters, as far as they are admitted, and
its members report and vote for their own document, in every epoch.

    overturn/nothing      no new parameters: days until the operator's document is the consensus
    overturn/accelerate   epochs of a second
    overturn/swap         anchors of its own, all at once
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from treaty_consensus.errors import TreatyError
from treaty_consensus.kinds import Parameters

from .campaigns import HORIZON
from .laboratory import Laboratory, Row
from .ours import terms
from .signed import ANCHORS, DAY, WEEK, Signer, domain_signer, weekly_log

COLLUDERS = 4
"""Of 16 members, all anchors: each finds three counterparties among the others."""
OWN = tuple(f"own-{number:02}.example" for number in range(len(ANCHORS)))
HOW = ("nothing", "accelerate", "swap")


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """How soon it overturns a unanimous consensus; the world is not used."""
    del lab
    for how in HOW:
        yield Row("parameters", 0, "overturn", detail=how), Bent().days(how)


@dataclass
class Bent:
    """A log with a unanimous consensus, and an operator that has another one in mind."""

    def __post_init__(self) -> None:
        self._log = weekly_log()
        self._parameters = self._log.parameters
        self._own = self._log.agents[:COLLUDERS]
        self._honest = self._log.agents[COLLUDERS:]
        self._documents = [self._log.publish(self._log.agents[place], f"protocol-{place}") for place in (-1, 0)]

    def days(self, how: str) -> float | None:
        """Return how many days after the new parameters the operator's document is the consensus."""
        for _ in range(2 * terms().acquainted_epochs):
            self._use(self._log.agents, self._documents[0])
            self._log.close()
        started = used = self._log.now
        epoch_seconds = self._state(how)
        for _ in range(self._parameters.memory_epochs + HORIZON):
            if self._log.now >= used + WEEK:
                self._use(self._honest, self._documents[0])
                used += WEEK
            self._use(self._own, self._documents[1])
            decisions = self._log.close(epoch_seconds)
            if any(decision.consensus == self._documents[1] for decision in decisions):
                return (self._log.now - started) / DAY
        return None

    def _state(self, how: str) -> int:
        """State new parameters; return the length of an epoch from here on."""
        wanted = self._wanted(how)
        try:
            self._log.add(wanted, self._log.operator)
        except TreatyError:  # they are not admitted, so the old ones hold
            return WEEK
        self._log.close()
        if how == "swap":
            self._own = tuple(map(domain_signer, OWN))
        return wanted.epoch_seconds or WEEK

    def _wanted(self, how: str) -> Parameters:
        if how == "accelerate":
            return replace(self._parameters, epoch_seconds=1)
        if how == "swap":
            assert self._parameters.reputation is not None
            return replace(self._parameters, reputation=replace(self._parameters.reputation, anchors=OWN))
        return self._parameters

    def _use(self, members: tuple[Signer, ...], document: str) -> None:
        """Let members report with each other and vote."""
        for one, other in zip(members, (*members[1:], members[0]), strict=True):
            self._log.report(one, other, document)
        for one, other in zip(members, (*members[2:], *members[:2]), strict=True):
            self._log.report(one, other, document)
        for member in members:
            self._log.vote(member, document)
