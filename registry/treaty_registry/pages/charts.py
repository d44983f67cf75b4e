"""Draw charts as inline SVG. They are made of numbers and escaped text alone, and their colours are classes of `election.css`.

Each chart has an accessible name. The page shows the same numbers in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup, escape

from treaty_consensus.election.states import FORMER, TRANSITIONS

SERIES = 6
"""Series with a colour of their own. All others share one."""
_MAX_LABEL = 28  # characters
_FAINT = 0.35  # the opacity of the part that a limit takes
_NARROW = 310  # pixels of a bar on the narrowest screen


@dataclass(frozen=True)
class BarPart:
    """A part of a bar. `series`: the number of its colour. `label`: a short text, shown when it fits."""

    value: int
    series: int
    label: str


@dataclass(frozen=True)
class Bar:
    """A bar of parts, from the left."""

    label: str
    parts: Sequence[BarPart]


@dataclass(frozen=True)
class Curve:
    """A line over time. None: no value at that time."""

    label: str
    series: int
    values: Sequence[int | None]


def heat_map(names: Sequence[str], cells: Sequence[Sequence[int]], total: int, title: str) -> Markup:
    """Draw a matrix of weights: each cell is the share of `total` that prefers the row to the column.

    `names`: short labels of rows and columns.
    """
    number = len(names)
    side = 46 if number <= 8 else 36 if number <= 14 else 28
    left = top = 40
    size = left + number * side + 1
    drawn = [_text(left + place * side + side / 2, top - 12, name, "axis", "middle") for place, name in enumerate(names)]
    for row, name in enumerate(names):
        y = top + row * side
        drawn.append(_text(left - 10, y + side / 2 + 4, name, "axis", "end"))
        for column in range(number):
            drawn.append(_cell(left + column * side, y, side, row == column, cells[row][column], cells[column][row], total))
    return _svg(size, size, title, drawn, "heat")


def _cell(x: int, y: int, side: int, is_own: bool, over: int, under: int, total: int) -> str:
    if is_own:
        return _rect(x, y, side - 2, side - 2, "own")
    margin = abs(over - under) / total if total else 0
    # At most 0.45: the number on it keeps a contrast of 4.5 in both colour schemes.
    opacity = round(0.08 + 0.37 * min(margin, 1), 3) if over != under else None
    kind = "cell" if over == under else "wins" if over > under else "loses"
    return _rect(x, y, side - 2, side - 2, kind, opacity) + _text(
        x + side / 2 - 1, y + side / 2 + 4, str(over * 100 // total if total else 0), "value", "middle"
    )


def bars(rows: Sequence[Bar], total: int, title: str) -> Markup:
    """Draw horizontal bars under their labels, as wide as the page lets them be.

    `total`: the value of a full width.
    """
    step, height, drawn = 46, 20, list[str]()
    for place, bar in enumerate(rows):
        y, x = place * step + 20, 0.0
        drawn += [_text(1, y - 6, _cut(bar.label, 64), "label", "start"), _share(0, y, 100, height, "track")]
        for part in bar.parts:
            breadth = 100 * part.value / total if total else 0
            drawn.append(_share(x, y, max(breadth, 0.1), height, _series(part.series)))
            if breadth * _NARROW / 100 > 8 * len(part.label) + 8:
                label = f'x="{_n(x + breadth / 2)}%" y="{y + 15}" text-anchor="middle" class="on {_series(part.series)}"'
                drawn.append(f"<text {label}>{escape(part.label)}</text>")
            x += breadth
    size = f'width="100%" height="{len(rows) * step + 2}"'
    return Markup(f'<svg {size} class="chart bars" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>')  # noqa: S704


def _share(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Draw a box whose place and width are per cent of the picture."""
    return f'<rect x="{_n(x)}%" y="{_n(y)}" width="{_n(width)}%" height="{_n(height)}" class="{kind}"/>'


def meter(value: int, whole: int, total: int, mark: int, series: int, title: str) -> Markup:
    """Draw one value as a part of `whole`, which is faint, and both as parts of `total`, with a mark."""
    width, height = 400, 12
    scale = width / total if total else 0
    drawn = [
        _rect(0, 0, width, height, "track"),
        _rect(0, 0, min(whole, total) * scale, height, _series(series), _FAINT),
        _rect(0, 0, min(value, total) * scale, height, _series(series)),
        _line(min(mark, total) * scale, 0, min(mark, total) * scale, height, "mark"),
    ]
    # It is as wide as its card, so it may be stretched.
    return _svg(width, height, title, drawn, "small", ' preserveAspectRatio="none"')


def lines(times: Sequence[str], curves: Sequence[Curve], total: int, title: str, *, width: int = 640) -> Markup:
    """Draw lines over time, each with its label at its end.

    `times`: the labels of the places. `total`: the value of the full height.
    """
    left, right, top, height = 44, 92, 12, 190
    step = (width - left - right) / max(len(times) - 1, 1)
    bottom = top + height

    def at(place: int, value: int) -> tuple[float, float]:
        return left + place * step, bottom - (height * value / total if total else 0)

    drawn, ends = list[str](), list[tuple[float, float, str]]()
    for quarter in range(5):
        y = bottom - height * quarter / 4
        drawn += [_line(left, y, width - right, y, "grid"), _text(left - 8, y + 4, f"{quarter * 25} %", "axis", "end")]
    drawn += [_text(left + place * step, bottom + 20, time, "axis", "middle") for place, time in enumerate(times)]
    for line in curves:
        points = [at(place, value) for place, value in enumerate(line.values) if value is not None]
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        kind = _series(line.series)
        drawn.append(f'<polyline points="{path}" class="line {kind}"/>')
        drawn += [f'<circle cx="{_n(x)}" cy="{_n(y)}" r="4" class="{kind}"/>' for x, y in points]
        if points:
            ends.append((*points[-1], line.label))
    drawn += _end_labels(ends)
    return _svg(width, bottom + 30, title, drawn, "lines")


def _end_labels(ends: Sequence[tuple[float, float, str]]) -> list[str]:
    """Write a label at the end of each line. Lines that end near each other share one."""
    groups: list[tuple[float, float, list[str]]] = []
    for x, y, label in sorted(ends, key=lambda end: (end[0], end[1])):
        if groups and groups[-1][0] == x and abs(groups[-1][1] - y) < 13:
            groups[-1][2].append(label)
        else:
            groups.append((x, y, [label]))
    return [_text(x + 10, y + 4, ", ".join(labels), "axis", "start") for x, y, labels in groups]


# The way to a consensus in one row, and below it the states of those that were one.
_WAY = ("published", "candidate", "provisional", "consensus")
_PLACES: Mapping[str, tuple[int, int]] = {
    **{str(state): (column, 0) for column, state in enumerate(_WAY)},
    **{str(state): (column + 1, 1) for column, state in enumerate(FORMER)},
}
_BOX, _HIGH, _GAP, _ROW, _TOP = 150, 58, 64, 190, 46


def state_picture(present: Mapping[str, Sequence[str]], title: str) -> Markup:
    """Draw the states of a document in a topic, with the documents that are in each. The arrows are those of `TRANSITIONS`.

    `present`: state → names of documents.
    """
    states = [_state(state, present.get(state, ())) for state in _PLACES]
    width = 4 * _BOX + 3 * _GAP + 4
    return _svg(width, _TOP + _ROW + _HIGH + 24, title, [_transitions(), *states], "states")


@lru_cache(maxsize=1)
def _transitions() -> str:
    """Draw the arrows, which are the same for all topics."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), target in TRANSITIONS.items():
        if target != state:
            arrows.setdefault((state, target), []).append(str(event))
    drawn = [_arrow(source, target, ", ".join(events)) for (source, target), events in arrows.items()]
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 10 5 0 10z" class="tip"/></marker></defs>'
    )
    return "".join([tip, *drawn])


def _corner(state: str) -> tuple[int, int]:
    column, row = _PLACES[state]
    return 2 + column * (_BOX + _GAP), _TOP + row * _ROW


def _state(state: str, names: Sequence[str]) -> str:
    x, y = _corner(state)
    middle = x + _BOX / 2
    kind = "state here" if names else "state"
    label = _cut(names[0], 18) if len(names) == 1 else f"{len(names)} protocols" if names else ""
    box = f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HIGH}" rx="9" class="{kind}"/>'
    name = _text(middle, y + (25 if names else 34), state, "name", "middle")
    return box + name + (_text(middle, y + 45, label, "who", "middle") if names else "")


def _arrow(source: str, target: str, label: str) -> str:
    (x, y), (to_x, to_y) = _corner(source), _corner(target)
    (column, row), (to_column, to_row) = _PLACES[source], _PLACES[target]
    if row == to_row and to_column == column + 1:
        return _path(f"M{x + _BOX} {y + 20}H{to_x - 2}", label, x + _BOX + _GAP / 2, y - 8)
    if row == to_row and to_column == column - 1:
        return _path(f"M{x} {y + 40}H{to_x + _BOX + 2}", label, x - _GAP / 2, y + _HIGH + 16)
    if row == to_row:  # over the boxes between them
        start, end = x + _BOX / 2, to_x + _BOX / 2
        return _path(f"M{_n(start)} {y}V{y - 26}H{_n(end)}V{y - 2}", label, (start + end) / 2, y - 31)
    if to_row > row:  # down, from the right part of the upper box
        shift = 18 * to_column
        start, end, level = x + 50 + shift, to_x + _BOX - 34, y + _HIGH + 30 + 26 * (3 - to_column)
        return _path(f"M{start} {y + _HIGH}V{level}H{end}V{to_y - 2}", label, to_x + _BOX / 2, to_y + _HIGH + 16)
    shift = 26 * (column - to_column)
    start, end, level = x + 34, to_x + _BOX / 2 + shift, y - 34 - 8 * abs(column - to_column)
    return _path(f"M{start} {y}V{level}H{_n(end)}V{to_y + _HIGH + 2}", label, start + 5, y - 10, "start")


def _path(way: str, label: str, x: float, y: float, anchor: str = "middle") -> str:
    return f'<path d="{way}" class="arrow" marker-end="url(#tip)"/>{_text(x, y, label, "event", anchor)}'


def _svg(width: float, height: float, title: str, drawn: Iterable[str], kind: str, scaling: str = "") -> Markup:
    size = f'viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" height="{_n(height)}"{scaling}'
    head = f'<svg {size} class="chart {kind}" role="img" aria-label="{escape(title)}">'
    return Markup(f"{head}{''.join(drawn)}</svg>")  # noqa: S704 (numbers, classes of ours, and escaped text)


def _rect(x: float, y: float, width: float, height: float, kind: str, opacity: float | None = None) -> str:
    faint = "" if opacity is None else f' fill-opacity="{opacity}"'
    return f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="2" class="{kind}"{faint}/>'


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}" class="{kind}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _series(number: int) -> str:
    return f"s{number}" if 0 <= number < SERIES else "rest"


def _cut(text: str, most: int = _MAX_LABEL) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _n(number: float) -> str:
    """Return a coordinate with at most one decimal place."""
    return str(number) if isinstance(number, int) else f"{number:.1f}".removesuffix(".0")
