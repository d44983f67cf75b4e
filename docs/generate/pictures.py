"""State diagrams as SVG: boxes in a column, one lane for each arrow, so that no two arrows lie on each other.

A column is legible in a page's width, also on a narrow screen.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

BOX, GAP, LINE, LANE, MARGIN = 190, 26, 15, 14, 24
"""The width of a box, the gap between two, the height of a line of text, the width of a lane, and the margin, in pixels."""
LABEL, LABEL_WIDTH = 24, 172
"""The characters of a line of a label, and the room for it between the boxes and the lanes, where no arrow is upright."""

_DARK = {
    "fill": {
        "#fff": "#131615",
        "#223": "#e9ece9",
        "#335": "#a3aca6",
        "#eef3ff": "#1f2b3a",
        "#f4f4f6": "#202523",
        "#e0f3e6": "#173323",
        "#fff7e0": "#3a2d10",
        "#640": "#f0c46c",
        "#f6eaff": "#33223f",
        "#426": "#dcc2f5",
        "#1b6e3c": "#86d9a3",
        "#1b4f9c": "#9cc2ff",
        "#8a4b00": "#f0c46c",
        "#7a1f6b": "#eaa6dd",
    },
    "stroke": {"#335": "#a3aca6", "#557": "#6b7a8f", "#888": "#6b7a8f", "#ccd": "#4a524e", "#c90": "#8a6a1a", "#86a": "#8a6aa8"},
}
"""For each light colour of a picture, the dark one."""


@dataclass(frozen=True)
class Arrow:
    """A change from one state to another, and the events that bring it."""

    source: str
    target: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Diagram:
    """One state machine. `notes`: lines under the name of a state. `finals`: final states, and how each is reached."""

    title: str
    states: Sequence[str]
    arrows: Sequence[Arrow]
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    finals: Mapping[str, Sequence[str]] = field(default_factory=dict)


def draw(title: str, description: str, diagrams: Sequence[Diagram]) -> str:
    """One picture of several diagrams, below each other."""
    parts, y, width = list[str](), 16.0, 0.0
    for diagram in diagrams:
        drawn = _Drawing(diagram, y)
        parts += drawn.parts
        y, width = drawn.bottom + 44, max(width, drawn.width)
    return frame(title, description, width, y - 20, parts)


def frame(title: str, description: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A picture of this size, in the colours of the reader's choice. `description`: all that it shows, in words."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif" '
            'font-size="14" role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(description)}</desc>',
            style(),
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 10 5 0 10z" fill="#335"/></marker></defs>',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
            *parts,
            "</svg>",
        ]
    )


def style() -> str:
    """The colours for readers who prefer dark ones. The drawing has the light ones as attributes."""
    rules = "".join(f'[{name}="{light}"]{{{name}:{dark}}}' for name, colours in _DARK.items() for light, dark in colours.items())
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"


class _Drawing:
    """The parts of one diagram from `top` on."""

    def __init__(self, diagram: Diagram, top: float) -> None:
        self._diagram = diagram
        self._place = {state: number for number, state in enumerate(diagram.states)}
        down = [arrow for arrow in diagram.arrows if self._place[arrow.source] < self._place[arrow.target]]
        up = [arrow for arrow in diagram.arrows if self._place[arrow.source] > self._place[arrow.target]]
        sides = [_Side(arrows, self._place, is_down=is_down) for arrows, is_down in ((down, True), (up, False))]
        right, left = sides
        self._left = MARGIN + left.width
        self.width = self._left + BOX + right.width + MARGIN
        self.parts = [text(MARGIN, top + 16, diagram.title, anchor="start", weight=700, size=16)]
        y = top + 36
        for state in diagram.states:
            notes = 32.0 + LINE * len(diagram.notes.get(state, ()))
            height = max(notes, *(side.height(state) for side in sides))
            self._box(state, y, height)
            for side in sides:
                side.settle(state, y + (height - side.height(state)) / 2)
            y += height + GAP
        self.parts += right.drawn(self._left + BOX, 1) + left.drawn(self._left, -1)
        self.bottom = y - GAP
        if diagram.finals:
            self._finals(self.bottom + GAP)

    def _box(self, state: str, top: float, height: float) -> None:
        middle, notes = self._left + BOX / 2, self._diagram.notes.get(state, ())
        self.parts.append(
            f'<rect x="{self._left:.0f}" y="{top:.0f}" width="{BOX}" height="{height:.0f}" rx="8" fill="#eef3ff" stroke="#557"/>'
        )
        first = top + (height - LINE * len(notes)) / 2 + 5
        self.parts.append(text(middle, first, state, weight=600))
        for number, note in enumerate(notes):
            self.parts.append(text(middle, first + 4 + LINE * (number + 1), note, size=11))

    def _finals(self, top: float) -> None:
        for state, lines in self._diagram.finals.items():
            height = 16 + LINE * len(lines)
            self.parts.append(
                f'<rect x="{MARGIN}" y="{top:.0f}" width="{self.width - 2 * MARGIN:.0f}" height="{height}" rx="8" '
                'fill="#f4f4f6" stroke="#888"/>'
            )
            self.parts.append(text(MARGIN + 14, top + 20, state, anchor="start", weight=600))
            for line, words in enumerate(lines):
                self.parts.append(text(MARGIN + 120, top + 20 + LINE * line, words, anchor="start", size=12))
            top += height + 8
        self.bottom = top - 8


class _Side:
    """The arrows at one side of the column: those that lead down are on the right, those that lead up on the left.

    Each arrow leaves and enters its boxes at a port of its own, and has a lane upright.
    """

    def __init__(self, arrows: list[Arrow], place: Mapping[str, int], *, is_down: bool) -> None:
        self._arrows, self._place = arrows, place
        self._lane = self._lanes()
        self.width = LABEL_WIDTH + LANE * (1 + max(self._lane)) if arrows else 0
        self._ports: dict[str, list[tuple[int, bool]]] = {}
        for index, arrow in enumerate(arrows):
            self._ports.setdefault(arrow.source, []).append((index, True))
            self._ports.setdefault(arrow.target, []).append((index, False))
        for ports in self._ports.values():
            # Arrows that come, the innermost first, then arrows that go, the outermost first: so no two of them cross here.
            ports.sort(key=lambda port: (port[1], -self._lane[port[0]] if port[1] else self._lane[port[0]]), reverse=not is_down)
        self._y: dict[tuple[int, bool], float] = {}

    def height(self, state: str) -> float:
        """Return the height that the ports of a box need."""
        return sum(map(self._slot, self._ports.get(state, ())))

    def settle(self, state: str, top: float) -> None:
        """Give the ports of a box their places, from `top` on."""
        for port in self._ports.get(state, ()):
            top += self._slot(port)
            self._y[port] = top - 8

    def drawn(self, edge: float, direction: int) -> list[str]:
        """Return the arrows and their labels. `edge`: that of the boxes. `direction`: 1 to the right, -1 to the left."""
        parts, labels = list[str](), list[str]()
        for index, arrow in enumerate(self._arrows):
            start, end = self._y[index, True], self._y[index, False]
            lane = edge + direction * (LABEL_WIDTH + LANE * (self._lane[index] + 0.5))
            path = f'<path d="M{edge:.0f} {start:.0f}H{lane:.0f}V{end:.0f}H{edge:.0f}"'
            parts.append(f'{path} fill="none" stroke="#335" stroke-width="1.4" marker-end="url(#tip)"/>')
            anchor = "start" if direction > 0 else "end"
            for number, label in enumerate(reversed(_lines(arrow))):
                labels.append(text(edge + direction * 10, start - 5 - LINE * number, label, anchor=anchor, size=12))
        return parts + labels

    def _slot(self, port: tuple[int, bool]) -> float:
        index, is_source = port
        return LINE * len(_lines(self._arrows[index])) + 12 if is_source else 18

    def _lanes(self) -> list[int]:
        """The lane of each arrow, the innermost 0: short arrows inside, no two that overlap in one lane."""
        taken = list[list[tuple[int, int]]]()
        lanes = [0] * len(self._arrows)
        spans = [sorted((self._place[arrow.source], self._place[arrow.target])) for arrow in self._arrows]
        for index in sorted(range(len(spans)), key=lambda i: spans[i][1] - spans[i][0]):
            low, high = spans[index]
            lane = next((n for n, found in enumerate(taken) if all(high <= a or b <= low for a, b in found)), len(taken))
            if lane == len(taken):
                taken.append([])
            taken[lane].append((low, high))
            lanes[index] = lane
        return lanes


def _lines(arrow: Arrow) -> list[str]:
    return [line for label in arrow.labels for line in textwrap.wrap(label, LABEL)]


def text(x: float, y: float, words: str, *, anchor: str = "middle", weight: int = 400, size: int = 14, fill: str = "#223") -> str:
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}"{bold} fill="{fill}">{escape(words)}</text>'
