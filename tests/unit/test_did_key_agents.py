"""An agent with a did:key is told which peers it cannot authenticate to when such a peer refuses it, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meetings import TOPIC, identity, party, shop

from treaty_agent import Identity
from treaty_consensus.errors import Refused

TOLD = "treaty identity new DOMAIN"


async def test_it_listens_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seller = shop(tmp_path, own=Identity.create())
    with caplog.at_level("WARNING"):
        async with seller.agent, seller.agent.listen("127.0.0.1", 0):
            pass
    assert caplog.records == []


@asynccontextmanager
async def refusing(status: str) -> AsyncIterator[int]:
    """A server that refuses every request; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("own", "status", "is_told"),
    [
        (Identity.create(), "401 Unauthorized", True),
        (Identity.create(), "403 Forbidden", False),
        (identity("buyer.example"), "401 Unauthorized", False),
    ],
)
async def test_it_is_told_when_a_peer_refuses_its_signature(tmp_path: Path, own: Identity, status: str, is_told: bool) -> None:
    customer = party("buyer", tmp_path, own=own)
    async with refusing(status) as port, customer.agent:
        with pytest.raises(Refused) as refusal:
            async with customer.agent.connect(f"http://127.0.0.1:{port}", topic=TOPIC):
                raise AssertionError
    assert refusal.value.code == "connection.refused"
    assert (TOLD in refusal.value.fix) == is_told
    assert customer.events == [] or "running" not in customer.names()
