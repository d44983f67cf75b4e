"""Bribery for standing: honest principals that sell a vouch, and otherwise go on as before.

Standing is credits times trust, so a domain of the adversary needs vouches before reports pay (`farming` counts these). Each
bribed principal adds one vouch to those that it has. The adversary buys where a vouch carries most trust, or at random.

    vouches/VOICE best     the least number of bribed vouches that give one domain so much of a full voice
    vouches/VOICE random   the same, bought at random
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.election.trust import Graph

from .adversaries import Attacked, Coalition, at_random, attacked
from .laboratory import Laboratory, Row, trust_of
from .ours import terms
from .search import least

VOICES = (1 / 16, 1 / 2, 1.0)
"""A counterparty that counts; half a voice; a full one."""
MOST = 300


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """How many vouches it takes."""
    domain = attacked(lab.world, Coalition((), 1, "domains"))
    for name, sellers in {"best": _best(lab, domain.graph), "random": at_random(lab.world)}.items():
        for wanted in VOICES:
            number = least(partial(_reaches, domain, sellers, wanted), min(MOST, len(sellers)), 8)
            yield Row("bribery", lab.world.size, "vouches", detail=f"{wanted:g} {name}"), number


def voice(scene: Attacked, sellers: Sequence[int]) -> float:
    """Return the trust of the last principal of a scene, as a part of the cap, once `sellers` vouch for it too."""
    graph = scene.graph
    target = np.full(len(sellers), len(graph.principals) - 1)
    source = np.concatenate([graph.source, np.array(sellers, dtype=np.int64)])
    every = np.concatenate([graph.target, target])
    strength = np.concatenate([graph.strength, np.full(len(sellers), ONE, dtype=np.uint64)])
    order = np.lexsort((every, source))
    bought = trust_of(replace(scene, graph=Graph(graph.principals, source[order], every[order], strength[order])))
    return min(int(bought.trust[-1]), bought.cap) / bought.cap


def _reaches(scene: Attacked, sellers: Sequence[int], wanted: float, number: int) -> bool:
    return voice(scene, sellers[:number]) >= wanted


def _best(lab: Laboratory, graph: Graph) -> list[int]:
    """Return all principals but the anchors, those first that each lend most by one more vouch."""
    sums = np.zeros(lab.world.size, np.uint64)
    np.add.at(sums, graph.source, graph.strength)
    # A vouch more makes all vouches of a principal smaller; what it may lend is shared by all of them.
    lent = np.minimum(lab.peaceful.trust, np.uint64(lab.peaceful.cap // terms().loan_share))
    gains = lent.astype(np.float64) / np.maximum(sums.astype(np.float64) + ONE, terms().least_vouches * ONE)
    return sorted(at_random(lab.world), key=lambda number: (-gains[number], number))
