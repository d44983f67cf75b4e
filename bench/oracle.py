"""An oracle beside a flood: honest readers and a writer that go on all the time, and how long each of their requests took.

async with Oracle(base_url, writer).watching() as oracle:
    await oracle.phase("before", 3)
    ...start the flood...
    await oracle.phase("during", 10)
    ...end it...
    await oracle.phase("after", 3)
print(oracle.table())
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx

PAUSE = 0.02
"""Seconds between the end of a request and the next one of the same kind."""


@dataclass
class Oracle:
    """`write`: send one honest statement, which must be accepted. `paths`: read in turn, on one connection and on fresh ones.
    `address`: the one that everything is sent from."""

    base_url: str
    write: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]] | None = None
    paths: tuple[str, ...] = ("/checkpoint", "/log", "/health/live")
    timeout: float = 30
    verify: ssl.SSLContext | bool = True
    address: str = "127.0.0.1"
    latencies: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    failures: list[str] = field(default_factory=list)
    _phase: str = ""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Oracle]:
        """Ask all the time, from here to the end of the block."""
        works = [self._read_kept(), self._read_fresh(), *([self._write()] if self.write else [])]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def phase(self, name: str, seconds: float) -> None:
        """Count the requests of the next seconds under a name."""
        self._phase = name
        await asyncio.sleep(seconds)

    def p99(self, phase: str, kind: str) -> float:
        """The 99th percentile of a kind of request in a phase, in seconds."""
        ordered = sorted(self.latencies[phase][kind])
        return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]

    def worst(self, phase: str) -> float:
        """The longest that any request took in a phase, in seconds."""
        return max(max(values) for values in self.latencies[phase].values())

    def count(self, kind: str) -> int:
        """How many requests of a kind there were, in all phases."""
        return sum(len(phase[kind]) for phase in self.latencies.values())

    def table(self) -> str:
        """A line for each phase and kind: how many requests, and the median, 99th percentile and maximum, in milliseconds."""
        lines = [f"{'phase':<8}{'kind':<14}{'n':>6}{'p50':>9}{'p99':>9}{'max':>9}"]
        for phase, by_kind in self.latencies.items():
            for kind, values in sorted(by_kind.items()):
                ordered = sorted(values)
                shown = (ordered[len(ordered) // 2], self.p99(phase, kind), ordered[-1])
                numbers = "".join(f"{1000 * value:>9.1f}" for value in shown)
                lines.append(f"{phase:<8}{kind:<14}{len(ordered):>6}{numbers}")
        return "\n".join([*lines, *(f"failed: {failure}" for failure in self.failures[:10])])

    async def _read_kept(self) -> None:
        async with self._client(keep=1) as api:
            while True:
                for path in self.paths:
                    await self._ask("read", api.get(path))

    async def _read_fresh(self) -> None:
        async with self._client(keep=0) as api:
            while True:
                for path in self.paths:
                    await self._ask("read, new", api.get(path))

    async def _write(self) -> None:
        assert self.write is not None
        async with self._client(keep=1) as api:
            while True:
                await self._ask("write", self.write(api))

    def _client(self, *, keep: int) -> httpx.AsyncClient:
        limits = httpx.Limits(max_keepalive_connections=keep)
        transport = httpx.AsyncHTTPTransport(verify=self.verify, limits=limits, local_address=self.address)
        return httpx.AsyncClient(base_url=self.base_url, timeout=self.timeout, transport=transport)

    async def _ask(self, kind: str, request: Awaitable[httpx.Response]) -> None:
        phase, begun = self._phase, time.perf_counter()
        try:
            answer = await request
            if answer.status_code not in (200, 201):
                self.failures.append(f"{phase} {kind}: {answer.status_code} {answer.text[:120]}")
        except httpx.HTTPError as error:
            self.failures.append(f"{phase} {kind}: {error!r}")
        if phase:
            self.latencies[phase][kind].append(time.perf_counter() - begun)
        await asyncio.sleep(PAUSE)
