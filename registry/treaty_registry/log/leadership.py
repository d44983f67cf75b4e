"""Read and write the row that tells every node who leads the log, and which head was released last.

A take-over writes it on the connection that holds the lock, after it has read the head, and waits for the commit like any writer.
So where commits wait for a replica, everything that was read is on the replica too when the take-over goes on: also a commit
whose writer gave up waiting for the replica, and which PostgreSQL shows anyway. Only then a head is signed.

Later writes of the row only publish what is signed already. They are not waited for: a row that a crash takes back is written
again by the next take-over.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..storage.postgres import LEADER, Connection

CHANNEL = "treaty_head"
"""The channel of NOTIFY on which the leader announces a new head."""

# Without an address until the first head is published: a take-over can still fail, and would be taken for a leader.
_TAKE = "update leadership set term = term + 1, url = '', backend = pg_backend_pid(), beat = clock_timestamp() returning term"
# Not when another leader has begun its term: its heads are newer.
_PUBLISH = """
with published as (
  update leadership set url = $2, note = $3, witnessed = $4, beat = clock_timestamp() where term = $1 returning true
)
select pg_notify('treaty_head', '') from published
"""
_BEAT = "update leadership set beat = clock_timestamp() where term = $1 returning true"
_READ = """
select term, url, backend, note, witnessed, extract(epoch from clock_timestamp() - beat)::float8 as silent from leadership
"""
# The same backend still: meanwhile another node may have done this, and a third may lead.
_END = "select pg_terminate_backend(backend) from leadership where term = $1 and backend = $2"
# A process that stands still after it has the lock, and before its term begins, is not in the row. Not one in a transaction: a
# rebuild holds the lock for minutes.
_END_HOLDER = """
select pg_terminate_backend(pid) from pg_locks join pg_stat_activity using (pid)
where locktype = 'advisory' and granted and (classid::bigint << 32) | objid::bigint = $1 and datname = current_database()
  and state = 'idle' and state_change < clock_timestamp() - make_interval(secs => $2)
"""


@dataclass(frozen=True)
class Leadership:
    """The row. `led`: whether a process holds the leader's lock. `silent`: seconds since the leader wrote the row."""

    term: int
    url: str
    backend: int
    note: bytes
    witnessed: bytes
    silent: float
    led: bool


async def take(connection: Connection) -> int:
    """Begin a term, on the connection that holds the lock. Returns its number. Durable on return, on synchronous replicas too."""
    term: int = await connection.fetchval(_TAKE)
    return term


async def publish(connection: Connection, term: int, url: str, note: bytes, witnessed: bytes) -> bool:
    """Show a released head, and where its leader is reached, to the other nodes. False: another process has begun a term."""
    return bool(await connection.fetch(_PUBLISH, term, url, note, witnessed))


async def beat(connection: Connection, term: int) -> bool:
    """Show that the leader is alive. False: another process has begun a later term."""
    return bool(await connection.fetch(_BEAT, term))


async def read(connection: Connection) -> Leadership:
    """Return the row, and whether the lock is held."""
    row = await connection.fetchrow(_READ)
    assert row is not None, "a migration inserts it"
    # Tried, because not every database lists its locks. A process that wants the lock at this moment tries again. Until the end
    # of this statement alone: a node that stands still after it must not keep the lock.
    free = await connection.fetchval("select pg_try_advisory_xact_lock($1)", LEADER)
    return Leadership(**row, led=not free)


async def end(connection: Connection, leadership: Leadership, silent: float) -> None:
    """End the connection of a leader that stands still, and so its leadership. Whatever it had not committed is rolled back.

    `silent`: seconds after which a process that has the lock, and has not begun its term, stands still too.
    """
    await connection.execute(_END, leadership.term, leadership.backend)
    await connection.execute(_END_HOLDER, LEADER, silent)
