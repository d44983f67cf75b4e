"""An attack from its first epoch to its last: the product's rule, epoch after epoch, with ballots that ripen and fade.

    promote     the honest document is the consensus when the adversary's comes; flipped once that is the consensus
    unopposed   there is no consensus, and both come on the same day; flipped once the adversary's is the consensus
    block       the adversary's has been there for a horizon when the honest one comes; flipped unless that becomes the consensus
    unseat      the honest document is the consensus; flipped once it no longer is

The honest who vote rank their document alone (it over NONE over the rest) and reaffirm that every `RENEWAL` epochs, each on a
day of its own. Use renews their votes, unless most of those that they know agree on the adversary's document: then a vote of
before the attack yields to their use, and a later one stands, and leaves to it what it has faded by. The honest who are silent
use the honest document, and are counted by their reports; where `reports` is false they do not even report, and weigh nothing.
The adversary ranks its document alone, and reaffirms that every epoch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from treaty_consensus.election.arithmetic import Amounts, conviction, decay, parts, table
from treaty_consensus.election.ballot import Votes, approvals, approved, count
from treaty_consensus.election.line import Tiers
from treaty_consensus.election.rule import DocumentState, Poll, Support, advance, eligible_of, field_of, in_order, incumbent_of

from .adversaries import RENEWAL
from .graphs import Numbers
from .ours import PARAMETERS, Electors

Goal: TypeAlias = Literal["promote", "unopposed", "block", "unseat"]
GOALS: tuple[Goal, ...] = ("promote", "unopposed", "block", "unseat")
HORIZON = PARAMETERS.horizon_epochs
LONG = 2 * HORIZON
"""How many epochs an attack lasts, and for how many the honest held their opinion before it, where they did."""

_RIPE = table(conviction, 4 * LONG)
_FADING = table(lambda age: decay(age, HORIZON), RENEWAL)

HONEST, HOSTILE = "a" * 64, "b" * 64
VOTING, SILENT, TORN, SWAYED, ENEMY, ALARMED, DOUBTING, NOBODY = range(8)


@dataclass(frozen=True)
class Attack:
    """`turnout`: the share of all principals who vote. `clones`: of its document, which the adversary ranks below it. `epochs`:
    how long it has. `ready`: for how many epochs before the attack its ballots have been there, in favour of a digest that is
    published when the attack begins; a negative number: how many epochs after that they come. `answer`: the epoch of the attack
    in which all the honest that were silent begin to vote; None: they never do. `unheard`: the share of all principals whose
    statements the registry drops, if they are honest."""

    goal: Goal
    turnout: float = 1.0
    reports: bool = True
    clones: int = 0
    epochs: int = LONG
    ready: int = 0
    answer: int | None = None
    unheard: float = 0.0

    @property
    def arrival(self) -> int:
        """The epoch of the attack in which the honest document comes."""
        return {"promote": -LONG, "unopposed": 0, "block": HORIZON, "unseat": -LONG}[self.goal]


def flips(electors: Electors, attack: Attack) -> bool:
    """Whether the attack succeeds."""
    for poll in course(electors, attack):
        consensus = incumbent_of(advance(poll))
        if attack.goal == "block" and consensus == HONEST:
            return False
        if attack.goal == "unseat" and consensus != HONEST:
            return True
        if attack.goal in ("promote", "unopposed") and consensus is not None and consensus != HONEST:
            return True
    return attack.goal == "block"


def course(electors: Electors, attack: Attack) -> Iterator[Poll]:
    """The polls of an attack's epochs, each of which begins with the document states that the one before ended with."""
    tally = _Tally(electors, attack)
    states = {HONEST: DocumentState("consensus")} if attack.arrival < 0 else {}
    for epoch in range(max(attack.arrival, 0) + attack.epochs):
        poll = tally.poll(epoch, states)
        states = advance(poll)
        yield poll


def _sides(electors: Electors, attack: Attack) -> Numbers:
    """On which side everybody is counted once the attack has begun."""
    world = electors.attacked.world
    side = np.full(len(electors.weights), ENEMY)
    as_many = {"promote": SILENT, "unopposed": TORN, "block": SWAYED, "unseat": SILENT}[attack.goal]  # silence is loyal
    side[: world.size] = np.choose(electors.sway + 1, [SILENT, as_many, SWAYED])
    side[: world.size][~electors.speaks] = NOBODY
    if not attack.reports:
        side[: world.size] = NOBODY
    if attack.answer is not None:
        side[: world.size] = ALARMED
    side[lots(world.size, world.seed)[: round(attack.turnout * world.size)]] = VOTING
    side[lots(world.size, world.seed)[: round(attack.unheard * world.size)]] = NOBODY
    side[electors.attacked.hostile] = ENEMY
    return side


@lru_cache(maxsize=4)
def lots(size: int, seed: int) -> Numbers:
    """All principals in the order in which they go to vote, at every turnout."""
    return np.array(random.Random(f"turnout/{seed}").sample(range(size), size), dtype=np.int64)


@lru_cache(maxsize=4)
def _renewals(size: int) -> Numbers:
    """On which day of `RENEWAL` each principal reaffirms."""
    return np.array(random.Random("renewals").choices(range(RENEWAL), k=size), dtype=np.int64)


class _Tally:
    """What is counted in each epoch: one row for each side and cluster."""

    def __init__(self, electors: Electors, attack: Attack) -> None:
        side, world = _sides(electors, attack), electors.attacked.world
        counted = np.flatnonzero((electors.weights > 0) & (side != NOBODY))
        honest = int(electors.weights[counted[side[counted] != ENEMY]].sum())
        self._reported = honest, honest + int(electors.weights[counted[side[counted] == ENEMY]].sum())
        # Who votes against its use has two rows: for the vote, and for the use.
        swayed = np.zeros(len(side), dtype=np.bool_)
        swayed[: world.size] = electors.sway > 0
        divided = counted[swayed[counted] & (side[counted] == VOTING)]
        rows = np.concatenate([counted, divided])
        self._attack, self._weights = attack, electors.weights[rows]
        self._side = np.concatenate([side[counted], np.full(len(divided), DOUBTING)])
        self._stagger, self._divided = _renewals(len(side))[rows], np.isin(rows, divided)
        cells = self._side * len(electors.labels) + electors.clusters[rows]
        present, self._cell = np.unique(cells, return_inverse=True)
        self._sides = present // max(len(electors.labels), 1)
        self._names = tuple(f"{number:06}" for number in range(len(present)))
        self._clusters = {
            name: electors.labels[cell % len(electors.labels)] for name, cell in zip(self._names, present.tolist(), strict=True)
        }
        self._clones = tuple(f"{number:064x}" for number in range(attack.clones))

    def poll(self, epoch: int, before: dict[str, DocumentState]) -> Poll:
        votes = self._votes(epoch)
        approving = approvals(votes)
        approved_by = approved(approving)
        published = [HOSTILE, *self._clones]
        if epoch >= self._attack.arrival:
            published.insert(0 if self._attack.arrival < 0 else len(published), HONEST)
        supports = {
            document: Support(index, 3, 3, self._reported[document != HONEST], approved_by.get(document, 0))
            for index, document in enumerate(published)
        }
        eligible = eligible_of(supports, before, votes.total, PARAMETERS)
        order = in_order(eligible, supports, approving, PARAMETERS.max_candidates)
        contenders = field_of(order, supports, incumbent_of(before), PARAMETERS)
        return Poll(PARAMETERS, count(votes, contenders, self._clusters), before)

    def _votes(self, epoch: int) -> Votes:
        arrival, since, answer = self._attack.arrival, epoch + self._attack.ready, self._attack.answer
        honest: Tiers = ((HONEST,),) if epoch >= arrival else ()
        torn: Tiers = ((HOSTILE, HONEST),)
        hostile: Tiers = ((HOSTILE,), *((clone,) for clone in self._clones)) if since >= 0 else ()
        alarmed: Tiers = honest if answer is not None and epoch >= answer else ()
        rankings: list[Tiers] = [honest, honest, torn, ((HOSTILE,),), hostile, alarmed, ((HOSTILE,),)]
        held = np.array([epoch - arrival, epoch - arrival, epoch, epoch, since, epoch - (answer or 0), epoch])
        ripe = _RIPE[np.maximum(held, 0)][self._side]
        whole: Amounts = np.where(np.array([bool(tiers) for tiers in rankings])[self._side], self._weights, np.uint64(0))
        ages = (epoch + self._stagger) % RENEWAL
        stands = (ages <= epoch) | (arrival >= 0)
        voted = np.where(stands, parts(whole, _FADING[ages]), np.uint64(0))
        whole = np.where(self._divided, np.where(self._side == VOTING, voted, whole - voted), whole)
        sums = np.zeros(len(self._names), dtype=np.uint64)
        np.add.at(sums, self._cell, parts(whole, ripe))
        rows = np.arange(len(sums))
        return Votes(self._names, rankings, self._sides, rows, sums, rows * 0, rows * 0, 0)
