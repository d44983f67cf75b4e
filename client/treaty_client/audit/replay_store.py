"""Keep the facts and digests of a replay on disk, so that its memory does not grow with the log.

The store is one SQLite database in an unlinked file: it is opened in the folder and deleted at once, so the system frees it when
the process ends. It is never opened again, so it is written without journal, syncs or commits. `snapshot` copies its contents.

    facts(key text, fact blob)        the facts of admission, as `facts.encode` writes them
    digests(digest blob)              32 bytes each

The newest `RECENT` of each are in memory, and written in batches. Not safe for concurrent use; threads may use it in turn.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import TracebackType

from treaty_consensus.errors import Unavailable
from treaty_consensus.facts import Fact, decode, encode
from treaty_io.codes import ClientAuditCode

# They trade memory for reads of the disk; docs/decisions/audit.md has the measured time and memory of a replay.
RECENT = 32_768
_PAGES_KIB = 65_536


class ReplayStore:
    """The facts and digests of one replay. A context manager; raises `Unavailable` (`audit.failed`) when the disk fails."""

    def __init__(self, folder: Path, *, recent: int = RECENT) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # The directory is deleted at once; the open file stays until the process ends, even if it is killed.
        with tempfile.TemporaryDirectory(prefix=".scratch-", dir=folder) as directory:
            # isolation_level None: one transaction, begun below, lasts for the whole replay. Threads use the store in turn.
            self._database = sqlite3.connect(Path(directory) / "scratch", isolation_level=None, check_same_thread=False)
            self._database.executescript(
                f"""
                pragma journal_mode = off; pragma synchronous = off; pragma locking_mode = exclusive;
                pragma temp_store = memory; pragma cache_size = -{_PAGES_KIB};
                begin;
                create table facts (key text primary key, fact blob not null) without rowid;
                create table digests (digest blob primary key) without rowid;
                """
            )
        self.facts = DiskFacts(self._database, recent)
        self.digests = DiskDigests(self._database, recent)

    def all_facts(self) -> Iterator[tuple[bytes, bytes]]:
        """Return keys and encoded facts, sorted by key. Nothing may be written meanwhile."""
        self.facts.flush()
        return ((key.encode(), fact) for key, fact in self._database.execute("select key, fact from facts order by key"))

    def all_digests(self) -> Iterator[bytes]:
        """Return all digests, sorted. Nothing may be written meanwhile."""
        self.digests.flush()
        return (digest for (digest,) in self._database.execute("select digest from digests order by digest"))

    def restore(self, facts: Iterator[tuple[str, bytes]], digests: Iterator[bytes]) -> None:
        """Take over the contents of another store. This one must be empty."""
        self._database.executemany("insert into facts values (?, ?)", facts)
        self._database.executemany("insert into digests values (?)", ((digest,) for digest in digests))

    def __enter__(self) -> ReplayStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database.close()
        if isinstance(error, sqlite3.Error):
            raise Unavailable(
                ClientAuditCode.FAILED, f"The disk failed: {error}.", fix="See that there is room on it."
            ) from error


class DiskFacts(MutableMapping[str, Fact]):
    """Facts by their keys."""

    def __init__(self, database: sqlite3.Connection, recent: int) -> None:
        self._database = database
        self._limit = recent
        self._recent: dict[str, Fact | None] = {}
        self._changed: set[str] = set()

    def __getitem__(self, key: str) -> Fact:
        fact = self._find(key)
        if fact is None:
            raise KeyError(key)
        return fact

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    def __setitem__(self, key: str, fact: Fact) -> None:
        self._remember(key, fact)
        self._changed.add(key)

    def __delitem__(self, key: str) -> None:
        self[key]
        self._remember(key, None)
        self._changed.add(key)

    def __iter__(self) -> Iterator[str]:
        # SQL sees only written facts.
        self.flush()
        return (key for (key,) in self._database.execute("select key from facts order by key"))

    def __len__(self) -> int:
        self.flush()
        (number,) = self._database.execute("select count(*) from facts").fetchone()
        return int(number)

    def _find(self, key: str) -> Fact | None:
        if key in self._recent:
            return self._recent[key]
        row = self._database.execute("select fact from facts where key = ?", (key,)).fetchone()
        fact = decode(row[0]) if row else None
        self._remember(key, fact)
        return fact

    def _remember(self, key: str, fact: Fact | None) -> None:
        # Written in batches, because single writes would dominate the time of a replay.
        if len(self._recent) >= self._limit:
            self.flush()
            self._recent.clear()
        self._recent[key] = fact

    def flush(self) -> None:
        """Write the facts that are in memory alone."""
        # Sorted, because rows in the order of the index are written to fewer pages.
        changed = [(key, self._recent[key]) for key in sorted(self._changed)]
        rows = ((key, encode(fact)) for key, fact in changed if fact is not None)
        self._database.executemany("insert or replace into facts values (?, ?)", rows)
        self._database.executemany("delete from facts where key = ?", ((key,) for key, fact in changed if fact is None))
        self._changed.clear()


class DiskDigests:
    """A set of digests, each 64 hexadecimal digits."""

    def __init__(self, database: sqlite3.Connection, recent: int) -> None:
        self._database = database
        self._limit = recent
        self._recent: set[bytes] = set()

    def __contains__(self, digest: str) -> bool:
        raw = bytes.fromhex(digest)
        if raw in self._recent:
            return True
        return self._database.execute("select 1 from digests where digest = ?", (raw,)).fetchone() is not None

    def add(self, digest: str) -> None:
        """Add a digest."""
        self._recent.add(bytes.fromhex(digest))
        if len(self._recent) >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Write the digests that are in memory alone."""
        self._database.executemany("insert or ignore into digests values (?)", ((raw,) for raw in sorted(self._recent)))
        self._recent.clear()
