"""Fault: nodes of one registry are killed, stand still, or lose their database, while many write and read at all of them.

Nothing that was acknowledged is lost, no checkpoint that anybody saw contradicts another, and another node leads within seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from depth import FULL, SEED
from node_processes import WITHIN, Clients, Cluster, cluster, get, leaf, post, until_size
from registries import Web, grant, settings_for
from signers import NOW, ORIGIN, key_signer

from treaty_consensus.errors import Conflict
from treaty_registry import registry as registry_module
from treaty_registry.registry import Registry


async def test_every_node_writes_and_serves_for_all(data: Path) -> None:
    async with cluster(data, 3) as servers:
        for number in range(9):
            first, second = servers.nodes[number % 3], servers.nodes[(number + 1) % 3]
            answer = await post(first.port, leaf(number))
            assert answer.status_code == 201, answer.text
            # The node that answered serves the leaf at once, the others a moment later.
            path = answer.headers["Location"]
            assert (await get(first.port, path)).status_code == 200
            await until_size(second.port, number + 3)
            assert (await get(second.port, path)).status_code == 200
            again = await post(second.port, leaf(number))
            assert (again.status_code, again.text.split("\n")[1]) == (200, answer.text.split("\n")[1])
        for node in servers.nodes:
            assert (await get(node.port, "/health/ready")).status_code == 200
        # A refusal of the rules is the leader's, word for word, at every node.
        other = key_signer("another").statement(grant(key_signer("the writer"), 1), log=ORIGIN, issued=NOW).leaf
        assert {(await post(node.port, other)).json()["code"] for node in servers.nodes} == {"publish.not-entitled"}
        # A stop of the leader hands over.
        leader = await servers.leader()
        assert await leader.stop() == 0
        rest = [node for node in servers.nodes if node is not leader]
        assert (await post(rest[0].port, leaf(100))).status_code == 201
        await until_size(rest[1].port, 12)


@pytest.mark.deep
@pytest.mark.threat(65)
async def test_killed_nodes_lose_nothing_and_never_fork(data: Path) -> None:
    seed = SEED or secrets.token_hex(4)
    print(f"TREATY_SEED={seed}")
    choices = random.Random(seed)
    async with cluster(data, 3) as servers:
        clients = Clients(servers, choices)
        async with clients.at_work():
            for number in range(40 if FULL else 4):
                await asyncio.sleep(choices.uniform(0.1, 1.5))
                await fault(servers, choices, number)
        leaves = await clients.check()
        print(f"{len(leaves)} leaves, {len(clients.acknowledged)} acknowledged, {clients.refused} refused meanwhile")
        leader = await servers.leader()
        assert await leader.stop() == 0
        for node in servers.nodes:
            assert "log was forked" not in servers.log(node)


async def fault(cluster: Cluster, choices: random.Random, number: int) -> None:
    leader = await cluster.leader()
    kind = ("leader", "any", "database", "stop")[number % 4]
    print(kind)
    if kind == "database":
        first = int((cluster.folder / "database" / "postgres" / "postmaster.pid").read_text().split("\n")[0])
        os.kill(first, signal.SIGKILL)  # its keeper starts it again
        return
    node = leader if kind in ("leader", "stop") else choices.choice(cluster.nodes)
    assert node.process is not None
    if kind == "stop":
        os.kill(node.process.pid, signal.SIGSTOP)
        async with asyncio.timeout(WITHIN):
            while await cluster.leader() is node:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.05)
        os.kill(node.process.pid, signal.SIGCONT)
        return
    await node.kill()
    await asyncio.sleep(choices.uniform(0, 0.5))
    await cluster.restart(node)


@pytest.mark.deep
async def test_nodes_without_their_database_serve_what_is_signed(data: Path) -> None:
    async with cluster(data, 2) as servers:
        answer = await post(servers.nodes[1].port, leaf(0))
        assert answer.status_code == 201
        await until_size(servers.nodes[0].port, 3)
        before = [(await get(node.port, "/checkpoint")).text for node in servers.nodes]
        first = int((servers.folder / "database" / "postgres" / "postmaster.pid").read_text().split("\n")[0])
        os.kill(first, signal.SIGSTOP)
        try:
            for node, note in zip(servers.nodes, before, strict=True):
                assert (await get(node.port, "/checkpoint")).text.split("\n")[:3] == note.split("\n")[:3]
                assert (await get(node.port, "/health/live")).status_code == 200
        finally:
            os.kill(first, signal.SIGCONT)
        async with asyncio.timeout(WITHIN):
            while (await post(servers.nodes[0].port, leaf(1))).status_code != 201:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.1)


@pytest.mark.deep
@pytest.mark.threat(290)
async def test_only_nodes_of_the_registry_send_proposals(data: Path) -> None:
    async with cluster(data, 1) as servers:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{servers.nodes[0].port}", trust_env=False) as http:
            for headers in ({}, {"Treaty-Node": "00" * 32}, {"Treaty-Node": "é".encode()}):
                answer = await http.post("/nodes/proposals", content=b"\x94\x01", headers=headers)  # type: ignore[arg-type]
                assert (answer.status_code, answer.json()["code"]) == (401, "node.request"), answer.text
        assert int((await get(servers.nodes[0].port, "/checkpoint")).text.split("\n")[1]) == 2


async def test_a_leader_with_a_wrong_clock_hands_over(tmp_path: Path, database: str, web: Web) -> None:
    blobs, head, wrong = f"file://{tmp_path}/blobs", f"file://{tmp_path}/head", [0]

    def node(name: str, port: int, clock: Callable[[], datetime]) -> AbstractAsyncContextManager[Registry]:
        url = f"http://127.0.0.1:{port}"
        settings = replace(settings_for(tmp_path / name, database), blobs=blobs, head=head, node=url)
        return Registry.open(settings, resolve=web.resolve, clock=clock)

    async with node("one", 9, lambda: datetime.fromtimestamp(NOW - wrong[0], UTC)) as one:
        shutil.copytree(tmp_path / "one" / "keys", tmp_path / "two" / "keys")
        async with node("two", 19, lambda: datetime.fromtimestamp(NOW, UTC)) as two:
            assert one.leader.leads and not two.leader.leads
            wrong[0] = 3600
            async with asyncio.timeout(WITHIN):
                while not (two.leader.leads and await two.is_ready()):  # noqa: ASYNC110 (a background task)
                    await asyncio.sleep(0.05)
            assert not one.leader.leads and not await one.is_ready()


@pytest.mark.threat(290)
async def test_a_node_with_the_address_of_the_leader_does_not_start(
    tmp_path: Path, database: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_PATIENCE", 0.5)
    blobs, head = f"file://{tmp_path}/blobs", f"file://{tmp_path}/head"

    def node(name: str, url: str = "http://127.0.0.1:9") -> AbstractAsyncContextManager[Registry]:
        settings = replace(settings_for(tmp_path / name, database), blobs=blobs, head=head, node=url)
        return Registry.open(settings, resolve=web.resolve)

    async with node("one") as leader:
        assert await leader.is_ready()
        shutil.copytree(tmp_path / "one" / "keys", tmp_path / "two" / "keys")
        with pytest.raises(Conflict) as refused:
            async with node("two"):
                pass
        assert refused.value.code == "settings.value"
        assert await leader.is_ready()
        async with node("two", "http://127.0.0.1:19") as follower:
            assert follower.head.size == leader.head.size
