"""`python -m bench floods`: what ten thousand connections of one network do to an honest reader and writer.

A registry, a process that floods it, and an oracle in this one, all on the same processors. For each kind of connection the
oracle's 99th percentiles before and during the flood are compared: `during / before`. The bar is 3. The control is the same flood
against a server that answers nothing (`sink`): it shows how much of the delay is the flood's own use of the processors.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from . import flood, sink
from .oracle import Oracle
from .publishing import author
from .servers import registry, workspace

BAR = 3
_DRIPPING = ("silent", "head", "preface", "body", "idle")
_PIPELINED = ("unread", "various", "small", "missing", "heads", "posts", "sipped", "read")
_KINDS = (*_DRIPPING, *_PIPELINED)
_WRITES = 16_000


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m bench floods", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, help="of each kind (default: 10000)")
    parser.add_argument("--addresses", type=int, default=1, help="of the network that they come from (default: 1, at most 254)")
    parser.add_argument("--only", action="append", choices=_KINDS, help="this kind; may be repeated")
    parser.add_argument("--seconds", type=float, default=10, help="how long a flood lasts (default: 10)")
    chosen = parser.parse_args(arguments)
    addresses = ",".join(f"127.0.0.{number}" for number in range(1, chosen.addresses + 1))
    asyncio.run(_measure(chosen.only or _KINDS, chosen.connections, addresses, chosen.seconds, Console(highlight=False)))
    return 0


async def _measure(kinds: Sequence[str], connections: int, addresses: str, seconds: float, console: Console) -> None:
    async with workspace_registry() as (base_url, port, write):
        columns = (
            "flood",
            "asked for",
            "before, p99 ms",
            "control, p99 ms",
            "during, p99 ms",
            "during / before",
            "during / control",
        )
        table = Table(*columns, box=None, title=f"{connections} connections")
        for kind in kinds:
            oracle = Oracle(base_url, write, address="127.0.1.1")
            async with oracle.watching():
                await oracle.phase("before", seconds)
                async with _sink() as unanswering:
                    await oracle.phase("control", 0)  # a flood's beginning is its worst
                    await _flood(unanswering, kind, connections, seconds, addresses)
                await oracle.phase("between", seconds)
                await oracle.phase("during", 0)
                await _flood(port, kind, connections, seconds, addresses)
            for asked in ("read", "read, new", "write"):
                before, control, during = (1000 * oracle.p99(phase, asked) for phase in ("before", "control", "during"))
                ratio = during / before
                shown = f"[{'green' if ratio <= BAR else 'red'}]{ratio:.1f}[/]"
                table.add_row(kind, asked, f"{before:.1f}", f"{control:.1f}", f"{during:.1f}", shown, f"{during / control:.1f}")
            if oracle.failures:
                console.print(f"[red]{kind}: {len(oracle.failures)} requests failed[/], such as {oracle.failures[0]}")
        console.print(table)


async def _flood(port: int, kind: str, connections: int, seconds: float, addresses: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, flood.__file__, str(port), kind, str(connections), str(seconds), addresses),
        stdout=asyncio.subprocess.DEVNULL,
    )
    await process.wait()


@asynccontextmanager
async def _sink() -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(sys.executable, sink.__file__, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


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
