"""An adversary that changes sides: two documents that everybody accepts, and nobody is to be elected.

All honest members vote for both, a share of them for the first one first. The adversary ranks both, and another one first in
each epoch, so that none of them leads for two epochs.

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
    """What it takes, by the share that prefers the first one."""
    for share in SHARES:
        shares = [lab.share(partial(_flips, lab, way, share)) for way in WAYS]
        yield Row("flipflop", lab.world.size, "block", detail=f"{share:g}"), least_of(shares)


def _flips(lab: Laboratory, way: Way, share: float, number: int) -> bool:
    topic = Topic(lab.weighed(number, way))
    world, hostile = lab.world, topic.electors.attacked.hostile
    everybody = np.ones(len(topic.meetings.first), dtype=np.bool_)
    for place, document in enumerate((ONE, OTHER)):
        topic.publish(document, by=place)
        topic.report(document, everybody, topic.epoch - place)
    honest = campaigns.lots(world.size, world.seed)
    honest = honest[~hostile[honest]]
    first = round(share * len(honest))
    for epoch in range(LONG):
        # Each reaffirms once in a horizon; all do so on one day, which is when the epoch before was the last of a horizon.
        if epoch % campaigns.HORIZON == 0:
            topic.vote(honest[:first], (ONE,), (OTHER,))
            topic.vote(honest[first:], (OTHER,), (ONE,))
        sides = ((ONE,), (OTHER,)) if epoch % 2 else ((OTHER,), (ONE,))
        topic.vote(hostile, *sides)
        if topic.close() is not None:
            return False
    return True
