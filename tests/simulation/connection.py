"""The product's end of a connection to the simulated PostgreSQL: the part of asyncpg's interface that the write path uses.

asyncpg's own `Transaction` and the product's own `Pool` run unchanged on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.transaction import Transaction

from treaty_registry.storage import postgres

from .scheduler import settle
from .server import Answer, Session

if TYPE_CHECKING:
    from .processes import Process


class SimulatedConnection:
    """One connection of a process. `lost`: the process has learnt that it is closed."""

    _pool_release_ctr = 0

    def __init__(self, process: Process, settings: Mapping[str, str]) -> None:
        self._process = process
        self._network = process.world.network
        self._closed = False
        self._waiter: asyncio.Future[list[dict[str, Any]]] | None = None
        self._top_xact: Transaction | None = None
        self._protocol = self  # asyncpg's `Transaction` asks it for `is_in_transaction`
        self._sent = 0.0
        self._answered = 0.0
        scheduler = process.world.scheduler
        self._listeners: list[Callable[..., None]] = []
        waits = settings.get("synchronous_commit") != "off"
        self.session = Session(process.world.server, scheduler, self._closed_by_server, self._notify, waits=waits)
        process.connections.append(self)

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open, as the server said last."""
        return self.session.in_transaction

    def is_closed(self) -> bool:
        """Whether this end is closed."""
        return self._closed

    def terminate(self) -> None:
        """Close this end at once. The server learns it when the network tells it."""
        if not self._closed:
            self.lose()
            self._to_server(self.session.end)

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 (asyncpg's name)
        """Close this end."""
        self.terminate()

    def lose(self) -> None:
        """Learn that the connection is gone."""
        self._closed = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"))

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Transaction:
        """Return asyncpg's own transaction."""
        itself: Any = self
        return Transaction(itself, isolation, readonly, deferrable)

    async def fetch(self, sql: str, *arguments: Any, **_: Any) -> list[dict[str, Any]]:
        """Return the rows."""
        if self._closed:
            raise asyncpg.InterfaceError("connection is closed")
        if self._waiter is not None:
            raise asyncpg.InterfaceError("cannot perform operation: another operation is in progress")
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        if not self._process.faults.before_statement(self._process, self, sql):
            self._to_server(lambda: self._run(sql, arguments, waiter))
        try:
            rows: list[dict[str, Any]] = await waiter
            return rows
        except asyncio.CancelledError:
            # asyncpg would cancel the statement and wait for it. The product gives such a connection up.
            self.terminate()
            raise
        finally:
            if self._waiter is waiter:
                self._waiter = None

    async def fetchrow(self, sql: str, *arguments: Any, **_: Any) -> dict[str, Any] | None:
        """Return the first row."""
        rows = await self.fetch(sql, *arguments)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *arguments: Any, **_: Any) -> Any:
        """Return the first value."""
        rows = await self.fetch(sql, *arguments)
        return next(iter(rows[0].values())) if rows else None

    async def execute(self, sql: str, *arguments: Any, **_: Any) -> str:
        """Run a statement."""
        await self.fetch(sql, *arguments)
        return "DONE"

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """Have `callback` called with each NOTIFY."""
        await self.fetch(f'LISTEN "{channel}"')
        self._listeners.append(callback)

    def _notify(self) -> None:
        def tell() -> None:
            for callback in self._listeners:
                callback()

        self._to_client(tell)

    def _run(self, sql: str, arguments: tuple[Any, ...], waiter: asyncio.Future[Any]) -> None:
        self.session.receive(sql, arguments, lambda answer: self._answer(sql, answer, waiter))

    def _answer(self, sql: str, answer: Answer, waiter: asyncio.Future[Any]) -> None:
        if self._process.faults.after_statement(self._process, self, sql):
            return

        def deliver() -> None:
            if waiter.done():
                return
            if answer is None:
                self.lose()
            elif isinstance(answer, Exception):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)

        self._to_client(deliver)

    def _closed_by_server(self) -> None:
        if not self._closed:
            self._to_client(self.lose)

    def _to_server(self, work: Callable[[], None]) -> None:
        # In the order in which they were sent, as TCP does.
        scheduler, server = self._process.world.scheduler, self._process.world.server
        self._sent = max(self._sent, self._network.arrival(self._process.machine))
        scheduler.at(self._sent, None, lambda: server.do(work))

    def _to_client(self, work: Callable[[], None]) -> None:
        self._answered = max(self._answered, self._network.arrival(self._process.machine))
        self._process.world.scheduler.at(self._answered, self._process.loop, work)


async def connect(url: str, *, timeout: float, server_settings: Mapping[str, str], **_: Any) -> SimulatedConnection:  # noqa: ASYNC109 (asyncpg's name)
    """Stand for `asyncpg.connect`. Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    process: Process = loop.process  # type: ignore[attr-defined]
    world, ready = process.world, loop.create_future()

    def arrive() -> None:
        connection = SimulatedConnection(process, server_settings) if world.server.up and not process.loop.dead else None
        world.scheduler.at(world.network.arrival(process.machine), process.loop, lambda: settle(ready, connection))

    world.scheduler.at(world.network.arrival(process.machine), None, lambda: world.server.do(arrive))
    async with asyncio.timeout(timeout):  # as asyncpg: `wait_for` of Python 3.11 may lose a cancellation
        connection: SimulatedConnection | None = await ready
    if connection is None:
        raise ConnectionRefusedError("The server does not run.")
    return connection


class _Connections(asyncpg.Pool):
    """The layer below the product's `Pool`: simulated connections, kept while they are open."""

    def __init__(self, url: str, *, max_size: int, **_: Any) -> None:
        self._url = url
        self._free: list[SimulatedConnection] = []
        self._places = asyncio.Semaphore(max_size)

    def __await__(self) -> Any:
        return self._opened().__await__()

    async def _opened(self) -> _Connections:
        return self

    async def acquire(self, *, timeout: float) -> SimulatedConnection:  # type: ignore[override]  # noqa: ASYNC109 (asyncpg's name)
        async with asyncio.timeout(timeout):
            await self._places.acquire()
        try:
            while self._free:
                if not (connection := self._free.pop()).is_closed():
                    return connection
            return await connect(self._url, timeout=timeout, server_settings={})
        except BaseException:
            self._places.release()
            raise

    async def release(self, connection: Any, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 (asyncpg's name)
        self._places.release()
        if not connection.is_closed():
            self._free.append(connection)

    async def close(self) -> None:
        for connection in self._free:
            connection.terminate()


class SimulatedPool(postgres.Pool, _Connections):  # type: ignore[misc]
    """The product's pool, on simulated connections."""
