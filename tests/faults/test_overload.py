"""Fault: more statements than the registry can log. It refuses with 429 and `Retry-After`, serves readers, and recovers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fault_oracle import Seen, judge
from registries import grant
from registry_process import Server, empty
from signers import NOW, key_signer

BATCH, REQUESTS = 64, 96


@pytest.fixture
async def server(data: Path) -> AsyncIterator[Server]:
    # The quotas are out of the way: only the queue of statements can be full.
    async with empty(data / "registry", "--quota", "100000") as server:
        await server.start()
        assert await server.ready()
        yield server


@pytest.mark.deep
async def test_load_past_saturation_is_refused_and_taken_later(server: Server) -> None:
    seen, author = Seen(), key_signer("author")
    origin = server.about["origin"]
    leaves = [author.statement(grant(author, number), log=origin, issued=NOW).leaf for number in range(BATCH * REQUESTS)]
    waiting = list(leaves)
    statuses: list[int] = []
    limits = httpx.Limits(max_connections=REQUESTS)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}", limits=limits, timeout=120, trust_env=False
    ) as client:

        async def send(batch: list[bytes]) -> list[bytes]:
            """Send a batch, and return the leaves that must be sent again."""
            answer = await client.post("/statements", content=b"\n".join(batch), headers={"Content-Type": "application/x-ndjson"})
            statuses.append(answer.status_code)
            if answer.status_code != 200:
                assert answer.status_code in (429, 503), answer.text
                assert int(answer.headers["Retry-After"]) >= 1
                return batch
            again = []
            for leaf, line in zip(batch, answer.text.splitlines(), strict=True):
                outcome = json.loads(line)
                if outcome["status"] in (200, 201):
                    seen.acknowledged.append((leaf, outcome["receipt"].encode()))
                else:
                    assert outcome["status"] in (429, 503), outcome
                    again.append(leaf)
            return again

        sending = asyncio.gather(*(send(list(batch)) for batch in _batches(waiting)))
        reads = 0
        while not sending.done():
            answer = await client.get("/checkpoint")
            assert answer.status_code == 200
            seen.checkpoints.add(answer.text)
            reads += 1
            await asyncio.sleep(0.1)
        waiting = [leaf for batch in await sending for leaf in batch]
        assert waiting and seen.acknowledged, "the load was not past saturation"
        assert {200, 429} <= set(statuses)
        assert reads
        # As a client does that reads Retry-After. A few at a time: the load is over.
        async with asyncio.timeout(300):
            while waiting:
                await asyncio.sleep(1)
                waiting = [leaf for batch in _batches(waiting) for leaf in await send(list(batch))]
    assert {leaf for leaf, _ in seen.acknowledged} == set(leaves)
    await judge(server, seen)


def _batches(leaves: list[bytes]) -> list[list[bytes]]:
    return [leaves[begin : begin + BATCH] for begin in range(0, len(leaves), BATCH)]
