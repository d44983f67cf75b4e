"""`python -m bench workers`: the processor time of a new session's worker, until its handler has had its first event.

Workers of one package start one after the other, from a template that runs already, with the code in the cache. Counted are the
process of each, and what its start took of the template and of this process. The process between template and worker, which makes
the namespaces and ends before it could be read, is not in the figures: it takes about a millisecond of the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console

from treaty_handler import Opened
from treaty_sandbox import CodeCache, SandboxPool

from . import RESULTS, report
from .servers import REPOSITORY
from .sessions import family

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the handler with code is the tests' own
from sandboxed import sandboxed_package

WORKERS = 100
BAR = 5.0
"""Milliseconds of a worker with its template."""
RESULT = RESULTS / "workers.json"


class Figure(msgspec.Struct, frozen=True):
    """What is kept of a run: medians, in milliseconds of processor time. `agent`: of this process, which asks for the worker."""

    workers: int
    worker: float
    template: float
    agent: float
    bar: float
    met: bool
    machine: str
    measured: str


async def measure(number: int) -> Figure:
    """Start so many workers."""
    package, spent = sandboxed_package("1.1"), list[tuple[float, float, float]]()
    role = next(iter(package.manifest.roles))
    with tempfile.TemporaryDirectory() as folder:
        code = CodeCache(Path(folder))
        async with SandboxPool(size=0) as pool:
            for _ in range(number + 1):
                before, began = _processors(), time.process_time()
                worker, session = await pool.open_code(package, role, local="did:key:a", peer="did:key:b", code_cache=code)
                await session.handle(Opened())
                agent, after = time.process_time() - began, _processors()
                own = sum(taken for pid, taken in after.items() if pid not in before)
                others = sum(taken - before[pid] for pid, taken in after.items() if pid in before)
                spent.append((own, others, 1000 * agent))
                await worker.close()
    # Without the first one, which starts the template and compiles the handler.
    own, others, agent = (round(median(column), 2) for column in zip(*spent[1:], strict=True))
    where, today = report.machine(), time.strftime("%Y-%m-%d", time.gmtime())
    return Figure(number, own, others, agent, BAR, own + others <= BAR, where, today)


def _processors() -> dict[int, float]:
    """Return the milliseconds of all processes below this one."""
    taken = dict[int, float]()
    for pid in family(os.getpid())[1:]:
        try:
            taken[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
        except OSError:  # it is gone
            continue
    return taken


def main(arguments: list[str]) -> int:
    """Run, show the figure and keep it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench workers", description=__doc__)
    parser.add_argument("--number", type=int, default=WORKERS, help=f"how many (default: {WORKERS})")
    figure = asyncio.run(measure(parser.parse_args(arguments).number))
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figure), indent=2) + b"\n")
    console = Console(highlight=False, emoji=False)
    verdict = "[green]met[/]" if figure.met else "[red]missed[/]"
    console.print(f"{figure.worker} ms a worker, {figure.template} of the template (bar {figure.bar}): {verdict}")
    console.print(f"{figure.agent} ms of the agent")
    return 0
