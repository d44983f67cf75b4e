"""Connections, migrations and leadership: what the registry asks of PostgreSQL besides its tables.

Migrations are the files `migrations/NNNN_name.sql`, applied in the order of their names, forward only, each in a transaction of
its own together with its row in `migrations` (name, SHA-256 of the file). An applied file never changes.

The leader of a log is whoever holds the session-level advisory lock `LEADER`; the database's log has one leader. It writes on the
very connection that holds the lock, so that a lost connection loses both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, Unavailable, Untrusted

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
AnyConnection: TypeAlias = "Connection | PoolConnectionProxy[asyncpg.Record]"
"""A connection of one's own, or one that a pool lends."""

DATABASE_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
"""What a statement sent to PostgreSQL may raise, beside our own errors."""

LEADER = 0x7472656174790001
_MIGRATING = 0x7472656174790002
_POLL = 0.05
_TIMEOUT = 30.0
_SETTINGS = {"application_name": "treaty-registry", "jit": "off"}  # compiling costs more than any query here takes


@asynccontextmanager
async def open_pool(url: str) -> AsyncIterator[Pool]:
    """A pool of connections for reading. Prepared statements stay prepared. Raises `Unavailable`."""
    try:
        pool = await asyncpg.create_pool(
            url, min_size=1, max_size=8, command_timeout=_TIMEOUT, max_cached_statement_lifetime=0, server_settings=_SETTINGS
        )
    except DATABASE_ERRORS as error:
        raise _unreachable(error) from error
    async with pool:
        yield pool


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Connection]:
    """One connection, for migrations and maintenance: its statements take as long as they take. Raises `Unavailable`."""
    connection = await _connect(url, timeout=None)
    try:
        yield connection
    finally:
        await connection.close()


async def lead(url: str, *, patience: float, timeout: float | None = _TIMEOUT) -> Connection:  # noqa: ASYNC109 (of statements)
    """A connection that holds the leader's lock, for the caller to close; waits at most `patience` seconds for it. `timeout`: the
    seconds that a statement on it may take.

    A killed predecessor holds the lock until PostgreSQL notices, which is a matter of milliseconds. Raises `Unavailable` when
    PostgreSQL is out of reach or another process leads, `Refused` when this PostgreSQL would lose acknowledged commits.
    """
    connection = await _connect(url, timeout=timeout)
    try:
        await _check_durability(connection)
        deadline = asyncio.get_running_loop().time() + patience
        while not await connection.fetchval("select pg_try_advisory_lock($1)", LEADER):
            if asyncio.get_running_loop().time() >= deadline:
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


async def _connect(url: str, *, timeout: float | None) -> Connection:  # noqa: ASYNC109 (of statements)
    try:
        connection: Connection = await asyncpg.connect(
            url, command_timeout=timeout, max_cached_statement_lifetime=0, server_settings=_SETTINGS
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


def _unreachable(error: BaseException) -> Unavailable:
    return Unavailable(
        "database.unreachable",
        f"PostgreSQL does not answer ({type(error).__name__}).",
        fix="Check TREATY_DATABASE_URL and that the server runs.",
    )
