"""A world and the figures that are taken in it.

A *row* says what was tried. Its figure is what it took or what it gained: a share, a number, or None where the most that was
tried did not do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, cached_property, partial
from typing import Literal, NamedTuple, TypeAlias

from treaty_consensus.election.reputation import BoundedTrust, bounded_trust
from treaty_consensus.election.trust import seed as seed_of

from .adversaries import Attacked, Coalition, Spending, at_random, attacked, by_trust
from .campaigns import Attack, Goal, flips
from .graphs import World
from .ours import PARAMETERS, Electors, Rule, electors, terms
from .search import least

TURNOUTS = (1.0, 0.5, 0.2, 0.1)
GATED: tuple[Goal, ...] = ("promote", "block")
FLOOD = 5000
WHOLE = Rule()
Way: TypeAlias = tuple[int, Spending]
"""How many domains the adversary owns, and what the corrupted do with their vouches."""
Order: TypeAlias = Literal["trusted", "random", "anchors"]
SPENDINGS: dict[int, tuple[Way, ...]] = {
    0: ((0, "kept"), (0, "circle")),
    200: ((200, "domains"),),
    1000: ((1000, "domains"),),
}
EVERY = tuple(way for ways in SPENDINGS.values() for way in ways)
Table: TypeAlias = Literal[
    "flood",
    "corrupt",
    "unreported",
    "random",
    "brief",
    "clones",
    "anchors",
    "without",
    "few",
    "baseline",
    "litter",
    "moved",
    "flooding",
    "timing",
    "truncation",
    "bribery",
    "capture",
    "farming",
    "lapsing",
    "thin",
    "deprecation",
    "versions",
    "flipflop",
    "censorship",
    "tenure",
    "parameters",
]


class Row(NamedTuple):
    """What was tried.

    `goal`: of a table with campaigns what the adversary wants, of another one which figure this is.
    `detail`: of "corrupt" the number of domains, or "best" for that which the adversary likes best; of "brief" the epochs that
    it has; of "without" the defence left out; of "few" the number of anchors; of "baseline" method/resource; of the others the
    docstring of their module.
    """

    table: Table
    size: int
    goal: str
    turnout: float = 1.0
    detail: str = ""


class Found(NamedTuple):
    """A row's figure in one world."""

    row: Row
    seed: int
    figure: float | None


class Laboratory:
    """A world and what was found out about it: coalitions are weighed once, whatever they then try."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weighed = cache(self._weigh)
        self.order = cache(self._order)
        self._last: dict[object, int] = {}

    @property
    def step(self) -> int:
        """Return how many principals the adversary corrupts at a time: larger worlds are searched more coarsely."""
        return max(self.world.size // 300, 1)

    @cached_property
    def peaceful(self) -> BoundedTrust:
        """Return the trust of all principals, its flows and the cap, while nothing is attacked."""
        return trust_of(attacked(self.world, Coalition()))

    def fraction(self, attack: Attack, ways: Iterable[Way], rule: Rule = WHOLE, order: Order = "trusted") -> float | None:
        """The least fraction of the honest that must be corrupted, by the best of several ways to spend their vouches."""
        size, found = self.world.size, []
        for way in ways:
            key = way, attack.goal, attack.reports, rule, order
            most = int(0.6 * size) // self.step
            number = least(partial(self.flips, attack, self.step, way, rule, order), most, self._last.get(key))
            if number is not None:
                self._last[key] = number
                found.append(number * self.step / size)
        return min(found, default=None)

    def share(self, flips: Callable[[int], bool], most: float = 0.6) -> float | None:
        """The least fraction of the honest that flips something; None where `most` do not."""
        number = least(lambda steps: flips(steps * self.step), int(most * self.world.size) // self.step)
        return None if number is None else number * self.step / self.world.size

    def flips(self, attack: Attack, step: int, way: Way, rule: Rule, order: Order, number: int) -> bool:
        return flips(self.weighed(number * step, way, rule, order), attack)

    def _weigh(self, number: int, way: Way, rule: Rule = WHOLE, order: Order = "trusted") -> Electors:
        domains, spending = way
        corrupt = tuple(self.order(order)[:number])
        return electors(attacked(self.world, Coalition(corrupt, domains if corrupt else 0, spending)), rule)

    def _order(self, order: Order) -> list[int]:
        if order == "anchors":
            return [int(number) for number in self.world.anchors]
        if order == "random":
            return at_random(self.world)
        return by_trust(self.world, self.peaceful.trust)


def least_of(figures: Iterable[float | None]) -> float | None:
    """Return the least of those that there are."""
    return min((figure for figure in figures if figure is not None), default=None)


def trust_of(scene: Attacked) -> BoundedTrust:
    """Return the trust of a scene by the product's rule."""
    seeds = seed_of(scene.graph, scene.anchors)
    shares = {"cap_share": terms().cap_share, "loan_share": terms().loan_share}
    return bounded_trust(scene.graph, seeds, rounds=terms().rounds, least=terms().least_vouches, **shares, rule=PARAMETERS.rule)
