"""A registry that does not hear everybody: its operator holds a fifth of the members, and drops statements of others.

Both are drawn at random. Figures are the shares of all members that must not be heard. Witnesses that take statements make it
visible (`treaty audit`); nothing here makes it impossible.

    promote   to make the adversary's document the consensus
    block     to keep the honest one from it
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .campaigns import Attack, Goal, flips
from .laboratory import GATED, WHOLE, Laboratory, Row, Way, least_of

HELD = 0.2
WAYS: tuple[Way, ...] = ((0, "kept"), (200, "domains"))


def figures(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """How many must not be heard."""
    for goal in GATED:
        shares = [lab.share(partial(_flips, lab, way, goal), most=1.0) for way in WAYS]
        yield Row("censorship", lab.world.size, goal), least_of(shares)


def _flips(lab: Laboratory, way: Way, goal: Goal, number: int) -> bool:
    weighed = lab.weighed(round(HELD * lab.world.size), way, WHOLE, "random")
    return flips(weighed, Attack(goal, unheard=number / lab.world.size))
