"""Clients that write at a steady rate through faults: each statement is sent again until it is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
from fault_oracle import Seen
from registries import grant
from registry_process import Server
from signers import NOW, key_signer

_PER_WRITER = 10
"""Statements a second of each of them."""


@asynccontextmanager
async def steady_writers(server: Server, seen: Seen, name: str, rate: int = _PER_WRITER) -> AsyncIterator[None]:
    """Send `rate` statements a second while the block lasts, and read each checkpoint. `name`: of writers that the log lacks."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def write(number: int, api: httpx.AsyncClient) -> None:
        writer, written, due = key_signer(f"{name} {number}"), 0, loop.time()
        while not ending.is_set():
            written += 1
            leaf = writer.statement(grant(writer, written), log=server.about["origin"], issued=NOW).leaf
            acknowledged = False
            while not acknowledged and not ending.is_set():
                with suppress(httpx.HTTPError):
                    answer = await api.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
                    acknowledged = seen.answer(leaf, answer)
                due = max(due + 1 / _PER_WRITER, loop.time())
                await asyncio.sleep(due - loop.time())

    async def read(api: httpx.AsyncClient) -> None:
        while not ending.is_set():
            with suppress(httpx.HTTPError):
                answer = await api.get("/checkpoint")
                if answer.status_code == 200:
                    seen.checkpoints.add(answer.text)
            await asyncio.sleep(1 / _PER_WRITER)

    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as api, asyncio.TaskGroup() as group:
        for number in range(rate // _PER_WRITER):
            group.create_task(write(number, api))
        group.create_task(read(api))
        try:
            yield
        finally:
            ending.set()
