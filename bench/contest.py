"""What a figure is: a meter read in turn with its baseline's, round after round, and the median of the rounds' ratios.

A *meter* takes one sample: a rate or a duration. A *row* compares two meters; a *group* is a scene (servers, agents) with the
meters that need it. In each round every meter of the group is read once, in the opposite order of the round before, so that
whatever else the machine does meets both sides of a ratio alike; short samples and many rounds do that better than long and
few. A round's ratio is made of that round's two samples; the row's is the median of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal, NamedTuple

Unit = Literal["1/s", "ms"]
"""A rate, of which more is better, or a duration, of which less is."""


class Sample(NamedTuple):
    """One reading. `load`: the share of one processor that generating the load took, where another process did that. `cpu`:
    milliseconds of processor time of all processes for one unit, where they were counted."""

    value: float
    load: float = 0.0
    cpu: float = 0.0


Meter = Callable[[], Awaitable[Sample]]


@dataclass(frozen=True)
class Row:
    """`meter` against `baseline`, both names in the group's scene. `bar`: what the ratio should reach; stay below, for "ms";
    0 for none."""

    name: str
    what: str
    against: str
    unit: Unit
    meter: str
    baseline: str
    bar: float

    def meets(self, ratio: float) -> bool:
        """Whether a ratio is as good as the bar."""
        return not self.bar or (ratio <= self.bar if self.unit == "ms" else ratio >= self.bar)


@dataclass(frozen=True)
class Group:
    """Rows that share a scene. `scene`: sets it, yields the meters by name, and clears everything away. `turns`: how many rounds
    of short samples stand for one of those that the command line asks for."""

    name: str
    rows: tuple[Row, ...]
    scene: Callable[[], AbstractAsyncContextManager[Mapping[str, Meter]]]
    turns: int = 1


@dataclass(frozen=True)
class Result:
    """The samples of a row, one pair a round."""

    row: Row
    figures: tuple[Sample, ...]
    baselines: tuple[Sample, ...]

    @property
    def figure(self) -> float:
        """The median."""
        return median(sample.value for sample in self.figures)

    @property
    def baseline(self) -> float:
        """The median."""
        return median(sample.value for sample in self.baselines)

    @property
    def cpu(self) -> tuple[float, float]:
        """The medians of the processor time of figure and baseline."""
        return median(sample.cpu for sample in self.figures), median(sample.cpu for sample in self.baselines)

    @property
    def ratios(self) -> list[float]:
        """Each round's."""
        return [figure.value / baseline.value for figure, baseline in zip(self.figures, self.baselines, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios; not quite the ratio of the medians."""
        return median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the rounds' ratios: half of the rounds lie between them."""
        if len(self.ratios) == 1:
            return self.ratio, self.ratio
        low, _, high = quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def load(self) -> float:
        """The largest share of a processor that the load generator took in any sample."""
        return max(sample.load for sample in (*self.figures, *self.baselines))


def meters_of(rows: Sequence[Row]) -> list[str]:
    """The meters that these rows need, each once."""
    return list(dict.fromkeys(name for row in rows for name in (row.baseline, row.meter)))


async def hold(group: Group, rows: Sequence[Row], rounds: int, tell: Callable[[str], None]) -> list[Result]:
    """Set the scene of a group, measure `rows` of it, and clear the scene away. `tell` hears the name of what is read next."""
    async with group.scene() as meters:
        names = meters_of(rows)
        readings: dict[str, list[Sample]] = {name: [] for name in names}
        for number in range(rounds * group.turns):
            for name in names if number % 2 == 0 else reversed(names):
                tell(f"{group.name}: {name}")
                readings[name].append(await meters[name]())
    return [Result(row, tuple(readings[row.meter]), tuple(readings[row.baseline])) for row in rows]
