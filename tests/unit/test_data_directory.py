"""A log begins when it is asked for, and no command makes a second one by accident."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from postgres_server import Postgres
from registries import Web, open_registry, settings_for
from signers import ORIGIN
from structlog.testing import capture_logs

from treaty_consensus.errors import Conflict, NotFound, TreatyError
from treaty_registry.data_directory import create_log, open_operator
from treaty_registry.log.fence import read_fence
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings


@pytest.mark.parametrize("origin, warned", [("localhost:8080", True), ("8080.localhost", False), ("registry.example", False)])
async def test_a_port_in_the_name_of_a_new_log_is_warned_of(tmp_path: Path, database: str, origin: str, warned: bool) -> None:
    with capture_logs() as first:
        operator = await create_log(Settings(data=tmp_path, new=True, origin=origin, database=database), database)
    assert operator.origin == origin
    assert [(entry["log_level"], entry["origin"]) for entry in first] == ([("warning", origin)] if warned else [])
    with capture_logs() as later:
        assert open_operator(Settings(data=tmp_path, database=database)).origin == origin
    assert later == []


async def refusal(settings: Settings) -> TreatyError:
    with pytest.raises(TreatyError) as refused:
        async with Registry.open(settings):
            pass
    return refused.value


async def tables(database: str) -> int:
    connection = await asyncpg.connect(database)
    try:
        count: int = await connection.fetchval("select count(*) from pg_tables where schemaname = 'public'")
        return count
    finally:
        await connection.close()


@pytest.mark.threat(332)
@pytest.mark.parametrize("origin", [None, ORIGIN])
async def test_no_log_is_made_where_none_is_asked_for(tmp_path: Path, database: str, origin: str | None) -> None:
    for place in (database, None):
        error = await refusal(Settings(data=tmp_path / "data", origin=origin, database=place))
        assert isinstance(error, NotFound) and error.code == "keys.missing"
        assert "mount its volume" in error.fix and f"init --origin {ORIGIN}" in error.fix
        assert (f"no log {origin} in" if origin else "no log in") in error.message
    assert not (tmp_path / "data").exists()


@pytest.mark.threat(332)
async def test_a_new_log_is_not_made_where_one_is(tmp_path: Path, database: str, web: Web) -> None:
    async with open_registry(tmp_path / "first", database, web) as registry:
        before = (registry.head.size, registry.head.root)
    again = Settings(data=tmp_path / "first", new=True, origin=ORIGIN, database=database)
    beside = replace(again, data=tmp_path / "second")
    for settings, place in ((again, str(tmp_path / "first")), (beside, "the database")):
        error = await refusal(settings)
        assert isinstance(error, Conflict) and error.code == "log.exists"
        assert place in error.message and "without --new" in error.fix
    assert not (tmp_path / "second").exists()
    assert (read_fence(tmp_path / "first" / "head", ORIGIN).size, before[0]) == (2, 2)


@pytest.mark.threat(332)
async def test_a_log_that_has_signed_gets_no_empty_database(tmp_path: Path, database: str, web: Web, postgres: Postgres) -> None:
    async with open_registry(tmp_path / "data", database, web):
        pass
    async with postgres.fresh("template1") as empty:
        # The variable of the database is missing, and its URL is of an empty one.
        for place in (None, empty):
            error = await refusal(settings_for(tmp_path / "data", place))
            assert isinstance(error, NotFound) and error.code == "log.damaged"
            assert "2 leaves" in error.message and "TREATY_DATABASE_URL" in error.fix
        assert await tables(empty) == 0
    assert not list((tmp_path / "data").glob("postgres*"))
    async with open_registry(tmp_path / "data", database, web) as registry:
        assert registry.head.size == 2
