"""`python -m bench overload`: more statements than a registry can log, and how it recovers.

A registry with twenty times the default quotas, and four hundred authors of one network. An honest author of another one writes
and reads all the time. Before, during and after the overload: statements logged a second, answers by status, and how long the
honest author waited. Every refusal must be 429 or 503 with `Retry-After`, and every statement that was refused is sent again
afterwards until it is logged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import msgspec
from rich.console import Console

from treaty_consensus.kinds import Grant
from treaty_io.identity import Identity

from . import RESULTS, report
from .oracle import Oracle
from .servers import Registry, registry, workspace

AUTHORS, CONNECTIONS, BATCH, SECONDS = 400, 96, 64, 6
RESULT = RESULTS / "overload.json"


class Figure(msgspec.Struct, frozen=True):
    """What is kept. `offered`: statements sent; `answers`: to requests, by status; `lines`: outcomes in batches, by status;
    `without`: refusals without `Retry-After`; `lost`: statements that were not logged in the end. The honest author's 99th
    percentiles in milliseconds; `recovered`: seconds from the end of the overload to its next write within twice the median of
    before."""

    offered: int
    answers: dict[str, int]
    lines: dict[str, int]
    without: int
    logged_a_second: float
    lost: int
    read_before: float
    read_during: float
    read_after: float
    write_before: float
    write_during: float
    write_after: float
    recovered: float
    load: float
    machine: str
    measured: str


@dataclass
class _Flood:
    """Sends batches over many connections, and counts the answers. `again`: the leaves that were refused."""

    registry: Registry
    batches: list[list[bytes]]
    answers: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    again: list[bytes] = field(default_factory=list)
    without: int = 0

    async def run(self, connections: int, end: float) -> None:
        """Send until the time `end`, or until nothing is left."""
        limits = httpx.Limits(max_connections=connections)
        async with httpx.AsyncClient(base_url=self.registry.url, limits=limits, timeout=60, trust_env=False) as client:
            await asyncio.gather(*(self._send(client, end) for _ in range(connections)))

    async def _send(self, client: httpx.AsyncClient, end: float) -> None:
        while self.batches and time.monotonic() < end:
            batch = self.batches.pop()
            headers = {"Content-Type": "application/x-ndjson"}
            answer = await client.post("/statements", content=b"\n".join(batch), headers=headers)
            self.answers[str(answer.status_code)] += 1
            if answer.status_code != 200:
                self.without += "Retry-After" not in answer.headers
                self.again += batch
                continue
            for leaf, line in zip(batch, answer.text.splitlines(), strict=True):
                status = json.loads(line)["status"]
                self.lines[str(status)] += 1
                if status not in (200, 201):
                    self.again.append(leaf)


async def measure(seconds: float, console: Console) -> Figure:
    """Run it."""
    load = round(os.getloadavg()[0], 1)
    with workspace() as folder:
        async with registry(folder, quota=20) as served:
            console.print("signing")
            flood = _Flood(served, _batches(served.origin, int(seconds)))
            offered = sum(map(len, flood.batches))
            honest, numbers = Identity.create(), iter(range(1_000_000))

            async def write(client: httpx.AsyncClient) -> httpx.Response:
                leaf = _grant(honest, served.origin, next(numbers))
                headers = {"Content-Type": "application/json"}
                answer = await client.post("/statements", content=leaf, headers=headers)
                while answer.status_code in (429, 503):
                    await asyncio.sleep(float(answer.headers["Retry-After"]))
                    answer = await client.post("/statements", content=leaf, headers=headers)
                return answer

            oracle = Oracle(served.url, write, address="127.0.1.1")
            async with oracle.watching():
                await oracle.phase("before", 10)
                await oracle.phase("during", 0)
                begun = time.monotonic()
                await flood.run(CONNECTIONS, begun + seconds)
                took = time.monotonic() - begun
                logged = flood.lines["200"] + flood.lines["201"]
                recovered = await _recovered(oracle)
                await oracle.phase("after", 10)
            unsent = [leaf for batch in flood.batches for leaf in batch]
            lost = await _send_again(served, flood.again + unsent[:BATCH])
    console.print(oracle.table())

    def p99(phase: str, kind: str) -> float:
        return round(1000 * oracle.p99(phase, kind), 1)

    return Figure(
        offered=offered - len(unsent),
        answers=dict(sorted(flood.answers.items())),
        lines=dict(sorted(flood.lines.items())),
        without=flood.without,
        logged_a_second=round(logged / took),
        lost=lost,
        read_before=p99("before", "read"),
        read_during=p99("during", "read"),
        read_after=p99("after", "read"),
        write_before=p99("before", "write"),
        write_during=p99("during", "write"),
        write_after=p99("after", "write"),
        recovered=round(recovered, 1),
        load=load,
        machine=report.machine(),
        measured=time.strftime("%Y-%m-%d", time.gmtime()),
    )


async def _recovered(oracle: Oracle) -> float:
    """Return the seconds until a write is as fast as before."""
    begun = time.monotonic()
    ordered = sorted(oracle.latencies["before"]["write"])
    fast = 2 * ordered[len(ordered) // 2]
    await oracle.phase("recovering", 0)
    # Another task collects the latencies.
    while not any(seconds <= fast for seconds in oracle.latencies["recovering"]["write"]):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


async def _send_again(served: Registry, leaves: list[bytes]) -> int:
    """Send what was refused until it is logged; return how many never were."""
    for _ in range(200):
        flood = _Flood(served, [leaves[begin : begin + BATCH] for begin in range(0, len(leaves), BATCH)])
        await flood.run(8, time.monotonic() + 600)
        leaves = flood.again
        if not leaves:
            break
        await asyncio.sleep(1)
    return len(leaves)


def _batches(origin: str, seconds: int) -> list[list[bytes]]:
    authors = [Identity.create() for _ in range(AUTHORS)]
    leaves = [_grant(authors[number % AUTHORS], origin, number) for number in range(1_500 * seconds)]
    return [leaves[begin : begin + BATCH] for begin in range(0, len(leaves), BATCH)]


def _grant(author: Identity, origin: str, number: int) -> bytes:
    body = Grant(author.parsed.namespace, f"did:wba:friend-{number}.example")
    return author.statement(body, log=origin, issued=int(time.time())).leaf


def main(arguments: Sequence[str]) -> int:
    """Run, show the figures and keep them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long the overload lasts")
    chosen = parser.parse_args(arguments)
    console = Console(highlight=False)
    figure = asyncio.run(measure(chosen.seconds, console))
    data = msgspec.json.format(msgspec.json.encode(figure), indent=2) + b"\n"
    console.print(data.decode())
    if chosen.seconds == SECONDS:
        RESULT.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
