"""A simulated PostgreSQL server: sessions, transactions, advisory locks, failures.

A session is the server's end of a connection. It runs one statement after the other. It ends when the server learns that its
client is gone; then its transaction is rolled back and its advisory locks are free. A commit is synchronous: once it took effect,
a failover keeps it, also if the client was not told. With a synchronous replica (`replica`) a failover promotes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import asyncpg

from treaty_consensus.canonical import hex_digest
from treaty_registry.storage.postgres import migrations
from treaty_registry.storage.stored_leaf import restored

from . import catalogue_statements, log_statements  # noqa: F401 (they register the meanings)
from .meanings import meaning, normal
from .replica import Replica
from .scheduler import Scheduler
from .tables import Row, Tables, View, Wait

Answer: TypeAlias = "list[Row] | Exception | None"
"""The rows, or the error; None when the session ended first."""

_MIGRATIONS = [{"name": name, "sha256": hex_digest(sql.encode())} for name, sql in migrations()]
_LOCKS = (
    "select pg_try_advisory_lock($1)",
    "select pg_advisory_lock($1)",
    "select pg_advisory_unlock($1)",
    "select pg_try_advisory_xact_lock($1)",
)
_END_HOLDER = (
    "select pg_terminate_backend(pid) from pg_locks join pg_stat_activity using (pid) where locktype = 'advisory' and granted "
    "and (classid::bigint << 32) | objid::bigint = $1 and datname = current_database() and state = 'idle' "
    "and state_change < clock_timestamp() - make_interval(secs => $2)"
)
_LISTEN = 'LISTEN "treaty_head"'
_SPECIAL = {
    *_LOCKS,
    _LISTEN,
    _END_HOLDER,
    "select current_setting($1)",
    "select name, sha256 from migrations",
    "select to_regclass('migrations') is not null",
    "insert into trial (data) values ($1)",
}


class Server:
    """The server, or after a failover its successor, with the durable tables."""

    def __init__(self, scheduler: Scheduler, *, replicated: bool = False) -> None:
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
        """Every head that was ever committed, as size and root. They are durable: nothing that fails takes them back."""
        self.replica = Replica(scheduler, self.tables, self._replicated) if replicated else None
        if replicated:
            self.durable["synchronous_standby_names"] = "replica"
        self._waited = self.tables.rows["leadership"]
        self._numbers = itertools.count(1)
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
        return [restored(rows[index,]["leaf"]) for index in range(len(rows))]

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
        works, self._held = self._held or [], None
        for work in works:
            work()

    def stop(self, *, promote: bool = False) -> None:
        """End the server, with all sessions. No client is told; each learns it from its connection. `promote`: the replica takes
        its place."""
        self._held = None
        self.up = False
        for session in list(self.sessions):
            session.end()
        if self.replica is not None:
            if promote:
                self._replace(self.replica.tables)
        elif self.durable["synchronous_commit"] == "off" and self.flushed is not None:
            self.tables = self.flushed.copy()
        else:
            # The beats of the leader are not waited for, and the newest may be lost.
            self.tables.rows["leadership"] = dict(self._waited)

    def _replace(self, tables: Tables) -> None:
        self.tables = tables.copy()
        if self.replica is not None:
            self.replica.dropped = True
            self.replica = Replica(self._scheduler, self.tables, self._replicated)

    def _replicated(self, tables: Tables) -> None:
        head = tables.rows["head"][True,]
        self.heads.add((head["size"], head["root"]))

    def show(self, view: View, *, waited: bool) -> None:
        """Make a committed transaction visible. `waited`: its session waits until it is durable."""
        before = self.head
        view.commit()
        if waited:
            self._waited = dict(self.tables.rows["leadership"])
        if self.head != before:
            if self.replica is None:
                self.heads.add(self.head)
            self._scheduler.note(f"database: committed {self.head[0]} leaves, root {self.head[1].hex()[:8]}")
        if view.notifies:
            for session in self.sessions:
                if session.listening:
                    session.notify()
        self.wake()

    def number(self) -> int:
        """Return the number of a new session."""
        return next(self._numbers)

    def end_session(self, number: int) -> bool:
        """End the session with a number, as `pg_terminate_backend` does."""
        for session in self.sessions:
            if session.number == number:
                self._scheduler.note("database: ends the connection of the leader, which stands still")
                self._scheduler.after(0.0, None, session.end)
                return True
        return False

    def start(self) -> None:
        """Start the server, or its successor."""
        self.up = True

    def begin(self, tables: Tables) -> None:
        """Begin with rows that are durable."""
        self._replace(tables)
        self._waited = dict(self.tables.rows["leadership"])
        self.heads.add(self.head)

    def restore(self, backup: Tables) -> None:
        """Put other rows in place, as the restore of a backup does. They are durable. The server is stopped."""
        assert not self.sessions
        self._replace(backup)
        self._waited = dict(self.tables.rows["leadership"])
        self.flushed = None if self.flushed is None else backup.copy()

    def wake(self) -> None:
        """Let the sessions that wait for a row or a lock try again."""
        for session in list(self.sessions):
            if session.waiting is not None:
                waiting, session.waiting = session.waiting, None
                self._scheduler.after(0.0, None, waiting)


class Session:
    """One session of the server. `ended` is called once, when the server closes it; `notify` with each head that the leader
    announces, while it is `listening`. `waits`: whether its commits are waited for."""

    def __init__(
        self, server: Server, scheduler: Scheduler, ended: Callable[[], None], notify: Callable[[], None], *, waits: bool
    ) -> None:
        self._server = server
        self._scheduler = scheduler
        self._ended = ended
        self.notify = notify
        self.number = server.number()
        self.listening = False
        self._waits = waits
        self._unconfirmed: View | None = None
        self._confirmed: Callable[[], None] = lambda: None
        self._transaction: View | None = None
        self._failed = False
        self.open = True
        self.waiting: Callable[[], None] | None = None
        self._told = scheduler.now
        server.sessions.append(self)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._transaction is not None

    @property
    def idle_since(self) -> float | None:
        """Return when its last statement ended; None while one runs, or a transaction is open."""
        return None if self.in_transaction or self.waiting or self._unconfirmed else self._told

    def end(self) -> None:
        """Roll back, free the locks, and close the connection."""
        if not self.open:
            return
        self.open = False
        self.waiting = None
        self._server.sessions.remove(self)
        # The commit is in the primary's log. Its rows are seen, although no replica has them.
        if (view := self._unconfirmed) is not None:
            self._unconfirmed = None
            self._server.show(view, waited=True)
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
        self._told = self._scheduler.now
        try:
            rows = self._run(normal(sql), arguments)
            if self._unconfirmed is None:
                answer(rows)
            else:
                self._confirmed = lambda: answer(rows)
        except Wait:
            self.waiting = lambda: self.receive(sql, arguments, answer)
        except asyncpg.PostgresError as error:
            if isinstance(error, asyncpg.IntegrityConstraintViolationError):
                self._server.broken_constraints.append(str(error))
            self._failed = self._transaction is not None
            answer(error)

    def _run(self, sql: str, arguments: tuple[Any, ...]) -> list[Row]:
        word = sql[:8]
        if word.startswith("BEGIN"):
            self._transaction, self._failed = self._view(), False
            return []
        if word == "COMMIT;" and not self._failed:
            assert self._transaction is not None
            view, self._transaction = self._transaction, None
            self._commit(view)
            return []
        if word in ("COMMIT;", "ROLLBACK"):
            self._rollback()
            return []
        if self._failed:
            raise asyncpg.InFailedSQLTransactionError("current transaction is aborted")
        if (special := self._special(sql, arguments)) is not None:
            return special
        view = self._transaction or self._view()
        rows = meaning(sql)(view, *arguments)
        if self._transaction is None:
            self._commit(view)
        return rows

    def _view(self) -> View:
        return View(self._server.tables, self._scheduler.now, self.number, self._server.end_session)

    def _special(self, sql: str, arguments: tuple[Any, ...]) -> list[Row] | None:
        """Answer a statement about the server itself."""
        if sql not in _SPECIAL:
            return None
        if sql == _LISTEN:
            self.listening = True
            return []
        if sql == _END_HOLDER:
            holder = self._server.locks.get(arguments[0])
            idle_since = holder.idle_since if holder is not None else None
            if holder is not None and idle_since is not None and idle_since < self._scheduler.now - arguments[1]:
                return [{"value": self._server.end_session(holder.number)}]
            return []
        if sql == "select current_setting($1)":
            waits = self._waits or arguments[0] != "synchronous_commit"
            return [{"value": self._server.durable[arguments[0]] if waits else "off"}]
        if sql == "select to_regclass('migrations') is not null":
            return [{"value": True}]
        if sql == "select name, sha256 from migrations":
            return _MIGRATIONS
        if sql == "insert into trial (data) values ($1)" and self._server.disk_full:
            raise asyncpg.DiskFullError("could not extend file: No space left on device")
        if sql not in _LOCKS:
            return None
        (key,) = arguments
        holder = self._server.locks.get(key)
        if sql == _LOCKS[3]:
            return [{"value": holder in (None, self)}]
        if sql == _LOCKS[2]:
            if holder is self:
                del self._server.locks[key]
            self._server.wake()
            return [{"value": True}]
        if holder not in (None, self) and sql == _LOCKS[1]:
            raise Wait
        if holder is None:
            self._server.locks[key] = self
        return [{"value": holder in (None, self)}]

    def _commit(self, view: View) -> None:
        server = self._server
        if not view.changes:
            view.end()
            return
        if server.disk_full:
            view.end()
            server.wake()
            raise asyncpg.DiskFullError("could not write to the write-ahead log: No space left on device")
        waits = self._waits and server.durable["synchronous_commit"] == "on"
        if server.replica is None:
            server.show(view, waited=waits)
        elif waits:
            self._unconfirmed = view
            server.replica.send(view.changes, lambda: self._confirm(view))
        else:
            server.replica.send(view.changes, lambda: None)
            server.show(view, waited=False)

    def _confirm(self, view: View) -> None:
        if self._unconfirmed is view:
            self._unconfirmed = None
            self._server.show(view, waited=True)
            self._confirmed()

    def _rollback(self) -> None:
        if self._transaction is not None:
            self._transaction.end()
        self._transaction, self._failed = None, False
        self._server.wake()


def advisory_holders(server: Server) -> Iterator[Session]:
    """Return the sessions that hold an advisory lock."""
    return iter(dict.fromkeys(server.locks.values()))
