"""`make bench`: measure every row, show the table, keep it. `--only` takes names of rows and groups.

`python -m bench absence` what a map of the newest statements would cost, `python -m bench agreeing` counts what three ways to
agree take, `python -m bench calling` compares calls with plain HTTP, MCP and A2A, `python -m bench configuring` counts the lines
that open a door to another standard, `python -m bench sessions` what ten thousand
live sessions do, `python -m bench burst` what hundreds of sessions do that are opened at once, `python -m bench durability`
what a receipt costs that promises more than one disk, `python -m bench edges` what an attack edge is worth at most, `python -m
bench election` what the election of a whole network does,
`python -m bench audit` what auditing a million statements does, `python -m bench growth` what everything costs as a registry
grows, `python -m bench floods` what ten thousand hostile connections do to everybody else, `python -m bench strangers` what one
address does at an agent, an AIP gateway, a handoff endpoint and a broker, `python -m bench searching` what a search and its
page cost, `python -m bench pages` what each page costs against the JSON of the same resource, `python -m bench speaking` how
fast three protocols are spoken, `python -m bench storing` how many bytes of PostgreSQL a statement takes, `python -m bench
installing` how large each extra is, `python -m bench overload` what more load than a registry can take does, `python -m bench
soak` what hours of mixed traffic do, `python -m bench tools` what a tool costs through `treaty mcp`, `python -m bench witness`
what a witness of 40,000 logs does, `python -m bench workers` what a new session's sandbox costs.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import (
    absence,
    agreeing,
    audit,
    burst,
    calling,
    configuring,
    durability,
    edges,
    election,
    floods,
    growth,
    installing,
    nodes,
    overload,
    pages,
    report,
    rivals,
    searching,
    sessions,
    soak,
    speaking,
    storing,
    strangers,
    tools,
    witness,
    workers,
)
from .contest import Group, Result, Row, hold, meters_of
from .handshaking import GROUP as HANDSHAKING
from .reading import GROUP as READING
from .sandboxing import GROUP as SANDBOXING
from .voting import GROUP as VOTING
from .voting import ROWS as VOTING_ROWS

GROUPS = (READING, HANDSHAKING, VOTING, SANDBOXING)
PARTS = {
    part.__name__.rpartition(".")[2]: part
    for part in (
        absence,
        agreeing,
        audit,
        burst,
        calling,
        configuring,
        durability,
        edges,
        election,
        floods,
        growth,
        installing,
        nodes,
        overload,
        pages,
        searching,
        sessions,
        soak,
        speaking,
        storing,
        strangers,
        tools,
        witness,
        workers,
    )
}
"""Measurements with results of their own, by the first word of the command line."""


def main() -> int:
    """Run; the exit status."""
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        return int(PARTS[sys.argv[1]].main(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this row or group; may be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each side of a row (default: 5)")
    parser.add_argument("--with-devpi", nargs="?", const="devpi-server", metavar="PROGRAM", help="compare with this devpi-server")
    parser.add_argument("--with-verdaccio", nargs="?", const="verdaccio", metavar="PROGRAM", help="compare with this verdaccio")
    parser.add_argument("--list", action="store_true", help="name the groups and rows")
    arguments = parser.parse_args()
    groups = (*GROUPS, rivals.group(arguments.with_devpi, arguments.with_verdaccio))
    console = Console(highlight=False, emoji=False)
    if arguments.list:
        for group in groups:
            console.print(f"{group.name}: {', '.join(row.name for row in group.rows)}")
        return 0
    names = {name for group in groups for name in (group.name, *(row.name for row in group.rows))}
    if unknown := set(arguments.only) - names:
        parser.error(f"no row or group is called {', '.join(sorted(unknown))}; see --list")
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    chosen = list(_choose(groups, arguments.only))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every process that was started is ended
    where = report.machine()
    console.print(where)
    results = asyncio.run(_measure(chosen, arguments.rounds, console))
    lines = [report.line_of(result, where) for result in results]
    # With those that are not measured here, which stay as they were.
    rows = [row for rows in (*(group.rows for group in GROUPS), VOTING_ROWS, rivals.ROWS) for row in rows]
    report.keep(lines, list(dict.fromkeys(row.name for row in rows)))
    console.print(report.table(lines))
    return 0


def _choose(groups: Iterable[Group], names: list[str]) -> Iterable[tuple[Group, list[Row]]]:
    for group in groups:
        rows = [row for row in group.rows if not names or group.name in names or row.name in names]
        if rows:
            yield group, rows


async def _measure(chosen: list[tuple[Group, list[Row]]], rounds: int, console: Console) -> list[Result]:
    """All groups, one after the other."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn only between samples, so that drawing takes no time from what is measured.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        total = sum(1 + rounds * group.turns * len(meters_of(rows)) for group, rows in chosen)
        task = progress.add_task("", total=total)

        def tell(name: str) -> None:
            progress.update(task, description=name, advance=1)
            progress.refresh()

        results: list[Result] = []
        for group, rows in chosen:
            tell(f"{group.name}: the scene")
            results += await hold(group, rows, rounds, tell)
        return results


if __name__ == "__main__":
    sys.exit(main())
