"""Thin topics: everybody reports, but each honest pair meets in the topic only with some probability within a horizon.

Nobody honest votes. The corrupted agree on their document with everyone whom they know, in every epoch, and vote for it.

    promote/SHARE         the honest document is the consensus; what share of the honest must be corrupted to promote the other
    unopposed/SHARE       both have been spoken for long, and there is no consensus
    block/SHARE           the same, for the honest one not to become the consensus; the other was there before it
    unopposed/SHARE new   both come on the same day: an election before most of the honest have met
    block/SHARE new       the honest one is new: it is not the consensus within two horizons
    moved/SHARE           nobody is corrupted, and all go over to another document: epochs until it is the consensus
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from .campaigns import HONEST, HORIZON, HOSTILE, LONG
from .graphs import Numbers
from .laboratory import Laboratory, Row, Way, least_of
from .ours import PARAMETERS
from .topic import START, Topic, lots

OTHER = "c" * 64
SHARES = (1.0, 0.5, 0.25, 0.1)
NEW = (0.25,)
"""Where an election of a new document is tried, too: it takes longest to compute."""
WAYS: tuple[Way, ...] = ((0, "kept"), (200, "domains"))
EPOCHS = 8
"""How long an attack lasts, unless the document is new: as long as fresh ballots need to ripen."""


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What it takes, by how many pairs meet."""
    for goal in ("promote", "unopposed", "block"):
        for share in SHARES:
            for new in (False, True) if goal != "promote" and share in NEW else (False,):
                shares = [lab.share(partial(flips, lab, way, goal, share, new)) for way in WAYS]
                yield Row("thin", lab.world.size, goal, detail=f"{share:g}{' new' * new}"), least_of(shares)
    for share in SHARES:
        yield Row("thin", lab.world.size, "moved", detail=f"{share:g}"), _epochs_until_moved(lab, share)


def flips(lab: Laboratory, way: Way, goal: str, share: float, new: bool = False, number: int = 0) -> bool:
    """Whether so many corrupted reach the goal, when a share of the pairs meets."""
    topic = Topic(lab.weighed(number, way))
    if goal == "promote":
        topic.publish(HONEST)
        topic.settle(HONEST)
    topic.publish(HOSTILE, by=1)
    if goal == "block":
        for _ in range(EPOCHS):
            _push(topic)
            topic.close()
    if goal != "promote":
        topic.publish(HONEST)
    topic.forget(HONEST)
    if not new:
        topic.report(HONEST, topic.meetings.honest, _past(topic, share))
    for _ in range(LONG if new else EPOCHS):
        _push(topic)
        topic.report(HONEST, topic.meetings.drawn(_within_an_epoch(share), f"thin/{lab.world.seed}/{topic.epoch}"))
        consensus = topic.close()
        if consensus == (HONEST if goal == "block" else HOSTILE):
            return goal != "block"
    return goal == "block"


def _epochs_until_moved(lab: Laboratory, share: float) -> float | None:
    """Return how many epochs after all went over to another document that is the consensus."""
    topic = Topic(lab.weighed(0, WAYS[0]))
    topic.publish(HONEST)
    topic.publish(OTHER, by=1)
    topic.settle(HONEST)
    topic.forget(HONEST)
    topic.report(HONEST, topic.meetings.honest, _past(topic, share))
    for epoch in range(PARAMETERS.memory_epochs):
        topic.report(OTHER, topic.meetings.drawn(_within_an_epoch(share), f"thin/{lab.world.seed}/{topic.epoch}"))
        if topic.close() == OTHER:
            return float(epoch + 1)
    return None


def _push(topic: Topic) -> None:
    topic.report(HOSTILE, topic.meetings.mixed)
    topic.vote(topic.electors.attacked.hostile, (HOSTILE,))


def _within_an_epoch(share: float) -> float:
    """How likely a pair meets in an epoch, if it meets within a horizon with the probability `share`."""
    return 1.0 - float((1 - share) ** (1 / HORIZON))


def _past(topic: Topic, share: float) -> Numbers:
    """Return the epoch in which each pair last met before this one."""
    seed, pairs = topic.electors.attacked.world.seed, len(topic.meetings.first)
    ages = np.log(lots(f"past/{seed}", pairs)) / np.log(1 - _within_an_epoch(share)) if share < 1 else np.zeros(pairs)
    return topic.epoch - 1 - np.minimum(ages, START - 1).astype(np.int64)
