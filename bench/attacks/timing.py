"""Attacks by time: ballots that ripen unseen, that come when an epoch is about to close, or that are held back.

    promote/sleeper EPOCHS   the adversary's ballots name its document for a horizon before it is published, and so are ripe when
                             the attack begins; it has so many epochs
    promote/awake EPOCHS     the same, and the ballots are cast when the attack begins
    promote/answer EPOCHS    a fifth of the honest vote, the others do not even report. All of them answer with a ballot, so many
                             epochs after the first ballots of the adversary: 0 if those were cast openly, at the beginning of
                             an epoch; 1 if they were cast so late that no answer was possible in the same epoch; `never`
    block/present            the adversary's ballots are there from the beginning
    block/withheld           they are withheld until the honest document is provisional

Figures are shares of the honest that must be corrupted.
"""

from __future__ import annotations

from collections.abc import Iterator

from .campaigns import HORIZON, Attack
from .laboratory import EVERY, Laboratory, Row

DEADLINES = (3, 4, 6, 26)
TURNOUT = 0.2
ANSWERS: dict[str, int | None] = {"0": 0, "1": 1, "2": 2, "never": None}


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What each of them takes."""
    for epochs in DEADLINES:
        for name, ready in (("awake", 0), ("sleeper", HORIZON)):
            attack = Attack("promote", epochs=epochs, ready=ready)
            yield Row("timing", lab.world.size, "promote", 1.0, f"{name} {epochs}"), lab.fraction(attack, EVERY)
    for name, answer in ANSWERS.items():
        attack = Attack("promote", TURNOUT, reports=False, answer=answer)
        yield Row("timing", lab.world.size, "promote", TURNOUT, f"answer {name}"), lab.fraction(attack, EVERY)
    for name, ready in (("present", 0), ("withheld", -HORIZON - 1)):
        yield Row("timing", lab.world.size, "block", 1.0, name), lab.fraction(Attack("block", ready=ready), EVERY)
