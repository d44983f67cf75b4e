"""Several nodes of one registry as processes of their own, on one PostgreSQL, and clients that write and read at all of them."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx
from ports import free_port
from postgres_process import another_process
from registries import grant
from registry_process import Server
from signers import NOW, ORIGIN, Signer, key_signer

from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.merkle import Frontier, leaf_hash
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.proof import Receipt

WITHIN = 60.0
"""Seconds within which the nodes recover on a busy machine."""


@dataclass
class Cluster:
    """The nodes. `shared`: options that all of them have."""

    folder: Path
    database: str
    shared: tuple[str, ...]
    nodes: list[Server] = field(default_factory=list)

    async def add(self) -> Server:
        """Start one more node, with the keys of the first."""
        data, port = self.folder / f"node-{len(self.nodes)}", free_port()
        if self.nodes:
            data.mkdir()
            shutil.copytree(self.nodes[0].data / "keys", data / "keys")
        own = ("--node", f"http://127.0.0.1:{port}", "--origin", ORIGIN, "--base-url", f"https://{ORIGIN}")
        node = Server(data, port, options=("--database", self.database, *self.shared, *own))
        self.nodes.append(node)
        await node.start()
        assert await node.ready()
        return node

    async def leader(self) -> Server:
        """Wait for the node that leads, as the database has it."""
        async with asyncio.timeout(WITHIN):
            while True:
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    connection = await asyncpg.connect(self.database, timeout=5)
                    try:
                        url = await connection.fetchval("select url from leadership")
                    finally:
                        connection.terminate()
                    for node in self.nodes:
                        if node.options[-5] == url:
                            return node
                await asyncio.sleep(0.05)

    async def restart(self, node: Server) -> None:
        """Start a killed node again, until it listens."""
        async with asyncio.timeout(WITHIN):
            while True:
                await node.start()
                if await node.ready():
                    return

    def log(self, node: Server) -> str:
        """What a node has logged so far."""
        return (node.data.parent / f"{node.data.name}.log").read_text()

    async def close(self) -> None:
        """End every node."""
        for node in self.nodes:
            if node.process is not None and node.process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(node.process.pid, signal.SIGCONT)
                await node.kill()


@asynccontextmanager
async def cluster(
    folder: Path, count: int, *, database: str | None = None, options: Sequence[str] = ()
) -> AsyncIterator[Cluster]:
    """So many nodes, on `database` or a PostgreSQL of their own, with blobs and head in `folder` unless `options` name others."""
    await asyncio.to_thread(folder.chmod, 0o755)
    holder = None
    if database is None:
        (folder / "database").mkdir()
        holder = await another_process(folder / "database")
        database = f"postgresql://postgres@/postgres?host={folder / 'database' / 'postgres'}"
    shared = tuple(options) or ("--blobs", f"file://{folder}/blobs", "--head", f"file://{folder}/head")
    cluster = Cluster(folder, database, shared)
    try:
        for _ in range(count):
            await cluster.add()
        yield cluster
    finally:
        await cluster.close()
        if holder is not None:
            await holder.communicate(b"")


@dataclass
class Clients:
    """Writers that send each statement to any node until it is acknowledged, and readers of checkpoints."""

    cluster: Cluster
    choices: random.Random
    acknowledged: list[tuple[bytes, bytes]] = field(default_factory=list)
    checkpoints: set[str] = field(default_factory=set)
    refused: int = 0
    stopping: bool = False

    @asynccontextmanager
    async def at_work(self, writers: int = 6) -> AsyncIterator[None]:
        """Everybody who writes and reads while the block lasts."""
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http, asyncio.TaskGroup() as group:
            for number in range(writers):
                group.create_task(self._write(http, key_signer(f"writer {number}")))
            for node in self.cluster.nodes:
                group.create_task(self._read(http, node))
            yield
            self.stopping = True

    async def _write(self, http: httpx.AsyncClient, writer: Signer) -> None:
        number = 0
        while not self.stopping:
            number += 1
            leaf = writer.statement(grant(writer, number), log=ORIGIN, issued=NOW).leaf
            while not self.stopping:
                node = self.choices.choice(self.cluster.nodes)
                with suppress(httpx.HTTPError):
                    answer = await http.post(
                        f"http://127.0.0.1:{node.port}/statements", content=leaf, headers={"Content-Type": "application/json"}
                    )
                    if answer.status_code in (200, 201):
                        self.acknowledged.append((leaf, answer.content))
                        self.checkpoints.add(Receipt.parse(answer.content).checkpoint.decode())
                        break
                    assert answer.status_code in (429, 503), answer.text
                    self.refused += 1
                await asyncio.sleep(0.1)  # less takes the processor from the nodes

    async def _read(self, http: httpx.AsyncClient, node: Server) -> None:
        seen = 0
        while not self.stopping:
            with suppress(httpx.HTTPError):
                answer = await http.get(f"http://127.0.0.1:{node.port}/checkpoint", timeout=5)
                if answer.status_code == 200:
                    self.checkpoints.add(answer.text)
                    size = int(answer.text.split("\n")[1])
                    assert size >= seen, "a node went back"
                    seen = size
            await asyncio.sleep(0.1)

    async def check(self) -> list[bytes]:
        """Nothing acknowledged is lost, and every checkpoint that anybody saw is of one history, which every node serves."""
        assert self.acknowledged
        key = VerifierKey.parse(self.cluster.nodes[0].about["key"])
        histories = []
        newest = max(Receipt.parse(receipt).index for _, receipt in self.acknowledged)
        for node in self.cluster.nodes:
            async with asyncio.timeout(WITHIN):
                while len(leaves := await node.leaves()) <= newest:  # noqa: ASYNC110 (other processes)
                    await asyncio.sleep(0.05)
            histories.append(leaves)
        leaves = max(histories, key=len)
        for other in histories:
            assert leaves[: len(other)] == other
        for leaf, receipt in self.acknowledged:
            proof = Receipt.parse(receipt)
            proof.verify(leaf, key)
            assert leaves[proof.index] == leaf
        frontier, roots = Frontier(), []
        for leaf in leaves:
            frontier.append(leaf_hash(leaf))
            roots.append(frontier.root())
        for note in self.checkpoints:
            seen = open_checkpoint(note.encode(), key).checkpoint
            assert seen.root == roots[seen.size - 1]
        return leaves


def leaf(number: int) -> bytes:
    """A statement that any node takes; another one for each number."""
    writer = key_signer("the writer")
    return writer.statement(grant(writer, number), log=ORIGIN, issued=NOW).leaf


async def post(port: int, leaf: bytes) -> httpx.Response:
    """Send a statement to the node at a port."""
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        url = f"http://127.0.0.1:{port}/statements"
        return await http.post(url, content=leaf, headers={"Content-Type": "application/json"})


async def get(port: int, path: str) -> httpx.Response:
    """Read from the node at a port."""
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        return await http.get(f"http://127.0.0.1:{port}{path}")


async def until_size(port: int, size: int) -> None:
    """Wait until the node at a port serves so many leaves."""
    async with asyncio.timeout(WITHIN):
        while int((await get(port, "/checkpoint")).text.split("\n")[1]) < size:  # noqa: ASYNC110 (other processes)
            await asyncio.sleep(0.01)
