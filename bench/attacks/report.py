"""What a run leaves: `attacks.json` and `attacks.md`. README.md has the tables that docs quote. Figures are medians of worlds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .. import RESULTS
from . import prices, sections
from .laboratory import FLOOD, TURNOUTS
from .lines import Line, Shown, meets_gate, table_of
from .trials import METHODS

JSON, MARKDOWN = RESULTS / "attacks.json", RESULTS / "attacks.md"


def keep(lines: Sequence[Line]) -> None:
    """Write both files."""
    JSON.write_bytes(msgspec.json.format(msgspec.json.encode(lines), indent=1) + b"\n")
    MARKDOWN.write_text(markdown(lines), encoding="utf-8")


def markdown(lines: Sequence[Line]) -> str:
    """All tables."""
    shown = Shown(lines)
    parts = [
        "<!-- Made by `make bench-attacks`; README.md says what each row is. -->",
        *(section for size in shown.sizes for section in _of_size(shown, size)),
        *_alone(shown),
        *_defences(shown),
        *_anchors(shown),
        *sections.sections(shown),
        *prices.section(shown),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _of_size(shown: Shown, size: int) -> list[str]:
    flood = [line for line in shown.by_row.values() if (line.table, line.size) == ("flood", size)]
    worlds = shown.worlds("corrupt", size)
    if not worlds:
        return []
    methods = [
        [name, *(shown.number("baseline", size, goal, turnout, f"{name}/bought") for goal, turnout in _PLAIN)]
        + [shown.share("baseline", size, goal, 1.0, f"{name}/corrupt") for goal in ("promote", "block")]
        for name in METHODS
        if shown.find("baseline", size, "promote", 1.0, f"{name}/bought")
    ]
    bought = [_flooded(flood)] * 4
    methods.append(["this design", *bought, *(shown.share("corrupt", size, goal, 1.0, "best") for goal in ("promote", "block"))])
    ours = [
        [goal, *(shown.share("corrupt", size, goal, turnout, detail) for turnout in TURNOUTS)]
        for detail, goal in (("best", goal) for goal in ("promote", "unopposed", "block", "unseat"))
    ]
    domains = [
        [f"{goal}, {detail} domains", *(shown.share("corrupt", size, goal, turnout, detail) for turnout in TURNOUTS)]
        for goal in ("promote", "block")
        for detail in ("0", "200", "1000")
    ]
    silent = [
        [
            f"{goal}, the silent do not even report",
            "",
            *(shown.share("unreported", size, goal, turnout) for turnout in TURNOUTS[1:]),
        ]
        for goal in ("promote", "block")
    ]
    heads = ["method", "promote, 100 %", "promote, 10 %", "block, 100 %", "block, 10 %", "promote, corrupted", "block, corrupted"]
    turnouts = [f"{100 * turnout:g} %" for turnout in TURNOUTS]
    compared = [
        "What has to be bought (did:keys; domains for the last two) when nobody is corrupted, at two turnouts; and the share of "
        "the honest that has to be corrupted when nothing is bought (against this design: with whatever domains help).",
        table_of(heads, methods),
    ]
    return [
        f"## {size:,} honest principals, {worlds} worlds",
        *(compared if len(methods) > 1 else []),
        f"Did:keys, subdomains or domains that nobody vouches for flip it: {_flooded(flood)}.",
        "The share of the honest that has to be corrupted, by turnout:",
        table_of(["this design", *turnouts], [*ours, *domains, *silent]),
    ]


_PLAIN = (("promote", 1.0), ("promote", 0.1), ("block", 1.0), ("block", 0.1))


def _flooded(flood: Sequence[Line]) -> str:
    return f"not with {FLOOD:,}" if all(meets_gate(line) for line in flood) else "**flipped**"


def _alone(shown: Shown) -> list[str]:
    rows = []
    for size in shown.sizes:
        for goal in ("promote", "block"):
            rows += [
                [f"{goal}, n = {size:,}, corrupted at random, 100 %", shown.share("random", size, goal, 1.0)],
                [f"{goal}, n = {size:,}, corrupted at random, 10 %", shown.share("random", size, goal, 0.1)],
                [f"{goal}, n = {size:,}, with 31 clones, 200 domains", shown.share("clones", size, goal, 1.0)],
                [f"{goal}, n = {size:,}, anchors alone", shown.number("anchors", size, goal, 1.0)],
            ]
        rows += [
            [f"promote, n = {size:,}, within {epochs} epochs, 1,000 domains", shown.share("brief", size, "promote", 1.0, epochs)]
            for epochs in ("3", "4", "6")
        ]
    rows = [row for row in rows if row[1]]
    return ["## Single attacks", table_of(["attack", "least"], rows)] if rows else []


def _defences(shown: Shown) -> list[str]:
    rows = []
    for size in shown.sizes:
        for goal in ("promote", "block"):
            for turnout in (1.0, 0.1):
                cells = [shown.share("without", size, goal, turnout, name) for name in ("lending", "vouched")]
                if any(cells):
                    whole = shown.share("corrupt", size, goal, turnout, "best")
                    rows.append([f"{goal}, n = {size:,}, {100 * turnout:g} %", whole, *cells])
    heads = ["", "whole", "everybody lends half of all it has", "strangers imply ballots too"]
    return ["## What a defence is worth", table_of(heads, rows)] if rows else []


def _anchors(shown: Shown) -> list[str]:
    found = sorted({(line.size, int(line.detail)) for line in shown.by_row.values() if line.table == "few"})
    rows = [
        [f"n = {size:,}", str(number), *(shown.share("few", size, goal, 0.5, str(number)) for goal in ("promote", "block"))]
        for size, number in found
    ]
    return ["## How many anchors", "At a turnout of 50 %.", table_of(["", "anchors", "promote", "block"], rows)] if rows else []
