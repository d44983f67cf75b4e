"""Combine many single look-ups into one query.

A query of one row costs this process and PostgreSQL ten times as much as one more row in a larger query. So a `Lookup` shares a
query `… = any($1)` between callers of about the same time: while one query runs, the keys for the next one are collected. When
no query runs, a new one starts at once. The `Lookup` keeps one connection, on which its statement stays prepared, while there
are keys to look up. It returns the connection after a short idle time, and in any case before the pool takes it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from asyncpg import Pool

    from ..storage.postgres import AnyConnection

# The first caller of a batch waits for all its rows, so a batch is bounded.
MAX_BATCH = 256
REST_SECONDS = 0.25  # idle seconds before the connection is returned, because other readers need it
KEPT_SECONDS = 2.0
"""Seconds after which the connection is returned although keys are asked for. The pool closes one that is lent for longer
(`storage.postgres`), which fails the look-up that runs."""

_V = TypeVar("_V")


class Lookup(Generic[_V]):
    """Looks up values by key. Used from one event loop, by any number of tasks."""

    def __init__(
        self,
        pool: Pool,
        fetch: Callable[[AnyConnection, list[str]], Awaitable[Mapping[str, _V]]],
    ) -> None:
        """`fetch`: return the values of the existing keys, in one query."""
        self._pool = pool
        self._fetch = fetch
        self._waiting: dict[str, list[asyncio.Future[_V | None]]] = {}
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def get(self, key: str) -> _V | None:
        """Return the value of `key`, read after this call started, or None. Raises what `fetch` raises, and `Unavailable`."""
        future: asyncio.Future[_V | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._asked.set()
        if self._task is None:
            self._task = asyncio.create_task(self._serve())
        return await future

    async def _serve(self) -> None:
        try:
            async with self._pool.acquire() as connection:
                clock = asyncio.get_running_loop().time
                until = clock() + KEPT_SECONDS
                while self._waiting or await self._is_asked():
                    await asyncio.sleep(0)  # let callers that are ready add their keys
                    await self._answer(connection)
                    if clock() >= until:
                        break
        except Exception as error:  # fail the waiting callers; the next call tries again with another connection
            for futures in self._take(len(self._waiting)).values():
                _fail(futures, error)
        # Callers that arrived while the connection was returned saw this task and started no other.
        self._task = asyncio.create_task(self._serve()) if self._waiting else None

    async def _is_asked(self) -> bool:
        self._asked.clear()
        try:
            async with asyncio.timeout(REST_SECONDS):
                await self._asked.wait()
        except TimeoutError:
            return False
        return True

    async def _answer(self, connection: AnyConnection) -> None:
        batch = self._take(MAX_BATCH)
        try:
            rows = await self._fetch(connection, list(batch))
        except Exception:
            # Put back before the error leaves this method, so that no future is lost.
            for key, futures in batch.items():  # `_serve` fails them, with the error as the pool translates it
                self._waiting.setdefault(key, []).extend(futures)
            raise
        for key, futures in batch.items():
            for future in futures:
                if not future.done():  # its request may have been cancelled
                    future.set_result(rows.get(key))

    def _take(self, most: int) -> dict[str, list[asyncio.Future[_V | None]]]:
        keys = list(self._waiting)[:most]
        return {key: self._waiting.pop(key) for key in keys}


def _fail(futures: list[asyncio.Future[_V | None]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
