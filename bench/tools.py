"""`python -m bench tools`: a call of a native tool through `treaty mcp`, against a plain tool of MCP that does the same work.

Both are servers over pipes, called by the official client. The plain one answers itself. `treaty mcp` calls the agent of `calls`
in an open session, with a protocol that it verified at a registry. The two take turns, in the opposite order each time. A ratio
is that of a turn's medians; the figure is the median of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from mcp import Client, StdioServerParameters
from rich.console import Console

from . import RESULTS, report
from .calling import FOLDER, new_home
from .publishing import author
from .servers import free_port, listens, ready, registry, running, workspace

RESULT = RESULTS / "tools.json"
BAR = 2.0
PRODUCT = {"productId": "P12345"}
CALLS = 50


class Figure(msgspec.Struct, frozen=True):
    """What is kept of a run: milliseconds, and the ratio with its bar."""

    plain: float
    native: float
    ratio: float
    bar: float
    met: bool
    turns: int
    machine: str
    measured: str


@asynccontextmanager
async def scene() -> AsyncIterator[dict[str, Client]]:
    """The official client of each server: `plain`, `native`."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(workspace())
        served = await stack.enter_async_context(registry(folder))
        writer = await stack.enter_async_context(author(served, folder))
        uri, port, log = await writer.publish("1.1"), free_port(), folder / "agent.log"
        homes = [new_home(folder, served, writer) for _ in range(2)]
        command = [sys.executable, str(FOLDER / "treaty_server.py"), str(port), str(homes[0]), uri]
        process = stack.enter_context(running(command, log))
        await ready(process, log, lambda: listens(port))
        treaty = str(Path(sys.executable).parent / "treaty")
        options = ["mcp", "--home", str(homes[1]), "--operations", f"{uri}=ws://127.0.0.1:{port}"]
        servers = {
            "plain": StdioServerParameters(command=sys.executable, args=[str(FOLDER / "plain_tool.py")]),
            "native": StdioServerParameters(command=treaty, args=options),
        }
        yield {name: await stack.enter_async_context(Client(server)) for name, server in servers.items()}


async def name_of(client: Client) -> str:
    """The name of the tool that looks up products."""
    return next(tool.name for tool in (await client.list_tools()).tools if tool.name.endswith("getProductInfo"))


async def call(client: Client, name: str) -> Any:
    """Call the tool once. Raises AssertionError for another answer."""
    answer = await client.call_tool(name, PRODUCT)
    assert not answer.is_error and answer.structured_content["productId"] == PRODUCT["productId"], answer
    return answer


async def measure(turns: int, calls: int) -> dict[str, list[float]]:
    """The medians of the turns, in milliseconds."""
    medians: dict[str, list[float]] = {"plain": [], "native": []}
    async with scene() as clients:
        names = {key: await name_of(client) for key, client in clients.items()}
        for turn in range(turns + 1):
            for key in clients if turn % 2 else reversed(clients):
                times = []
                for _ in range(calls):
                    begun = time.perf_counter()
                    await call(clients[key], names[key])
                    times.append((time.perf_counter() - begun) * 1000)
                if turn:  # the first one opens the session and warms up
                    medians[key].append(median(times))
    return medians


def judge(medians: dict[str, list[float]]) -> Figure:
    """The figure of a run."""
    ratio = round(median(native / plain for native, plain in zip(medians["native"], medians["plain"], strict=True)), 3)
    measured = time.strftime("%Y-%m-%d", time.gmtime())
    plain, native = (round(median(medians[key]), 3) for key in ("plain", "native"))
    return Figure(plain, native, ratio, BAR, ratio <= BAR, len(medians["plain"]), report.machine(), measured)


def main(arguments: list[str]) -> int:
    """Run, show the figure and keep it; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m bench tools", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="turns of each server (default: 10)")
    chosen = parser.parse_args(arguments)
    figure = judge(asyncio.run(measure(chosen.turns, CALLS)))
    Console(highlight=False).print(json.dumps(msgspec.to_builtins(figure), indent=2))
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figure), indent=2) + b"\n")
    return 0
