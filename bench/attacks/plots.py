"""Pictures of a run for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image  # of matplotlib, which the development group names

from .laboratory import FLOOD, TURNOUTS
from .lines import GATES, Line
from .trials import METHODS

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
COLOURS = {"promote": "#1f5fa8", "block": "#b5442c"}


def draw(lines: Sequence[Line]) -> None:
    """All pictures that `lines` have the figures for."""
    PICTURES.mkdir(exist_ok=True)
    for name, make in {"turnout": _turnout, "methods": _methods, "defences": _defences, "anchors": _anchors}.items():
        figure = make(lines)
        if figure is not None:
            path = PICTURES / f"attacks-{name}.png"
            figure.savefig(path, dpi=110, metadata={"Software": None})
            plt.close(figure)
            # A palette makes a third of the bytes: a page of the documentation with three pictures stays small.
            with Image.open(path) as picture:
                picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def _turnout(lines: Sequence[Line]) -> Figure | None:
    """What must be corrupted at each turnout, and where the silent do not even report."""
    sizes = sorted({line.size for line in lines if line.table == "corrupt"})
    if not sizes:
        return None
    figure, axes = plt.subplots(1, len(sizes), figsize=(4.6 * len(sizes), 3.6), sharey=True, squeeze=False, layout="constrained")
    for size, panel in zip(sizes, axes[0], strict=True):
        for goal, colour in COLOURS.items():
            for table, detail, style in (("corrupt", "best", "-o"), ("unreported", "", ":o")):
                found = {
                    line.turnout: line.median
                    for line in lines
                    if (line.table, line.size, line.goal, line.detail) == (table, size, goal, detail)
                }
                at = [turnout for turnout in TURNOUTS if found.get(turnout) is not None]
                name = goal if table == "corrupt" else f"{goal}, the silent do not report"
                panel.plot(
                    [100 * t for t in at], [100 * (found[t] or 0) for t in at], style, color=colour, label=name, markersize=4
                )
            panel.axhline(100 * GATES[goal], color=colour, linewidth=0.8, linestyle="--")
        panel.set_title(f"{size:,} honest principals", fontsize=10)
        panel.set_xlabel("turnout, %")
        _plain(panel)
    axes[0][0].set_ylabel("corrupted, % of the honest")
    axes[0][0].set_ylim(0)
    axes[0][0].legend(fontsize=8, frameon=False)
    return figure


def _methods(lines: Sequence[Line]) -> Figure | None:
    """What must be bought when nobody is corrupted."""
    names = list(METHODS)
    found = {f"{line.goal}/{line.detail}": line.median for line in lines if line.table == "baseline" and line.turnout == 1.0}
    if not found:
        return None
    figure, panel = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for number, name in enumerate([*names, "this design"]):
        for shift, (goal, colour) in zip((-0.2, 0.2), COLOURS.items(), strict=True):
            cost = found.get(f"{goal}/{name}/bought")
            panel.barh(number + shift, cost or FLOOD, 0.36, color=colour, alpha=1 if cost else 0.25)
            text = f"{cost:,.0f}" if cost else f"not with {FLOOD:,}"
            panel.text((cost or FLOOD) * 1.08, number + shift, text, va="center", fontsize=8)
    panel.set_yticks(range(len(names) + 1), [*names, "this design"], fontsize=9)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(1, FLOOD * 12)
    panel.set_xlabel("did:keys or domains that flip a decision of 300 honest voters")
    panel.legend([Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()], list(COLOURS), fontsize=8, frameon=False)
    _plain(panel)
    return figure


def _defences(lines: Sequence[Line]) -> Figure | None:
    """What must be corrupted without a defence, where that is the worst."""
    size = max((line.size for line in lines if line.table == "without"), default=0)
    if not size:
        return None
    bars = {"the whole rule": ("corrupt", "best"), "everybody lends half\nof all it has": ("without", "lending")}
    bars["strangers imply\nballots too"] = ("without", "vouched")
    figure, panel = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for number, (table, detail) in enumerate(bars.values()):
        for shift, (goal, colour) in zip((-0.2, 0.2), COLOURS.items(), strict=True):
            wanted = (table, size, goal, detail, 0.1)
            cost = next(line.median for line in lines if (line.table, line.size, line.goal, line.detail, line.turnout) == wanted)
            panel.bar(number + shift, 100 * (cost or 0), 0.36, color=colour, label=goal if number == 0 else None)
            panel.text(number + shift, 100 * (cost or 0) + 0.5, f"{100 * (cost or 0):.1f}", ha="center", fontsize=8)
    panel.set_xticks(range(len(bars)), list(bars), fontsize=9)
    panel.set_ylabel("corrupted, % of the honest")
    panel.set_title(f"{size:,} honest principals, turnout 10 %", fontsize=10)
    panel.legend(fontsize=8, frameon=False)
    _plain(panel)
    return figure


def _anchors(lines: Sequence[Line]) -> Figure | None:
    """What must be corrupted with so many anchors."""
    size = max((line.size for line in lines if line.table == "few"), default=0)
    if not size:
        return None
    figure, panel = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    for goal, colour in COLOURS.items():
        found = sorted(
            (int(line.detail), line.median) for line in lines if (line.table, line.size, line.goal) == ("few", size, goal)
        )
        panel.plot([n for n, _ in found], [100 * (f or 0) for _, f in found], "-o", color=colour, label=goal, markersize=4)
        panel.axhline(100 * GATES[goal], color=colour, linewidth=0.8, linestyle="--")
    panel.set_xscale("log")
    panel.set_xticks([n for n, _ in found], [str(n) for n, _ in found])
    panel.minorticks_off()
    panel.set_ylim(0)
    panel.set_xlabel(f"anchors of {size:,} honest principals")
    panel.set_ylabel("corrupted, % of the honest")
    panel.legend(fontsize=8, frameon=False)
    _plain(panel)
    return figure


def _plain(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
