"""A network that moved: everyone used one document, and from now on they use another.

In each epoch a pair that reports at all does so with a certain probability, its *rate*. A share of all had voted for the former
document just before, and nobody votes again. The corrupted stay: they agree on the former document with everyone they meet, in
every epoch, and the others let them.

    epochs/RATE            epochs until the new document is the consensus, if nobody had voted
    stay/RATE              the share of the honest that must be corrupted for the former one to be the consensus after a horizon
    …/voters SHARE         the same if so many had voted; all pairs report in each epoch
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from . import campaigns
from .adversaries import Coalition, attacked
from .campaigns import HORIZON, LONG
from .laboratory import Laboratory, Row, Way, least_of
from .ours import Electors, electors
from .topic import Topic

RATES = (1.0, 0.5, 0.25)
VOTERS = (0.3, 0.65, 1.0)
WAYS: tuple[Way, ...] = ((0, "kept"), (200, "domains"))
FORMER, NEW = "a" * 64, "b" * 64


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """How soon it elects, and what keeps it from that."""
    peaceful = electors(attacked(lab.world, Coalition()))
    cases = {f"{rate:g}": (rate, 0.0) for rate in RATES} | {f"voters {share:g}": (1.0, share) for share in VOTERS}
    for detail, (rate, voters) in cases.items():
        yield Row("moved", lab.world.size, "epochs", detail=detail), epochs_until_elected(peaceful, rate, voters, within=LONG)
        shares = [lab.share(partial(_stays, lab, way, rate, voters)) for way in WAYS]
        yield Row("moved", lab.world.size, "stay", detail=detail), least_of(shares)


def _stays(lab: Laboratory, way: Way, rate: float, voters: float, number: int) -> bool:
    return epochs_until_elected(lab.weighed(number, way), rate, voters) is None


def epochs_until_elected(electors: Electors, rate: float, voters: float = 0.0, within: int = HORIZON) -> float | None:
    """Return how many epochs after the move the new document is the consensus; None where it is not `within` so many."""
    world, hostile = electors.attacked.world, electors.attacked.hostile
    topic = Topic(electors)
    topic.publish(FORMER)
    topic.publish(NEW, by=1)
    topic.settle(FORMER)
    voting = campaigns.lots(world.size, world.seed)[: round(voters * world.size)]
    topic.vote(voting[~hostile[voting]], (FORMER,), epoch=topic.epoch - 1)
    for epoch in range(within):
        topic.report(FORMER, topic.meetings.mixed)
        topic.report(NEW, topic.meetings.drawn(rate, f"meetings/{world.seed}/{epoch}"))
        if topic.close() == NEW:
            return float(epoch + 1)
    return None
