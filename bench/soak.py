"""`make soak MINUTES=n`: mixed traffic on a registry for hours, and whether memory, descriptors and latency stay flat.

Authors log statements and readers ask for checkpoints, tiles, pages, searches and records. Every few seconds
the registry's memory (proportional set size, with its workers and without PostgreSQL), its descriptors and the time of a read and
of a write are kept. A figure is flat when the median of the last fifth is at most 1.2 times that of the second fifth; the first
one warms up. Latencies are divided by a control: the time of fixed work of the bench at the same moment, since other work on the
machine delays both. `soak.json` has the samples, `soak.png` the curves.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import matplotlib as mpl
import msgspec
from rich.console import Console

from treaty_consensus.kinds import Grant
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle
from treaty_io.identity import Identity

from . import RESULTS, report
from .servers import Registry, registry, workspace
from .sessions import family

mpl.use("Agg")
from matplotlib import pyplot as plt

FLAT = 1.2
RESULT = RESULTS / "soak.json"
PICTURE = RESULTS / "soak.png"
_WRITERS, _READERS = 4, 4
_EVERY = 2.0


class Sample(msgspec.Struct, frozen=True):
    """What was seen at one time. `at`: seconds since the start; `memory`: MiB; `read`, `write`: medians in milliseconds since the
    sample before; `control`: milliseconds of the fixed work; `leaves`: of the log."""

    at: float
    memory: float
    descriptors: int
    read: float
    write: float
    control: float
    leaves: int


class Figure(msgspec.Struct, frozen=True):
    """What is kept. `memory`, `descriptors`, `read`, `write`: the last fifth, as a ratio to the second one; `refused`: answers
    429 and 503; `wrong`: any others that were no success."""

    minutes: float
    requests: int
    statements: int
    refused: int
    wrong: int
    memory: float
    descriptors: float
    read: float
    write: float
    met: bool
    load: float
    machine: str
    measured: str
    samples: list[Sample]


class _Traffic:
    """Everybody who uses the registry."""

    def __init__(self, served: Registry) -> None:
        self._served = served
        self.reads: list[float] = []
        self.writes: list[float] = []
        self.requests = self.statements = self.refused = self.wrong = self.leaves = 0

    async def write(self, client: httpx.AsyncClient) -> None:
        """Log one statement after another."""
        author = Identity.create()
        for number in range(sys.maxsize):
            body = Grant(author.parsed.namespace, f"did:wba:friend-{number}.example", withdrawn=number % 7 == 6)
            leaf = author.statement(body, log=self._served.origin, issued=int(time.time())).leaf
            begun = time.monotonic()
            answer = await client.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
            if self._took(answer):
                self.writes.append(time.monotonic() - begun)
                self.statements += 1
            await asyncio.sleep(0.05)

    async def read(self, client: httpx.AsyncClient) -> None:
        """Read all that there is, in turn."""
        while True:
            newest = max(0, self.leaves - 1) // TILE_WIDTH
            full = Bundle(newest - 1, TILE_WIDTH).path if newest else "/log"
            for path in ("/checkpoint", "/log", "/topics", "/protocols?q=product", "/", "/schema", full, "/missing"):
                begun = time.monotonic()
                answer = await client.get(path, headers={"Accept": "text/html" if path == "/" else "application/json"})
                if path == "/missing":
                    self.wrong += answer.status_code != 404
                elif self._took(answer):
                    self.reads.append(time.monotonic() - begun)
                if path == "/checkpoint" and answer.status_code == 200:
                    self.leaves = int(answer.text.split("\n")[1])
                await asyncio.sleep(0.02)

    def _took(self, answer: httpx.Response) -> bool:
        self.requests += 1
        if answer.status_code in (429, 503):
            self.refused += 1
        elif not answer.is_success:
            self.wrong += 1
        return answer.is_success


def _sample(process: int, traffic: _Traffic, begun: float) -> Sample:
    memory = descriptors = 0
    for pid in family(process):
        # A process that has ended meanwhile has neither.
        with suppress(OSError):
            if "postgres" not in Path(f"/proc/{pid}/comm").read_text():
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                memory += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
                descriptors += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())

    def median(values: list[float]) -> float:
        taken, values[:] = list(values), []
        return round(1000 * statistics.median(taken), 2) if taken else 0.0

    at, started = round(time.monotonic() - begun, 1), time.monotonic()
    for _ in range(2_000):
        hashlib.sha256(b"x" * 1_000).hexdigest()
        time.sleep(0)  # a server, too, gives its turn to others at each request
    control = round(1000 * (time.monotonic() - started), 2)
    return Sample(
        at, round(memory / 1024, 1), descriptors, median(traffic.reads), median(traffic.writes), control, traffic.leaves
    )


async def measure(minutes: float, console: Console) -> Figure:
    """Run it."""
    load, samples = round(os.getloadavg()[0], 1), list[Sample]()
    with workspace() as folder:
        async with registry(folder) as served:
            traffic, begun = _Traffic(served), time.monotonic()
            limits = httpx.Limits(max_connections=_WRITERS + _READERS)
            async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=60, trust_env=False) as client:
                works = [traffic.write(client) for _ in range(_WRITERS)] + [traffic.read(client) for _ in range(_READERS)]
                tasks = [asyncio.create_task(work) for work in works]
                while time.monotonic() < begun + 60 * minutes and not any(task.done() for task in tasks):
                    await asyncio.sleep(_EVERY)
                    samples.append(await asyncio.to_thread(_sample, served.process, traffic, begun))
                for task in tasks:
                    task.cancel()
                for task in tasks:
                    with suppress(asyncio.CancelledError):
                        await task
    ratios = {name: _ratio([getattr(sample, name) for sample in samples]) for name in ("memory", "descriptors")}
    ratios |= {name: _ratio([getattr(sample, name) / sample.control for sample in samples]) for name in ("read", "write")}
    return Figure(
        minutes=minutes,
        requests=traffic.requests,
        statements=traffic.statements,
        refused=traffic.refused,
        wrong=traffic.wrong,
        **ratios,
        met=not traffic.wrong and all(ratio <= FLAT for ratio in ratios.values()),
        load=load,
        machine=report.machine(),
        measured=time.strftime("%Y-%m-%d", time.gmtime()),
        samples=samples,
    )


def _ratio(values: Sequence[float]) -> float:
    """Return the median of the last fifth, as a ratio to that of the second one."""
    fifth = max(1, len(values) // 5)
    return round(statistics.median(values[-fifth:]) / max(0.001, statistics.median(values[fifth : 2 * fifth] or values)), 2)


def draw(figure: Figure, path: Path) -> None:
    """Draw the curves."""
    times = [sample.at / 60 for sample in figure.samples]
    picture, axes = plt.subplots(4, 1, sharex=True, figsize=(8, 8))
    for axis, name, unit in zip(axes, ("memory", "descriptors", "read", "write"), ("MiB", "open", "ms", "ms"), strict=True):
        axis.plot(times, [getattr(sample, name) for sample in figure.samples], linewidth=0.8)
        axis.set_ylabel(f"{name}, {unit}")
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel(f"minutes; {figure.requests:,} requests, {figure.statements:,} statements")
    picture.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(picture)


def main(arguments: Sequence[str]) -> int:
    """Run, show the figures and keep them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    chosen = parser.parse_args(arguments)
    console = Console(highlight=False)
    figure = asyncio.run(measure(chosen.minutes, console))
    RESULT.write_bytes(msgspec.json.encode(figure) + b"\n")
    draw(figure, PICTURE)
    shown = msgspec.to_builtins(figure)
    del shown["samples"]
    console.print_json(data=shown)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
