"""What people would otherwise use to weigh votes, under the same thresholds as ours; only who weighs how much differs.

    one-did       every DID has a vote
    pagerank      votes weigh what PageRank gives a DID over the edges of reports (Page, Brin, Motwani & Winograd 1999)
    eigentrust    the same, with trust starting from the anchors (Kamvar, Schlosser & Garcia-Molina 2003)
    domain-cap    every domain has a vote

Every voter is a cluster of its own; ballots neither fade nor ripen; who does not vote is not counted. The adversary's DIDs report
with each other as they like. Where endpoints are *open*, each of its DIDs has also reported with those: an open agent negotiates
with any stranger.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.ballot import Votes, approvals, approved, count
from treaty_consensus.election.rule import DocumentState, Poll, Support, advance, eligible_of, field_of, in_order, incumbent_of

from .campaigns import HONEST, HOSTILE, Goal, lots
from .graphs import Numbers, World
from .ours import PARAMETERS

Method: TypeAlias = Literal["one-did", "pagerank", "eigentrust", "domain-cap"]
Weights: TypeAlias = NDArray[np.float64]
DAMPING = 0.85
EPOCHS = 8
RING = 4  # with how many of the next each hostile DID reports


def weights(method: Method, world: World, hostile: int, endpoints: int = 0) -> Weights:
    """The weight of each honest DID, then of each of the adversary's. `endpoints`: how many of the honest are open."""
    size = world.size + hostile
    if method in ("one-did", "domain-cap"):
        return np.ones(size)
    start = np.zeros(size)
    start[world.anchors if method == "eigentrust" else slice(None)] = 1
    return _walk(*_reports(world, hostile, endpoints), start / start.sum())


def flips(weights: Weights, world: World, goal: Goal, turnout: float, corrupt: Sequence[int] = ()) -> bool:
    """Whether the adversary, with the DIDs after the honest ones and those it corrupted, gets its way."""
    voting = np.zeros(len(weights), dtype=np.bool_)
    voting[lots(world.size, world.seed)[: round(turnout * world.size)]] = True
    hostile = np.arange(len(weights)) >= world.size
    hostile[list(corrupt)] = True
    rows = np.flatnonzero(voting | hostile)
    units = (weights[rows] / weights.max() * ONE).astype(np.uint64)
    names = tuple(f"{row:06}" for row in rows.tolist())
    numbers = np.arange(len(rows))
    votes = Votes(names, [((HONEST,),), ((HOSTILE,),)], hostile[rows].astype(np.int64), numbers, units, numbers, numbers, 0)
    return _decided(votes, goal)


def by_weight(weights: Weights, world: World) -> list[int]:
    """The honest, the heaviest first."""
    heaviest: list[int] = np.lexsort((np.arange(world.size), -weights[: world.size])).tolist()
    return heaviest


def _decided(votes: Votes, goal: Goal) -> bool:
    approving, total = approvals(votes), votes.total
    approved_by = approved(approving)
    states = {HONEST: DocumentState("consensus")} if goal in ("promote", "unseat") else {}
    order = (HONEST, HOSTILE) if states else (HOSTILE, HONEST)
    supports = {document: Support(index, 3, 3, total, approved_by.get(document, 0)) for index, document in enumerate(order)}
    clusters = {name: name for name in votes.principals}
    ranked = in_order(eligible_of(supports, states, total, PARAMETERS), supports, approving, PARAMETERS.max_candidates)
    counted = count(votes, field_of(ranked, supports, incumbent_of(states), PARAMETERS), clusters)
    for _ in range(EPOCHS):
        states = advance(Poll(PARAMETERS, counted, states))
    consensus = incumbent_of(states)
    return consensus == HOSTILE if goal in ("promote", "unopposed") else consensus != HONEST


def _reports(world: World, hostile: int, endpoints: int) -> tuple[Numbers, Numbers]:
    """Who says to have dealt with whom. The honest say it of everybody they have; the adversary's say it of each other only."""
    one, other = world.met.T
    ours = np.arange(world.size, world.size + hostile)
    ring = [np.array([ours, np.roll(ours, -step)]) for step in range(1, min(RING, hostile - 1) + 1)]
    doors = np.array(random.Random(f"doors/{world.seed}").sample(range(world.size), endpoints), dtype=np.int64)
    opened = np.array([np.repeat(doors, hostile), np.tile(ours, endpoints)])
    source, target = np.concatenate([np.array([one, other]), np.array([other, one]), opened, *ring], axis=1)
    return source, target


def _walk(source: Numbers, target: Numbers, start: Weights) -> Weights:
    """Where a walker is that follows an edge with probability `DAMPING`, and else begins anew."""
    size = len(start)
    share = 1 / np.maximum(np.bincount(source, minlength=size), 1)[source]
    stuck = np.bincount(source, minlength=size) == 0
    place = start
    for _ in range(60):
        onward = np.bincount(target, place[source] * share, size)
        place = DAMPING * (onward + start * place[stuck].sum()) + (1 - DAMPING) * start
    return place
