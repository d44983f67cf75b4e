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
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from depth import FULL, SEED
from did_host import did_host
from fault_oracle import Seen, judge
from handoffs import until
from registries import blob, publication
from registry_process import Server, empty
from signers import NOW, Signer, domain_signer, key_signer

from treaty_consensus import canonical, kinds

KILLS = 52 if FULL else 2
PUBLISHERS = 2
_PAUSE = 0.1  # seconds between two requests of a client: without, they take the processor from the server that starts
VOTERS = [domain_signer(f"voter-{number}.example") for number in range(8)]


@dataclass
class Clients:
    """Writers that send each statement until it is acknowledged, and a reader of checkpoints."""

    base_url: str
    origin: str
    seen: Seen
    choices: random.Random
    stopping: bool = False

    async def vote(self, client: httpx.AsyncClient, voter: Signer) -> None:
        seq = 0
        while not self.stopping:
            seen = self.choices.choice(sorted(self.seen.checkpoints))
            body = kinds.Ballot("commerce/product-info", seq, (("ab" * 32,), (kinds.NONE,)), seen)
            await self.send(client, voter.statement(body, log=self.origin, issued=NOW + seq).leaf)
            seq += 1
            await asyncio.sleep(_PAUSE)

    async def publish(self, client: httpx.AsyncClient, publisher: Signer) -> None:
        number = 0
        while not self.stopping:
            number += 1
            statement = publication(publisher, version=f"{number}.0")
            uri = statement.body.uri.replace("registry.example", self.origin)
            body = kinds.Publish(uri, statement.body.topic, blob(statement.document), blob(statement.card), "negotiated")
            leaf = publisher.statement(body, log=self.origin).leaf
            if all([await self.upload(client, leaf, data) for data in (statement.document, statement.card)]):
                await self.send(client, leaf)
            await asyncio.sleep(_PAUSE)

    async def watch(self, client: httpx.AsyncClient) -> None:
        while not self.stopping:
            with suppress(httpx.HTTPError):
                answer = await client.get(f"{self.base_url}/checkpoint")
                if answer.status_code == 200:
                    self.seen.checkpoints.add(answer.text)
            await asyncio.sleep(_PAUSE)

    async def upload(self, client: httpx.AsyncClient, leaf: bytes, data: bytes) -> bool:
        digest = hashlib.sha256(data).hexdigest()
        headers = {"Treaty-Statement": canonical.b64encode(leaf), "Content-Type": "application/octet-stream"}
        answer = await self.until_answered(client, "PUT", f"/blobs/sha256/{digest}", data, headers)
        if answer is None:
            return False
        assert answer.status_code in (200, 201, 204), answer.text
        self.seen.uploads[digest] = data
        return True

    async def send(self, client: httpx.AsyncClient, leaf: bytes) -> None:
        answer = await self.until_answered(client, "POST", "/statements", leaf, {"Content-Type": "application/json"})
        if answer is not None:
            assert self.seen.answer(leaf, answer)

    async def until_answered(
        self, client: httpx.AsyncClient, method: str, path: str, content: bytes, headers: dict[str, str]
    ) -> httpx.Response | None:
        while not self.stopping:
            with suppress(httpx.HTTPError):
                answer = await client.request(method, self.base_url + path, content=content, headers=headers)
                if answer.status_code not in (429, 503):
                    return answer
            await asyncio.sleep(_PAUSE)
        return None


@asynccontextmanager
async def clients_of(server: Server, seen: Seen, choices: random.Random) -> AsyncIterator[None]:
    """Everybody who writes and reads while the block lasts."""
    clients = Clients(f"http://127.0.0.1:{server.port}", server.about["origin"], seen, choices)
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client, asyncio.TaskGroup() as group:
        seen.checkpoints.add((await client.get(f"{clients.base_url}/checkpoint")).text)
        for voter in VOTERS:
            group.create_task(clients.vote(client, voter))
        for number in range(PUBLISHERS):
            group.create_task(clients.publish(client, key_signer(f"publisher {number}")))
        group.create_task(clients.watch(client))
        yield
        clients.stopping = True


@pytest.fixture
async def server(data: Path, tmp_path: Path) -> AsyncIterator[Server]:
    with did_host(tmp_path, *VOTERS) as options:
        async with empty(data / "registry", *options) as server:
            yield server


@pytest.mark.threat(65)
async def test_a_killed_server_loses_nothing_and_never_forks(server: Server) -> None:
    seed = SEED or secrets.token_hex(4)
    print(f"TREATY_SEED={seed}")
    choices = random.Random(seed)
    seen = Seen()
    await server.start()
    assert await server.ready()
    async with clients_of(server, seen, choices):
        for number in range(KILLS):
            # Each other kill waits for a statement that was acknowledged since the one before.
            if number % 2 == 0:
                await one_more(seen)
            await asyncio.sleep(choices.uniform(0, 0.4))
            if number % 5 == 1:
                os.kill(int((server.data / "postgres" / "postmaster.pid").read_text().split("\n")[0]), signal.SIGKILL)
            await server.kill()
            await restart(server, choices)
        await until(lambda: bool(seen.uploads))
    assert min(len(seen.acknowledged), len(seen.checkpoints)) > KILLS // 2
    await judge(server, seen)
    assert await server.stop() == 0
    assert (await server.run("audit"))["findings"] == []
    print(f"{KILLS} kills, {len(seen.acknowledged)} statements, {len(seen.checkpoints)} checkpoints")


async def one_more(seen: Seen) -> None:
    """Wait for one more statement that is acknowledged."""
    before = len(seen.acknowledged)
    await until(lambda: len(seen.acknowledged) > before)


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
