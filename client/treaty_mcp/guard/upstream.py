"""The server behind a guard: a process, or a URL over streamable HTTP. Both take and give messages of JSON-RPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from treaty_agent.rpc.exchange import MAX_ANSWER, RpcExchange
from treaty_agent.rpc.mcp import META
from treaty_agent.rpc.mcp_headers import routing_headers
from treaty_agent.rpc.mcp_process import end_process, start_process
from treaty_consensus.errors import TreatyError

Message = dict[str, Any]
MAX_LINE = 4 * MAX_ANSWER
"""Bytes of a message between a host and a server, which may be an image."""
MAX_WAITING = 64
"""Requests to a URL at once, and messages that wait for the host."""
UNREACHABLE = -32000


def parse_message(line: bytes) -> Message | None:
    """Return a message, or None for a line that is none. A batch is none: it could hide a call."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def encode_message(message: Message) -> bytes:
    """Return a message as a line. It is written anew, so that two readers find one value in it."""
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class ProcessUpstream:
    """A server as a process. Its messages pass in both directions."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start nothing yet."""
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process. Raises `NotFound` (`rpc.nothing`)."""
        self._process = await start_process(self._command, limit=MAX_LINE)

    async def send(self, message: Message) -> None:
        """Write a message. A process that has ended loses it; `messages` ends then."""
        assert self._process is not None and self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(encode_message(message))
            await self._process.stdin.drain()

    async def messages(self) -> AsyncIterator[Message]:
        """Yield what the server writes, until it ends or writes a line over the limit. A line that is no message is dropped."""
        assert self._process is not None and self._process.stdout is not None
        with suppress(ValueError):  # of a line over the limit: the rest cannot be divided into messages
            while line := await self._process.stdout.readline():
                if (message := parse_message(line)) is not None:
                    yield message

    async def aclose(self) -> None:
        """End the process."""
        if self._process is not None:
            await end_process(self._process)


class EndpointUpstream:
    """A server at a URL. An answer is passed on when it is complete, and no stream is kept open for requests of the server."""

    def __init__(self, url: str, exchange: RpcExchange) -> None:
        """Send nothing yet."""
        self._url, self._exchange = url, exchange
        self._session: dict[str, str] = {}
        self._answers: asyncio.Queue[Message] = asyncio.Queue(MAX_WAITING)
        self._turns = asyncio.Semaphore(MAX_WAITING)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Do nothing: a URL is asked at the first message."""

    async def send(self, message: Message) -> None:
        """Post a message; its answers follow in `messages`. Waits while too many requests are unanswered."""
        await self._turns.acquire()
        task = asyncio.create_task(self._post(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._turns.release())
        # The handshake names the version and the session of all later messages.
        if message.get("method") == "initialize":
            await asyncio.wait((task,))

    async def messages(self) -> AsyncIterator[Message]:
        """Yield the answers as they come, without an end."""
        while True:
            yield await self._answers.get()

    async def aclose(self) -> None:
        """End the requests, and the session if the server keeps one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if "Mcp-Session-Id" in self._session:
            with suppress(TreatyError):
                await self._exchange.send("DELETE", self._url, b"", self._session)

    async def _post(self, message: Message) -> None:
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        version = meta.get(f"{META}protocolVersion") if isinstance(meta, dict) else None
        version = version if isinstance(version, str) else self._session.get("MCP-Protocol-Version", "")
        headers = routing_headers(method, params, version) if isinstance(method, str) and version else {}
        try:
            answers, sent = await self._exchange.post(self._url, encode_message(message), {**self._session, **headers})
        except TreatyError as error:
            if "id" in message and "method" in message:
                fault = {"code": UNREACHABLE, "message": error.message}
                await self._answers.put({"jsonrpc": "2.0", "id": message["id"], "error": fault})
            return
        if method == "initialize":
            self._begin(answers, sent)
        for answer in answers:
            if isinstance(answer, dict):
                await self._answers.put(answer)

    def _begin(self, answers: Sequence[Any], sent: Mapping[str, str]) -> None:
        for answer in answers:
            match answer:
                case {"result": {"protocolVersion": str(version)}} if version.isascii() and version.isprintable():
                    self._session["MCP-Protocol-Version"] = version
        if (session := sent.get("mcp-session-id")) is not None:
            self._session["Mcp-Session-Id"] = session
