"""Versions of one line: the same users speak documents of one publisher, each a compatible successor of the one before.

Nobody attacks. Each cluster of principals speaks one version, in turn; both sides of a pair speak that of the first.

    elect/PARTS   a new topic: epochs until a version is the consensus
    lose/PARTS    the oldest is the consensus: the epoch in which none of them is any more
"""

from __future__ import annotations

from collections.abc import Iterator

from treaty_consensus.kinds import Base

from .adversaries import Coalition, attacked
from .campaigns import LONG
from .laboratory import Laboratory, Row
from .ours import Electors, electors
from .topic import Topic

PARTS = (1, 2, 3)
VERSIONS = tuple(f"{number:064x}" for number in range(1, 1 + max(PARTS)))


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """How soon one of them is elected, or lost."""
    peaceful = electors(attacked(lab.world, Coalition()))
    for parts in PARTS:
        yield Row("versions", lab.world.size, "elect", detail=str(parts)), _epoch(peaceful, parts, elected=False)
        yield Row("versions", lab.world.size, "lose", detail=str(parts)), _epoch(peaceful, parts, elected=True)


def _epoch(electors: Electors, parts: int, *, elected: bool) -> float | None:
    """Return the epoch in which the line becomes the consensus, or is it no longer."""
    topic = Topic(electors)
    before = None
    for number, version in enumerate(VERSIONS[:parts]):
        uri = topic.publish(version, version=f"1.{number}", base=before)
        before = Base(uri, version)
    if elected:
        topic.settle(VERSIONS[0])
    spoken = electors.clusters[topic.meetings.first] % parts
    for epoch in range(LONG):
        for number, version in enumerate(VERSIONS[:parts]):
            topic.report(version, spoken == number)
        if (topic.close() in VERSIONS) != elected:
            return float(epoch + 1)
    return None
