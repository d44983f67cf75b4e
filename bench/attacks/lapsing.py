"""Votes that lapse: all honest members voted once for the consensus, and have used and reported it ever since.

The adversary agrees on its own document with everyone that it meets, votes for it, and reaffirms that.

    promote/EPOCHS   the share of the honest that must be corrupted to make its document the consensus, so long after the vote
    unseat/EPOCHS    the same to end the honest consensus
    …/never          the same if nobody ever voted
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from .campaigns import HONEST, HOSTILE
from .laboratory import Laboratory, Row, Way, least_of
from .topic import Topic

AGES: tuple[int | None, ...] = (0, 13, 26, 52, None)
WAYS: tuple[Way, ...] = ((0, "kept"), (200, "domains"))
EPOCHS = 8


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What it takes, by the age of the votes."""
    for goal in ("promote", "unseat"):
        for age in AGES:
            shares = [lab.share(partial(flips, lab, way, goal, age)) for way in WAYS]
            yield Row("lapsing", lab.world.size, goal, detail="never" if age is None else str(age)), least_of(shares)


def flips(lab: Laboratory, way: Way, goal: str, age: int | None, number: int) -> bool:
    """Whether so many corrupted reach the goal, when the votes have this age."""
    topic = Topic(lab.weighed(number, way))
    hostile = topic.electors.attacked.hostile
    topic.publish(HONEST)
    topic.publish(HOSTILE, by=1)
    topic.settle(HONEST)
    if age is not None:
        topic.vote(~hostile & (np.arange(len(hostile)) < lab.world.size), (HONEST,), epoch=topic.epoch - age)
    for _ in range(EPOCHS):
        topic.report(HONEST, topic.meetings.honest)
        topic.report(HOSTILE, topic.meetings.mixed)
        topic.vote(hostile, (HOSTILE,))
        consensus = topic.close()
        if consensus == HOSTILE or (goal == "unseat" and consensus != HONEST):
            return True
    return False
