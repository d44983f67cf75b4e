"""Fault: an operator's commands beside a running registry, from units and shells of another user, in namespaces of their own.

One PostgreSQL serves the folder all the time, it keeps its owner, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from confined import USER, confined, missing, reachable
from fault_oracle import Seen, check_acknowledged, check_history, check_tables
from registries import grant
from registry_process import PROGRAM, Server, empty
from signers import NOW, key_signer

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def folder_of_user(path: Path) -> Path:
    """A folder of `USER` alone, as systemd makes the one of a unit."""
    path.parent.chmod(0o755)
    path.mkdir(mode=0o700)
    shutil.chown(path, USER)
    return path


def give(folder: Path, user: str) -> None:
    """Give a folder with its files to a user."""
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user)


@pytest.fixture
async def server(data: Path) -> AsyncIterator[Server]:
    """A registry in the confinement of its unit, on a folder of its user."""
    async with empty(folder_of_user(data / "registry")) as server:
        server.program = confined(data / "treaty-registry", PROGRAM, users=True)
        await server.start()
        assert await server.ready()
        yield server
        assert await server.stop() == 0


@asynccontextmanager
async def written(server: Server, seen: Seen) -> AsyncIterator[None]:
    """Statements are sent, one after the other, while the block lasts: each until it is acknowledged."""
    ending = asyncio.Event()
    writer, headers = key_signer("writer"), {"Content-Type": "application/json"}

    async def write() -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30, trust_env=False) as client:
            number = 0
            while not ending.is_set():
                number += 1
                leaf = writer.statement(grant(writer, number), log=server.about["origin"], issued=NOW).leaf
                with suppress(httpx.HTTPError):
                    seen.answer(leaf, await client.post("/statements", content=leaf, headers=headers))
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        try:
            yield
        finally:
            ending.set()


def starts(server: Server) -> int:
    """How often a PostgreSQL was started on the folder."""
    return len(re.findall(r"starting PostgreSQL", (server.data / "postgres" / "log").read_text()))


def owners(server: Server) -> set[str]:
    """The users to whom anything of the folder belongs."""
    return {pwd.getpwuid(path.lstat().st_uid).pw_name for path in (server.data, *server.data.rglob("*"))}


async def run(program: Path, *arguments: object, status: int = 0) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, *map(str, arguments), stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    output, _ = await process.communicate()
    assert process.returncode == status, output.decode()
    return output.decode()


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.deep)])
async def test_confined_backups_start_no_second_server(server: Server, data: Path, rounds: int) -> None:
    folder, private, seen = folder_of_user(data / "backup"), folder_of_user(data / "private"), Seen()
    asks = confined(data / "asks", PROGRAM, users=False)
    # The registry does not see this folder, so the command opens the database itself.
    opens = confined(data / "opens", PROGRAM, users=False, private=private)
    async with written(server, seen):
        for _ in range(rounds):
            await run(asks, "backup", folder, "--data", server.data)
            done = json.loads(await run(opens, "backup", private, "--data", server.data, "--json"))
            assert done["leaves"] == done["size"] > 0
            await asyncio.sleep(1.5)  # two looks of the registry at its server
    assert starts(server) == 1
    assert len(seen.acknowledged) > rounds
    await check_acknowledged(server, seen)
    await check_history(server, seen)
    if rounds > 1:
        await check_tables(server)
    assert {pwd.getpwuid(path.stat().st_uid).pw_name for path in folder.rglob("*")} == {USER}
    assert not list(private.iterdir())


@pytest.mark.deep
@pytest.mark.parametrize("command", ["migrate", pytest.param("audit", marks=pytest.mark.deep)])
async def test_a_command_of_root_leaves_the_cluster_to_its_owner(server: Server, data: Path, command: str) -> None:
    seen = Seen()
    assert os.geteuid() == 0
    await run(reachable(data / "command", PROGRAM), command, "--data", server.data)
    async with written(server, seen):
        await asyncio.sleep(1)
    assert owners(server) == {USER}
    assert starts(server) == 1
    assert seen.acknowledged and not seen.refusals
    await check_acknowledged(server, seen)
    await check_history(server, seen)


@pytest.mark.deep
async def test_a_rotation_by_root_is_one_of_the_registry(server: Server, data: Path) -> None:
    command, upcoming = reachable(data / "command", PROGRAM), server.data / "keys" / "next"
    await run(command, "prepare-rotation", "--data", server.data)
    assert owners(server) == {USER}
    # As a command of root of an older release left them.
    give(upcoming, "root")
    said = await run(command, "rotate", "--data", server.data, status=1)
    assert "system.file" in said and f"Permission denied: {upcoming}" in said and f"runs as {USER}" in said
    assert await server.stop() == 0
    await server.start()
    assert await server.ready()
    assert "the keys of the next rotation cannot be read" in (data / "registry.log").read_text()
    backup = folder_of_user(data / "backup")
    await run(command, "backup", backup, "--data", server.data)
    assert (backup / "keys" / "log.key").exists() and not (backup / "keys" / "next").exists()
    give(upcoming, USER)
    await run(command, "rotate", "--data", server.data)
    await run(command, "backup", backup, "--data", server.data)
    assert (backup / "keys" / "next" / "log.key").exists()
    assert owners(server) == {USER}
    assert starts(server) == 2


async def test_a_user_who_may_not_read_the_folder_is_told_whose_it_is(data: Path) -> None:
    folder_of_user(data / "another")
    for name in ("registry", "registry/keys"):
        (data / name).mkdir(mode=0o700)
    said = await run(confined(data / "command", PROGRAM, users=False), "migrate", "--data", data / "registry", status=1)
    assert "settings.owner" in said and "belongs to root" in said and f"runs as {USER}" in said
    assert [path.name for path in (data / "registry").iterdir()] == ["keys"]


@pytest.mark.deep
async def test_a_log_that_root_makes_in_the_folder_of_a_user_is_his(data: Path) -> None:
    folder, command = folder_of_user(data / "registry"), reachable(data / "command", PROGRAM)
    await run(command, "init", "--data", folder, "--origin", "registry.example")
    assert {pwd.getpwuid(path.lstat().st_uid).pw_name for path in folder.rglob("*")} == {USER}
    # Root cannot write there as that user, and says so.
    (data / "closed").mkdir(mode=0o700)
    said = await run(command, "backup", data / "closed" / "backup", "--data", folder, status=1)
    assert "system.file" in said and "owner of the data directory" in said
