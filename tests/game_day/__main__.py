"""Run a game day, and print which alert fired and ended after how many seconds. Needs Linux, root, and Debian's packages.

make game-day [ONLY=TreatyDown,TreatyErrors]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .monitoring import FACTOR, RULES, monitoring
from .provocations import ALONE_AT_LAST, TOGETHER, Day, Provocation
from .stage import stage, tell, traffic

_PATIENCE = 240.0  # seconds for an alert to fire, and to end
_SILENCE = 300 / FACTOR
"""Seconds after which the receiver of the watchdog calls a person."""


@dataclass(frozen=True)
class Seen:
    """What became of one alert. `fired`: seconds from the fault; `ended`: seconds from the mend; None where it did not."""

    alert: str
    how: str
    fired: float | None
    ended: float | None
    page: str


async def play(day: Day, provocation: Provocation) -> list[Seen]:
    """Provoke the alerts of one fault, mend it, and wait for their end."""
    fired: dict[tuple[str, str], float] = {}
    ended: dict[tuple[str, str], float] = {}
    alerts, begin, failure = set(provocation.alerts), time.monotonic(), ""
    try:
        async with provocation.run(day):
            begin = time.monotonic()
            while alerts - set(fired) and time.monotonic() - begin < _PATIENCE:
                for alert in alerts & await day.monitoring.firing() - set(fired):
                    fired[alert] = time.monotonic() - begin
                await asyncio.sleep(0.5)
            # For the message of what fired last, which waits for others.
            await asyncio.sleep(8)
        mended = time.monotonic()
        while set(fired) - set(ended) and time.monotonic() - mended < 2 * _PATIENCE:
            for alert in set(fired) - set(ended) - await day.monitoring.firing():
                ended[alert] = time.monotonic() - mended
            await asyncio.sleep(0.5)
        failure = pages(day, provocation, begin, mended)
    # The other provocations of the day go on, and the table shows that this one failed.
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return [
        Seen(name, provocation.how, fired.get((name, job)), ended.get((name, job)), failure) for name, job in provocation.alerts
    ]


def pages(day: Day, provocation: Provocation, begin: float, mended: float) -> str:
    """Return which pages were sent if there were others than the only one."""
    if not provocation.one_page:
        return ""
    job = provocation.alerts[0][1]
    sent = {
        message.name
        for message in day.monitoring.messages
        if (message.receiver, message.job, message.status) == ("page", job, "firing") and begin <= message.at <= mended
    }
    return "" if sent == {provocation.one_page} else f"pages: {', '.join(sorted(sent)) or 'none'}"


async def dead_mans_switch(day: Day) -> Seen:
    """Stop Prometheus, and wait for the time at which the receiver calls a person."""
    how, prometheus = "SIGSTOP to Prometheus: its receiver hears nothing", day.monitoring.processes[0].pid

    def heard() -> float:
        return max((message.at for message in day.monitoring.messages if message.receiver == "alive"), default=0.0)

    begin = time.monotonic()
    tell(signal.SIGSTOP, prometheus)
    while (now := time.monotonic()) - heard() < _SILENCE and now - begin < _PATIENCE:  # noqa: ASYNC110 (no message is no event)
        await asyncio.sleep(0.5)
    rang = now - begin if now - heard() >= _SILENCE else None
    tell(signal.SIGCONT, prometheus)
    mended = time.monotonic()
    while heard() < mended and time.monotonic() - mended < _PATIENCE:  # noqa: ASYNC110 (another program's message)
        await asyncio.sleep(0.5)
    return Seen("TreatyWatchdog", how, rang, heard() - mended if heard() > mended else None, "")


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """A folder for the day. Others may traverse it: PostgreSQL, which root starts, runs as another user."""
    with tempfile.TemporaryDirectory(prefix="treaty-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


async def main(only: list[str]) -> bool:
    """Run the day. Returns whether each alert fired and ended, and each fault was one page."""
    console = Console()
    with folder_for_all() as folder:
        async with stage(folder) as stage_of_day, monitoring(folder) as watching:
            day = Day(stage_of_day, watching, {job: [*ports] for job, ports in stage_of_day.targets.items()})
            day.scrape()
            busy = asyncio.create_task(traffic(stage_of_day))
            await asyncio.sleep(30)  # for rates to have their samples
            seen: list[Seen] = []

            async def run(group: tuple[Provocation, ...]) -> None:
                for each in group:
                    if not only or any(name in only for name, _ in each.alerts):
                        for entry in await play(day, each):
                            console.print(entry.alert, entry.fired, entry.ended, entry.page)
                            seen.append(entry)

            await asyncio.gather(*(run(group) for group in TOGETHER))
            await run(ALONE_AT_LAST)
            if not only or "TreatyWatchdog" in only:
                seen.append(await dead_mans_switch(day))
            busy.cancel()
    show(console, seen)
    return all(each.fired is not None and each.ended is not None and not each.page for each in seen)


def show(console: Console, seen: list[Seen]) -> None:
    """Print the table, and the alerts that no provocation fires."""
    table = Table(title=f"Game day: every duration of the rules is divided by {FACTOR}")
    for column in ("alert", "provoked by", "fired after s", "ended after s", "runbook", "remark"):
        table.add_column(column, overflow="fold")
    for each in seen:
        times = ["–" if value is None else f"{value:.0f}" for value in (each.fired, each.ended)]
        table.add_row(each.alert, each.how, *times, f"#{each.alert.lower()}", each.page)
    console.print(table)
    rules = (RULES / "alerts.yml").read_text().split("- alert: ")[1:]
    missing = sorted({rule.partition("\n")[0] for rule in rules} - {each.alert for each in seen})
    console.print(f"Not provoked: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("A game day needs root: it fills a disk of its own, and limits the descriptors of a process.")
    # For this program alone: the processes that it starts have the packages of the environment.
    os.environ.pop("PYTHONPATH", None)
    sys.exit(not asyncio.run(main([*filter(None, os.environ.get("ONLY", "").split(","))])))
