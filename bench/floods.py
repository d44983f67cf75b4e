"""`python -m bench floods`: what ten thousand connections of one address do to an honest reader and writer.

A registry, a process that floods it, and an oracle in this one, all on the same processors. For each kind of connection the
oracle's 99th percentiles before and during the flood are compared: `during / before`. The bar is 3.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from . import flood
from .oracle import Oracle
from .publishing import author
from .servers import registry, workspace

BAR = 3
_DRIPPING = ("silent", "head", "preface", "body", "idle")
_UNREAD = ("unread", "various")
_WRITES = 8_000


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m bench floods", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, help="of each kind (default: 10000)")
    parser.add_argument("--seconds", type=float, default=10, help="how long a flood lasts (default: 10)")
    chosen = parser.parse_args(arguments)
    asyncio.run(_measure(chosen.connections, chosen.seconds, Console(highlight=False)))
    return 0


async def _measure(connections: int, seconds: float, console: Console) -> None:
    async with workspace_registry() as (base_url, port, write):
        table = Table("flood", "connections", "asked for", "before, p99 ms", "during, p99 ms", "during / before", box=None)
        for kind in (*_DRIPPING, *_UNREAD):
            oracle = Oracle(base_url, write, address="127.0.1.1")
            async with oracle.watching():
                await oracle.phase("before", seconds)
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, flood.__file__, str(port), kind, str(connections), str(seconds)),
                    stdout=asyncio.subprocess.PIPE,
                )
                assert process.stdout is not None
                await process.stdout.readline()
                await oracle.phase("during", seconds)
                await process.wait()
            for asked in ("read", "read, new", "write"):
                before, during = oracle.p99("before", asked), oracle.p99("during", asked)
                ratio = during / before
                shown = f"[{'green' if ratio <= BAR else 'red'}]{ratio:.1f}[/]"
                table.add_row(kind, str(connections), asked, f"{1000 * before:.1f}", f"{1000 * during:.1f}", shown)
            if oracle.failures:
                console.print(f"[red]{kind}: {len(oracle.failures)} requests failed[/], such as {oracle.failures[0]}")
        console.print(table)


Write = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


@asynccontextmanager
async def workspace_registry() -> AsyncIterator[tuple[str, int, Write]]:
    """A registry of its own: its base URL, its port, and how an honest agent writes to it."""
    with workspace() as folder:
        async with registry(folder) as served, author(served, Path(folder) / "author") as writer:
            statements = iter(writer.grants(_WRITES))

            async def write(api: httpx.AsyncClient) -> httpx.Response:
                leaf = next(statements).leaf
                return await api.post("/statements", content=leaf, headers={"Content-Type": "application/json"})

            yield served.url, served.port, write
