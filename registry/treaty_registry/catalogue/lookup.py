"""Many single look-ups as one query.

A query of one row costs this process and PostgreSQL ten times what one more row in a query of many costs. So a `Lookup` lets
those who ask at about the same time share a query `… = any($1)`: while one is under way, the next one gathers. Nobody waits for
company: with nothing under way a query starts at once. It keeps one connection, on which its statement stays prepared, as long
as there is anything to ask, and gives it back after a moment of rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from asyncpg import Pool

    from ..storage.postgres import AnyConnection

MAX_BATCH = 256
REST_SECONDS = 0.25

_V = TypeVar("_V")


class Lookup(Generic[_V]):
    """Looks up values by key. Used from one event loop, by any number of tasks."""

    def __init__(
        self,
        pool: Pool,
        fetch: Callable[[AnyConnection, list[str]], Awaitable[Mapping[str, _V]]],
    ) -> None:
        """`fetch`: the values of the keys that exist, in one query."""
        self._pool = pool
        self._fetch = fetch
        self._waiting: dict[str, list[asyncio.Future[_V | None]]] = {}
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def get(self, key: str) -> _V | None:
        """The value of `key` as of now or later, or None. Raises what `fetch` or the pool raises."""
        future: asyncio.Future[_V | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._asked.set()
        if self._task is None:
            self._task = asyncio.create_task(self._serve())
        return await future

    async def _serve(self) -> None:
        try:
            async with self._pool.acquire() as connection:
                while self._waiting or await self._is_asked():
                    await asyncio.sleep(0)  # whoever is ready to ask comes along
                    await self._answer(connection)
        except Exception as error:  # whoever waits is told; the next one to ask tries again with another connection
            for futures in self._take(len(self._waiting)).values():
                _fail(futures, error)
        # Who asked while the connection went back found this task not yet gone.
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
            found = await self._fetch(connection, list(batch))
        except Exception as error:
            for futures in batch.values():
                _fail(futures, error)
            raise
        for key, futures in batch.items():
            for future in futures:
                if not future.done():  # its request may have gone away
                    future.set_result(found.get(key))

    def _take(self, most: int) -> dict[str, list[asyncio.Future[_V | None]]]:
        keys = list(self._waiting)[:most]
        return {key: self._waiting.pop(key) for key in keys}


def _fail(futures: list[asyncio.Future[_V | None]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
