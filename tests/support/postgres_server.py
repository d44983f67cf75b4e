"""A running PostgreSQL server that makes databases from a migrated template."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from treaty_registry.storage.postgres import connect, migrate


@dataclass
class Postgres:
    """A running server. `url`: its maintenance database; databases are made from a migrated template."""

    url: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def database(self, name: str) -> str:
        """The URL of a database of this server."""
        return self.url.replace("/postgres?", f"/{name}?")

    async def prepare(self) -> None:
        """Make the template."""
        async with connect(self.url) as connection:
            await connection.execute("create database template_registry")
        async with connect(self.database("template_registry")) as connection:
            await migrate(connection)

    @asynccontextmanager
    async def fresh(self, template: str = "template_registry") -> AsyncIterator[str]:
        """The URL of a new, migrated, empty database, which is dropped at the end. With `template1` it has no tables."""
        name = f"test_{next(self._numbers)}"
        async with connect(self.url) as connection:
            await connection.execute(f"create database {name} template {template}")
        yield self.database(name)
        async with connect(self.url) as connection:
            await connection.execute(f"drop database {name} with (force)")
