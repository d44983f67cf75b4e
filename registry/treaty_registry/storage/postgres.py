"""Provide connections, migrations and the leader's lock of PostgreSQL.

Migrations are the files `migrations/NNNN_name.sql`. They are applied in the order of their names, forward only, each in its own
transaction together with its row in `migrations` (name, SHA-256 of the file). An applied file never changes.

The leader of a log is the process that holds the session-level advisory lock `LEADER`. It writes on the same connection that
holds the lock, so a lost connection loses both.

PostgreSQL may stop answering at any moment, so every wait has a limit. A reader waits `_WAIT` seconds for a connection and keeps
it for at most `_LENT`. A writer sets a `deadline`. After the limit the connection is closed, which fails its statement at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import asyncpg
import structlog
from asyncpg.pool import PoolConnectionProxy

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, TreatyError, Unavailable, Untrusted

from ..codes import DatabaseCode, RegistryLogCode
from ..telemetry.measures import DATABASE_OUTAGES, POOL_WAIT_SECONDS
from .hosts import connect_primary

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
if TYPE_CHECKING:
    _Pool = asyncpg.Pool[asyncpg.Record]
else:
    _Pool = asyncpg.Pool  # generic in its stubs alone
AnyConnection: TypeAlias = "Connection | PoolConnectionProxy[asyncpg.Record]"
"""A connection of its own, or one lent by a pool."""

# The last one: asyncpg raises it when a connection ends between two messages of one statement.
DATABASE_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, asyncpg.InternalClientError)
"""The errors of a statement sent to PostgreSQL, besides this package's own."""

_OUTAGES = (
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,  # its disk is full, among others
    asyncpg.OperatorInterventionError,  # it starts, stops, or recovers from a crash
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    asyncpg.ReadOnlySQLTransactionError,  # it is a replica now
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
)


def is_outage(error: BaseException) -> bool:
    """Whether PostgreSQL as a whole is out of order, so that every other statement would fail too."""
    return isinstance(error, _OUTAGES) and not isinstance(error, ValueError)  # DataError: asyncpg raises it for a wrong argument


# `treaty` in ASCII and a number, because all programs share the advisory locks of a database.
LEADER = 0x7472656174790001
_STANDBYS = re.compile(r"\s*(?:FIRST\s+|ANY\s+)?([0-9]+)\s*\(", re.IGNORECASE)
_MIGRATING = 0x7472656174790002
_POLL = 0.05  # seconds between two tries for the leader's lock
_CONNECT = 3.0
"""Seconds to wait for a new connection, because a suspended server accepts it and never answers."""
_START = 10.0
"""The same for a command or a start, which no reader waits for: a server with a busy disk may need longer."""
_WAIT = 3.0
"""Seconds that a reader waits for one of the pool's connections."""
_LENT = 5.0
"""Seconds that a reader may keep a connection."""
_CLOSING = 3.0
"""Seconds for the pool to close its connections."""
_SETTINGS = {
    "application_name": "treaty-registry",
    "jit": "off",  # compiling costs more than any query here takes
    # PostgreSQL ends the session of a machine that does not answer, and so frees the leader's lock, after about five seconds. By
    # default it would take two hours. Unix sockets ignore these.
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "5000",
}
_log = structlog.get_logger(__name__)


class Pool(_Pool):
    """Connections for reading, lent for a limited time. Made by `open_pool`."""

    @asynccontextmanager
    async def acquire(  # type: ignore[override]  # a context manager alone; asyncpg's can be awaited as well
        self,
        *,
        timeout: float = _WAIT,  # noqa: ASYNC109 (asyncpg's name)
    ) -> AsyncIterator[PoolConnectionProxy[asyncpg.Record]]:
        """Lend a connection until the block ends. After `_LENT` seconds it is closed and its statement fails.

        Raises `Unavailable` (`database.unreachable`) when no connection is free within `timeout` seconds, and in place of the
        error of a statement that fails because PostgreSQL is out of order.
        """
        try:
            with POOL_WAIT_SECONDS.time():
                connection = await super().acquire(timeout=timeout)
        except DATABASE_ERRORS as error:
            raise database_silent() from error
        try:
            with deadline(connection, _LENT):
                yield connection
        except Exception as error:
            if is_outage(error):  # a connection can also be lost while its statement runs
                raise database_silent() from error
            raise
        finally:
            # A connection that cannot be reset is dropped. What the block read is whole, so its caller need not know.
            with suppress(*DATABASE_ERRORS):
                await self.release(connection, timeout=_WAIT)


@asynccontextmanager
async def open_pool(url: str) -> AsyncIterator[Pool]:
    """Open a pool of connections for reading. Prepared statements are kept. Raises `Unavailable`."""
    pool = Pool(
        url,
        min_size=0,  # otherwise it keeps trying to connect, and logs it, while PostgreSQL is down
        # `serving.views` divides these connections among answers.
        max_size=8,
        max_queries=50_000,
        max_inactive_connection_lifetime=300,
        connection_class=asyncpg.Connection,
        record_class=asyncpg.Record,
        loop=None,
        timeout=_CONNECT,
        # Prepared statements are kept as long as their connection.
        max_cached_statement_lifetime=0,
        server_settings=_SETTINGS,
        connect=cast("Any", connect_primary),  # its options are asyncpg's own
    )
    try:
        await pool
    except DATABASE_ERRORS as error:
        raise _unreachable(error) from error
    try:
        yield pool
    finally:
        with suppress(*DATABASE_ERRORS):
            await asyncio.wait_for(pool.close(), _CLOSING)  # on timeout the open connections are dropped


@contextmanager
def deadline(connection: AnyConnection, seconds: float) -> Iterator[None]:
    """Close `connection` if the block lasts longer than `seconds`. Its statement, and all later ones, then fail at once."""
    # Closed and not cancelled: cancelling waits for the server's confirmation, which a suspended server does not
    # give.
    timer = asyncio.get_running_loop().call_later(seconds, connection.terminate)
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def connect_node(url: str) -> AsyncIterator[Connection]:
    """Open the connection on which a node hears and tells of heads (`log.leadership`). Raises `Unavailable`.

    Its commits are not waited for, so it must write nothing else.
    """
    connection = await _connect(url, {"synchronous_commit": "off"})
    try:
        yield connection
    finally:
        # Not closed in order: a server that does not answer would be waited for.
        connection.terminate()


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Connection]:
    """Open one connection for migrations and maintenance, without a limit on the time of its statements. Raises `Unavailable`."""
    connection = await _connect(url, patience=_START)
    try:
        yield connection
    finally:
        await connection.close()


async def lead(url: str, *, patience: float) -> Connection:
    """Return a connection that holds the leader's lock, after waiting at most `patience` seconds for the lock.

    The caller closes it. Its statements have no time limit. If the previous leader was killed, PostgreSQL releases its lock
    within milliseconds. Raises `Unavailable` when PostgreSQL cannot be reached or another process leads, and `Refused` when this
    PostgreSQL could lose acknowledged commits, or does not keep the lock.
    """
    patience_to_connect = max(_CONNECT, patience)
    connection = await _connect(url, patience=patience_to_connect)
    try:
        with deadline(connection, patience + _CONNECT):
            # Before the lock: a process on such a server must not lead at all.
            await _check_durability(connection)
            end = asyncio.get_running_loop().time() + patience
            # Polled: a statement that waits inside the server could be given up only by closing its connection.
            while not await connection.fetchval("select pg_try_advisory_lock($1)", LEADER):
                if asyncio.get_running_loop().time() >= end:
                    raise Unavailable(
                        RegistryLogCode.OTHER_LEADER,
                        "Another process writes this log.",
                        fix="Stop the other treaty-registry that uses this database.",
                    )
                await asyncio.sleep(_POLL)
        await _check_lock(url, patience_to_connect)
    # Also when cancelled: an open connection would keep the lock.
    except BaseException:
        connection.terminate()
        raise
    return connection


def migrations() -> list[tuple[str, str]]:
    """Return the names and the SQL of all migrations, in order."""
    files = resources.files(__package__).joinpath("migrations").iterdir()
    return sorted((file.name, file.read_text()) for file in files if file.name.endswith(".sql"))


async def migrate(connection: Connection, *, empty: TreatyError | None = None) -> list[str]:
    """Apply the missing migrations and return their names. Concurrent callers wait for each other.

    `empty`: raised where no migration was ever applied, before anything is made. Raises `Untrusted` when an applied migration
    differs from the file of that name.
    """
    # Without the lock where nothing is missing: a process that stands still while it has it would keep every other from starting.
    if await connection.fetchval("select to_regclass('migrations') is not null"):
        if not await _missing(connection):
            return []
    elif empty is not None:
        raise empty
    # Several processes may start at once. PostgreSQL frees the lock with the connection of a killed process.
    await connection.execute("select pg_advisory_lock($1)", _MIGRATING)
    try:
        await connection.execute("create table if not exists migrations (name text primary key, sha256 text not null)")
        missing = await _missing(connection)
        for name, sql, digest in missing:
            # Together with its row: a crash leaves a migration that is applied and recorded, or neither.
            async with connection.transaction():
                await connection.execute(sql)
                await connection.execute("insert into migrations (name, sha256) values ($1, $2)", name, digest)
        names = [name for name, _, _ in missing]
        # A new table is filled by statements from now on; the earlier ones are in it only after a rebuild.
        if 0 < len(names) < len(migrations()) and await connection.fetchval("select exists (select from leaves)"):
            _log.warning("tables were updated", migrations=names, fix="Run beside the server: treaty-registry rebuild")
    finally:
        await connection.execute("select pg_advisory_unlock($1)", _MIGRATING)
    return names


async def _missing(connection: Connection) -> list[tuple[str, str, str]]:
    """Return the name, the SQL and the digest of each migration that is not applied. Raises `Untrusted`."""
    applied = {row["name"]: row["sha256"] for row in await connection.fetch("select name, sha256 from migrations")}
    expected = [(name, sql, hex_digest(sql.encode())) for name, sql in migrations()]
    for name, _, digest in expected:
        if applied.get(name, digest) != digest:
            raise Untrusted(
                DatabaseCode.SETTINGS,
                f"The migration {name} was applied to this database in another form.",
                fix="Run the release of Treaty that made this database, or a later one.",
            )
    return [migration for migration in expected if migration[0] not in applied]


async def _connect(url: str, settings: Mapping[str, str] = MappingProxyType({}), *, patience: float = _CONNECT) -> Connection:
    try:
        connection: Connection = await connect_primary(
            url,
            timeout=patience,
            max_cached_statement_lifetime=0,
            server_settings={**_SETTINGS, **settings},
        )
        return connection
    except DATABASE_ERRORS as error:
        raise _unreachable(error) from error


async def _check_lock(url: str, patience: float) -> None:
    """Raise `Refused` (`database.settings`) unless the lock that this process holds keeps others out.

    Some databases that speak PostgreSQL's protocol have the function and not the lock. And of several hosts in the URL two may
    take writes, each with a lock of its own.
    """
    other = await _connect(url, patience=patience)
    try:
        with deadline(other, _CONNECT):
            if not await other.fetchval("select pg_try_advisory_lock($1)", LEADER):
                return
    finally:
        other.terminate()
    raise Refused(
        DatabaseCode.SETTINGS,
        "The database gave the leader's lock to two connections at once.",
        fix="Use PostgreSQL itself. If the URL names several hosts, see that only one of them takes writes.",
    )


async def _check_durability(connection: Connection) -> None:
    # A receipt says that the leaf is durable. With one of these off, a power failure could take it back.
    replicas, waits = [
        await connection.fetchval("select current_setting($1)", setting)
        for setting in ("synchronous_standby_names", "synchronous_commit")
    ]
    if replicas and waits == "local":
        raise Refused(
            DatabaseCode.SETTINGS,
            "PostgreSQL has synchronous replicas, and synchronous_commit = local does not wait for them.",
            fix="Set synchronous_commit = on.",
        )
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        if await connection.fetchval("select current_setting($1)", setting) == "off":
            raise Refused(
                DatabaseCode.SETTINGS,
                f"PostgreSQL runs with {setting} = off and can lose what it acknowledged.",
                fix=f"Set {setting} = on.",
            )


async def synchronous_standbys(connection: Connection) -> int:
    """Return the number of standbys whose disks have a commit of this connection before it ends."""
    names, waits = [
        await connection.fetchval("select current_setting($1)", setting)
        for setting in ("synchronous_standby_names", "synchronous_commit")
    ]
    # With `remote_write` a commit waits for the memory of a standby alone.
    if not names.strip() or waits not in ("on", "remote_apply"):
        return 0
    # FIRST 2 (a, b, c), ANY 2 (…), 2 (…); a list alone is FIRST 1.
    count = _STANDBYS.match(names)
    return int(count[1]) if count else 1


def database_silent() -> Unavailable:
    """Return the public error for a database that does not answer, and count the outage."""
    DATABASE_OUTAGES.inc()
    return Unavailable(DatabaseCode.UNREACHABLE, "The registry's database does not answer.", fix="Try again in a few seconds.")


def _unreachable(error: BaseException) -> Unavailable:
    DATABASE_OUTAGES.inc()
    return Unavailable(
        DatabaseCode.UNREACHABLE,
        f"PostgreSQL does not answer ({type(error).__name__}).",
        fix="Check TREATY_DATABASE_URL and that the server runs.",
    )
