"""Turn rows into columns. A batch goes to PostgreSQL as one array per column, and `unnest` makes rows again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..log.entry import Entry

if TYPE_CHECKING:
    from treaty_consensus.statement import Statement

    from ..storage.postgres import AnyConnection


async def insert(connection: AnyConnection, sql: str, rows: Iterable[Sequence[object]]) -> None:
    """Run `sql`, which selects from `unnest($1, $2, …)`, with one array per column. Without rows nothing happens."""
    # One array for each column: one round trip, and one plan for any number of rows.
    columns = [list(column) for column in zip(*rows, strict=True)]
    if columns:
        await connection.execute(sql, *columns)


def statement_of(entry: Entry) -> Statement:
    """Return the statement of an entry that is known to have one."""
    assert entry.statement is not None
    return entry.statement


def statement_id(entry: Entry) -> bytes:
    """Return the id of an entry's statement, 32 raw bytes."""
    return bytes.fromhex(statement_of(entry).id)
