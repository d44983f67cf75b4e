"""An MCP server as a process of this machine: messages of JSON-RPC, one a line, on its standard input and output.

The process has the environment of this one, and writes its log to the same standard error. A line has at most 1 MiB. Requests of
the server are answered with an error, as this client offers nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from treaty_consensus.errors import Malformed, NotFound, TooLarge, Unavailable
from treaty_io.codes import RpcCode

from .exchange import MAX_ANSWER, RpcAnswer, decoded

SCHEME = "stdio:"
# As an exchange over HTTP.
PATIENCE = 30.0
# A server of the old era may pass over a request before the handshake. An answer that comes later is passed over.
PROBE_PATIENCE = 5.0
# The specification closes the input first, and kills a server that goes on.
GRACE = 2.0
MAX_FOREIGN = 1024
"""Messages that are passed over while one answer is waited for."""


def parse_command(text: str) -> list[str]:
    """Return the words of a command as a shell reads them. Raises `NotFound` (`rpc.nothing`) if there is none."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise NotFound(RpcCode.NOTHING, f"{text[:80]!r} is no command.", fix="Quote it as for a shell: 'stdio:python server.py'")
    return words


class McpProcess:
    """Starts a command at the first message and ends it with `aclose`. For one event loop."""

    origin = ""
    """Nothing is remembered of a process: its command may lead to another server tomorrow."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start nothing yet."""
        self.name = shlex.join(command)
        self._command = list(command)
        self._process: asyncio.subprocess.Process | None = None
        self._ids = itertools.count(1)
        # One request at a time, so that each line that arrives belongs to the one that waits.
        self._turn = asyncio.Lock()

    async def ask(self, method: str, params: Mapping[str, Any], version: str, more: Mapping[str, str]) -> RpcAnswer:
        """Send a request and wait for its answer. Raises `Unavailable` (`rpc.unreachable`), `Malformed` and `TooLarge`
        (`rpc.answer`), and `NotFound` (`rpc.nothing`) for a command that cannot be started."""
        async with self._turn:
            number = next(self._ids)
            await self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)})
            try:
                async with asyncio.timeout(PROBE_PATIENCE if method == "server/discover" else PATIENCE):
                    return await self._answer(number)
            except TimeoutError as error:
                raise self._silent() from error

    async def notify(self, method: str, version: str) -> None:
        """Send a notification. Raises as `ask`."""
        async with self._turn:
            await self._write({"jsonrpc": "2.0", "method": method})

    async def aclose(self) -> None:
        """End the process: its input is closed, and after `GRACE` seconds it is killed with all that it started."""
        if self._process is not None:
            await end_process(self._process)

    async def _answer(self, number: int) -> RpcAnswer:
        for _ in range(MAX_FOREIGN):
            match await self._read():
                case {"id": other, "method": str()}:
                    error = {"code": -32601, "message": "This client offers nothing to a server."}
                    await self._write({"jsonrpc": "2.0", "id": other, "error": error})
                case {"id": int(found), "error": dict(error)} if found == number:
                    return RpcAnswer(None, error)
                case {"id": int(found), "result": result} if found == number:
                    return RpcAnswer(result)
        raise TooLarge(RpcCode.ANSWER, f"{self.name} sends other messages than the answer.")

    async def _write(self, message: Mapping[str, Any]) -> None:
        if self._process is None:
            self._process = await start_process(self._command)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            await self._process.stdin.drain()
        except OSError as error:
            raise self._silent() from error

    async def _read(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError as error:  # of a line over the limit
            raise TooLarge(RpcCode.ANSWER, f"{self.name} wrote a line of more than {MAX_ANSWER} bytes.") from error
        if not line:
            raise self._silent()
        with suppress(Malformed):  # what a server prints beside its messages is passed over
            return decoded(line, self.name)
        return None

    def _silent(self) -> Unavailable:
        return Unavailable(RpcCode.UNREACHABLE, f"{self.name} ended, or does not answer.", fix="See its own messages above.")


async def start_process(command: Sequence[str], *, limit: int = MAX_ANSWER) -> asyncio.subprocess.Process:
    """Start the command of a server, with pipes. `limit`: the bytes of a line. Raises `NotFound` (`rpc.nothing`)."""
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=limit,
            # A group of its own, so that its children end with it.
            start_new_session=True,
        )
    except OSError as error:
        raise NotFound(RpcCode.NOTHING, f"{command[0]} cannot be started: {error.strerror}.") from error


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Close the input of a process, and kill its group after `GRACE` seconds."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        # Its children may live on; the group is empty if none does.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
