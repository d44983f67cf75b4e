"""What nodes do to the leader's lock, on a real PostgreSQL: no process that stands still keeps it from the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from treaty_consensus.errors import Unavailable
from treaty_registry.log import leadership
from treaty_registry.storage.postgres import DATABASE_ERRORS, Connection, connect, lead, migrate

MIGRATING = 0x7472656174790002


@pytest_asyncio.fixture
async def node(database: str) -> AsyncIterator[Connection]:
    async with connect(database) as connection:
        await migrate(connection)
        yield connection


async def test_a_look_at_the_leadership_keeps_no_lock(database: str, node: Connection) -> None:
    assert not (await leadership.read(node)).led
    # The look has ended, and its session lives on.
    (await lead(database, patience=0)).terminate()


async def test_a_process_stopped_before_its_term_loses_the_lock(database: str, node: Connection) -> None:
    standing = await lead(database, patience=5)
    leadership_now = await leadership.read(node)
    assert leadership_now.led
    assert leadership_now.term == 0
    await leadership.end(node, leadership_now, 3600)
    assert await standing.fetchval("select true")
    await leadership.end(node, leadership_now, 0)
    with pytest.raises(DATABASE_ERRORS):
        await standing.fetchval("select true")
    (await lead(database, patience=5)).terminate()


async def test_a_rebuild_keeps_the_lock(database: str, node: Connection) -> None:
    rebuilding = await lead(database, patience=5)
    async with rebuilding.transaction():
        await leadership.end(node, await leadership.read(node), 0)
        with pytest.raises(Unavailable):
            await lead(database, patience=0)
    rebuilding.terminate()


async def test_a_later_term_is_told_to_the_leader_before(database: str, node: Connection) -> None:
    term = await leadership.take(node)
    assert await leadership.beat(node, term)
    assert await leadership.publish(node, term, "http://127.0.0.1:1", b"note", b"")
    await leadership.take(node)
    assert not await leadership.beat(node, term)
    assert not await leadership.publish(node, term, "http://127.0.0.1:2", b"another", b"")
    assert (await leadership.read(node)).note == b"note"


async def test_a_start_waits_for_no_lock_when_no_migration_is_missing(database: str, node: Connection) -> None:
    await node.execute("select pg_advisory_lock($1)", MIGRATING)  # as a process that stands still while it starts
    async with connect(database) as starting, asyncio.timeout(30):
        assert await migrate(starting) == []
