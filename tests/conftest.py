"""Fixtures for everybody: a PostgreSQL for the whole run, a fresh database and a registry for each test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from registries import Web, open_registry

from treaty_registry.registry import Registry
from treaty_registry.storage.embedded import embedded_postgres
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
    async def fresh(self) -> AsyncIterator[str]:
        """The URL of a new, migrated, empty database, which is dropped at the end."""
        name = f"test_{next(self._numbers)}"
        async with connect(self.url) as connection:
            await connection.execute(f"create database {name} template template_registry")
        yield self.database(name)
        async with connect(self.url) as connection:
            await connection.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The server for the whole run; it ends with it."""
    with asyncio.Runner() as runner:
        running = embedded_postgres(tmp_path_factory.mktemp("pg"))
        server = Postgres(runner.run(running.__aenter__()))
        try:
            runner.run(server.prepare())
            yield server
        finally:
            runner.run(running.__aexit__(None, None, None))


@pytest.fixture
async def database(postgres: Postgres) -> AsyncIterator[str]:
    """The URL of a database of this test's own."""
    async with postgres.fresh() as url:
        yield url


@pytest.fixture
def web() -> Web:
    """The DID documents that the registry can fetch."""
    return Web()


@pytest.fixture
async def registry(tmp_path: Path, database: str, web: Web) -> AsyncIterator[Registry]:
    """A registry in this process, with its genesis and parameters logged."""
    async with open_registry(tmp_path / "registry", database, web) as opened:
        yield opened
