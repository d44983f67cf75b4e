"""Run the agency: a registry, its agents, and trips, with or without faults. README.md shows the options."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from stage import Stage

from .chaos import FULL, PAUSED, ROOM, SHORT, Chaos, of_rounds
from .oracle import LOST, Report, judge
from .world import AUDITOR, DOMAINS, SERVING, TRAVELLER, World, lines_of

FAULTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "short": SHORT,
    "full": FULL,
    "pauses": PAUSED,
    "room": ROOM,
    "all": (*FULL, *PAUSED, *ROOM),
}


def run(root: Path, faults: Sequence[str], *, trips: int, at_once: int, every: float, down: float, quiet: bool = False) -> Report:
    """Start a world below a folder, let trips be arranged amid faults, and judge them."""
    console = Console(stderr=True, quiet=quiet)
    with Stage(root, DOMAINS) as stage:
        world = World(stage, tell=lambda text: console.print(f"  {text}", highlight=False))
        world.start()
        chaos, home = Chaos(world, down), stage.home(TRAVELLER)
        results, more = home / "trips.jsonl", home / "more"
        more.touch()
        pace = ("--trips", str(trips), "--at-once", str(at_once), "--every", str(every))
        traveller = world.start_agent(TRAVELLER, *pace)
        live = Live(get_renderable=lambda: _table(world, chaos, trips), console=console) if console.is_terminal else nullcontext()
        with live:
            chaos.run(faults, trips=trips, finished=lambda: len(lines_of(results)))
            more.unlink()  # no fault may be without trips, however long the faults take
            traveller.succeeds()
        return judge(world, chaos.happened)


def _table(world: World, chaos: Chaos, trips: int) -> Table:
    """The agents, and how far the trips are."""
    results, audits = (
        lines_of(world.stage.home(domain) / file) for domain, file in ((TRAVELLER, "trips.jsonl"), (AUDITOR, "audit.jsonl"))
    )
    codes = Counter(line.get("code", "arranged") for line in results)
    said = Counter({"arranged": codes["arranged"], "lost": sum(codes[code] for code in LOST)})
    table = Table("agent", "serves at", "process", title=f"{len(results)} of {trips} trips. {chaos.now}")
    for domain in DOMAINS:
        process = world.actors[domain].process if domain in world.actors else None
        state = "ended" if process is None or process.poll() is not None else str(process.pid)
        table.add_row(domain, world.hosts[domain] if domain in SERVING else "", state)
    paid = len(audits[-1].get("paid", ())) if audits else 0
    table.caption = (
        f"{said['arranged']} arranged, {said['lost']} lost, {len(results) - said.total()} failed; audited: {paid} paid"
    )
    return table


def _show(report: Report, console: Console) -> None:
    console.print(f"{report.trips} trips: {report.arranged} arranged, lost {report.lost or 0}, failed {report.failed or 0}")
    console.print(f"seconds of a trip, p50 and p99: {report.calm} in calm, {report.in_faults} in faults")
    for name, seconds, longest in report.faults:
        console.print(f"  {name}: {seconds} s, the longest trip {longest} s", highlight=False)
    for sentence in report.mistakes:
        console.print(f"[red]✗[/] {sentence}")
    if not (report.mistakes or report.failed):
        console.print("[green]✓[/] Each trip ended as a person expects, and all ledgers agree.")


def main() -> int:
    """Return 0 if each trip ended as a person expects, 130 after Ctrl-C, else 1."""
    parser = argparse.ArgumentParser(prog="python -m agency", description=__doc__)
    parser.add_argument("--trips", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--every", type=float, default=0.5, help="seconds from one trip to the next")
    parser.add_argument("--faults", choices=FAULTS, default="none")
    parser.add_argument("--rounds", type=int, default=1, help="how often the faults happen")
    parser.add_argument("--down", type=float, default=3.0, help="seconds that a process hangs, and the registry is away")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON value")
    parser.add_argument("--keep", type=Path, help="a new folder for all homes and logs")
    given = parser.parse_args()
    faults = of_rounds(FAULTS[given.faults], given.rounds)
    with nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        try:
            report = run(
                root, faults, trips=given.trips, at_once=given.at_once, every=given.every, down=given.down, quiet=given.json
            )
        except KeyboardInterrupt:
            return 130
    if given.json:
        print(json.dumps(report.value))
    else:
        _show(report, Console())
    return 1 if report.mistakes or report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
