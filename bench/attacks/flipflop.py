"""An adversary that changes sides: two documents that everybody accepts, and nobody is to be elected.

All honest members vote for both; those with a share of their weight rank the first one first. The adversary ranks both, and
another one first in each epoch, so that none of them leads for two epochs.

    block/SHARE   the share of the honest that must be corrupted for a topic without any consensus within two horizons
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from . import campaigns
from .campaigns import LONG
from .laboratory import Laboratory, Row, Way, least_of
from .topic import Topic

SHARES = (0.5, 0.52, 0.55, 0.6)
WAYS: tuple[Way, ...] = ((0, "kept"), (200, "domains"))
ONE, OTHER = "a" * 64, "b" * 64


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What it takes, by the share of the weight that prefers the first one."""
    for share in SHARES:
        shares = [lab.share(partial(flips, lab, way, share)) for way in WAYS]
        yield Row("flipflop", lab.world.size, "block", detail=f"{share:g}"), least_of(shares)


def flips(lab: Laboratory, way: Way, share: float, number: int) -> bool:
    """Whether so many corrupted leave the topic without any consensus."""
    topic = Topic(lab.weighed(number, way))
    hostile = topic.electors.attacked.hostile
    order = campaigns.lots(lab.world.size, lab.world.seed)
    honest = order[~hostile[order]]
    held = np.cumsum(topic.electors.base[honest])
    prefers_one = np.zeros(len(hostile), dtype=np.bool_)
    prefers_one[honest[held <= share * int(held[-1])]] = True
    spoken = prefers_one[topic.meetings.first]
    for place, document in enumerate((ONE, OTHER)):
        topic.publish(document, by=place)
    for epoch in range(LONG):
        topic.report(ONE, spoken)
        topic.report(OTHER, ~spoken)
        if epoch == 1:  # they have spoken both before they vote
            topic.vote(prefers_one & ~hostile, (ONE,), (OTHER,))
            topic.vote(~prefers_one & ~hostile & (np.arange(len(hostile)) < lab.world.size), (OTHER,), (ONE,))
        topic.vote(hostile, *(((ONE,), (OTHER,)) if epoch % 2 else ((OTHER,), (ONE,))))
        if topic.close() is not None:
            return False
    return True
