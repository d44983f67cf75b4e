"""Remember the leaves that registries have proved to this agent: HOME/seen.db, an SQLite database, 0600.

docs/specification/home.md, "seen.db", specifies its tables and bounds. For example, the status of a version has the subject
`protocol/URI` and the place `status/URI/DID/`; the newest status of a place replaces the older one.

A subject is used when an answer is compared with it. Its time `learned` is renewed with other writes, or when it is an hour old,
so a repeated answer rarely causes a write.

Safe among threads, and among processes on one machine. One process writes at a time. Readers have their own connection and do not
wait. A transaction is on the disk when `learn` returns; a crash before that leaves the database unchanged. SQLite keeps
seen.db-wal and seen.db-shm beside the file in use, and repairs the database from them after a crash.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from treaty_consensus import statement
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed, Refused, Unavailable
from treaty_consensus.log.merkle import HASH_SIZE
from treaty_io import durable
from treaty_io.codes import MemoryCode

from .leaves import PARAMETERS, SeenLeaf, place_of, subjects_of, takes_back

# Without bounds a registry could fill the disk with leaves of its own.
MAX_LEAVES = 8192
MAX_BYTES = 16 * 1024 * 1024
MAX_KEPT = 1024
"""As many as a bundle holds, so that a registry cannot fill the memory with one protocol."""
MAX_TAKEN_BACK = 16 * 1024
"""About 20 MB. Honest registries stay below it: one answer of a topic has at most 64 of them."""
_TAKEN_BACK = "taken-back"
"""The subject that marks those statuses, in addition to the one under which they are compared. No answer has it."""
_RENEWED_AFTER = 3_600_000_000_000
"""Nanoseconds after which an unchanged subject is marked as used again. A shorter time would cause more writes."""
_FORMAT = 2
_FORMATS = (0, 1, _FORMAT)
"""A new file, and those that are brought to this format: the first one did not count."""
_PATIENCE = 10.0
"""Seconds to wait for another process that writes. A transaction takes milliseconds."""
_BATCH = 500
"""Names in one query, below the limit of SQLite for parameters."""
_SCHEMA = f"""
pragma journal_mode = wal;
begin immediate;
create table if not exists checkpoints (id integer primary key, note blob not null unique);
create table if not exists leaves (
  origin text not null, idx integer not null, leaf blob not null, proof blob not null, place text,
  checkpoint integer not null references checkpoints, primary key (origin, idx)
);
create index if not exists places on leaves (origin, place) where place is not null;
create index if not exists proved on leaves (checkpoint);
create table if not exists subjects (
  origin text not null, subject text not null, idx integer not null, learned integer not null,
  primary key (origin, subject, idx), foreign key (origin, idx) references leaves on delete cascade
) without rowid;
create index if not exists members on subjects (origin, idx);
create table if not exists learned (origin text primary key, leaves integer not null) without rowid;
pragma user_version = {_FORMAT};
commit;
"""
_ABOUT = """
select l.idx, l.leaf, l.proof, c.note
from subjects s join leaves l using (origin, idx) join checkpoints c on c.id = l.checkpoint
where s.origin = ? and s.subject in ({})
"""
_AMONG = "select idx from leaves where origin = ? and idx in ({})"
_NEWER = "select 1 from leaves where origin = ? and place = ? and idx > ?"
# Larger than every earlier value, so that the order of use survives a clock that is set back.
_TURN = "select max(coalesce(max(learned), 0) + 1, ?) from subjects where origin = ?"
_STALE = "select subject from subjects where origin = ? and subject in ({}) group by subject having max(learned) < ?"
_RENEW = """
update subjects set learned = ? where origin = ? and subject = ?
and idx = (select min(idx) from subjects s where s.origin = subjects.origin and s.subject = subjects.subject)
"""
_COUNT = """
insert into learned values (?, ?) on conflict (origin) do update set leaves = leaves + excluded.leaves
"""
_COUNTED = "select leaves from learned where origin = ?"
_MARKED = "select count(*) from subjects where origin = ? and subject = 'taken-back'"
_UNNAMED = """
delete from subjects where origin = ? and subject = 'taken-back'
and not exists (select 1 from subjects s where s.origin = subjects.origin and s.idx = subjects.idx
                and s.subject <> subjects.subject)
"""
_FIRST = """
select l.leaf from subjects s join leaves l using (origin, idx) where s.origin = ? and s.subject = ? order by s.idx limit 1
"""
_FORGOTTEN = """
delete from leaves where origin = ?
and not exists (select 1 from subjects where subjects.origin = leaves.origin and subjects.idx = leaves.idx)
"""
_SIZES = """
select count(*), coalesce(sum(length(leaf) + length(proof)), 0) from leaves
where origin = ? and idx not in (select idx from subjects where origin = ? and subject = 'taken-back')
"""
_NEWEST_FIRST = """
select s.subject, count(*), sum(length(l.leaf) + length(l.proof)) from subjects s join leaves l using (origin, idx)
where s.origin = ? and s.idx not in (select idx from subjects where origin = ? and subject = 'taken-back')
group by s.subject order by max(s.learned) desc
"""

_FORGET = """
delete from subjects where origin = ? and subject = ?
and idx not in (select idx from subjects where origin = ? and subject = 'taken-back')
"""
# The first leaf stays, because it is a protocol's publication, and so does the newest decision of a topic.
_OLD = """
delete from subjects where origin = ? and subject = ?
and idx not in (select idx from subjects where origin = ? and subject = 'taken-back')
and idx not in (select idx from leaves where origin = ? and place like 'decision/%') and idx in (
  select idx from subjects where origin = ? and subject = ? order by idx desc limit -1 offset ?
) and idx > (select min(idx) from subjects s where s.origin = subjects.origin and s.subject = subjects.subject)
"""


class SeenLeaves:
    """The database of one home. It is opened at its first use, and created when a leaf is first learned."""

    def __init__(
        self,
        home: Path,
        *,
        max_leaves: int = MAX_LEAVES,
        max_bytes: int = MAX_BYTES,
        max_taken_back: int = MAX_TAKEN_BACK,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Create the object. `clock`: returns Unix nanoseconds; if it goes back, only the order of use counts."""
        self._path = home / "seen.db"
        self._max_leaves, self._max_bytes, self._max_taken_back = max_leaves, max_bytes, max_taken_back
        self._clock = clock
        self._reader, self._writer = _Connection(self._path), _Connection(self._path)
        self._closed = 0

    def version(self) -> tuple[int, int]:
        """Return a value that changes once any process has learned or forgotten a leaf. Takes some microseconds."""
        with self._reader.using(create=False) as database:
            # data_version counts the changes by other connections, such as the writer's. A new connection counts from the
            # start, so `_closed` is part of the value.
            return self._closed, database.execute("pragma data_version").fetchone()[0] if database is not None else 0

    def about(self, origin: str, subjects: Collection[str]) -> list[SeenLeaf]:
        """Return the leaves seen of a log under these names, in the log's order. Raises `Malformed` (`system.state`) or
        `Unavailable`.
        """
        with self._reader.using(create=False) as database:
            return _about(database, origin, subjects) if database else []

    def learn(
        self, origin: str, leaves: Sequence[SeenLeaf], subjects: Collection[str], *,
        check: Callable[[list[SeenLeaf]], None], keep: Callable[[], Collection[str]] | None = None,
    ) -> bool:  # fmt: skip
        """Check an answer against the leaves seen under its `subjects`, then remember its leaves; return whether any of them was
        new.

        `check`: gets the leaves seen, and raises to refuse the answer; then nothing is remembered. If a leaf is new, `check` is
        called again under the write lock, because another process may have learned a contradicting leaf in between. `keep`:
        returns the subjects that are never forgotten; called when a bound is exceeded. Without `keep` nothing is forgotten until
        a later call gives it.

        Raises as `about`, and `Refused` (`memory.full`), which changes nothing.
        """
        with self._writer.using(create=True) as database:
            assert database is not None
            # First without the write lock: a repeated answer, which has no new leaf, does not wait for other writers.
            check(_about(database, origin, subjects))
            is_new = bool(_new(database, origin, leaves))
            if not is_new and not _stale(database, origin, subjects, self._clock() - _RENEWED_AFTER):
                return False
            with _transaction(database):
                # Again under the write lock: another process may have learned a contradicting leaf in between.
                check(_about(database, origin, subjects))
                (turn,) = database.execute(_TURN, (self._clock(), origin)).fetchone()
                new = _new(database, origin, leaves)
                for leaf in new:
                    _insert(database, origin, leaf, turn)
                database.execute(_COUNT, (origin, len(new)))
                for subject in subjects:
                    database.execute(_RENEW, (turn, origin, subject))
                self._check_taken_back(database, origin)
                if keep is not None:
                    self._make_room(database, origin, keep)
                _sweep(database, origin)
            return is_new

    def learned(self, origin: str) -> int:
        """Return how many leaves of a log were ever learned. It only grows, also when leaves are forgotten, so that a smaller
        number than before shows a lost file or an older copy. Raises as `about`."""
        with self._reader.using(create=False) as database:
            row = database.execute(_COUNTED, (origin,)).fetchone() if database else None
        return row[0] if row else 0

    def forget(self, origin: str, subject: str | None = None) -> int:
        """Forget the leaves seen of a log, or those under one name; return their number."""
        with self._writer.using(create=False) as database:
            if database is None:
                return 0
            with _transaction(database):
                if subject is None:
                    database.execute("delete from subjects where origin = ?", (origin,))
                    database.execute("delete from learned where origin = ?", (origin,))
                else:
                    database.execute("delete from subjects where origin = ? and subject = ?", (origin, subject))
                return _sweep(database, origin)

    def close(self) -> None:
        """Close the database; it is opened again when it is needed."""
        self._reader.close()
        self._writer.close()
        # Part of `version`: comparisons made before are repeated after the database is opened again.
        self._closed += 1

    def _check_taken_back(self, database: sqlite3.Connection, origin: str) -> None:
        (number,) = database.execute(_MARKED, (origin,)).fetchone()
        # Refused instead of forgotten: a registry could flood the memory to make an agent run a revoked handler again.
        if number > self._max_taken_back:
            raise Refused(
                MemoryCode.FULL,
                f"{origin} has proved more than {self._max_taken_back} revocations to this agent, the most that it can remember.",
                fix=f"Ask its operator. To start anew, as at a first contact: treaty trust remove {origin}",
            )

    def _make_room(self, database: sqlite3.Connection, origin: str, keep: Callable[[], Collection[str]]) -> None:
        number, size = database.execute(_SIZES, (origin, origin)).fetchone()
        if number <= self._max_leaves and size <= self._max_bytes:
            return
        number = size = 0
        # Only now, because `keep` reads treaty.lock from the disk.
        kinds = {PARAMETERS, *keep()}
        for subject in [*kinds]:
            kinds |= _topic_of(database, origin, subject)
        for subject, members, length in database.execute(_NEWEST_FIRST, (origin, origin)).fetchall():
            number, size = number + members, size + length
            if subject in kinds:
                database.execute(_OLD, (origin, subject, origin, origin, origin, subject, MAX_KEPT - 1))
            elif (
                4 * number > 3 * self._max_leaves or 4 * size > 3 * self._max_bytes
            ):  # to three quarters, so that it is rarely done
                database.execute(_FORGET, (origin, subject, origin))


class _Connection:
    """A connection to the database, opened at its first use. One thread uses it at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._database: sqlite3.Connection | None = None

    @contextmanager
    def using(self, *, create: bool) -> Iterator[sqlite3.Connection | None]:
        """Yield the connection, or None if there is no database and `create` is false. SQLite's errors become a `TreatyError`."""
        # A sqlite3 connection must not be used by two threads at once.
        with self._lock:
            try:
                if self._database is None and (create or self._path.exists()):
                    self._database = _open(self._path)
                yield self._database
            # A busy file or a full disk may pass, so this is `Unavailable`. It is a DatabaseError too, so it is caught first.
            except sqlite3.OperationalError as error:
                raise Unavailable(
                    SystemCode.FILE,
                    f"The memory of registries cannot be read or written: {error}.",
                    fix=f"Check that no other process holds {self._path}, and that the disk is not full.",
                ) from error
            except sqlite3.DatabaseError as error:
                raise _damaged(self._path) from error

    def close(self) -> None:
        """Close it; it is opened again when it is needed."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None


def _open(path: Path) -> sqlite3.Connection:
    # One process at a time, because two that create the database at once fail. And the file is never opened and closed besides
    # SQLite, because that would release the POSIX locks of SQLite's other connections in this process.
    with durable.exclusive(path.with_name(f"{path.name}.lock")):
        if not path.exists():
            # 0600, because the file shows which protocols and peers its owner looked at.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        # isolation_level None: transactions are begun here and not by the module. Threads take turns by `_Connection`.
        database = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            # Synced at each commit: a forgotten leaf after a power loss would allow another history.
            database.execute("pragma synchronous = full")
            database.execute("pragma foreign_keys = on")
            format = database.execute("pragma user_version").fetchone()[0]
            # Another version of Treaty may keep other rules, so its file is refused and not changed.
            if format not in _FORMATS:
                raise _damaged(path)
            if format != _FORMAT:
                database.executescript(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    # Immediate: a transaction that reads first and then writes could fail at its first write, when another process wrote
    # meanwhile.
    database.execute("begin immediate")
    try:
        yield
        database.execute("commit")
    except BaseException:
        # SQLite ends the transaction itself after some errors, such as a full disk.
        if database.in_transaction:
            database.execute("rollback")
        raise


def _about(database: sqlite3.Connection, origin: str, subjects: Collection[str]) -> list[SeenLeaf]:
    names, leaves = sorted(subjects), {}
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        for index, leaf, proof, note in database.execute(_ABOUT.format(_marks(batch)), (origin, *batch)):
            hashes = tuple(proof[at : at + HASH_SIZE] for at in range(0, len(proof), HASH_SIZE))
            leaves[index] = SeenLeaf(index, leaf, hashes, note)
    return [leaves[index] for index in sorted(leaves)]


def _new(database: sqlite3.Connection, origin: str, leaves: Iterable[SeenLeaf]) -> list[SeenLeaf]:
    """Return the leaves that must be remembered and are not. A leaf that a newer one has replaced need not be."""
    stored: set[int] = set()
    indexes = [leaf.index for leaf in leaves]
    for start in range(0, len(indexes), _BATCH):
        batch = indexes[start : start + _BATCH]
        stored |= {index for (index,) in database.execute(_AMONG.format(_marks(batch)), (origin, *batch))}
    return [leaf for leaf in leaves if leaf.index not in stored and _counts(database, origin, leaf)]


def _counts(database: sqlite3.Connection, origin: str, leaf: SeenLeaf) -> bool:
    place = place_of(leaf.statement)
    is_old = place is not None and database.execute(_NEWER, (origin, place, leaf.index)).fetchone() is not None
    return bool(subjects_of(leaf.statement)) and not is_old


def _topic_of(database: sqlite3.Connection, origin: str, subject: str) -> set[str]:
    """Return the topic of a protocol, as a subject. The first leaf under a protocol's name is its publication, which always
    stays.
    """
    row = database.execute(_FIRST, (origin, subject)).fetchone()
    names = subjects_of(statement.read(row[0])) if row is not None else ()
    return {name for name in names if name.startswith("topic/")}


def _stale(database: sqlite3.Connection, origin: str, subjects: Collection[str], before: int) -> bool:
    """Return whether one of the subjects was not used since that time."""
    names = sorted(subjects)
    # In batches, because of SQLite's limit for parameters.
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        if database.execute(_STALE.format(_marks(batch)), (origin, *batch, before)).fetchone() is not None:
            return True
    return False


def _insert(database: sqlite3.Connection, origin: str, leaf: SeenLeaf, turn: int) -> None:
    place = place_of(leaf.statement)
    if place is not None:
        database.execute("delete from leaves where origin = ? and place = ? and idx < ?", (origin, place, leaf.index))
    database.execute("insert or ignore into checkpoints (note) values (?)", (leaf.checkpoint,))
    (checkpoint,) = database.execute("select id from checkpoints where note = ?", (leaf.checkpoint,)).fetchone()
    row = (origin, leaf.index, leaf.leaf, b"".join(leaf.proof), place, checkpoint)
    database.execute("insert into leaves (origin, idx, leaf, proof, place, checkpoint) values (?, ?, ?, ?, ?, ?)", row)
    names = (*subjects_of(leaf.statement), *([_TAKEN_BACK] if takes_back(leaf.statement) else ()))
    rows = [(origin, subject, leaf.index, turn) for subject in names]
    database.executemany("insert into subjects (origin, subject, idx, learned) values (?, ?, ?, ?)", rows)


def _sweep(database: sqlite3.Connection, origin: str) -> int:
    """Delete the leaves without a subject, and the checkpoints without a leaf; return the number of deleted leaves."""
    database.execute(_UNNAMED, (origin,))
    number = database.execute(_FORGOTTEN, (origin,)).rowcount
    database.execute("delete from checkpoints where not exists (select 1 from leaves where checkpoint = id)")
    return number


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _damaged(path: Path) -> Malformed:
    return Malformed(
        SystemCode.STATE,
        f"{path} is not a database of proven leaves, or was written by another version of Treaty.",
        fix="Restore it, or remove it and the two files beside it. Without it a contradiction of earlier answers is not noticed.",
    )
