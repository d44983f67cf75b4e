"""Clients that read all the time, each over a new connection."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_READERS = 4


@asynccontextmanager
async def steady_readers(port: int, path: str) -> AsyncIterator[Counter[str]]:
    """Clients that ask over a new connection each time, during the block. Counts the answers, and what came in place of one."""
    seen: Counter[str] = Counter()

    async def read() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.read()
                writer.close()
                seen["answered" if answer.startswith(b"HTTP/1.1 ") else "closed"] += 1
            except OSError as error:
                seen[type(error).__name__] += 1
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read()) for _ in range(_READERS)]
        try:
            yield seen
        finally:
            for task in tasks:
                task.cancel()


async def answered(seen: Counter[str]) -> None:
    """Wait for some more answers."""
    before = seen["answered"]
    async with asyncio.timeout(60):
        while seen["answered"] < before + 2 * _READERS:  # noqa: ASYNC110 (other tasks count)
            await asyncio.sleep(0.001)
