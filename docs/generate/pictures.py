"""State diagrams as SVG: boxes in a row, one lane for each arrow, so that no two arrows lie on each other."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

BOX, GAP, LINE, LANE, MARGIN = 170, 170, 15, 30, 24
"""The width of a box, the gap between two, the height of a line of text, that of a lane, and the margin, in pixels."""
LABEL = 24
"""The characters of a line of a label, so that it fits the gap: an arrow's label is in the gap beside its source, which no other
arrow crosses upright."""

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
        y, width = drawn.bottom + 24, max(width, drawn.width)
    return frame(title, description, width, y, parts)


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
        forward = [arrow for arrow in diagram.arrows if self._place[arrow.source] < self._place[arrow.target]]
        back = [arrow for arrow in diagram.arrows if self._place[arrow.source] > self._place[arrow.target]]
        self.width = 2 * MARGIN + (BOX + GAP) * (len(diagram.states) - 1) + BOX
        self.parts = [text(MARGIN, top + 16, diagram.title, anchor="start", weight=700, size=16)]
        above, heights = self._lanes(forward), self._heights
        box_top = top + 30 + sum(heights)
        self._box_height = 30.0 + LINE * max((len(notes) for notes in diagram.notes.values()), default=0)
        self._arrows(forward, above, heights, box_top, up=True)
        below, heights = self._lanes(back), self._heights
        self._arrows(back, below, heights, box_top + self._box_height, up=False)
        for state in diagram.states:
            self._box(state, box_top)
        self.bottom = box_top + self._box_height + sum(heights) + 10
        if diagram.finals:
            self._finals(self.bottom + 8)

    def _lanes(self, arrows: list[Arrow]) -> list[int]:
        """The lane of each arrow, the innermost 0: short arrows inside, no two that overlap in one lane."""
        taken = list[list[tuple[int, int]]]()
        lanes = [0] * len(arrows)
        self._heights = []
        order = sorted(range(len(arrows)), key=lambda i: abs(self._place[arrows[i].source] - self._place[arrows[i].target]))
        for index in order:
            low, high = sorted((self._place[arrows[index].source], self._place[arrows[index].target]))
            lane = next((n for n, spans in enumerate(taken) if all(high <= a or b <= low for a, b in spans)), len(taken))
            if lane == len(taken):
                taken.append([])
                self._heights.append(0)
            taken[lane].append((low, high))
            self._heights[lane] = max(self._heights[lane], LANE + LINE * (len(_lines(arrows[index])) - 1))
            lanes[index] = lane
        return lanes

    def _arrows(self, arrows: list[Arrow], lanes: list[int], heights: list[int], edge: float, *, up: bool) -> None:
        """Each arrow leaves and enters its boxes at a port of its own, outer lanes nearer to the corner that they come from."""
        ports: dict[str, list[tuple[int, int, int]]] = {}
        for index, arrow in enumerate(arrows):
            for here, there in ((arrow.source, arrow.target), (arrow.target, arrow.source)):
                right = self._place[there] > self._place[here]
                # arrows to the left first, the outermost in the middle, so that lines of one side do not cross
                ports.setdefault(here, []).append((1 if right else 0, -lanes[index] if right else lanes[index], index))
        x = {
            (state, index): self._left(state) + BOX * (number + 1) / (len(found) + 1)
            for state, found in ports.items()
            for number, (_, _, index) in enumerate(sorted(found))
        }
        labels = []
        for index, arrow in enumerate(arrows):
            depth = sum(heights[: lanes[index]]) + heights[lanes[index]] - (LANE - LINE) + 4
            lane = edge - depth if up else edge + depth
            start, end = x[arrow.source, index], x[arrow.target, index]
            path = f'<path d="M{start:.0f} {edge:.0f}V{lane:.0f}H{end:.0f}V{edge:.0f}"'
            self.parts.append(f'{path} fill="none" stroke="#335" stroke-width="1.4" marker-end="url(#tip)"/>')
            gap = self._left(arrow.source) + (BOX + GAP / 2 if end > start else -GAP / 2)
            lines = _lines(arrow)
            for number, label in enumerate(lines if up else reversed(lines)):
                labels.append(text(gap, lane + 12 + LINE * number if up else lane - 5 - LINE * number, label, size=12))
        self.parts += labels

    def _box(self, state: str, top: float) -> None:
        left, middle = self._left(state), self._left(state) + BOX / 2
        self.parts.append(
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX}" height="{self._box_height:.0f}" rx="8" '
            'fill="#eef3ff" stroke="#557"/>'
        )
        self.parts.append(text(middle, top + 20, state, weight=600))
        for number, note in enumerate(self._diagram.notes.get(state, ())):
            self.parts.append(text(middle, top + 36 + LINE * number, note, size=11))

    def _finals(self, top: float) -> None:
        rows = max(map(len, self._diagram.finals.values()))
        width = (self.width - 2 * MARGIN - 16 * (len(self._diagram.finals) - 1)) / len(self._diagram.finals)
        for number, (state, lines) in enumerate(self._diagram.finals.items()):
            left = MARGIN + number * (width + 16)
            self.parts.append(
                f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{34 + LINE * rows}" rx="8" '
                'fill="#f4f4f6" stroke="#888"/>'
            )
            self.parts.append(text(left + width / 2, top + 20, state, weight=600))
            for line, words in enumerate(lines):
                self.parts.append(text(left + width / 2, top + 38 + LINE * line, words, size=11))
        self.bottom = top + 34 + LINE * rows

    def _left(self, state: str) -> float:
        return MARGIN + self._place[state] * (BOX + GAP)


def _lines(arrow: Arrow) -> list[str]:
    return [line for label in arrow.labels for line in textwrap.wrap(label, LABEL)]


def text(x: float, y: float, words: str, *, anchor: str = "middle", weight: int = 400, size: int = 14) -> str:
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}"{bold} fill="#223">{escape(words)}</text>'
