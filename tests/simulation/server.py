"""A simulated PostgreSQL server: sessions, transactions, advisory locks, failures.

A session is the server's end of a connection. It runs one statement after the other. It ends when the server learns that its
client
is gone; then its transaction is rolled back and its advisory locks are free. A commit is synchronous: once it took effect, a
failover
keeps it, also if the client was not told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import asyncpg

from treaty_consensus.canonical import hex_digest
from treaty_registry.storage.postgres import migrations

from .scheduler import Scheduler
from .statements import MEANINGS, normal
from .tables import Row, Tables, View, Wait

Answer: TypeAlias = "list[Row] | Exception | None"
"""The rows, or the error; None when the session ended first."""

_MIGRATIONS = [{"name": name, "sha256": hex_digest(sql.encode())} for name, sql in migrations()]
_LOCKS = ("select pg_try_advisory_lock($1)", "select pg_advisory_lock($1)", "select pg_advisory_unlock($1)")


class Server:
    """The server, or after a failover its successor, with the durable tables."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.tables = Tables.new()
        self.durable = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "synchronous_standby_names": ""}
        self.sessions: list[Session] = []
        self.up = True
        self.disk_full = False
        self.flushed: Tables | None = None
        """The rows that a failover keeps where commits are not synchronous."""
        self.locks: dict[int, Session] = {}
        self.heads: set[tuple[int, bytes]] = {(0, self.head[1])}
        """Every head that was ever committed, as size and root."""
        self.broken_constraints: list[str] = []
        self._held: list[Callable[[], None]] | None = None

    @property
    def head(self) -> tuple[int, bytes]:
        """Return the size and root of the newest commit."""
        row = self.tables.rows["head"][True,]
        return row["size"], row["root"]

    @property
    def leaves(self) -> list[bytes]:
        """Return all leaves in their order."""
        rows = self.tables.rows["leaves"]
        return [rows[index,]["leaf"] for index in range(len(rows))]

    def do(self, work: Callable[[], None]) -> None:
        """Do work of the server now, or when it is resumed."""
        if self._held is not None:
            self._held.append(work)
        else:
            work()

    def pause(self) -> None:
        """Stop the whole server, as SIGSTOP does. It still accepts connections and never answers."""
        self._held = [] if self._held is None else self._held

    def resume(self) -> None:
        """Continue with everything that arrived meanwhile."""
        held, self._held = self._held or [], None
        for work in held:
            work()

    def stop(self) -> None:
        """End the server, with all sessions. No client is told; each learns it from its connection."""
        self._held = None
        self.up = False
        for session in list(self.sessions):
            session.end()
        if self.durable["synchronous_commit"] == "off" and self.flushed is not None:
            self.tables = self.flushed.copy()

    def start(self) -> None:
        """Start the server, or its successor."""
        self.up = True

    def restore(self, backup: Tables) -> None:
        """Put other rows in place, as the restore of a backup does. They are durable. The server is stopped."""
        assert not self.sessions
        self.tables = backup.copy()
        self.flushed = None if self.flushed is None else backup.copy()

    def wake(self) -> None:
        """Let the sessions that wait for a row or a lock try again."""
        for session in list(self.sessions):
            if session.waiting is not None:
                waiting, session.waiting = session.waiting, None
                self._scheduler.after(0.0, None, waiting)


class Session:
    """One session of the server. `ended` is called once, when the server closes it."""

    def __init__(self, server: Server, scheduler: Scheduler, ended: Callable[[], None]) -> None:
        self._server = server
        self._scheduler = scheduler
        self._ended = ended
        self._transaction: View | None = None
        self._failed = False
        self.open = True
        self.waiting: Callable[[], None] | None = None
        server.sessions.append(self)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._transaction is not None

    def end(self) -> None:
        """Roll back, free the locks, and close the connection."""
        if not self.open:
            return
        self.open = False
        self.waiting = None
        self._server.sessions.remove(self)
        self._rollback()
        self.lose_locks()
        self._ended()

    def lose_locks(self) -> None:
        """Free the advisory locks. A pooler that gives the session to another client does it while the connection lives."""
        for key in [key for key, session in self._server.locks.items() if session is self]:
            del self._server.locks[key]
        self._server.wake()

    def receive(self, sql: str, arguments: tuple[Any, ...], answer: Callable[[Answer], None]) -> None:
        """Run a statement and answer it, at once or when its locks are free."""
        if not self.open:
            answer(None)
            return
        try:
            answer(self._run(normal(sql), arguments))
        except Wait:
            self.waiting = lambda: self.receive(sql, arguments, answer)
        except asyncpg.PostgresError as error:
            if isinstance(error, asyncpg.IntegrityConstraintViolationError):
                self._server.broken_constraints.append(str(error))
            self._failed = self._transaction is not None
            answer(error)

    def _run(self, sql: str, arguments: tuple[Any, ...]) -> list[Row]:
        word = sql.split(" ", 1)[0].rstrip(";").upper()
        if word == "BEGIN":
            self._transaction, self._failed = View(self._server.tables, self._scheduler.now), False
            return []
        if word == "COMMIT" and not self._failed:
            assert self._transaction is not None
            self._commit(self._transaction)
            return []
        if word in ("COMMIT", "ROLLBACK"):
            self._rollback()
            return []
        if self._failed:
            raise asyncpg.InFailedSQLTransactionError("current transaction is aborted")
        if (special := self._special(sql, arguments)) is not None:
            return special
        if sql not in MEANINGS:
            raise LookupError(f"The simulation does not know the meaning of the statement: {sql}")
        view = self._transaction or View(self._server.tables, self._scheduler.now)
        rows = MEANINGS[sql](view, *arguments)
        if self._transaction is None:
            view.commit()
        return rows

    def _special(self, sql: str, arguments: tuple[Any, ...]) -> list[Row] | None:
        """Answer a statement about the server itself."""
        if sql == "select current_setting($1)":
            return [{"value": self._server.durable[arguments[0]]}]
        if sql == "select name, sha256 from migrations":
            return _MIGRATIONS
        if sql == "insert into trial (data) values ($1)" and self._server.disk_full:
            raise asyncpg.DiskFullError("could not extend file: No space left on device")
        if sql not in _LOCKS:
            return None
        (key,) = arguments
        holder = self._server.locks.get(key)
        if sql == _LOCKS[2]:
            self._server.locks.pop(key, None)
            self._server.wake()
            return [{"value": True}]
        if holder not in (None, self) and sql == _LOCKS[1]:
            raise Wait
        if holder is None:
            self._server.locks[key] = self
        return [{"value": holder in (None, self)}]

    def _commit(self, transaction: View) -> None:
        before = self._server.head
        if self._server.disk_full:
            self._rollback()
            raise asyncpg.DiskFullError("could not write to the write-ahead log: No space left on device")
        transaction.commit()
        self._transaction = None
        if self._server.head != before:
            self._server.heads.add(self._server.head)
            self._scheduler.note(f"database: committed {self._server.head[0]} leaves, root {self._server.head[1].hex()[:8]}")
        self._server.wake()

    def _rollback(self) -> None:
        if self._transaction is not None:
            self._transaction.end()
        self._transaction, self._failed = None, False
        self._server.wake()


def advisory_holders(server: Server) -> Iterator[Session]:
    """Return the sessions that hold an advisory lock."""
    return iter(dict.fromkeys(server.locks.values()))
