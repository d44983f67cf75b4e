"""Let `treaty-registry` send commands to the server that runs on the same data directory.

The control socket is the Unix socket `DATA/run/control`. Only the server's user can reach it (the directory is 0700). Each
connection has one request:

    {"command": NAME, "arguments"?: [VALUE, …], "user"?: NAME} LF
    {"result": VALUE} LF, or {"error": {"family": CLASS, "code": CODE, "message": SENTENCE, "fix": SENTENCE}} LF

`user` is who called, as the client says; the kernel says the rest (SO_PEERCRED). Each act is recorded with both (`acts`).
A command runs to its end even if the client disconnects. A killed server leaves its socket file, which refuses connections;
clients then know that no server runs, and the next server replaces the file.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog

from treaty_consensus import errors
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import NotFound, TreatyError, Unavailable

from ..codes import ControlCode
from ..storage.cluster import named_user
from .acts import Acts, CommandCaller, calling_user

Command = Callable[..., Awaitable[object]]

NOT_RUNNING = ControlCode.NOT_RUNNING
_NAME = "control"
_MAX_LINE = 16 * 1024 * 1024  # bytes; an answer may list all decisions of an epoch

_CREDENTIALS = struct.Struct("iII")  # struct ucred (unix(7)): process, user, group

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def control_socket(directory: Path, commands: Mapping[str, Command], acts: Acts | None = None) -> AsyncIterator[None]:
    """Answer requests on the socket in `directory` until the block ends. Only the holder of the data directory may call this.

    `acts`: records what is done; None records nothing.
    """
    listening = await asyncio.to_thread(_bind, directory)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = msgspec.json.decode(await reader.readline())
            name, arguments = request["command"], request.get("arguments", [])
            outcome = await _run(commands, name, arguments)
            refusal = outcome if isinstance(outcome, TreatyError) else None
            if acts is not None and name in commands:
                await acts.record(name, arguments, _caller(writer, str(request.get("user", ""))), refusal)
            writer.write(msgspec.json.encode(_answer(outcome)) + b"\n")
            await writer.drain()
        # A broken client must not end the socket. The command itself has run to its end.
        except (ConnectionError, msgspec.DecodeError, LookupError, ValueError) as error:
            _log.warning("control request failed", error=repr(error))
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, sock=listening, limit=_MAX_LINE)
    async with server:
        yield
    # After the socket is closed. A killed server leaves the file, which refuses connections and is replaced.
    (directory / _NAME).unlink(missing_ok=True)


async def ask(directory: Path, command: str, *arguments: object) -> Any:
    """Return the result of a command of the running server. Arguments and result are JSON.

    Raises `NotFound` (`NOT_RUNNING`) when no server runs, and the errors of the command.
    """
    try:
        # Both errors mean that no server runs: no file, or the file of a killed one.
        with _short(directory) as path:
            reader, writer = await asyncio.open_unix_connection(str(path), limit=_MAX_LINE)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NotFound(NOT_RUNNING, f"No registry runs on {directory.parent}.") from error
    writer.write(msgspec.json.encode({"command": command, "arguments": arguments, "user": calling_user()}) + b"\n")
    reply = await reader.readline()
    writer.close()
    if not reply:
        raise Unavailable(ControlCode.FAILED, "The registry stopped before it answered.")
    answer = msgspec.json.decode(reply)
    if "error" in answer:
        error_body = answer["error"]
        # The socket is only reachable for this user, so its answers are as trusted as this process.
        raise getattr(errors, error_body["family"])(error_body["code"], error_body["message"], fix=error_body["fix"])
    return answer["result"]


def _bind(directory: Path) -> socket.socket:
    # Only this user may give commands. `chmod` as well, because the directory may exist with another mode.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    with _short(directory) as path:
        # The caller leads the log, so no other server runs and the file is a dead one.
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
    return listening


async def _run(commands: Mapping[str, Command], name: str, arguments: Sequence[object]) -> object:
    """Return the result of a command, or its refusal."""
    try:
        return await commands[name](*arguments)
    except TreatyError as error:
        return error
    # A file or a right is the operator's to mend, and only root and the owner of the folder reach this socket.
    except OSError as error:
        _log.error("control command failed", command=name, exc_info=error)
        return _of_system(error)
    # The client needs an answer in every case. The reason may hold internals, so it goes to the log only.
    except Exception as error:
        _log.error("control command failed", command=name, exc_info=error)
        return Unavailable(ControlCode.FAILED, f"The registry could not {name}; the reason is in its log.")


def _answer(outcome: object) -> dict[str, object]:
    if not isinstance(outcome, TreatyError):
        return {"result": outcome}
    return {"error": {"family": type(outcome).__name__, "code": outcome.code, "message": outcome.message, "fix": outcome.fix}}


def _caller(writer: asyncio.StreamWriter, user: str) -> CommandCaller:
    """Return the process at the other end of a connection. `user`: who it says that it works for."""
    packed = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return CommandCaller(user, uid, pid)


def _of_system(error: OSError) -> Unavailable:
    """Return the refusal for a file that the registry cannot read or write."""
    fix = f"Give it back to the registry, which runs as {named_user(os.geteuid())}: chown -R, or a folder that it may write."
    return Unavailable(
        SystemCode.FILE,
        f"{error.strerror or error}: {error.filename or 'a system call'}.",
        fix=fix if isinstance(error, PermissionError) else "",
    )


@contextmanager
def _short(directory: Path) -> Iterator[Path]:
    """Return a path to the socket that fits into the 107 bytes of unix(7), even when the directory is deep."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}/{_NAME}")
    finally:
        os.close(descriptor)
