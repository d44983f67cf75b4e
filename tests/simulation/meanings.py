"""The meaning of the statements that the write path sends to PostgreSQL, by their texts.

The texts are the product's, without regard to white space. A statement that is not listed is an error of the simulation, and says
so. `test_statements` runs the same statements with the same arguments in a real PostgreSQL. The modules `log_statements` and
`catalogue_statements` list them.

`COMPUTED` begin the statements by which PostgreSQL derives the words of the search, the facets and the served records from other
tables. Nothing of the write path reads them, so they do nothing here. That they follow from the leaves is tested with a real
PostgreSQL alone, by a rebuild.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

from .tables import Row, View

Meaning: TypeAlias = Callable[..., list[Row]]
MEANINGS: dict[str, Meaning] = {}
COMPUTED = (
    "with added as (insert into postings",
    "with found as ( select term.lexeme",
    "with wanted as ( select p.index, p.facets as old",
    "delete from words where",
    "select p.*, e.state as elected",
    "select h.*, h.publisher = p.publisher as own",
    "select d.base, d.uri",
)


@cache
def normal(sql: str) -> str:
    """Return the text with single spaces."""
    return " ".join(sql.split())


def means(*texts: str) -> Callable[[Meaning], Meaning]:
    """Register the meaning of a statement: a function of a view and the arguments that returns the rows of the answer."""

    def register(meaning: Meaning) -> Meaning:
        MEANINGS.update(dict.fromkeys(map(normal, texts), meaning))
        return meaning

    return register


@cache
def meaning(sql: str) -> Meaning:
    """Return the meaning of a statement. Raises LookupError."""
    sql = normal(sql)
    if sql in MEANINGS:
        return MEANINGS[sql]
    if sql.startswith(COMPUTED):
        return lambda *_: []
    raise LookupError(f"The simulation does not know the meaning of the statement: {sql}")


def one(value: Any) -> list[Row]:
    """Return an answer of one value."""
    return [{"value": value}]


def zipped(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return what `unnest` of several arrays does."""
    return list(zip(*columns, strict=True))


def insert_all(view: View, table: str, columns: Sequence[list[Any]]) -> list[Row]:
    """Insert the rows of some columns."""
    for row in zipped(*columns):
        view.insert(table, *row)
    return []
