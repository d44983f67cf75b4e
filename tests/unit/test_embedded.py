"""The embedded PostgreSQL: started, shared, attached to, stopped; and what an unclean end leaves."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import signal
import stat
from pathlib import Path

import asyncpg
import pytest
from postgres_process import another_process

from treaty_consensus.errors import Refused, Unavailable
from treaty_registry.storage.embedded import embedded_postgres


async def fetch(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def server_pid(data: Path) -> int | None:
    """The process of the server, if one runs."""
    try:
        return int((data / "postgres" / "postmaster.pid").read_text().split("\n")[0])
    except FileNotFoundError:
        return None


async def test_it_keeps_data_and_stops_with_its_last_user(data: Path) -> None:
    data /= "new"
    async with embedded_postgres(data) as url:
        await fetch(url, "create table kept as select 1 as one")
        assert server_pid(data) is not None
    assert server_pid(data) is None
    async with embedded_postgres(data) as url:
        assert await fetch(url, "select one from kept") == 1
        assert await fetch(url, "show synchronous_commit") == "on"
        assert await fetch(url, "show listen_addresses") == ""
        assert await fetch(url, "select lower('ÄÖÜ漢字')") == "äöü漢字"


async def test_only_its_user_reaches_the_server(data: Path) -> None:
    async with embedded_postgres(data):
        assert stat.S_IMODE((data / "postgres").stat().st_mode) == 0o700
        assert (data / "postgres" / ".s.PGSQL.5432").is_socket()


@pytest.mark.deep
async def test_several_processes_share_it(data: Path) -> None:
    other = await another_process(data)
    async with embedded_postgres(data) as url:
        pid = server_pid(data)
        assert await fetch(url, "select 1") == 1
    assert server_pid(data) == pid, "the other process still uses it"
    async with embedded_postgres(data) as url:
        await other.communicate(b"")
        assert await fetch(url, "select 1") == 1, "the one who started it has gone, this one still uses it"
    assert server_pid(data) is None


@pytest.mark.deep
async def test_a_killed_user_leaves_it_running_for_the_next(data: Path) -> None:
    other = await another_process(data)
    pid = server_pid(data)
    other.kill()
    await other.wait()
    async with embedded_postgres(data) as url:
        assert server_pid(data) == pid
        assert await fetch(url, "select 1") == 1
    assert server_pid(data) is None


@pytest.mark.deep
async def test_a_killed_server_recovers(data: Path) -> None:
    async with embedded_postgres(data) as url:
        await fetch(url, "create table kept as select 1 as one")
        pid = server_pid(data)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
    async with embedded_postgres(data) as url:
        assert await fetch(url, "select one from kept") == 1


async def test_the_process_id_of_another_program_is_no_server(data: Path) -> None:
    async with embedded_postgres(data):
        lines = (data / "postgres" / "postmaster.pid").read_text().split("\n")
    (data / "postgres" / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lines[1:]]))
    async with embedded_postgres(data) as url:
        assert await fetch(url, "select 1") == 1


async def test_a_server_of_another_namespace_is_used_and_left_running(data: Path) -> None:
    other, written = await another_process(data), data / "postgres" / "postmaster.pid"
    other.kill()
    await other.wait()
    # Its process is not to be found, as where /proc is hidden or ids are counted anew.
    content, pid = written.read_bytes(), server_pid(data)
    written.unlink()
    async with embedded_postgres(data) as url:
        assert await fetch(url, "select 1") == 1
    written.write_bytes(content)
    async with embedded_postgres(data) as url:
        assert (await fetch(url, "select 1"), server_pid(data)) == (1, pid)
    assert server_pid(data) is None
    assert (data / "postgres" / "log").read_text().count("starting PostgreSQL") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("lock", ["postgres.starting", "postgres.running"])
async def test_a_lock_of_another_process_prevents_start_and_removal(
    data: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    async with embedded_postgres(data):
        written = (data / "postgres" / "postmaster.pid").read_bytes()
    (data / "postgres" / "postmaster.pid").write_bytes(written)
    monkeypatch.setattr("treaty_registry.storage.embedded.FIRST_START", 1.5)
    with (data / lock).open("rb") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        with pytest.raises(Unavailable) as refused:
            async with embedded_postgres(data):
                pass
    assert refused.value.code == "database.unreachable"
    assert (data / "postgres" / "postmaster.pid").read_bytes() == written
    async with embedded_postgres(data) as url:
        assert await fetch(url, "select 1") == 1


@pytest.mark.deep
@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can give a folder away.")
async def test_the_owner_of_a_cluster_is_never_changed(data: Path) -> None:
    async with embedded_postgres(data):
        pass
    owner = (data / "postgres").stat().st_uid
    os.chown(data / "postgres", 0, 0)
    with pytest.raises(Refused) as refused:
        async with embedded_postgres(data):
            pass
    assert refused.value.code == "settings.directory"
    assert f"chown -R USER {data / 'postgres'}" in refused.value.fix
    assert ((data / "postgres").stat().st_uid, (data / "postgres" / "PG_VERSION").stat().st_uid) == (0, owner)
    os.chown(data / "postgres", owner, -1)
    async with embedded_postgres(data) as url:
        assert await fetch(url, "select 1") == 1


async def test_a_path_too_long_for_a_socket_is_refused_first(data: Path) -> None:
    deep = data / ("d" * 100)
    with pytest.raises(Refused) as refused:
        async with embedded_postgres(deep):
            pass
    assert refused.value.code == "settings.value"
    assert not deep.exists()


async def test_a_server_that_does_not_start_says_where_to_look(data: Path) -> None:
    async with embedded_postgres(data):
        pass
    (data / "postgres" / "postgresql.conf").write_text("nonsense = 1\n")
    with pytest.raises(Unavailable) as refused:
        async with embedded_postgres(data):
            pass
    assert refused.value.code == "database.unreachable"
    assert str(data / "postgres" / "log") in refused.value.fix


async def test_without_the_wheel_it_says_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable) as refused:
        async with embedded_postgres(data):
            pass
    assert refused.value.code == "database.unreachable"
