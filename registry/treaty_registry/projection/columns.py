"""Rows into columns: a batch goes to PostgreSQL as one array a column, and `unnest` makes rows of them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..log.entry import Entry

if TYPE_CHECKING:
    from treaty_consensus.statement import Statement

    from ..storage.postgres import AnyConnection


async def insert(connection: AnyConnection, sql: str, rows: Iterable[Sequence[object]]) -> None:
    """Run `sql`, which selects from `unnest($1, $2, …)`, with one array a column. Nothing happens without rows."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    if columns:
        await connection.execute(sql, *columns)


def statement_of(entry: Entry) -> Statement:
    """The statement of an entry that is known to be one."""
    assert entry.statement is not None
    return entry.statement


def statement_id(entry: Entry) -> bytes:
    """The id of an entry's statement, 32 raw bytes."""
    return bytes.fromhex(statement_of(entry).id)
