"""The control socket: a command's result or refusal comes back, from however deep a directory, and to its owner alone."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from treaty_consensus.errors import Conflict, NotFound, TreatyError, Unavailable, Untrusted
from treaty_registry.operator.control import Command, ask, control_socket


async def answer() -> object:
    return {"list": [1, "two"], "digest": "ab" * 32}


async def refuse() -> object:
    raise Untrusted("some.code", "It does not hold.", fix="Do not believe it.")


async def fail() -> object:
    raise ZeroDivisionError("a secret of ours")


async def lack() -> object:
    raise PermissionError(errno.EACCES, "Permission denied", "/data/keys/next")


COMMANDS: dict[str, Command] = {"answer": answer, "refuse": refuse, "fail": fail, "lack": lack}


async def refused(directory: Path, command: str) -> TreatyError:
    with pytest.raises(TreatyError) as error:
        await ask(directory, command)
    return error.value


async def test_results_and_refusals_come_back(tmp_path: Path) -> None:
    async with control_socket(tmp_path / "run", COMMANDS):
        assert await ask(tmp_path / "run", "answer") == await answer()
        error = await refused(tmp_path / "run", "refuse")
        assert (type(error), error.code, error.message, error.fix) == (
            *(Untrusted, "some.code", "It does not hold.", "Do not believe it."),
        )
        error = await refused(tmp_path / "run", "fail")
        assert isinstance(error, Unavailable)
        assert "secret" not in str(error)
        assert (await refused(tmp_path / "run", "unknown")).code == "control.failed"
        assert await ask(tmp_path / "run", "answer") == await answer()


async def test_a_file_that_the_registry_may_not_read_is_named(tmp_path: Path) -> None:
    async with control_socket(tmp_path / "run", COMMANDS):
        error = await refused(tmp_path / "run", "lack")
    assert (error.code, error.message) == ("system.file", "Permission denied: /data/keys/next.")
    assert "runs as" in error.fix


async def test_where_no_server_runs(tmp_path: Path) -> None:
    assert isinstance(await refused(tmp_path / "run", "answer"), NotFound)
    async with control_socket(tmp_path / "run", COMMANDS):
        pass
    assert (await refused(tmp_path / "run", "answer")).code == "control.not-running"


async def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run / "control"))
    assert (await refused(run, "answer")).code == "control.not-running"
    async with control_socket(run, COMMANDS):
        assert await ask(run, "answer") == await answer()


async def test_however_deep_the_directory(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory"] * 30) / "run"
    async with control_socket(deep, COMMANDS):
        assert await ask(deep, "answer") == await answer()


async def test_it_is_its_owners(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    async with control_socket(tmp_path / "run", COMMANDS):
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


async def test_a_command_ends_even_if_the_one_who_asked_goes_away(tmp_path: Path) -> None:
    begun, finish, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> object:
        begun.set()
        await finish.wait()
        ended.set()
        return None

    async with control_socket(tmp_path / "run", {"slow": slow}):
        asking = asyncio.create_task(ask(tmp_path / "run", "slow"))
        await begun.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        finish.set()
        await asyncio.wait_for(ended.wait(), 10)


async def test_a_server_that_ends_meanwhile(tmp_path: Path) -> None:
    async def conflict() -> object:
        raise Conflict("a.b", "c")

    async with control_socket(tmp_path / "run", {"conflict": conflict}):
        assert isinstance(await refused(tmp_path / "run", "conflict"), Conflict)


@pytest.mark.parametrize("line", [b"", b"\n", b"nonsense\n", b"[]\n", b"{}\n", b'{"command":1}\n', b"x" * 100_000])
async def test_nonsense_does_not_harm_it(tmp_path: Path, line: bytes) -> None:
    async with control_socket(tmp_path / "run", COMMANDS):
        directory = os.open(tmp_path / "run", os.O_PATH)
        _, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/control")
        os.close(directory)
        writer.write(line)
        writer.write_eof()
        writer.close()
        assert await ask(tmp_path / "run", "answer") == await answer()
