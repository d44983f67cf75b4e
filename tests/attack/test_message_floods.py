"""A stranger that sends messages without end in many sessions. Sessions of other networks go on meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from bench.sessions import Buyer

from treaty_client.network.admission.message_turns import HEAVY
from treaty_client.network.transport import listener
from treaty_client.network.transport.connection import Connection, ConnectionLost

SESSIONS, EACH, ROUND_TRIPS = 40, 50, 20


async def joined(port: int, address: str) -> Buyer:
    """Open a WebSocket from an address."""
    loop = asyncio.get_running_loop()
    _, buyer = await loop.create_connection(Buyer, "127.0.0.1", port, local_addr=(address, 0))
    await buyer.receive()
    return buyer


@pytest.mark.threat(340)
@pytest.mark.parametrize("size", [10, HEAVY + 1], ids=["small", "heavy"])
async def test_messages_of_one_network_wait_for_its_turns(size: int) -> None:
    """Counted, not timed: so few messages of the stranger are handled before all round trips of an honest session."""
    handled, all_are = Counter[str](), asyncio.Event()

    async def echo(connection: Connection) -> None:
        with suppress(ConnectionLost):
            while True:
                message = await connection.receive()
                handled[connection.address.rpartition(":")[0]] += 1
                if handled["127.0.9.1"] == SESSIONS * EACH:
                    all_are.set()
                if len(message) == 5:
                    await connection.send(message)

    async with listener.listen(echo, "127.0.0.1", 0, max_connections=1_000) as port:
        honest = await joined(port, "127.0.10.1")
        crowd = [await joined(port, "127.0.9.1") for _ in range(SESSIONS)]
        for buyer in crowd:
            for _ in range(EACH):
                buyer.send(b"x" * size)
        for _ in range(ROUND_TRIPS):
            honest.send(b"hello")
            assert await honest.receive() == b"hello"
        before = handled["127.0.9.1"]
        print(before, "messages of the stranger before", ROUND_TRIPS, "round trips")
        async with asyncio.timeout(30):
            await all_are.wait()
        for buyer in (honest, *crowd):
            buyer.close()
    assert before <= ROUND_TRIPS * (20 if size <= HEAVY else 6)
