"""What is measured in one world; a run does it in many, and takes the median.

The campaigns that the first rule was made against are here; each later family has a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from . import (
    baselines,
    bribery,
    capture,
    censorship,
    deprecation,
    farming,
    flipflop,
    flooding,
    lapsing,
    litter,
    moved,
    parameters,
    tenure,
    thin,
    timing,
    truncation,
    versions,
)
from .adversaries import Coalition, attacked
from .campaigns import GOALS, Attack, flips
from .graphs import World, world
from .laboratory import EVERY, FLOOD, GATED, SPENDINGS, TURNOUTS, WHOLE, Found, Laboratory, Row, Table, least_of
from .ours import Rule, electors
from .search import least


def measure(size: int, seed: int, tables: Sequence[Table]) -> list[Found]:
    """All rows of `tables` in the world of `size` and `seed`."""
    lab = Laboratory(world(size, seed))
    return [Found(row, seed, figure) for table in tables for row, figure in MAKERS[table](lab)]


def _corrupt(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """Everybody reports; the adversary corrupts the most trusted."""
    for goal in GOALS:
        for turnout in TURNOUTS if goal != "unseat" else (1.0, 0.1):
            figures = {domains: lab.fraction(Attack(goal, turnout), ways) for domains, ways in SPENDINGS.items()}
            for domains, figure in figures.items():
                yield Row("corrupt", lab.world.size, goal, turnout, str(domains)), figure
            yield Row("corrupt", lab.world.size, goal, turnout, "best"), least_of(figures.values())


def _unreported(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    for goal in GATED:
        for turnout in TURNOUTS[1:]:
            yield Row("unreported", lab.world.size, goal, turnout), lab.fraction(Attack(goal, turnout, reports=False), EVERY)


def _random(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    for goal in GATED:
        for turnout in (1.0, 0.1):
            yield Row("random", lab.world.size, goal, turnout), lab.fraction(Attack(goal, turnout), EVERY, order="random")


def _brief(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    for epochs in (3, 4, 6):
        figure = lab.fraction(Attack("promote", 1.0, epochs=epochs), SPENDINGS[1000])
        yield Row("brief", lab.world.size, "promote", 1.0, str(epochs)), figure


def _clones(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    for goal in GATED:
        figure = lab.fraction(Attack(goal, 1.0, clones=31), SPENDINGS[200])
        yield Row("clones", lab.world.size, goal, 1.0), figure


def _anchors(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """How many of the anchors it takes, and nobody else."""
    for goal in GATED:
        most = len(lab.world.anchors)
        numbers = [least(partial(lab.flips, Attack(goal), 1, way, WHOLE, "anchors"), most) for way in EVERY]
        yield Row("anchors", lab.world.size, goal, 1.0), least_of(numbers)


def _without(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What each defence is worth."""
    for name, rule in {"lending": Rule(lending=False), "vouched": Rule(vouched=False)}.items():
        for goal in GATED:
            for turnout in (1.0, 0.1):
                figure = lab.fraction(Attack(goal, turnout), (*SPENDINGS[0][1:], *SPENDINGS[1000]), rule)
                yield Row("without", lab.world.size, goal, turnout, name), figure


def _few(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What fewer and more anchors cost."""
    size = lab.world.size
    for number in sorted({16, size // 100, size // 50, size // 20, size // 10}):
        if number >= 16:
            other = Laboratory(world(size, lab.world.seed, number))
            for goal in GATED:
                figure = other.fraction(Attack(goal, 0.5), EVERY)
                yield Row("few", size, goal, 0.5, str(number)), figure


def _flood(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """Thousands of mature domains that report with everybody and vouch for each other, and whom nobody vouches for."""
    ring = electors(attacked(lab.world, Coalition((), FLOOD, "domains")))
    for goal in GOALS:
        for turnout in TURNOUTS:
            yield Row("flood", lab.world.size, goal, turnout), float(FLOOD) if flips(ring, Attack(goal, turnout)) else None


METHODS: dict[str, tuple[baselines.Method, int | None]] = {
    "one DID, one vote": ("one-did", 0),
    "PageRank on DIDs": ("pagerank", 0),
    "EigenTrust on DIDs, 20 endpoints open": ("eigentrust", 20),
    "EigenTrust on DIDs, 40 endpoints open": ("eigentrust", 40),
    "EigenTrust on DIDs, all endpoints open": ("eigentrust", None),
    "domain cap only": ("domain-cap", 0),
}
"""Name → method and how many endpoints are open; None for all."""


def _baseline(lab: Laboratory) -> Iterator[tuple[Row, float | None]]:
    """What others cost: DIDs (or domains) bought and nobody corrupted, or the heaviest corrupted and nothing bought."""
    size = lab.world.size
    for name, (method, endpoints) in METHODS.items():
        opened = size if endpoints is None else endpoints
        weigh = cache(partial(_weights, method, lab.world, opened))
        heaviest = baselines.by_weight(weigh(0), lab.world)
        for goal in GATED:
            for turnout in (1.0, 0.1):
                ask = partial(baselines.flips, world=lab.world, goal=goal, turnout=turnout)
                bought = least(partial(_bought, ask, weigh), FLOOD, 64)
                yield Row("baseline", size, goal, turnout, f"{name}/bought"), bought
                taken = least(partial(_taken, ask, weigh(0), heaviest), size)
                yield Row("baseline", size, goal, turnout, f"{name}/corrupt"), None if taken is None else taken / size


def _weights(method: baselines.Method, world: World, opened: int, number: int) -> baselines.Weights:
    return baselines.weights(method, world, number, opened)


def _bought(ask: Callable[..., bool], weigh: Callable[[int], baselines.Weights], number: int) -> bool:
    return ask(weigh(number))


def _taken(ask: Callable[..., bool], weights: baselines.Weights, heaviest: list[int], number: int) -> bool:
    return ask(weights, corrupt=heaviest[:number])


MAKERS: dict[Table, Callable[[Laboratory], Iterator[tuple[Row, float | None]]]] = {
    "flood": _flood,
    "corrupt": _corrupt,
    "unreported": _unreported,
    "random": _random,
    "brief": _brief,
    "clones": _clones,
    "anchors": _anchors,
    "without": _without,
    "few": _few,
    "baseline": _baseline,
    "litter": litter.figures,
    "moved": moved.figures,
    "flooding": flooding.figures,
    "timing": timing.figures,
    "truncation": truncation.figures,
    "bribery": bribery.figures,
    "capture": capture.figures,
    "farming": farming.figures,
    "lapsing": lapsing.figures,
    "thin": thin.figures,
    "deprecation": deprecation.figures,
    "versions": versions.figures,
    "flipflop": flipflop.figures,
    "censorship": censorship.figures,
    "tenure": tenure.figures,
    "parameters": parameters.figures,
}
