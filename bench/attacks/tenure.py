"""A domain that lapsed: its next owner, with a key of its own, begins a new tenure. A real log is built.

weight/before          the voices that the domain has, and its ballot with it
weight/taken over      the voices that the next owner has in the epoch of the new tenure
weight/renewed vouch   those a horizon later, if it reports, votes, and the one that vouched for it does so again
"""

from __future__ import annotations

from collections.abc import Iterator

from treaty_consensus.election.arithmetic import ONE

from .campaigns import HORIZON
from .laboratory import Laboratory, Row
from .ours import terms
from .signed import DAY, domain_signer, weekly_log

YEAR = terms().mature_epochs
WAIT = 30 * DAY
"""Before this a new owner may not vote."""


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What a lapsed domain is worth; the world is not used."""
    del lab
    lapsed = Lapsed()
    for detail, voices in (("before", lapsed.before()), ("taken over", lapsed.taken_over()), ("renewed vouch", lapsed.renewed())):
        yield Row("tenure", 0, "weight", detail=detail), voices


class Lapsed:
    """A log with anchors, and a member that one of them vouches for."""

    def __init__(self) -> None:
        self._log = weekly_log()
        self._votes_from = self._log.now
        self._member = domain_signer("member.example")
        self._document = self._log.publish(self._log.agents[1], "protocol")

    def before(self) -> float:
        """Return what the member's votes weigh when it is mature."""
        self._epochs(terms().acquainted_epochs)
        for epoch in range(YEAR):
            if epoch % HORIZON == 0:
                self._vouch()
            self._epochs(1)
        return self._voices()

    def taken_over(self) -> float:
        """Return what those of the next owner weigh at once."""
        self._member = self._log.renew(self._member, "the next owner")
        self._votes_from = self._log.now + WAIT
        self._epochs(1)
        return self._voices()

    def renewed(self) -> float:
        """Return what they weigh a horizon later."""
        self._epochs(terms().acquainted_epochs)
        self._vouch()
        self._epochs(HORIZON)
        return self._voices()

    def _vouch(self) -> None:
        for anchor in self._log.agents:
            self._log.vouch(anchor, self._member)

    def _epochs(self, number: int) -> None:
        log = self._log
        for _ in range(number):
            for one, other in zip(log.agents, (*log.agents[1:], log.agents[0]), strict=True):
                log.report(one, other, self._document)
            for anchor in log.agents[: terms().counterparties]:
                log.report(anchor, self._member, self._document)
            if log.now >= self._votes_from:
                log.vote(self._member, self._document)
            log.close()

    def _voices(self) -> float:
        """Return what the member weighs by the newest roll."""
        return sum(int(row[3]) for row in self._log.newest_roll()["principals"] if row[0] == "member.example") / ONE
