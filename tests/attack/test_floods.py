"""Attack: one address floods the registry, with connections or with statements, while honest agents read and write.

The oracle's latencies are printed (`pytest -s`); `python -m bench floods` measures them with ten thousand connections.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from bench import flood as flooding
from bench.oracle import Oracle
from did_host import did_host
from registry_process import Server, empty
from signers import NOW, Signer, domain_signer, key_signer

from treaty_consensus import kinds

FLOOD = flooding.__file__
ALICE = domain_signer("alice.example")
HONEST = "127.0.1.1"
"""In another network than the flood: networks have their turns at writing."""
SECONDS = 1.5
BOUND = 5.0
"""Seconds, on a machine that is busy with other tests; before there was a bound the answers never came."""


@dataclass
class Voter:
    """An honest writer: one ballot in a topic after the other, by an agent whose document the registry can fetch."""

    agent: Signer
    origin: str
    topic: str
    sent: int = 0
    _seen: str = ""

    async def __call__(self, api: httpx.AsyncClient) -> httpx.Response:
        if not self._seen:
            self._seen = (await api.get("/checkpoint")).text
        body = kinds.Ballot(self.topic, self.sent, (("ab" * 32,), (kinds.NONE,)), self._seen)
        leaf = self.agent.statement(body, log=self.origin, issued=NOW + self.sent).leaf
        answer = await api.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
        self.sent += answer.status_code in (200, 201)
        return answer


@pytest.fixture
async def server(data: Path) -> AsyncIterator[Server]:
    with did_host(data, ALICE) as options:
        async with empty(data / "registry", *options) as server:
            await server.start()
            assert await server.ready()
            yield server


@asynccontextmanager
async def watched(server: Server) -> AsyncIterator[Oracle]:
    """An oracle, which has seen the registry without a flood."""
    voter = Voter(ALICE, server.about["origin"], "commerce/product-info")
    oracle = Oracle(f"http://127.0.0.1:{server.port}", voter, address=HONEST)
    async with oracle.watching():
        await oracle.phase("before", 1)
        yield oracle
        await oracle.phase("after", 1)
    print(oracle.table())
    assert not oracle.failures
    assert max(map(oracle.worst, oracle.latencies)) < BOUND
    assert await server.stop() == 0


async def flood(
    server: Server, oracle: Oracle, kind: str, count: int, file: Path | None = None, addresses: str = "127.0.0.1"
) -> None:
    """Flood for as long as the phase of this name lasts."""
    arguments = [str(server.port), kind, str(count), str(SECONDS), addresses, *([str(file)] if file else [])]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, FLOOD, *arguments, stdout=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    await oracle.phase(kind, SECONDS)
    assert await process.wait() == 0


@pytest.mark.deep
@pytest.mark.threat(76)
async def test_connections_from_one_address_keep_nobody_out(server: Server) -> None:
    """Silent ones, more than any limit; heads, prefaces and bodies that drip; answers that nobody reads; idle ones."""
    kinds_of_flood = {"silent": 2_500, "head": 600, "preface": 600, "body": 300, "unread": 50, "various": 50, "idle": 600}
    async with watched(server) as oracle:
        for kind, count in kinds_of_flood.items():
            await flood(server, oracle, kind, count)


@pytest.mark.deep
@pytest.mark.threat(114)
async def test_pipelined_requests_from_one_network_keep_nobody_waiting(server: Server) -> None:
    """Two hundred requests on each connection: for large and small answers, for none, with bodies; unread, sipped and read."""
    addresses = "127.0.0.1,127.0.0.2"
    async with watched(server) as oracle:
        for kind in ("unread", "small", "missing", "heads", "posts", "sipped", "read"):
            await flood(server, oracle, kind, 300, addresses=addresses)


@pytest.mark.threat(114)
async def test_an_honest_request_does_not_wait_for_pipelined_ones(server: Server) -> None:
    """Counted, not timed: while one network has 20,000 requests in the line, another one's hundred are answered."""
    sent, honest = 200, 100
    crowd = [await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.1", 0)) for _ in range(100)]
    address = httpx.AsyncHTTPTransport(local_address=HONEST)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", transport=address, timeout=30) as api:
        await api.get("/checkpoint")
        for _, writer in crowd:
            writer.write(b"HEAD /nothing HTTP/1.1\r\nHost: registry.example\r\n\r\n" * sent)
        for _ in range(honest):
            assert (await api.get("/checkpoint")).status_code == 200
        answered = 0
        for reader, writer in crowd:
            reader.feed_eof()
            answered += (await reader.read()).count(b"HTTP/1.1 404")
            writer.transport.abort()
    print(answered, "answers to the flood before", honest, "honest ones")
    assert answered < len(crowd) * sent // 8
    assert await server.stop() == 0


@pytest.mark.deep
@pytest.mark.threat(77)
async def test_statements_from_one_network_keep_nobody_from_writing(server: Server, tmp_path: Path) -> None:
    """Ballots of fresh did:keys for topics of their own, what a did:key may really say, and what is no statement."""
    origin, seen = server.about["origin"], await checkpoint(server)
    strangers = [key_signer(f"stranger {number}") for number in range(1_200)]
    topics = [kinds.Ballot(f"invented/topic-{number}", 0, ((kinds.NONE,),), seen) for number in range(len(strangers))]
    grants = [kinds.Grant(agent.did, ALICE.did) for agent in strangers]
    ballots, own = (
        [agent.statement(body, log=origin).leaf for agent, body in zip(strangers, bodies, strict=True)]
        for bodies in (topics, grants)
    )
    async with watched(server) as oracle:
        for name, lines, most in (("ballots", ballots, 0), ("grants", own, 600), ("junk", [leaf[:-1] for leaf in own * 4], 0)):
            file = tmp_path / name
            file.write_bytes(b"\n".join(lines))
            logged, written = len(await server.leaves()), oracle.count("write")
            await flood(server, oracle, name, 8, file)
            added = len(await server.leaves()) - logged
            assert added <= oracle.count("write") - written + 2 + most, "what a network's did:keys may add, and no more"


async def test_http_2_is_not_spoken(server: Server) -> None:
    """Its streams and its own flow control would be outside of what the guard of connections bounds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
    answer = await asyncio.wait_for(reader.read(1_000), 20)
    writer.close()
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), answer


async def checkpoint(server: Server) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /checkpoint HTTP/1.1\r\nHost: registry.example\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2].decode()
