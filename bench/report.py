"""What a run leaves: a table on the terminal, `results.json`, and `results.md`, both in `RESULTS`.

A run replaces the rows that it measured and leaves the others as they were; each row says when and on what machine it was made.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from . import RESULTS
from .contest import Result, Unit

RESULT, TABLE = RESULTS / "results.json", RESULTS / "results.md"


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of results.json. `figure`, `baseline`: medians; `ratio`: the median of the rounds' ratios, half of which lie between
    `low` and `high`; `bar`: 0 for none; `load`: the largest share of a processor that the load generator took; `cpu`: the
    milliseconds of processor time for one unit of the figure and of the baseline, where they were counted."""

    name: str
    what: str
    against: str
    unit: Unit
    figure: float
    baseline: float
    ratio: float
    low: float
    high: float
    rounds: int
    bar: float
    met: bool
    load: float
    machine: str
    measured: str
    cpu: tuple[float, float] = (0.0, 0.0)


def machine() -> str:
    """The machine in a line."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    model = names[0] if names else platform.machine()
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, Linux {platform.release()}, Python {platform.python_version()}"


def line_of(result: Result, machine: str) -> Line:
    """A result as it is kept."""
    row, (low, high) = result.row, result.spread
    return Line(
        name=row.name,
        what=row.what,
        against=row.against,
        unit=row.unit,
        figure=round(result.figure, 3),
        baseline=round(result.baseline, 3),
        ratio=round(result.ratio, 3),
        low=round(low, 3),
        high=round(high, 3),
        rounds=len(result.figures),
        bar=row.bar,
        met=row.meets(result.ratio),
        load=round(result.load, 2),
        machine=machine,
        measured=time.strftime("%Y-%m-%d", time.gmtime()),
        cpu=(round(result.cpu[0], 4), round(result.cpu[1], 4)),
    )


def keep(lines: Sequence[Line], order: Sequence[str]) -> None:
    """Put lines among the kept ones, in this order of names, and write both files."""
    kept = msgspec.json.decode(RESULT.read_bytes(), type=list[Line]) if RESULT.exists() else []
    merged = {line.name: line for line in (*kept, *lines)}
    ordered = [merged[name] for name in order if name in merged]
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n")
    TABLE.write_text("<!-- Made by `make bench`; see README.md for what each row is. -->\n\n" + markdown(ordered))


def table(lines: Sequence[Line]) -> Table:
    """For the terminal."""
    shown = Table("row", box=None, pad_edge=False)
    for name in ("figure", "baseline", "ratio", "half of the rounds", "bar", ""):
        shown.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        verdict = ("[green]met[/]" if line.met else "[red]missed[/]") if line.bar else ""
        shown.add_row(line.name, *_cells(line), verdict)
    return shown


def markdown(lines: Sequence[Line]) -> str:
    """The table, and where it was made. It has a column for the processor time where a line has one."""
    counted = any(line.cpu[0] for line in lines)
    columns = ("row", "what", "against", "figure", "baseline", "ratio", "half of the rounds", "bar", "")
    heads, marks = [*columns], ["---"] * 3 + ["--:"] * 5 + ["---"]
    if counted:
        heads[6:6], marks[6:6] = ["processor, ms", "of the baseline"], ["--:", "--:"]
    rows = [f"| {' | '.join(heads)} |", f"|{'|'.join(marks)}|"]
    for line in lines:
        cells = [f"`{line.name}`", line.what, line.against, *_cells(line)]
        cells[6:6] = [f"{each:.3f}" if each else "" for each in line.cpu] if counted else []
        verdict = ("met" if line.met else "**missed**") if line.bar else ""
        rows.append(f"| {' | '.join((*cells, verdict))} |")
    machines: dict[str, list[Any]] = {}
    for line in lines:
        machines.setdefault(f"{line.machine}; measured {line.measured}", []).append(f"`{line.name}`")
    if len(machines) == 1:
        made = [f"On {next(iter(machines))}."]
    else:
        made = [f"- {', '.join(names)}: on {where}." for where, names in machines.items()]
    return "\n".join([*rows, "", *made, ""])


def _cells(line: Line) -> tuple[str, ...]:
    spread, sign = f"{line.low:.2f}–{line.high:.2f}", "≤" if line.unit == "ms" else "≥"
    bar = f"{sign} {line.bar:g}" if line.bar else ""
    return _amount(line.figure, line.unit), _amount(line.baseline, line.unit), f"{line.ratio:.2f}", spread, bar


def _amount(value: float, unit: Unit) -> str:
    return f"{value:.2f} ms" if unit == "ms" else f"{value:,.0f}/s"
