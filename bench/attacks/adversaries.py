"""The adversary: whom it corrupts, what it owns, and what it does with the vouches of both.

It corrupts honest principals, the most trusted first (the worst there is) or at random, and owns domains that are mature and
that nobody honest vouches for. Anchors are only corrupted where a row says so: whose word counts is what they stand for, and
an auditor may choose its own. What the corrupted do with their vouches:

    kept      they go on vouching for whom they vouched for, and only vote otherwise
    circle    they withdraw every vouch for the honest and vouch for each other: targeted revocation
    domains   they withdraw every vouch for the honest and spend them on the adversary's domains, which vouch for the corrupted

All vouches of the adversary are fresh; the honest renew each of theirs every `RENEWAL` epochs. The adversary's agents meet every
honest endpoint and agree with it on whatever they like: an open agent negotiates with any stranger.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treaty_consensus.election.arithmetic import ONE, Amounts, decay, table
from treaty_consensus.election.trust import Graph

from .graphs import MAX_VOUCHES, Numbers, World

Spending: TypeAlias = Literal["kept", "circle", "domains"]
RENEWAL = 13


@dataclass(frozen=True)
class Coalition:
    """`corrupt`: the honest principals that the adversary took over; `domains`: how many it owns; `spending`: see above."""

    corrupt: tuple[int, ...] = ()
    domains: int = 0
    spending: Spending = "kept"


@dataclass(frozen=True)
class Attacked:
    """A world with a coalition in it. The graph has the principals of the world by their numbers, then the adversary's domains;
    `hostile` marks what the adversary holds of both."""

    world: World
    graph: Graph
    hostile: NDArray[np.bool_]

    @property
    def anchors(self) -> list[str]:
        """Their names."""
        return [self.graph.principals[number] for number in self.world.anchors]


def attacked(world: World, coalition: Coalition) -> Attacked:
    """The world once the coalition has done with its vouches."""
    size = world.size + coalition.domains
    corrupt = np.array(coalition.corrupt, dtype=np.int64)
    hostile = np.arange(size) >= world.size
    hostile[corrupt] = True
    strength = _strength(world.seed, len(world.source)).copy()
    if coalition.spending == "kept":
        strength[hostile[world.source]] = ONE
        return Attacked(world, _graph(size, world.source, world.target, strength), hostile)
    domains = np.arange(world.size, size) if coalition.spending == "domains" else corrupt
    spent = _round(corrupt, domains)
    if coalition.spending == "domains":
        spent = np.concatenate([spent, _round(domains, corrupt)], axis=1)
    honest = ~hostile[world.source]
    source, target = np.concatenate([np.array([world.source[honest], world.target[honest]]), spent], axis=1)
    fresh = np.full(spent.shape[1], ONE, dtype=np.uint64)
    return Attacked(world, _graph(size, source, target, np.concatenate([strength[honest], fresh])), hostile)


def by_trust(world: World, trust: Amounts) -> list[int]:
    """Everyone but the anchors, the most trusted first."""
    return _without_anchors(world, np.lexsort((np.arange(world.size), ~trust)).tolist())


def at_random(world: World) -> list[int]:
    """Everyone but the anchors, as a lottery has it."""
    return _without_anchors(world, random.Random(f"lottery/{world.seed}").sample(range(world.size), world.size))


def _without_anchors(world: World, principals: list[int]) -> list[int]:
    anchors = set(world.anchors.tolist())
    return [principal for principal in principals if principal not in anchors]


def _round(givers: Numbers, takers: Numbers) -> Numbers:
    """Who vouches for whom: each giver for the next takers in turn, as often as it may, so that all get about as much."""
    each = min(MAX_VOUCHES, len(takers))
    source = np.repeat(givers, each)
    target = takers[np.arange(len(source)) % max(len(takers), 1)]
    hands = np.array([source, target], dtype=np.int64)
    return hands[:, source != target]


@lru_cache(maxsize=4)
def _strength(seed: int, vouches: int) -> Amounts:
    """What is left of each honest vouch, renewed on a day of its own."""
    ages = random.Random(f"vouches/{seed}").choices(range(RENEWAL), k=vouches)
    return table(lambda age: decay(age, RENEWAL), RENEWAL)[np.array(ages, dtype=np.int64)]


@lru_cache(maxsize=8)
def _names(size: int) -> tuple[str, ...]:
    return tuple(f"p{number:06}.example" for number in range(size))


def _graph(size: int, source: Numbers, target: Numbers, strength: Amounts) -> Graph:
    order = np.lexsort((target, source))
    return Graph(_names(size), source[order], target[order], strength[order])
