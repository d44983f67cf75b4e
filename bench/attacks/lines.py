"""What a run found, as lines: medians over worlds, the gates that they have to meet, and their texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

from .flooding import GATED_SPOKEN
from .laboratory import FLOOD, Found, Row, Table

GATES: dict[str, float] = {"promote": 0.33, "unopposed": 0.30, "block": 0.15}
"""The least fraction of the honest that an adversary may need."""
KEPT_OUT = 0.2
"""The same, to keep a newcomer out of the field that a tenth of the honest speak."""
LITTER = 10.0
"""The most bytes that a byte of litter may cost."""
STALE = 3.0
"""The most epochs until what everybody went over to is the consensus, if at least half of the pairs report in each."""
THINNEST = 0.2
"""The least fraction of the honest to promote in a topic in which a tenth of the pairs meet within a horizon."""
NOTICE = 91.0
"""The least days in which new parameters may change a decision: a horizon of weeks."""


class Line(msgspec.Struct, frozen=True):
    """A row, its median over `worlds` worlds, and the least and the most of them; None where what was tried did not do it."""

    table: Table
    size: int
    goal: str
    turnout: float
    detail: str
    median: float | None
    low: float | None
    high: float | None
    worlds: int


def lines_of(found: Iterable[Found]) -> list[Line]:
    """One line for each row."""
    figures: defaultdict[Row, list[float]] = defaultdict(list)
    for row, _, figure in found:
        figures[row].append(float("inf") if figure is None else figure)
    return [
        Line(*row, *(_finite(pick(values)) for pick in (median, min, max)), worlds=len(values))  # type: ignore[misc,arg-type]
        for row, values in sorted(figures.items())
    ]


def missed(lines: Iterable[Line]) -> list[Line]:
    """The lines that miss a gate."""
    return [line for line in lines if not meets_gate(line)]


class Shown:
    """Lines by row, as text."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.by_row = {Row(line.table, line.size, line.goal, line.turnout, line.detail): line for line in lines}
        self.sizes = sorted({line.size for line in lines})

    def find(self, *row: object) -> Line | None:
        return self.by_row.get(Row(*row))  # type: ignore[arg-type]

    def share(self, *row: object) -> str:
        return self.cell(lambda figure: f"{100 * figure:.1f} %", "–", row)

    def number(self, *row: object) -> str:
        return self.cell(lambda figure: f"{figure:,.0f}", f"not with {FLOOD:,}", row)

    def worlds(self, table: Table, size: int) -> int:
        return max((line.worlds for line in self.by_row.values() if (line.table, line.size) == (table, size)), default=0)

    def cell(self, shape: Callable[[float], str], none: str, row: Sequence[object]) -> str:
        line = self.find(*row)
        if line is None:
            return ""
        text = none if line.median is None else shape(line.median)
        return text if meets_gate(line) else f"**{text} missed**"


def table_of(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---", *["--:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, aligned, *rows))


def meets_gate(line: Line) -> bool:
    """Tell whether a line meets its gate; most have none."""
    figure = float("inf") if line.median is None else line.median
    match line.table, line.goal, line.detail:
        case "flood", _, _:
            return line.low is None
        case "thin", "promote", "0.1":
            return figure >= THINNEST
        case "thin", _, detail if detail == "0.1" or detail.endswith("new"):
            return True
        case ("corrupt", goal, "best") | ("thin" | "lapsing" | "deprecation" | "flipflop", goal, _) if goal in GATES:
            return figure >= GATES[goal]
        case "moved", "stay", _:
            return figure >= GATES["block"]
        case ("moved", "epochs", detail) if detail == "0.25":
            return True
        case ("moved", "epochs", _) | ("deprecation", "successor", _) | ("versions", "elect", _):
            return figure <= STALE
        case "versions", "lose", _:
            return line.low is None
        case "flooding", _, detail if detail == f"{GATED_SPOKEN:g}":
            return figure >= KEPT_OUT
        case "litter", _, "best" | "in use":
            return figure <= LITTER
        case "parameters", _, _:
            return figure >= NOTICE
        case "tenure", _, "taken over":
            return figure == 0
        case _:
            return True


def _finite(figure: float) -> float | None:
    return None if figure == float("inf") else round(figure, 4)
