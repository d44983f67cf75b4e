"""`make bench-attacks`: what an attack on an election costs. Ends with status 1 when a gate is missed.

`--quick` tries three small worlds, `--table` some tables; both keep nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import plots, report
from .laboratory import Found, Table
from .lines import lines_of, missed
from .trials import MAKERS, measure

MAIN: tuple[Table, ...] = ("flood", "corrupt", "unreported")
ASIDE: dict[int, tuple[Table, ...]] = {
    300: ("random", "brief", "clones", "anchors", "without", "flooding", "timing", "truncation", "bribery", "capture"),
    3000: ("anchors", "without", "few", "flooding", "timing", "bribery"),
}
EVENTS: tuple[Table, ...] = ("moved", "lapsing", "thin", "deprecation", "versions", "flipflop", "censorship")
"""Ordinary events, with 300 principals. The product decides whole topics there, so a world takes minutes."""
ONCE: tuple[Table, ...] = ("litter", "farming", "tenure", "parameters")
"""These hardly depend on the world, or not at all."""
WORLDS, ASIDES, EVENTFUL = 20, 6, 4
"""How many worlds the main tables, the others, and those of events are the medians of."""


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.attacks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three small worlds; nothing is kept")
    parser.add_argument("--table", action="append", choices=sorted(MAKERS), help="only this; may be repeated; nothing is kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    arguments = parser.parse_args()
    console = Console(highlight=False, emoji=False)
    jobs = list(_jobs(quick=arguments.quick))
    if arguments.table:
        wanted = [(size, seed, tuple(table for table in tables if table in arguments.table)) for size, seed, tables in jobs]
        jobs = [job for job in wanted if job[2]]
    lines = lines_of(_run(jobs, arguments.jobs, console))
    if not arguments.quick and not arguments.table:
        report.keep(lines)
        plots.draw(lines)
    console.print(Markdown(report.markdown(lines)))
    short = missed(lines)
    for line in short:
        console.print(f"[red]missed[/]: {line.table}, n = {line.size}, {line.goal}, turnout {line.turnout:g}: {line.median}")
    console.print("[red]A gate is missed.[/]" if short else "[green]Every gate is met.[/]")
    return 1 if short else 0


def _jobs(*, quick: bool) -> Iterator[tuple[int, int, tuple[Table, ...]]]:
    """Size, seed and tables of each world; the long ones first."""
    for size in (300,) if quick else (3000, 300):
        for seed in range(1, 4 if quick else WORLDS + 1):
            aside = ASIDE[size] if seed <= (1 if quick else ASIDES) else ()
            events = EVENTS if size == 300 and seed <= (1 if quick else EVENTFUL) else ()
            once = ONCE if seed == 1 and size == 300 else ()
            # Worlds of events first: they take longest, and so do not wait alone at the end.
            if events:
                yield size, seed, events
            yield size, seed, (*MAIN, *(("baseline",) if size == 300 else ()), *aside, *once)


def _run(jobs: list[tuple[int, int, tuple[Table, ...]]], processes: int, console: Console) -> list[Found]:
    found: list[Found] = []
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress, ProcessPoolExecutor(processes) as pool:
        task = progress.add_task("worlds", total=len(jobs))
        for future in as_completed([pool.submit(measure, *job) for job in jobs]):
            found += future.result()
            progress.advance(task)
    return found


if __name__ == "__main__":
    sys.exit(main())
