"""A consensus that its publisher deprecates, as each release does. Everybody uses it, and nobody votes.

promote/SHARE        each corrupted member agreed once on the adversary's document with everyone that it knows. So many of the
                     honest pairs go over to the declared successor; the share of the honest that must be corrupted to make
                     the adversary's document the consensus
successor/HOW        35 % of the pairs speak the successor: epochs until it is the consensus. `deprecated`: as it should be;
                     `republished`: a domain that nobody vouches for publishes the same bytes, and deprecates nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .adversaries import Coalition, attacked
from .campaigns import HONEST, HORIZON, HOSTILE
from .laboratory import Laboratory, Row, Way, least_of
from .ours import electors
from .topic import Topic

SHARES = (0.0, 0.05, 0.2, 0.5)
SPOKEN = 0.35
HOW = ("deprecated", "republished")
WAYS: tuple[Way, ...] = ((0, "kept"), (200, "domains"))
SUCCESSOR = "c" * 64


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What it takes to inherit, and how soon the successor does."""
    size = lab.world.size
    for share in SHARES:
        shares = [lab.share(partial(inherits, lab, way, share)) for way in WAYS]
        yield Row("deprecation", size, "promote", detail=f"{share:g}"), least_of(shares)
    for how in HOW:
        yield Row("deprecation", size, "successor", detail=how), epochs(lab, how)


def inherits(lab: Laboratory, way: Way, share: float, number: int) -> bool:
    """Whether so many corrupted make their document the consensus."""
    topic = Topic(lab.weighed(number, way))
    topic.publish(HOSTILE, by=1)
    _deprecated(topic, successor=share > 0)
    topic.report(HOSTILE, topic.meetings.mixed)
    topic.vote(topic.electors.attacked.hostile, (HOSTILE,))
    moved = topic.meetings.drawn(share, f"moved/{lab.world.seed}")
    for _ in range(HORIZON):
        topic.report(HONEST, topic.meetings.honest & ~moved)
        if share:
            topic.report(SUCCESSOR, moved)
        topic.vote(topic.electors.attacked.hostile, (HOSTILE,))
        if topic.close() == HOSTILE:
            return True
    return False


def epochs(lab: Laboratory, how: str) -> float | None:
    """Return after how many epochs the successor is the consensus; None where it is not within a horizon."""
    topic = Topic(electors(attacked(lab.world, Coalition((), 1, "domains"))))
    _deprecated(topic, successor=True)
    if how == "republished":
        topic.publish(HONEST, by=lab.world.size)
    moved = topic.meetings.drawn(SPOKEN, f"moved/{lab.world.seed}")
    for epoch in range(HORIZON):
        topic.report(HONEST, topic.meetings.honest & ~moved)
        topic.report(SUCCESSOR, moved)
        if topic.close() == SUCCESSOR:
            return float(epoch + 1)
    return None


def _deprecated(topic: Topic, *, successor: bool) -> None:
    """Publish the consensus and perhaps its successor, and deprecate it."""
    uri = topic.publish(HONEST)
    topic.settle(HONEST)
    topic.deprecate(uri, successor=topic.publish(SUCCESSOR, version="1.1") if successor else None)
