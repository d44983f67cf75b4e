"""Fault: the server is killed at random moments, again and again, while many write.

Nothing that was acknowledged is lost, no checkpoint that anybody saw contradicts another, and the tables are what the log says.
The seed is printed; `TREATY_SEED` repeats it (the choices, though not the scheduling of the processes).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from did_host import did_host
from registries import blob, publication
from registry_process import Server, empty
from signers import NOW, Signer, domain_signer, key_signer

from treaty_consensus import canonical, kinds, statement
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.merkle import Frontier, leaf_hash
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.proof import Receipt

KILLS = 52
PUBLISHERS = 2
VOTERS = [domain_signer(f"voter-{number}.example") for number in range(8)]


@dataclass
class Witness:
    """What the clients saw: acknowledged leaves with their receipts, and checkpoints."""

    acknowledged: list[tuple[bytes, bytes]] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    checkpoints: set[str] = field(default_factory=set)


@dataclass
class Clients:
    """Writers that send each statement until it is acknowledged, and a reader of checkpoints."""

    base_url: str
    origin: str
    witness: Witness
    choices: random.Random
    stopping: bool = False

    async def vote(self, client: httpx.AsyncClient, voter: Signer) -> None:
        seq = 0
        while not self.stopping:
            seen = self.choices.choice(sorted(self.witness.checkpoints))
            body = kinds.Ballot("commerce/product-info", seq, (("ab" * 32,), (kinds.NONE,)), seen)
            await self.send(client, voter.statement(body, log=self.origin, issued=NOW + seq).leaf)
            seq += 1

    async def publish(self, client: httpx.AsyncClient, publisher: Signer) -> None:
        number = 0
        while not self.stopping:
            number += 1
            made = publication(publisher, version=f"{number}.0")
            uri = made.body.uri.replace("registry.example", self.origin)
            body = kinds.Publish(uri, made.body.topic, blob(made.document), blob(made.card), "negotiated")
            leaf = publisher.statement(body, log=self.origin).leaf
            if all([await self.upload(client, leaf, data) for data in (made.document, made.card)]):
                await self.send(client, leaf)
            await asyncio.sleep(0.05)

    async def watch(self, client: httpx.AsyncClient) -> None:
        while not self.stopping:
            with suppress(httpx.HTTPError):
                answer = await client.get(f"{self.base_url}/checkpoint")
                if answer.status_code == 200:
                    self.witness.checkpoints.add(answer.text)
            await asyncio.sleep(0.02)

    async def upload(self, client: httpx.AsyncClient, leaf: bytes, data: bytes) -> bool:
        digest = hashlib.sha256(data).hexdigest()
        headers = {"Treaty-Statement": canonical.b64encode(leaf), "Content-Type": "application/octet-stream"}
        answer = await self.until_answered(client, "PUT", f"/blobs/sha256/{digest}", data, headers)
        if answer is None:
            return False
        assert answer.status_code in (200, 201, 204), answer.text
        self.witness.uploads[digest] = data
        return True

    async def send(self, client: httpx.AsyncClient, leaf: bytes) -> None:
        answer = await self.until_answered(client, "POST", "/statements", leaf, {"Content-Type": "application/json"})
        if answer is not None:
            assert answer.status_code in (200, 201), answer.text
            self.witness.acknowledged.append((leaf, answer.content))
            self.witness.checkpoints.add(Receipt.parse(answer.content).checkpoint.decode())

    async def until_answered(
        self, client: httpx.AsyncClient, method: str, path: str, content: bytes, headers: dict[str, str]
    ) -> httpx.Response | None:
        while not self.stopping:
            with suppress(httpx.HTTPError):
                answer = await client.request(method, self.base_url + path, content=content, headers=headers)
                if answer.status_code not in (429, 503):
                    return answer
            await asyncio.sleep(0.02)
        return None


@asynccontextmanager
async def clients_of(server: Server, witness: Witness, choices: random.Random) -> AsyncIterator[None]:
    """Everybody who writes and reads while the block lasts."""
    clients = Clients(f"http://127.0.0.1:{server.port}", server.about["origin"], witness, choices)
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client, asyncio.TaskGroup() as group:
        witness.checkpoints.add((await client.get(f"{clients.base_url}/checkpoint")).text)
        for voter in VOTERS:
            group.create_task(clients.vote(client, voter))
        for number in range(PUBLISHERS):
            group.create_task(clients.publish(client, key_signer(f"publisher {number}")))
        group.create_task(clients.watch(client))
        yield
        clients.stopping = True


@pytest.fixture
async def server(data: Path, tmp_path: Path) -> AsyncIterator[Server]:
    with did_host(tmp_path, *VOTERS) as found:
        async with empty(data / "registry", *found) as server:
            yield server


@pytest.mark.threat(65)
async def test_killing_the_server_loses_nothing_and_never_forks_the_log(server: Server) -> None:
    seed = os.environ.get("TREATY_SEED", secrets.token_hex(4))
    print(f"TREATY_SEED={seed}")
    choices = random.Random(seed)
    witness = Witness()
    await server.start()
    assert await server.ready()
    async with clients_of(server, witness, choices):
        for number in range(KILLS):
            await asyncio.sleep(choices.uniform(0, 0.4))
            if number % 10 == 9:
                os.kill(int((server.data / "postgres" / "postmaster.pid").read_text().split("\n")[0]), signal.SIGKILL)
            await server.kill()
            await restart(server, choices)
    await check_acknowledged(server, witness)
    await check_history(server, witness)
    rebuilt = await server.run("rebuild")
    assert isinstance(rebuilt["tables"], dict)
    assert {table: rows for table, rows in rebuilt["tables"].items() if rows} == {}
    assert (await server.run("audit"))["findings"] == []
    assert await server.stop() == 0
    assert (await server.run("audit"))["findings"] == []
    print(f"{KILLS} kills, {len(witness.acknowledged)} statements, {len(witness.checkpoints)} checkpoints")


async def restart(server: Server, choices: random.Random) -> None:
    """Start the server until it listens; now and then it is killed before it does."""
    for _ in range(20):
        await server.start()
        if choices.random() < 0.2:
            await asyncio.sleep(choices.uniform(0, 1.5))
            await server.kill()
        elif await server.ready():
            return
    pytest.fail("The server does not start any more.")


async def check_acknowledged(server: Server, witness: Witness) -> None:
    """Every acknowledged statement is in the log at the place its receipt says, and every blob that it names is served."""
    keys = VerifierKey.parse(server.about["key"])
    assert len(witness.acknowledged) > KILLS
    leaves = await server.leaves()
    named = set[str]()
    for leaf, receipt in witness.acknowledged:
        proof = Receipt.parse(receipt)
        proof.verify(leaf, keys)
        assert leaves[proof.index] == leaf
        named |= {blob.sha256 for blob in kinds.blobs_of(statement.parse(leaf).body)}
    assert len({Receipt.parse(receipt).index for _, receipt in witness.acknowledged}) == len(witness.acknowledged)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        for digest in named:
            answer = await client.get(f"/blobs/sha256/{digest}")
            assert answer.content == witness.uploads[digest]
    assert named


async def check_history(server: Server, witness: Witness) -> None:
    """Every checkpoint that anybody saw, in a receipt or by asking, is of a beginning of the log as it is now."""
    log_key = VerifierKey.parse(server.about["key"])
    frontier, roots = Frontier(), []
    for leaf in await server.leaves():
        frontier.append(leaf_hash(leaf))
        roots.append(frontier.root())
    for note in witness.checkpoints:
        seen = open_checkpoint(note.encode(), log_key).checkpoint
        assert seen.size <= len(roots)
        assert roots[seen.size - 1] == seen.root
    assert len(witness.checkpoints) > KILLS
