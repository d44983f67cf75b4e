"""Several nodes of one registry: their throughput against one node's, and the time and the work that the loss of a leader costs.

    .venv/bin/python -m bench nodes                   # five minutes

One PostgreSQL, blobs and head record in a shared folder, every process on loopback and on all processors. The load is made by
this process and takes a processor's time from the nodes. So the ratios are a lower bound for nodes with machines of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from treaty_consensus.did import parse_did
from treaty_consensus.kinds import Grant
from treaty_io.identity import Identity
from treaty_registry.storage.embedded import embedded_postgres

from . import RESULTS
from .servers import free_port, ready, running, workspace

ORIGIN = "bench.localhost"
SECONDS = 8.0
ROUNDS = 3
BATCH = 16
WRITERS = 24
KILLS = 12
RESULT, TABLE = RESULTS / "nodes.json", RESULTS / "nodes.md"
_PROGRAM = Path(sys.executable).with_name("treaty-registry")


@dataclass
class Node:
    """A node as a process."""

    data: Path
    port: int
    command: list[str]
    pid: int = 0


@dataclass
class Scene:
    """Nodes on one database."""

    folder: Path
    database: str
    stack: AsyncExitStack
    nodes: list[Node] = field(default_factory=list)

    async def add(self) -> None:
        """Start one more node, with the keys of the first."""
        data, port = self.folder / f"node-{len(self.nodes)}", free_port()
        if self.nodes:
            data.mkdir()
            shutil.copytree(self.nodes[0].data / "keys", data / "keys")
        shared = ["--database", self.database, "--blobs", f"file://{self.folder}/blobs", "--head", f"file://{self.folder}/head"]
        own = ["--data", str(data), "--port", str(port), "--node", f"http://127.0.0.1:{port}", "--origin", ORIGIN, "--json"]
        node = Node(data, port, [str(_PROGRAM), "serve", *shared, *own, "--quota", "100000"])
        if not self.nodes:
            log = ["--data", str(data), "--origin", ORIGIN]
            await asyncio.to_thread(subprocess.run, [str(_PROGRAM), "init", *shared, *log], check=True, capture_output=True)
        self.nodes.append(node)
        await self.start(node)

    async def start(self, node: Node) -> None:
        """Start a node, and wait until it listens."""
        log = self.folder / f"{node.data.name}-{time.monotonic_ns()}.log"
        process = self.stack.enter_context(running(node.command, log))
        await ready(process, log, lambda: b'{"origin"' in log.read_bytes())
        node.pid = process.pid

    async def leader(self) -> Node:
        """The node that leads, as the database has it."""
        connection = await asyncpg.connect(self.database)
        try:
            while True:
                url = await connection.fetchval("select url from leadership")
                for node in self.nodes:
                    if url.endswith(f":{node.port}"):
                        return node
                await asyncio.sleep(0.02)
        finally:
            await connection.close()


@asynccontextmanager
async def scene(folder: Path, nodes: int) -> AsyncIterator[Scene]:
    """So many nodes with a new log."""
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread(folder.chmod, 0o755)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(embedded_postgres(folder))
        made = Scene(folder, database, stack)
        for _ in range(nodes):
            await made.add()
        yield made


class Writer:
    """A did:key that grants its namespace again and again: the shortest statement that anybody may make."""

    def __init__(self) -> None:
        self.identity = Identity.create()
        self.number = 0

    def leaf(self) -> bytes:
        """Another statement."""
        self.number += 1
        body = Grant(parse_did(self.identity.did).namespace, f"did:wba:friend-{self.number}.example")
        return self.identity.statement(body, log=ORIGIN, issued=int(time.time())).leaf


async def writes(made: Scene, batches: list[list[bytes]]) -> float:
    """Statements a second, in batches, from connections that are divided among the nodes."""
    waiting = [*batches]

    async def send(number: int) -> None:
        url = f"http://127.0.0.1:{made.nodes[number % len(made.nodes)].port}/statements"
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            while waiting:
                batch = waiting.pop()
                answer = await http.post(url, content=b"\n".join(batch), headers={"Content-Type": "application/x-ndjson"})
                assert answer.status_code == 200, answer.text
                assert answer.text.count('"status":201') == len(batch), answer.text[:500]

    began = time.monotonic()
    await asyncio.gather(*map(send, range(WRITERS)))
    return sum(map(len, batches)) / (time.monotonic() - began)


async def reads(made: Scene, load: int) -> float:
    """Answers a second to searches that are in no cache, by processes of their own."""
    ports = ",".join(str(node.port) for node in made.nodes)
    code = (
        "import asyncio, sys; from bench.nodes import read_load; print(asyncio.run(read_load(sys.argv[1], float(sys.argv[2]))))"
    )
    pipe = asyncio.subprocess.PIPE
    runs = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, ports, str(SECONDS), stdout=pipe) for _ in range(load)
    ]
    return sum([float((await run.communicate())[0]) for run in runs])


async def read_load(ports: str, seconds: float) -> float:
    """Read receipts and searches for some seconds; the answers a second."""
    urls = [f"http://127.0.0.1:{port}" for port in ports.split(",")]
    end, done = time.monotonic() + seconds, 0

    async def read(number: int) -> None:
        nonlocal done
        async with httpx.AsyncClient(base_url=urls[number % len(urls)], timeout=30, trust_env=False) as http:
            turn = 0
            while time.monotonic() < end:
                turn += 1
                answer = await http.get(f"/protocols?q=word{os.getpid()}x{number}x{turn}")
                done += answer.status_code == 200

    await asyncio.gather(*map(read, range(12)))
    return done / seconds


async def throughput(folder: Path) -> dict[str, object]:
    """One node and three, turn by turn."""
    results: dict[str, dict[int, list[float]]] = {"writes": {1: [], 3: []}, "reads": {1: [], 3: []}}
    async with scene(folder / "one", 1) as one, scene(folder / "three", 3) as three:
        for turn in range(ROUNDS):
            for count, made in ((1, one), (3, three)) if turn % 2 == 0 else ((3, three), (1, one)):
                writer = Writer()
                batches = [[writer.leaf() for _ in range(BATCH)] for _ in range(96)]
                results["writes"][count].append(await writes(made, batches))
                results["reads"][count].append(await reads(made, 1))
    return {
        name: {
            "one": round(statistics.median(found[1])),
            "three": round(statistics.median(found[3])),
            "ratio": round(statistics.median(b / a for a, b in zip(found[1], found[3], strict=True)), 2),
        }
        for name, found in results.items()
    }


async def failover(folder: Path) -> dict[str, object]:
    """Kill or stop the leader under load: the pause until the next acknowledgement, and what became of the statements."""
    pauses: dict[str, list[float]] = {"killed": [], "stopped": []}
    acknowledged: set[bytes] = set()
    refused = retried = 0
    async with scene(folder / "failover", 3) as made, httpx.AsyncClient(timeout=3, trust_env=False) as http:
        moments: list[float] = []
        stopping = False

        async def write(number: int) -> None:
            nonlocal refused, retried
            writer, turn = Writer(), number
            while not stopping:
                leaf = writer.leaf()
                while not stopping:
                    turn += 1
                    url = f"http://127.0.0.1:{made.nodes[turn % 3].port}/statements"
                    try:
                        answer = await http.post(url, content=leaf, headers={"Content-Type": "application/json"})
                    except httpx.HTTPError:
                        retried += 1  # the node itself was killed or stands still, as a proxy would notice
                    else:
                        if answer.status_code in (200, 201):
                            acknowledged.add(leaf)
                            moments.append(time.monotonic())
                            break
                        refused += 1
                    await asyncio.sleep(0.02)

        tasks = [asyncio.create_task(write(number)) for number in range(6)]
        for kill in range(KILLS):
            await asyncio.sleep(3)
            leader, kind = await made.leader(), "stopped" if kill % 4 == 3 else "killed"
            at = time.monotonic()
            os.kill(leader.pid, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL)
            while not any(moment > at + 0.05 for moment in moments[-50:]) or await made.leader() is leader:  # noqa: ASYNC110 (processes)
                await asyncio.sleep(0.02)
            await asyncio.sleep(1)
            later = sorted(moment for moment in moments if moment > at - 0.5)
            pauses[kind].append(max(b - a for a, b in pairwise(later)))
            if kind == "stopped":
                os.kill(leader.pid, signal.SIGCONT)
            else:
                await made.start(leader)
        stopping = True
        await asyncio.gather(*tasks)
        connection = await asyncpg.connect(made.database)
        logged = {bytes(row["leaf"]) for row in await connection.fetch("select leaf from leaves")}
        await connection.close()
    return {
        "statements": len(acknowledged),
        "lost": len(acknowledged - logged),
        "refused": refused,
        "connections cut": retried,
        **{
            kind: {"times": len(found), "median": round(statistics.median(found), 2), "longest": round(max(found), 2)}
            for kind, found in pauses.items()
        },
    }


async def freshness(folder: Path) -> dict[str, float]:
    """The time from an acknowledgement until another node serves the leaf."""
    delays = []
    async with scene(folder / "fresh", 2) as made, httpx.AsyncClient(timeout=30, trust_env=False) as http:
        writer = Writer()
        for number in range(100):
            one, other = (made.nodes[(number + add) % 2].port for add in (0, 1))
            leaf = writer.leaf()
            answer = await http.post(
                f"http://127.0.0.1:{one}/statements", content=leaf, headers={"Content-Type": "application/json"}
            )
            began, path = time.monotonic(), answer.headers["Location"]
            while (await http.get(f"http://127.0.0.1:{other}{path}")).status_code != 200:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0)
            delays.append(time.monotonic() - began)
    return {"median": round(statistics.median(delays), 3), "longest": round(max(delays), 3)}


def main(arguments: Sequence[str]) -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench nodes", description=__doc__)
    parser.add_argument("--only", choices=["throughput", "freshness", "failover"], help="the others stay as they were")
    only = parser.parse_args(arguments).only
    known = json.loads(RESULT.read_text()) if only and RESULT.exists() else {}
    found: dict[str, Any] = {**known, "processors": os.cpu_count()}
    with workspace() as folder:
        for part in (throughput, freshness, failover):
            if only not in (None, part.__name__):
                continue
            found[part.__name__] = asyncio.run(part(folder))
            print(part.__name__, json.dumps(found[part.__name__]), flush=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    TABLE.write_text(_table(found))
    return 0


def _table(found: dict[str, Any]) -> str:
    rates, fresh, lost = found["throughput"], found["freshness"], found["failover"]
    rows = "".join(f"| {name} | {item['one']} | {item['three']} | {item['ratio']} |\n" for name, item in rates.items())
    pauses = {
        "another node serves what one acknowledged, after": fresh,
        f"pause when the leader is killed ({lost['killed']['times']} times)": lost["killed"],
        f"pause when the leader stands still ({lost['stopped']['times']} times)": lost["stopped"],
    }
    times = "".join(f"| {name} | {item['median']} s | {item['longest']} s |\n" for name, item in pauses.items())
    return f"""# Several nodes

`.venv/bin/python -m bench nodes`, on {found["processors"]} processors, which nodes, PostgreSQL and the load share.

| a second | one node | three nodes | ratio |
|---|---|---|---|
{rows}
*ratio*: the median of the rounds, each of which measures both.
*writes*: statements in batches of {BATCH}, signed, durable, in a signed checkpoint. *reads*: searches that are in no cache.

| | median | longest |
|---|---|---|
{times}
A pause is the time without an acknowledgement. Under these faults {lost["statements"]} statements were acknowledged and
{lost["lost"]} of them lost. {lost["refused"]} requests were refused and {lost["connections cut"]} connections cut; these
statements were sent again.
"""
