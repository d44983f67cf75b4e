"""`python -m bench burst`: many sessions opened at once between two agents, and when the last one has its first answer.

A shop and a buyer, a process each, without a registry. The buyer opens all sessions at the same moment, calls once in each, keeps
them open until every one has its answer, and calls once more in each. The handler is one with code, whose sessions need a sandbox
on both sides, and the declarative one of the same protocol. Memory is the proportional set size of each process with its workers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from treaty_agent import Agent, AgentConfig, Identity, Policy, SessionTimeouts
from treaty_client.protocols.local import LocalProtocols
from treaty_consensus.errors import TreatyError

from . import RESULTS, report
from .counterpart import PRODUCT
from .publishing import PRODUCT_INFO
from .servers import REPOSITORY, free_port, listens, ready, running, workspace
from .sessions import Memory

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the handler with code is the tests' own
from sandboxed import write_project

BURSTS = (("code", 200), ("declarative", 200), ("code", 500), ("declarative", 500))
PATIENCE = 300.0
"""Seconds for connecting. The bench shows how long it takes; the default of an agent is shorter."""
RESULT = RESULTS / "burst.json"


class Figure(msgspec.Struct, frozen=True):
    """What is kept of a burst. `median`, `last`: seconds until the first answer of a session; `in_time`: sessions that had it
    within the default of `timeouts.connect`; `failed`: calls by their error; memory in MiB, where it was most. `load`:
    processes that wanted a processor when the burst began (the load average of a minute), which were not those of the bench."""

    handler: str
    sessions: int
    answered: int
    in_time: int
    median: float
    last: float
    failed: dict[str, int]
    shop: float
    buyer: float
    load: float
    machine: str
    measured: str


async def measure(handler: str, number: int) -> Figure:
    """Open so many sessions at once."""
    with workspace() as folder:
        project = write_project(folder / "project", "1.1") if handler == "code" else PRODUCT_INFO / "1.1"
        port, log = free_port(), folder / "shop.log"
        command = [sys.executable, "-m", "bench.burst", "--shop", str(project), str(folder / "shop"), str(port)]
        with running(command, log) as process:
            await ready(process, log, lambda: listens(port))
            return await _visit(handler, number, process.pid, project, folder / "buyer", port)


async def _visit(handler: str, number: int, shop: int, project: Path, home: Path, port: int) -> Figure:
    protocols, answered, failed = LocalProtocols([project]), list[float](), Counter[str]()
    load = round(os.getloadavg()[0], 1)
    memories = [Memory(shop), Memory(os.getpid())]
    config = AgentConfig(Policy(), SessionTimeouts(connect=PATIENCE), home=home)
    async with Agent(Identity.create(), protocols, config) as buyer:
        watching = [asyncio.create_task(memory.watch()) for memory in memories]
        all_here, begun = asyncio.Barrier(number), time.monotonic()

        async def session() -> None:
            arrived = False
            try:
                async with buyer.connect(f"ws://127.0.0.1:{port}", protocols=protocols.uris) as session:
                    await session.call("getProductInfo", productId=PRODUCT["productId"])
                    answered.append(time.monotonic() - begun)
                    arrived = True
                    await all_here.wait()
                    await session.call("getProductInfo", productId=PRODUCT["productId"])
            except TreatyError as error:
                failed[error.code] += 1
                if not arrived:
                    await all_here.wait()

        await asyncio.gather(*(session() for _ in range(number)))
        for task in watching:
            task.cancel()
    in_time = sum(seconds <= SessionTimeouts().connect for seconds in answered)
    median, last = round(statistics.median(answered), 1), round(max(answered), 1)
    shops, buyers = (round(memory.peak[0] / 1024, 1) for memory in memories)
    where, today = report.machine(), time.strftime("%Y-%m-%d", time.gmtime())
    return Figure(handler, number, len(answered), in_time, median, last, dict(failed), shops, buyers, load, where, today)


async def keep_shop(project: str, home: str, port: str) -> None:
    """Serve until terminated."""
    protocols = LocalProtocols([project])
    async with Agent(Identity.create(), protocols, AgentConfig(Policy(), home=Path(home))) as shop:

        @shop.provides(protocols.uris[0])
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803 (the operation)
            return PRODUCT

        await shop.serve("127.0.0.1", int(port))


def main(arguments: Sequence[str]) -> int:
    """Run, show the figures and keep them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench burst", description=__doc__)
    parser.add_argument("--number", type=int, help="only so many sessions; nothing is kept")
    number = parser.parse_args(arguments).number
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every process that was started is ended
    console, figures = Console(highlight=False, emoji=False), list[Figure]()
    for handler, usual in BURSTS if number is None else (("code", number), ("declarative", number)):
        with console.status(f"{usual} sessions, {handler}"):
            figure = asyncio.run(measure(handler, usual))
        figures.append(figure)
        console.print(
            f"{handler}: {figure.answered} of {figure.sessions} answered, {figure.in_time} in time, median {figure.median} s, "
            f"last {figure.last} s; shop {figure.shop:,} MiB, buyer {figure.buyer:,} MiB; {figure.failed or 'no failure'}"
        )
    if number is None:
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    return 0


if __name__ == "__main__":
    asyncio.run(keep_shop(*sys.argv[2:]))
