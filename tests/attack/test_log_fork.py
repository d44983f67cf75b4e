"""Threat: a log that shows different histories. A restored backup, a second writer and a mixed-up start never sign; what a
copied key signs elsewhere is noticed when it comes back.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest
from registries import Web, ballot, grant, log, open_registry, refuse
from signers import ORIGIN, domain_signer, key_signer
from structlog.testing import capture_logs

from treaty_consensus import kinds
from treaty_consensus.errors import Conflict, NotFound, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.merkle import verify_consistency
from treaty_consensus.log.tiles import TreeEdge
from treaty_registry import registry as registry_module
from treaty_registry.log import tables
from treaty_registry.log.fence import read_fence
from treaty_registry.registry import Registry
from treaty_registry.storage import postgres as postgres_module
from treaty_registry.storage.postgres import LEADER, connect

WRITER, OTHER_WRITER = key_signer("writer"), key_signer("other writer")


class Server(Protocol):
    """What is used of the fixture `postgres`."""

    url: str

    def database(self, name: str) -> str: ...


def record(data: Path) -> Checkpoint:
    """What the fence in a data directory says."""
    return read_fence(data / "head", ORIGIN)


async def opening_fails(data: Path, database: str, kind: type[TreatyError]) -> str:
    """Open a registry that must not open; the fence says the same afterwards."""
    before = (data / "head").read_bytes() if (data / "head").exists() else None
    with pytest.raises(kind) as refused:
        async with open_registry(data, database, Web()):
            pass
    assert ((data / "head").read_bytes() if (data / "head").exists() else None) == before
    assert refused.value.fix
    return refused.value.code


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@asynccontextmanager
async def backup(server: Server, database: str) -> AsyncIterator[str]:
    """A copy of a database that nobody uses at the moment."""
    name = database.partition("/test_")[2].partition("?")[0]
    async with connect(server.url) as connection:
        await connection.execute(f"create database backup_{name} template test_{name}")
    yield server.database(f"backup_{name}")
    async with connect(server.url) as connection:
        await connection.execute(f"drop database backup_{name} with (force)")


@pytest.mark.threat(58)
async def test_a_restored_backup_is_not_signed(postgres: Server, database: str, data: Path, web: Web) -> None:
    async with open_registry(data, database, web) as registry:
        await log(registry, grant(WRITER, 0), WRITER)
    async with backup(postgres, database) as old:
        async with open_registry(data, database, web) as registry:
            await log(registry, grant(WRITER, 1), WRITER)
            newest = registry.head
        assert await opening_fails(data, old, Untrusted) == "log.damaged"
        async with open_registry(data, database, web) as registry:
            assert (registry.head.size, registry.head.root) == (newest.size, newest.root)
            await log(registry, grant(WRITER, 2), WRITER)


@pytest.mark.threat(58)
async def test_a_database_restored_under_a_process_is_not_signed(
    postgres: Server, database: str, data: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_registry(data, database, web) as registry:
        await log(registry, grant(WRITER, 0), WRITER)
    copied = (data / "head").read_bytes()
    async with backup(postgres, database) as old, open_registry(data, database, web) as registry:
        await log(registry, grant(WRITER, 1), WRITER)
        head = registry.head
        # The process has the same file open, and the leader's next connection is to the copy.
        (data / "head").write_bytes(copied)
        registry.leader.fence.record = record(data)
        monkeypatch.setattr(registry_module, "lead", lambda _url, patience: postgres_module.lead(old, patience=patience))
        registry.leader.resign()
        seen: list[bool] = []
        load = tables.load_edge

        async def loaded(*arguments: object) -> TreeEdge:
            # What a health check finds while the database is examined.
            seen.append(registry.leader.leads)
            return await load(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(tables, "load_edge", loaded)
        with pytest.raises(Untrusted) as refused:
            await registry.leader.take_over(patience=1)
        assert refused.value.code == "log.damaged"
        assert seen and not any(seen)
        assert registry.head == head and not await registry.is_ready()


@pytest.mark.threat(58)
async def test_a_backup_that_grew_elsewhere_is_not_signed(
    postgres: Server, database: str, data: Path, tmp_path: Path, web: Web
) -> None:
    async with open_registry(data, database, web) as registry:
        await log(registry, grant(WRITER, 0), WRITER)
    shutil.copytree(data, tmp_path / "stolen")
    async with backup(postgres, database) as old:
        async with open_registry(tmp_path / "stolen", old, web) as elsewhere:
            for seq in range(1, 5):
                await log(elsewhere, grant(WRITER, seq), WRITER)
        async with open_registry(data, database, web) as registry:
            await log(registry, grant(WRITER, 9), WRITER)
        assert record(data).size < record(tmp_path / "stolen").size
        assert await opening_fails(data, old, Untrusted) == "log.damaged"


@pytest.mark.threat(11)
async def test_a_fork_by_a_copied_key_is_noticed_at_its_return(
    postgres: Server, database: str, data: Path, tmp_path: Path, web: Web
) -> None:
    async with open_registry(data, database, web) as registry:
        await log(registry, grant(WRITER, 0), WRITER)
    shutil.copytree(data, tmp_path / "stolen")
    async with (
        backup(postgres, database) as old,
        open_registry(tmp_path / "stolen", old, web) as elsewhere,
        open_registry(data, database, web) as registry,
    ):
        await log(elsewhere, grant(WRITER, 1), WRITER)
        await log(registry, grant(WRITER, 9), WRITER)
        victim = domain_signer("victim.example")
        web.serve(victim)
        statement = victim.statement(kinds.Ballot("topic/x", 0, (), elsewhere.head.note.decode()))
        with capture_logs() as logged:
            refusal = await refuse(registry, statement)
        assert refusal.code == "log.forked"
        (cried,) = [entry for entry in logged if entry["log_level"] == "critical"]
        heads = Equivocation.parse(cried["proof"].encode()).verify()
        assert {head.root for head in heads} == {elsewhere.head.root, registry.head.root}
        await log(registry, grant(WRITER, 2), WRITER)
        with capture_logs() as logged:
            await refuse(registry, statement)
        first, second = Equivocation.parse(logged[0]["proof"].encode()).verify()
        assert (first.root, second.root) == (elsewhere.head.root, registry.head.root)
        await log(registry, ballot(registry), victim)


@pytest.mark.threat(59)
async def test_a_second_process_does_not_write(
    database: str, data: Path, tmp_path: Path, web: Web, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_PATIENCE", 0.2)
    shutil.copytree(data, tmp_path / "second")
    before = registry.head
    assert await opening_fails(tmp_path / "second", database, Unavailable) == "log.other-leader"
    assert registry.head == before
    await log(registry, grant(WRITER), WRITER)


@pytest.mark.threat(59)
async def test_a_leader_that_lost_its_lock_unawares_signs_nothing_more(
    database: str, data: Path, tmp_path: Path, web: Web, registry: Registry
) -> None:
    await log(registry, grant(WRITER, 0), WRITER)
    shutil.copytree(data, tmp_path / "second")
    last = registry.head
    await registry.leader.connection.execute("select pg_advisory_unlock($1)", LEADER)
    async with open_registry(tmp_path / "second", database, web) as second:
        await log(second, grant(WRITER, 1), WRITER)
        refusal = await refuse(registry, OTHER_WRITER.statement(grant(OTHER_WRITER)))
        assert isinstance(refusal, Unavailable)
        assert registry.head == last
        with pytest.raises(Unavailable):
            await registry.leader.take_over(patience=0)
        assert registry.head == last
        assert not await registry.is_ready()
        proof = await second.consistency(last.size)
        verify_consistency(last.size, second.head.size, last.root, second.head.root, proof)
        newest = second.head
    await log(registry, grant(WRITER, 2), WRITER)
    assert registry.head.size == newest.size + 1, "once the other one is gone, it leads again, on top of what that one wrote"
    verify_consistency(newest.size, registry.head.size, newest.root, registry.head.root, await registry.consistency(newest.size))


async def test_a_leader_that_lost_its_lock_does_not_even_cosign(
    database: str, data: Path, tmp_path: Path, web: Web, registry: Registry
) -> None:
    shutil.copytree(data, tmp_path / "second")
    last = registry.head
    await registry.leader.connection.execute("select pg_advisory_unlock($1)", LEADER)
    async with open_registry(tmp_path / "second", database, web) as second:
        await log(second, grant(WRITER), WRITER)
        with pytest.raises(Unavailable) as refused:
            await registry.leader.renew()
        assert refused.value.code == "log.not-leading"
        assert registry.head == last


async def test_the_database_of_another_log_is_not_signed(
    postgres: Server, database: str, data: Path, tmp_path: Path, web: Web
) -> None:
    async with open_registry(data, database, web):
        pass
    (tmp_path / "other").mkdir()
    async with connect(postgres.url) as connection:
        await connection.execute("create database another_log template template_registry")
    another = postgres.database("another_log")
    try:
        async with open_registry(tmp_path / "other" / "registry", another, web) as other:
            await log(other, grant(WRITER), WRITER)
        assert await opening_fails(data, another, Untrusted) == "log.damaged"
        (data / "head").write_bytes((tmp_path / "other" / "registry" / "head").read_bytes())
        assert await opening_fails(data, another, Untrusted) == "log.other"
    finally:
        async with connect(postgres.url) as connection:
            await connection.execute("drop database another_log with (force)")


async def test_without_the_fence_nothing_is_signed(database: str, data: Path, web: Web) -> None:
    async with open_registry(data, database, web):
        pass
    (data / "head").unlink()
    assert await opening_fails(data, database, NotFound) == "fence.damaged"


async def test_without_its_keys_a_log_is_not_begun_again(database: str, data: Path, web: Web) -> None:
    async with open_registry(data, database, web):
        pass
    shutil.rmtree(data / "keys")
    assert await opening_fails(data, database, Conflict) == "log.exists"


@pytest.mark.parametrize(
    "damage",
    [
        "update head set root = decode(repeat('00', 32), 'hex')",
        "update head set size = size - 1",
        "update head set size = size + 1",
        "update leaves set leaf = leaf || 'x' where index = 2",
        "delete from leaves where index = 2",
        "delete from leaves where index = 3",
    ],
)
async def test_a_log_that_does_not_hash_to_its_head_is_not_signed(database: str, data: Path, web: Web, damage: str) -> None:
    async with open_registry(data, database, web) as registry:
        await log(registry, grant(WRITER, 0), WRITER)
        await log(registry, grant(WRITER, 1), WRITER)
    async with connect(database) as connection:
        await connection.execute(damage)
    assert await opening_fails(data, database, Untrusted) == "log.damaged"
