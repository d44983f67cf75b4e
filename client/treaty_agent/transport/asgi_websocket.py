"""Carry the messages of a WebSocket under any ASGI server, for an agent that is mounted in another application.

ASGI hands messages to a task that waits, so this end has two of them. The agent's own listener has none (`listener`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from treaty_anp.frame import MAX_FRAME
from treaty_io.admission.message_turns import MessageTurns
from treaty_io.asgi import Receive, Scope, Send

from .connection import ConnectionLost, unwatched
from .websocket import CLOSE_TIMEOUT, GOING_AWAY, MAX_QUEUE, TOO_BIG, code_for, reason_of


class AsgiWebSocket:
    """The server's end of a WebSocket under ASGI; see `Connection` for the contract. Use it inside of `pumping`, after the
    accepted handshake."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, turns: MessageTurns) -> None:
        """`turns`: each message waits for its own."""
        self._scope, self._receive, self._send, self._turns = scope, receive, send, turns
        self._arrived: deque[str | bytes] = deque()
        self._outgoing: deque[str | bytes] = deque()
        self._backlog = 0
        self._over: str | None = None
        self._wake: Callable[[], None] = unwatched
        self._has_room, self._has_work, self._is_flushed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._has_room.set()
        self._is_flushed.set()

    @property
    def address(self) -> str:
        host, port = self._scope.get("client") or ("?", 0)
        return f"{host}:{port}"

    @property
    def peer(self) -> str:
        return ""

    @property
    def backlog(self) -> int:
        return self._backlog if self._over is None else 0

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def send(self, message: str | bytes) -> None:
        if self._over is not None:
            raise ConnectionLost(self._over)
        self._outgoing.append(message)
        self._backlog += len(message)
        self._is_flushed.clear()
        self._has_work.set()

    def receive(self) -> str | bytes | None:
        if not self._arrived:
            if self._over is not None:
                raise ConnectionLost(self._over)
            return None
        if not self._turns.take_now(len(self._arrived[0]), self._wake_owner):
            return None
        message = self._arrived.popleft()
        self._has_room.set()
        return message

    async def close(self, reason: str = "") -> None:
        await self._close(code_for(reason), reason.encode("ascii", "replace")[:120].decode())

    async def leave(self) -> None:
        """Close the connection because this agent stops."""
        await self._close(GOING_AWAY, "")

    @asynccontextmanager
    async def pumping(self) -> AsyncIterator[None]:
        """Carry messages for the time of the block."""
        pumps = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            yield
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _read(self) -> None:
        while self._over is None:
            await self._has_room.wait()
            event = await self._receive()
            if event["type"] != "websocket.receive":
                self._end(reason_of(event.get("code"), event.get("reason") or ""))
                return
            text = event.get("text")
            message: str | bytes = text if text is not None else event["bytes"]
            # The server's own limit is on bytes; under another ASGI server there may be none.
            if len(message) > MAX_FRAME:
                await self._close(TOO_BIG, "")
                return
            self._arrived.append(message)
            if len(self._arrived) >= MAX_QUEUE:
                self._has_room.clear()
            self._wake()

    async def _write(self) -> None:
        with suppress(OSError):  # ASGI servers raise it when the peer is gone, and `_read` hears of it
            while True:
                await self._has_work.wait()
                message = self._outgoing.popleft()
                if not self._outgoing:
                    self._has_work.clear()
                kind = "text" if isinstance(message, str) else "bytes"
                await self._send({"type": "websocket.send", kind: message})
                self._backlog -= len(message)
                if not self._backlog:
                    self._is_flushed.set()
                self._wake()
        self._end("")

    async def _close(self, code: int, reason: str) -> None:
        if self._over is not None:
            return
        with suppress(OSError, TimeoutError):
            # A peer that reads nothing keeps the server's buffer full, so this could wait for ever.
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._is_flushed.wait()
                if self._over is None:
                    self._end("")
                    await self._send({"type": "websocket.close", "code": code, "reason": reason})
        self._end("")

    def _end(self, reason: str) -> None:
        if self._over is None:
            self._over = reason
        self._is_flushed.set()
        self._wake()

    def _wake_owner(self) -> None:
        self._wake()  # another one than that who asked for the turn, if the connection has passed on
