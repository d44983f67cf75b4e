"""Each simulated statement means what it means in a real PostgreSQL: the same answers, errors and rows for random arguments."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any, cast

import asyncpg
import pytest
from depth import examples

from simulation import server
from simulation.meanings import MEANINGS, meaning
from simulation.tables import COLUMNS, Tables, View
from treaty_registry.storage.postgres import connect, migrate

assert server  # it registers the meanings
_SQL = [sql for sql in MEANINGS if not sql.startswith(("create ", "insert into trial"))]
_VALUES: dict[str, list[Any]] = {
    "int8": list(range(6)),
    "int2": [0, 1, 2],
    "text": ["a", "b", "c", "d"],
    "bytea": [bytes([number]) * 4 for number in range(6)],
    "jsonb": ["{}"],
    "float8": [3600.0],  # seconds: no upload expires while a busy machine compares
    "numeric": [Decimal(0), Decimal(2**70)],
    "int4": list(range(3)),
}
_OPTIONAL = {
    "insert into grants": (4,),
    "insert into ballots": (4,),
    "with moved": (6, 19),
    "insert into protocols": (9, 18),
    "with gone": (9, 10, 11, 12),
    "insert into statuses": (3, 5),
    "insert into decisions": (6,),
}
"""Statements with columns that may be null, and their numbers."""


async def test_the_simulated_statements_are_those_of_postgresql(database: str) -> None:
    async with connect(database) as connection:
        await migrate(connection)
        # The simulation also finds an author that is written twice.
        await connection.execute("alter table authors add primary key (did, index)")
        types = {sql: [kind.name for kind in (await connection.prepare(sql)).get_parameters()] for sql in _SQL}
        for seed in range(examples(50)):
            await _compare(connection, types, random.Random(seed))


async def _compare(connection: Any, types: dict[str, list[str]], rng: random.Random) -> None:
    tables = Tables.new()
    await connection.execute(f"truncate {', '.join(COLUMNS)}")
    await connection.execute("insert into head (size, root) values (0, $1)", tables.rows["head"][True,]["root"])
    await connection.execute("insert into leadership values (true, 0, '', 0, 'epoch', '', '')")
    for _ in range(60):
        sql = rng.choice(_SQL)
        arguments = _arguments(sql, types[sql], tables, rng)
        expected: Any
        try:
            expected = [tuple(row) for row in await connection.fetch(sql, *arguments)]
        except asyncpg.PostgresError as error:
            expected = type(error)
        view, found = View(tables), cast(Any, None)
        try:
            found = [tuple(row.values()) for row in MEANINGS[sql](view, *arguments)]
            view.commit()
        except asyncpg.PostgresError as error:
            found = type(error)
            view.end()
        ordered = "order by" in sql
        if " as silent " in sql:
            expected, found = [[(*row[:2], *row[3:5]) for row in rows] for rows in (expected, found)]
        assert _plain(found, ordered) == _plain(expected, ordered), (sql, arguments)
        for table, (columns, _key) in COLUMNS.items():
            # Times and processes of the server are not those of the simulation.
            named = [column for column in columns if column not in ("expires", "beat", "backend")]
            rows = [tuple(row) for row in await connection.fetch(f"select {', '.join(named)} from {table}")]
            assert _plain(rows) == _plain([tuple(row[name] for name in named) for row in View(tables).all(table)]), (sql, table)


def _plain(rows: Any, ordered: bool = False) -> Any:
    return sorted(rows, key=repr) if isinstance(rows, list) and not ordered else rows


def _arguments(sql: str, types: list[str], tables: Tables, rng: random.Random) -> list[Any]:
    count = rng.randrange(1, 4)
    values_made: list[Any] = []
    for kind in types:
        element = kind.removesuffix("[]").removeprefix("_")
        values = _VALUES[element]
        if element == kind:
            values_made.append(rng.choice(values))
        elif element in ("jsonb", "int2"):
            values_made.append([rng.choice(values) for _ in range(count)])
        else:
            values_made.append(rng.sample(values, count))
    for begin, columns in _OPTIONAL.items():
        for column in columns if sql.startswith(begin) else ():
            if column < len(values_made):  # the statement that appends leaves may have further parts
                values_made[column] = [None if rng.random() < 0.4 else value for value in values_made[column]]
    if sql.startswith("with moved") and rng.random() < 0.6:
        head = tables.rows["head"][True,]
        values_made[:2] = head["size"], head["root"]
    return values_made


def test_an_unknown_statement_is_an_error() -> None:
    with pytest.raises(LookupError):
        meaning("select everything")
