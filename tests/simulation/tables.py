"""The tables of the simulated PostgreSQL, and transactions at read committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import asyncpg

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]
Changes: TypeAlias = dict[str, dict[Key, "Row | None"]]

COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "leaves": (("index", "leaf", "statement"), ("index",)),
    "tiles": (("level", "index", "hashes"), ("level", "index")),
    "head": (("single", "size", "root"), ("single",)),
    "leadership": (("single", "term", "url", "backend", "beat", "note", "witnessed"), ("single",)),
    "facts": (("key", "fact"), ("key",)),
    "blobs": (("sha256", "size", "index", "withdrawn"), ("sha256",)),
    "pending_blobs": (("sha256", "size", "expires"), ("sha256",)),
    "genesis": (("operator", "trusted_root"), ("operator",)),
    "clock": (("index", "issued"), ("index",)),
    "parameters": (("index", "statement", "electorate", "rule"), ("index",)),
    "identities": (("did", "index", "statement", "document", "tenure", "keys"), ("did", "index")),
    "grants": (("namespace", "grantee", "owner", "index", "ended"), ("namespace", "grantee", "index")),
    "vouches": (("author", "subject", "seq", "index"), ("author", "subject")),
    "ballots": (("topic", "did", "index", "tiers", "ended"), ("topic", "did", "index")),
    "authors": (("did", "index", "kind"), ("did", "index")),
    "protocols": (
        ("uri", "namespace", "name", "version", "topic", "origin", "document", "size", "card", "base", "publisher", "statement",
         "index", "title", "summary", "licence", "agora", "state", "successor"),
        ("uri",),
    ),
    "topics": (("topic", "protocols"), ("topic",)),
    "handlers": (
        ("uri", "publisher", "wheel", "filename", "size", "entry_point", "bundle", "statement", "index", "state", "signer",
         "coverage", "metadata", "requires_python"),
        ("uri", "publisher", "wheel"),
    ),
    "statuses": (("index", "uri", "publisher", "wheel", "state", "successor"), ("index",)),
    "withdrawals": (("index", "sha256", "reason"), ("index",)),
    "tallies": (("topic", "document", "agreed"), ("topic", "document")),
    "pairs": (("topic", "document", "first", "second", "epoch", "index"), ("topic", "document", "first", "second")),
    "spoken": (("topic", "did", "document", "index"), ("topic", "did")),
    "speakers": (("topic", "document", "did", "reports", "epoch", "index"), ("topic", "document", "did")),
    "decisions": (("topic", "index", "statement", "epoch", "transcript", "parameters", "consensus"), ("topic", "index")),
    "elections": (("topic", "document", "state", "epoch", "decision"), ("topic", "document")),
    "rolls": (("epoch", "index", "roll", "parameters", "able", "pairs"), ("epoch",)),
    "principals": (("principal", "cluster", "trust", "weight", "age", "standing"), ("principal",)),
    "credits": (
        ("epoch", "place", "principal", "amount", "reason", "topic", "document", "corroborator", "index", "shared", "earlier"),
        ("epoch", "place"),
    ),
}  # fmt: skip
"""The columns of each table, in their order, and its primary key. Protocols have more, which PostgreSQL computes from texts."""
UNIQUE = {"leaves": "statement", "protocols": "index"}
"""Columns besides the primary key whose values are unique."""

EMPTY_ROOT = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")


class Wait(Exception):
    """The statement waits for a row that another transaction has changed."""


@dataclass
class Tables:
    """The committed rows, by table and primary key. `writers`: the open transaction that changed the one row of a table."""

    rows: dict[str, dict[Key, Row]] = field(default_factory=dict)
    writers: dict[str, View] = field(default_factory=dict)

    @classmethod
    def new(cls) -> Tables:
        """Return the tables as the migrations leave them."""
        tables = cls({name: {} for name in COLUMNS})
        tables.rows["head"][True,] = {"single": True, "size": 0, "root": EMPTY_ROOT}
        names = COLUMNS["leadership"][0]
        tables.rows["leadership"][True,] = dict(zip(names, (True, 0, "", 0, -1e9, b"", b""), strict=True))
        return tables

    def copy(self) -> Tables:
        """Return a backup. Rows are never changed in place."""
        return Tables({name: dict(rows) for name, rows in self.rows.items()})

    def apply(self, changes: Changes) -> None:
        """Write changed rows."""
        for table, changed in changes.items():
            rows = self.rows[table]
            for key, row in changed.items():
                if row is None:
                    rows.pop(key, None)
                else:
                    rows[key] = row


class View:
    """One transaction at read committed: the newest committed rows, and its own changes above them."""

    def __init__(
        self, tables: Tables, now: float = 0.0, backend: int = -1, end_session: Callable[[int], bool] = lambda _: False
    ) -> None:
        """`backend`: the number of its session. `end_session`: end the session with a number; returns whether there is one."""
        self._tables = tables
        self._changes: dict[str, dict[Key, Row | None]] = {}
        self.now = now
        self.backend = backend
        self.end_session = end_session
        self.notifies = False

    @property
    def changes(self) -> Changes:
        """Return the changed rows; None for a deleted one."""
        return self._changes

    def get(self, table: str, *key: Any) -> Row | None:
        """Return the row with this primary key."""
        changed = self._changes.get(table)
        if changed is not None and key in changed:
            return changed[key]
        return self._tables.rows[table].get(key)

    def all(self, table: str) -> Iterator[Row]:
        """Return all rows, in no order that a query promises."""
        changed = self._changes.get(table)
        if not changed:
            return iter(list(self._tables.rows[table].values()))
        merged: dict[Key, Row | None] = {**self._tables.rows[table], **changed}
        return iter([row for row in merged.values() if row is not None])

    def put(self, table: str, row: Row) -> None:
        """Write a row in place of the one with its key."""
        self._changes.setdefault(table, {})[tuple(row[name] for name in COLUMNS[table][1])] = row

    def insert(self, table: str, *values: Any, on_conflict: Callable[[Row], Row | None] | None = None) -> None:
        """Insert a row. `on_conflict` returns the row to write in place of an existing one, or None for nothing."""
        names, key = COLUMNS[table]
        row = dict(zip(names, (*values, *[None] * (len(names) - len(values))), strict=True))
        before = self.get(table, *(row[name] for name in key))
        if before is None:
            self._check_unique(table, row)
            self.put(table, row)
        elif on_conflict is None:
            raise asyncpg.UniqueViolationError(f'duplicate key value violates unique constraint "{table}_pkey"')
        elif (after := on_conflict(before)) is not None:
            self.put(table, after)

    def write(self, table: str, *values: Any) -> None:
        """Write a row in place of the one with its key, if there is one."""
        self.put(table, dict(zip(COLUMNS[table][0], values, strict=True)))

    def _check_unique(self, table: str, row: Row) -> None:
        name = UNIQUE.get(table)
        if name is not None and row[name] is not None and any(other[name] == row[name] for other in self.all(table)):
            raise asyncpg.UniqueViolationError(f'duplicate key value violates unique constraint "{table}_{name}_key"')

    def delete(self, table: str, row: Row) -> None:
        """Delete a row."""
        self._changes.setdefault(table, {})[tuple(row[name] for name in COLUMNS[table][1])] = None

    def lock(self, table: str) -> None:
        """Lock the row of a table of one row until the end of this transaction. Raises `Wait` while another one holds it."""
        if self._tables.writers.setdefault(table, self) is not self:
            raise Wait

    def commit(self) -> None:
        """Make the changes visible to all."""
        self._tables.apply(self._changes)
        self.end()

    def end(self) -> None:
        """Release the locks of rows, and forget the changes."""
        self._changes = {}
        for table in [table for table, view in self._tables.writers.items() if view is self]:
            del self._tables.writers[table]
