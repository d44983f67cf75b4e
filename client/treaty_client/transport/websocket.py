"""WebSocket (RFC 6455): the Hellos are text messages, frames are binary messages.

No compression, no redirects, no proxy. A peer that answers no ping for 20 seconds is lost. Close code 1000 is a normal end, 1001
an agent that goes away, 1009 the answer to a message that is too large; 1008 carries the machine code of the error that ended the
session as its reason.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from websockets.asyncio.client import connect as _connect
from websockets.asyncio.connection import Connection as _Socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from treaty_consensus.errors import Malformed

from ..meta.frame import MAX_FRAME
from ..network.hosts import Network
from .asgi import Receive, Scope, Send
from .connection import Connection, ConnectionFailed, ConnectionLost

NORMAL, GOING_AWAY, POLICY, TOO_BIG = 1000, 1001, 1008, 1009
OPEN_TIMEOUT = 10
CLOSE_TIMEOUT = 3
PING_INTERVAL = PING_TIMEOUT = 20
MAX_QUEUE = 4
"""Messages read ahead of `receive`; beyond them TCP tells the peer to wait."""

_AGAIN = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


class WebSocketConnection:
    """One end of a WebSocket; see `Connection` for the contract."""

    def __init__(self, socket: _Socket) -> None:
        self._socket = socket

    @property
    def address(self) -> str:
        host, port, *_ = self._socket.remote_address or ("?", 0)
        return f"{host}:{port}"

    @property
    def peer(self) -> str:
        return ""

    async def send(self, message: str | bytes) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            raise _lost(error) from error

    async def receive(self) -> str | bytes:
        try:
            return await self._socket.recv()
        except ConnectionClosed as error:
            raise _lost(error) from error

    async def close(self, reason: str = "") -> None:
        await self._socket.close(POLICY if reason else NORMAL, reason.encode("ascii", "replace")[:120].decode())


class ServedWebSocket:
    """The end of a WebSocket at an ASGI server; see `Connection` for the contract. Made when the handshake was accepted."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._over: str | None = None

    @property
    def address(self) -> str:
        host, port = self._scope.get("client") or ("?", 0)
        return f"{host}:{port}"

    @property
    def peer(self) -> str:
        return ""

    async def send(self, message: str | bytes) -> None:
        if self._over is not None:
            raise ConnectionLost(self._over)
        kind = "text" if isinstance(message, str) else "bytes"
        try:
            await self._send({"type": "websocket.send", kind: message})
        except OSError as error:  # what the specification has a server raise when the peer is gone
            raise self._lost("") from error

    async def receive(self) -> str | bytes:
        if self._over is not None:
            raise ConnectionLost(self._over)
        event = await self._receive()
        if event["type"] != "websocket.receive":
            raise self._lost(event.get("reason") or "" if event.get("code") == POLICY else "")
        text = event.get("text")
        message: str | bytes = text if text is not None else event["bytes"]
        if len(message) > MAX_FRAME:
            await self._close(TOO_BIG, "")
            raise ConnectionLost
        return message

    async def close(self, reason: str = "") -> None:
        await self._close(POLICY if reason else NORMAL, reason.encode("ascii", "replace")[:120].decode())

    async def leave(self) -> None:
        """Close because this agent goes away."""
        await self._close(GOING_AWAY, "")

    async def _close(self, code: int, reason: str) -> None:
        if self._over is not None:
            return
        self._over = ""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def _lost(self, reason: str) -> ConnectionLost:
        self._over = reason if self._over is None else self._over
        return ConnectionLost(self._over)


async def connect(url: str, network: Network) -> Connection:
    """Open a connection to `ws://HOST:PORT/…` or `wss://…`. Raises `Malformed` (`connection.url`) or `Unavailable`
    (`connection.failed`)."""
    if not url.startswith(("ws://", "wss://")):
        raise Malformed("connection.url", f"An agent's address begins with ws:// or wss://, not {url[:80]!r}.")
    endpoint = network.endpoint(url)
    secure: dict[str, Any] = {"ssl": endpoint.tls, "server_hostname": endpoint.server_name} if endpoint.tls else {}
    try:
        socket = await _DirectConnect(
            url,
            host=endpoint.host,
            port=endpoint.port,
            proxy=None,
            compression=None,
            user_agent_header=None,
            open_timeout=OPEN_TIMEOUT,
            close_timeout=CLOSE_TIMEOUT,
            ping_interval=PING_INTERVAL,
            ping_timeout=PING_TIMEOUT,
            max_size=MAX_FRAME,
            max_queue=MAX_QUEUE,
            logger=_log,
            **secure,
        )
    except InvalidURI as error:
        raise Malformed("connection.url", f"Not an agent's address: {url[:80]!r}.") from error
    except InvalidStatus as error:
        raise ConnectionFailed(url, again=error.response.status_code in _AGAIN) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(url, again=False) from error
    except (OSError, InvalidHandshake) as error:
        raise ConnectionFailed(url, again=isinstance(error, OSError)) from error
    return WebSocketConnection(socket)


class _DirectConnect(_connect):
    """Follows no redirect: the address was chosen by the agent, not by whoever answers there."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def _lost(error: ConnectionClosed) -> ConnectionLost:
    received = error.rcvd
    return ConnectionLost(received.reason if received is not None and received.code == POLICY else "")
