"""`python -m bench pages`: what each page costs the server, against the JSON of the same resource.

One registry with elections, warnings and texts of every length, in this process, on a real PostgreSQL. JSON and page come in
turns, one at a time, in one run, so that both see the same machine.

`cached`: the answer is in memory. `uncached`: the memory is emptied before each request. `growing`: so it is, and the log grows
by ten leaves a second. The bar of both is 2: a page may cost twice the JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.table import Table

from treaty_registry.app import create_app
from treaty_registry.registry import Registry
from treaty_registry.serving.cache import ResponseCache
from treaty_registry.storage.embedded import embedded_postgres

from . import report
from .servers import REPOSITORY

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the catalogue and its agents are the tests' own
from page_table import BROWSER, ROWS
from populated_catalogue import populate
from registries import Web, open_registry
from registries import grant as granted
from signers import domain_signer

RESULTS, TABLE = Path(__file__).with_name("pages.json"), Path(__file__).with_name("pages.md")
BAR = 2.0
LEAVES_A_SECOND = 10


class Line(msgspec.Struct):
    """One page in one state: medians in milliseconds."""

    path: str
    state: str
    json: float
    page: float

    @property
    def ratio(self) -> float:
        """The page against the JSON."""
        return self.page / self.json


def main(arguments: list[str]) -> int:
    """Measure, print and keep; the exit status is 1 if a page is over the bar."""
    parser = argparse.ArgumentParser(prog="python -m bench pages", description=__doc__)
    parser.add_argument("--samples", type=int, default=25, help="of each form of each page in each state (default: 25)")
    chosen = parser.parse_args(arguments)
    lines = asyncio.run(_measure(chosen.samples))
    where = report.machine()
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": where, "pages": lines}), indent=2) + b"\n")
    TABLE.write_text(_markdown(lines, where))
    _print(lines)
    return int(any(line.ratio > BAR for line in lines if line.state != "cached"))


async def _measure(samples: int) -> list[Line]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="treaty-")))
        database = await stack.enter_async_context(embedded_postgres(folder))
        web = Web()
        registry = await stack.enter_async_context(open_registry(folder / "registry", database, web))
        await populate(registry, web)
        memory = ResponseCache()
        transport = httpx.ASGITransport(create_app(registry, memory, period=0))  # type: ignore[arg-type]
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url=registry.base_url))
        growing = _Growth(registry, web)

        def forget() -> None:
            assert memory.head is not None
            memory.renew(memory.head, None)

        lines = []
        paths = [row.path for row in ROWS if row.json and row.status == 200]
        statement = (await client.get("/log")).json()["parameters"]
        for path in (path.format(statement=statement) for path in paths):
            if path.startswith("/ballots") and "did=" not in path:
                continue  # the JSON of this path needs a DID
            lines.append(await _compare(client, path, "cached", samples, lambda: None))
            lines.append(await _compare(client, path, "uncached", samples, forget))
            async with asyncio.TaskGroup() as group:
                task = group.create_task(growing.run())
                lines.append(await _compare(client, path, "growing", samples, forget))
                task.cancel()
        return lines


class _Growth:
    """Logs leaves at an even rate."""

    def __init__(self, registry: Registry, web: Web) -> None:
        self._registry, self._agent = registry, domain_signer("growing.example")
        self._numbers = itertools.count()
        web.serve(self._agent)

    async def run(self) -> None:
        """Log until it is cancelled."""
        while True:
            statement = self._agent.statement(granted(self._agent, next(self._numbers)))
            await self._registry.submit([statement.leaf])
            await asyncio.sleep(1 / LEAVES_A_SECOND)


async def _compare(client: httpx.AsyncClient, path: str, state: str, samples: int, forget: Callable[[], Any]) -> Line:
    times: dict[str, list[float]] = {"json": [], "page": []}
    forms = {"json": {"Accept": "application/json"}, "page": BROWSER}
    for sample in range(samples + 2):
        for form in forms if sample % 2 else reversed(forms):
            forget()
            began = time.perf_counter()
            answer = await client.get(path, headers=forms[form])
            took = 1000 * (time.perf_counter() - began)
            answer.raise_for_status()
            if sample > 1:  # the first compile templates and statements
                times[form].append(took)
    return Line(path, state, statistics.median(times["json"]), statistics.median(times["page"]))


def _print(lines: Sequence[Line]) -> None:
    table = Table("path", "state", "JSON, ms", "page, ms", "page / JSON", box=None)
    for line in lines:
        table.add_row(line.path[:60], line.state, f"{line.json:.1f}", f"{line.page:.1f}", f"{line.ratio:.2f}")
    Console(highlight=False).print(table)


def _markdown(lines: Sequence[Line], where: str) -> str:
    rows = [f"| `{line.path[:80]}` | {line.state} | {line.json:.1f} | {line.page:.1f} | {line.ratio:.2f} |" for line in lines]
    head = [
        "<!-- Made by `python -m bench pages`; see README.md. -->",
        "",
        f"On {where}. The bar of uncached and growing is {BAR:g}.",
        "",
    ]
    return "\n".join(
        [*head, "| page | state | JSON, ms | page, ms | page / JSON |", "| --- | --- | ---: | ---: | ---: |", *rows, ""]
    )
