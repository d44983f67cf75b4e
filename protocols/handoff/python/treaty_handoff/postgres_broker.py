"""Queues in PostgreSQL, by PgQueuer. A row is locked while it is taken, and a consumer that dies loses it after a time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from treaty_consensus.errors import Unavailable
from treaty_io.extras import naming_extras

from .broker import Delivery
from .codes import HandoffCode
from .journal import LOST_DATABASE, check_url

with naming_extras("handoff"):
    import asyncpg
    from pgqueuer.db import AsyncpgPoolDriver
    from pgqueuer.models import Job
    from pgqueuer.ports.repository import EntrypointExecutionParameter
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueEntrypoint, QueueManagerId

LEASE = 30.0
"""Seconds after which a message of a consumer that gives no sign of life is given to another one."""
_LOOK = 1.0
"""Seconds between two looks into an empty queue. A notification comes sooner; it is lost with its connection."""
_INSTALL = 0x7472_6561_7479
"""The advisory lock of installing: two processes that do it at once would fail."""


class PostgresBroker:
    """A broker in a PostgreSQL database."""

    def __init__(self, pool: asyncpg.Pool[Any], lease: float) -> None:
        self._pool, self._lease = pool, lease
        self._queries = Queries(AsyncpgPoolDriver(pool))
        self._consumer = QueueManagerId(uuid.uuid4())

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, lease: float = LEASE) -> AsyncIterator[PostgresBroker]:
        """Connect to the database at `url`; make PgQueuer's tables there if they are missing. Raises `Unavailable`, or
        `Malformed` for a URL of something else."""
        check_url(url)
        with naming_broker():
            pool = await asyncpg.create_pool(url, min_size=0, max_size=8)
        broker = cls(pool, lease)
        try:
            with naming_broker():
                await broker._install()
            yield broker
        finally:
            await broker.close()

    async def _install(self) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", _INSTALL)
            queries = Queries.from_asyncpg_connection(connection)  # type: ignore[arg-type]
            if not await queries.has_table(queries.qbe.settings.queue_table):
                await queries.install()

    async def publish(self, queue: str, body: bytes, priority: int) -> None:
        """See `Broker`."""
        with naming_broker():
            await self._queries.enqueue(queue, body, priority)

    async def deliveries(self, queue: str) -> AsyncGenerator[Delivery, None]:
        """See `Broker`."""
        with naming_broker():
            async with self._pool.acquire() as listening:
                news = asyncio.Event()
                channel = str(self._queries.qbe.settings.channel)

                def wake(*_: object) -> None:
                    news.set()

                await listening.add_listener(channel, wake)
                try:
                    while True:
                        news.clear()
                        for job in await self._take(queue):
                            delivery = _Taken(self._queries, job, self._lease)
                            async with delivery.kept():
                                yield delivery
                            news.set()
                        # Not `wait_for`: Python 3.11's loses a cancellation that comes together with the event.
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_LOOK):
                                await news.wait()
                finally:
                    if not listening.is_closed():
                        await listening.remove_listener(channel, wake)

    async def _take(self, queue: str) -> list[Job]:
        return await self._queries.dequeue(
            batch_size=1,
            entrypoints={QueueEntrypoint(queue): EntrypointExecutionParameter(concurrency_limit=0)},
            queue_manager_id=self._consumer,
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=self._lease),
        )

    async def backlog(self, queue: str) -> int:
        """See `Broker`."""
        with naming_broker():
            sizes = await self._queries.queue_size()
            return sum(size.count for size in sizes if size.entrypoint == queue and size.status == "queued")

    async def prune(self) -> None:
        """Delete PgQueuer's log of the messages that were confirmed; nothing here reads it. Raises `Unavailable`."""
        with naming_broker():
            await self._queries.clear_queue_log()

    async def close(self) -> None:
        """See `Broker`."""
        self._pool.terminate()


@dataclass
class _Taken:
    """A taken row. While it is kept, its sign of life is renewed."""

    queries: Queries
    job: Job
    lease: float

    @property
    def body(self) -> bytes:
        """The message."""
        return self.job.payload or b""

    async def confirm(self) -> None:
        """See `Delivery`."""
        with naming_broker():
            await self.queries.log_jobs([(self.job, "successful", None)])

    async def return_later(self, seconds: float) -> None:
        """See `Delivery`."""
        with naming_broker():
            await self.queries.retry_job(self.job, timedelta(seconds=seconds), None)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Renew the sign of life until the block ends."""
        renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew(self) -> None:
        while True:
            # A third: two renewals may fail before the lease ends.
            await asyncio.sleep(self.lease / 3)
            with suppress(Unavailable), naming_broker():
                await self.queries.update_heartbeat([self.job.id])


@contextmanager
def naming_broker() -> Iterator[None]:
    """Turn the errors of a lost database in the block into `Unavailable`."""
    try:
        yield
    except (OSError, *LOST_DATABASE) as error:
        raise Unavailable(HandoffCode.BROKER, f"The broker's database does not answer: {error}.") from error
