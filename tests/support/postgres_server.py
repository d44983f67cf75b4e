"""A running PostgreSQL server that lends migrated, empty databases."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from treaty_registry.storage.postgres import Connection, connect, migrate

_TEMPLATE = "template_registry"
# All that a test may have changed in a database beside the rows of its tables. Each change writes a row, by a newer transaction.
_CATALOGS = (
    *("attrdef", "attribute", "class", "constraint", "extension", "index"),
    *("namespace", "proc", "rewrite", "trigger", "type"),
)
_FORM = (
    "select array[" + ", ".join(f"(select (count(*), max(xmin::text::bigint))::text from pg_{name})" for name in _CATALOGS) + "]"
    " || (select array_agg((setrole, setconfig)::text) from pg_db_role_setting"
    " where setdatabase = (select oid from pg_database where datname = current_database()))"
)


@dataclass
class Postgres:
    """A running server. `url`: its maintenance database; databases are made from a migrated template."""

    url: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _free: list[str] = field(default_factory=list)
    _form: list[str] = field(default_factory=list)
    _clear: str = ""

    def database(self, name: str) -> str:
        """The URL of a database of this server."""
        return self.url.replace("/postgres?", f"/{name}?")

    async def prepare(self) -> None:
        """Make the template."""
        async with connect(self.url) as connection:
            await connection.execute(f"create database {_TEMPLATE}")
        async with connect(self.database(_TEMPLATE)) as connection:
            await migrate(connection)
            self._form = await connection.fetchval(_FORM)
            self._clear = await _clearing(connection)

    @asynccontextmanager
    async def fresh(self, template: str = _TEMPLATE) -> AsyncIterator[str]:
        """The URL of a migrated, empty database. At the end its connections are closed. With `template1` it has no tables.

        A later test gets the same database, cleared, unless this one changed more than rows. Making a database and dropping it
        cost more than most tests do: PostgreSQL writes 8 MB, and each of the two waits for the disk.
        """
        if self._free and template == _TEMPLATE:
            name = self._free.pop()
        else:
            name = f"test_{next(self._numbers)}"
            async with connect(self.url) as connection:
                await connection.execute(f"create database {name} template {template}")
        yield self.database(name)
        if await self._is_cleared(name):
            self._free.append(name)
        else:
            async with connect(self.url) as connection:
                await connection.execute(f"drop database {name} with (force)")

    async def _is_cleared(self, name: str) -> bool:
        """Whether the database has the form of the template, and is as empty again."""
        async with connect(self.database(name)) as connection:
            # A transaction that a test left open would hold its locks.
            await connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            if await connection.fetchval(_FORM) != self._form:
                return False
            await connection.execute(self._clear)
        return True


async def _clearing(connection: Connection) -> str:
    """Return statements after which the tables have the rows that they have now, and the sequences begin again."""
    # No trigger runs and no reference is checked meanwhile.
    parts = ["begin; set local session_replication_role = replica"]
    tables = await connection.fetch(
        "select oid::regclass::text from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
    )
    for (table,) in tables:
        parts.append(f"delete from {table}")
        rows = await connection.fetchval(f"select json_agg(t)::text from {table} t")
        if rows is not None:
            parts.append(f"insert into {table} select * from json_populate_recordset(null::{table}, $rows${rows}$rows$)")
    sequences = await connection.fetch("select oid::regclass::text from pg_class where relkind = 'S'")
    parts += [f"select setval('{sequence}', 1, false)" for (sequence,) in sequences]
    return ";\n".join([*parts, "commit"])
