"""Connections, migrations and leadership: what the registry asks of PostgreSQL besides its tables.

Migrations are the files `migrations/NNNN_name.sql`, applied in the order of their names, forward only, each in a transaction of
its own together with its row in `migrations` (name, SHA-256 of the file). An applied file never changes.

The leader of a log is whoever holds the session-level advisory lock `LEADER`; the database's log has one leader. It writes on the
very connection that holds the lock, so that a lost connection loses both.

PostgreSQL may stop answering in the middle of anything. Nothing here waits for it without end: a reader waits `_WAIT` seconds for
a connection and keeps it for at most `_LENT`; whoever writes sets a `deadline`. When time is up the connection is cut off, which
fails its statement at once; a statement that is cancelled politely waits for the server to confirm that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import resources
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, Unavailable, Untrusted

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
if TYPE_CHECKING:
    _Pool = asyncpg.Pool[asyncpg.Record]
else:
    _Pool = asyncpg.Pool  # generic in its stubs alone
AnyConnection: TypeAlias = "Connection | PoolConnectionProxy[asyncpg.Record]"
"""A connection of one's own, or one that a pool lends."""

DATABASE_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
"""What a statement sent to PostgreSQL may raise, beside our own errors."""

_OUTAGES = (
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,  # its disk is full, among others
    asyncpg.OperatorInterventionError,  # it starts, stops, or recovers from a crash
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    asyncpg.ReadOnlySQLTransactionError,  # it is a replica now
    asyncpg.InterfaceError,
    ConnectionError,
)


def is_outage(error: BaseException) -> bool:
    """Whether PostgreSQL as a whole is out of order: another statement would fail in the same way."""
    return isinstance(error, _OUTAGES) and not isinstance(error, ValueError)  # which asyncpg raises for a wrong argument


LEADER = 0x7472656174790001
_MIGRATING = 0x7472656174790002
_POLL = 0.05
_CONNECT = 3.0
"""Seconds to wait for a connection to be made: a server that is stopped accepts it and says nothing."""
_WAIT = 3.0
"""Seconds that a reader waits for one of the pool's connections."""
_LENT = 5.0
"""Seconds that a reader keeps one."""
_CLOSING = 3.0
"""Seconds for the pool to say goodbye to the server."""
_SETTINGS = {"application_name": "treaty-registry", "jit": "off"}  # compiling costs more than any query here takes


class Pool(_Pool):
    """Connections for reading, lent for a bounded time. Made by `open_pool`."""

    @asynccontextmanager
    async def acquire(  # type: ignore[override]  # a context manager alone; asyncpg's can be awaited as well
        self,
        *,
        timeout: float = _WAIT,  # noqa: ASYNC109 (asyncpg's name)
    ) -> AsyncIterator[PoolConnectionProxy[asyncpg.Record]]:
        """Lend a connection until the block ends, `_LENT` seconds at most; then what it is doing fails.

        Raises `Unavailable` (`registry.database`) when there is none within `timeout` seconds.
        """
        try:
            connection = await super().acquire(timeout=timeout)
        except DATABASE_ERRORS as error:
            raise database_silent() from error
        try:
            with deadline(connection, _LENT):
                yield connection
        finally:
            with suppress(TimeoutError):  # it could not be reset in time, and was dropped
                await self.release(connection, timeout=_WAIT)


@asynccontextmanager
async def open_pool(url: str) -> AsyncIterator[Pool]:
    """A pool of connections for reading. Prepared statements stay prepared. Raises `Unavailable`."""
    pool = Pool(
        url,
        min_size=0,  # otherwise it keeps trying to connect, and says so, for as long as PostgreSQL is away
        max_size=8,
        max_queries=50_000,
        max_inactive_connection_lifetime=300,
        connection_class=asyncpg.Connection,
        record_class=asyncpg.Record,
        loop=None,
        timeout=_CONNECT,
        max_cached_statement_lifetime=0,
        server_settings=_SETTINGS,
    )
    try:
        await pool
    except DATABASE_ERRORS as error:
        raise _unreachable(error) from error
    try:
        yield pool
    finally:
        with suppress(*DATABASE_ERRORS):
            await asyncio.wait_for(pool.close(), _CLOSING)  # cancelled, it drops what has not closed by then


@contextmanager
def deadline(connection: AnyConnection, seconds: float) -> Iterator[None]:
    """Cut `connection` off when the block lasts longer than `seconds`: what waits for it fails at once, and so does all after."""
    timer = asyncio.get_running_loop().call_later(seconds, connection.terminate)
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Connection]:
    """One connection, for migrations and maintenance: its statements take as long as they take. Raises `Unavailable`."""
    connection = await _connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def lead(url: str, *, patience: float) -> Connection:
    """A connection that holds the leader's lock, for the caller to close; waits at most `patience` seconds for it. Its statements
    take as long as they take.

    A killed predecessor holds the lock until PostgreSQL notices, which is a matter of milliseconds. Raises `Unavailable` when
    PostgreSQL is out of reach or another process leads, `Refused` when this PostgreSQL would lose acknowledged commits.
    """
    connection = await _connect(url)
    try:
        with deadline(connection, patience + _CONNECT):
            await _check_durability(connection)
            end = asyncio.get_running_loop().time() + patience
            while not await connection.fetchval("select pg_try_advisory_lock($1)", LEADER):
                if asyncio.get_running_loop().time() >= end:
                    raise Unavailable(
                        "log.other-leader",
                        "Another process writes this log.",
                        fix="Stop the other treaty-registry that uses this database.",
                    )
                await asyncio.sleep(_POLL)
    except BaseException:
        connection.terminate()
        raise
    return connection


def migrations() -> list[tuple[str, str]]:
    """The names and the SQL of all migrations, in their order."""
    files = resources.files(__package__).joinpath("migrations").iterdir()
    return sorted((file.name, file.read_text()) for file in files if file.name.endswith(".sql"))


async def migrate(connection: Connection) -> list[str]:
    """Apply the migrations that are missing; return their names. Concurrent callers wait for each other.

    Raises `Untrusted` when an applied migration is not the file of that name any more.
    """
    await connection.execute("select pg_advisory_lock($1)", _MIGRATING)
    try:
        await connection.execute("create table if not exists migrations (name text primary key, sha256 text not null)")
        applied = {row["name"]: row["sha256"] for row in await connection.fetch("select name, sha256 from migrations")}
        missing = []
        for name, sql in migrations():
            digest = hex_digest(sql.encode())
            if applied.get(name, digest) != digest:
                raise Untrusted(
                    "database.migration",
                    f"The migration {name} was applied to this database in another form.",
                    fix="Run the release of Treaty that made this database, or a later one.",
                )
            if name not in applied:
                async with connection.transaction():
                    await connection.execute(sql)
                    await connection.execute("insert into migrations (name, sha256) values ($1, $2)", name, digest)
                missing.append(name)
    finally:
        await connection.execute("select pg_advisory_unlock($1)", _MIGRATING)
    return missing


async def _connect(url: str) -> Connection:
    try:
        connection: Connection = await asyncpg.connect(
            url, timeout=_CONNECT, max_cached_statement_lifetime=0, server_settings=_SETTINGS
        )
        return connection
    except DATABASE_ERRORS as error:
        raise _unreachable(error) from error


async def _check_durability(connection: Connection) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        if await connection.fetchval("select current_setting($1)", setting) == "off":
            raise Refused(
                "database.not-durable",
                f"PostgreSQL runs with {setting} = off and can lose what it acknowledged.",
                fix=f"Set {setting} = on.",
            )


def database_silent() -> Unavailable:
    """What a stranger hears of PostgreSQL when it does not answer."""
    return Unavailable("registry.database", "The registry's database does not answer.", fix="Try again in a few seconds.")


def _unreachable(error: BaseException) -> Unavailable:
    return Unavailable(
        "database.unreachable",
        f"PostgreSQL does not answer ({type(error).__name__}).",
        fix="Check TREATY_DATABASE_URL and that the server runs.",
    )
