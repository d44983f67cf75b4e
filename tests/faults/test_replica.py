"""Fault: the primary PostgreSQL dies, and its standby is promoted, under nodes that go on.

With a synchronous standby nothing that was acknowledged is lost. Without one, the promoted standby may lack leaves of a signed
head; then nothing is signed on it, so the log never forks.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest
from node_processes import WITHIN, Clients, cluster, get, leaf, post, until_size
from postgres_pair import postgres_pair

from treaty_registry.storage.hosts import each_host


def test_each_host_of_a_url_is_asked_by_itself() -> None:
    assert each_host("postgresql://me:pw@a:1,b:2/db?x=1") == ["postgresql://me:pw@a:1/db?x=1", "postgresql://me:pw@b:2/db?x=1"]
    assert each_host("postgresql:///db?host=/a,/b&port=5") == [
        "postgresql:///db?port=5&host=/a",
        "postgresql:///db?port=5&host=/b",
    ]
    for whole in ("postgresql://a/db", "postgresql:///db?host=/a", "simulated"):
        assert each_host(whole) == [whole]


@pytest.mark.deep
@pytest.mark.threat(65)
async def test_a_promoted_synchronous_standby_is_complete(data: Path) -> None:
    await asyncio.to_thread(data.chmod, 0o755)
    async with postgres_pair(data, synchronous=True) as pair, cluster(data, 2, database=pair.url) as servers:
        clients = Clients(servers, random.Random(7))
        async with clients.at_work():
            await asyncio.sleep(2)
            before = len(clients.acknowledged)
            # Killed, and never seen again, as with its machine.
            pair.primary.signal(signal.SIGKILL)
            await pair.standby.promote()
            async with asyncio.timeout(WITHIN):
                while len(clients.acknowledged) < before + 20:  # noqa: ASYNC110 (other processes)
                    await asyncio.sleep(0.1)
        await clients.check()
        async with asyncio.timeout(WITHIN):
            for node in servers.nodes:
                while (await get(node.port, "/health/ready")).status_code != 200:  # noqa: ASYNC110 (other processes)
                    await asyncio.sleep(0.1)


@pytest.mark.deep
async def test_lost_replication_stops_writes_and_signs_nothing(data: Path) -> None:
    await asyncio.to_thread(data.chmod, 0o755)
    async with postgres_pair(data, synchronous=True) as pair, cluster(data, 2, database=pair.url) as servers:
        assert (await post(servers.nodes[1].port, leaf(0))).status_code == 201
        await until_size(servers.nodes[0].port, 3)
        pair.standby.signal(signal.SIGSTOP)
        try:
            # The commit waits for the standby, the node gives up, and PostgreSQL then shows the leaf anyway: it is not signed.
            assert (await post(servers.nodes[1].port, leaf(1))).status_code == 503
            async with asyncio.timeout(WITHIN):
                while await pair.primary.value("select size from head") != 4:  # noqa: ASYNC110 (other processes)
                    await asyncio.sleep(0.1)
            await asyncio.sleep(8)
            for node in servers.nodes:
                answer = await get(node.port, "/checkpoint")
                assert (answer.status_code, answer.text.split("\n")[1]) == (200, "3")
        finally:
            pair.standby.signal(signal.SIGCONT)
        # The same statement gets the receipt of its leaf.
        async with asyncio.timeout(WITHIN):
            while (answer := await post(servers.nodes[1].port, leaf(1))).status_code not in (200, 201):  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.1)
        assert answer.text.split("\n")[1] == "index 3"


@pytest.mark.deep
async def test_a_promoted_standby_without_signed_leaves_signs_nothing(data: Path) -> None:
    await asyncio.to_thread(data.chmod, 0o755)
    async with postgres_pair(data, synchronous=False) as pair, cluster(data, 2, database=pair.url) as servers:
        assert (await post(servers.nodes[1].port, leaf(0))).status_code == 201
        await asyncio.sleep(1)
        await pair.standby.run("pg_ctl", "-D", ".", "-w", "-m", "fast", "stop")
        assert (await post(servers.nodes[1].port, leaf(1))).status_code == 201
        await until_size(servers.nodes[0].port, 4)
        pair.primary.signal(signal.SIGKILL)
        await pair.standby.start()
        await pair.standby.promote()
        async with asyncio.timeout(WITHIN):
            while not any("Signing this one would fork" in servers.log(node) for node in servers.nodes):  # noqa: ASYNC110 (processes)
                await asyncio.sleep(0.1)
        # Readers still get what is signed, from the nodes' memory; nothing else is signed.
        for node in servers.nodes:
            assert (await post(node.port, leaf(2))).status_code == 503
            assert (await get(node.port, "/checkpoint")).text.split("\n")[1] == "4"
            assert (await get(node.port, "/health/ready")).status_code == 503
