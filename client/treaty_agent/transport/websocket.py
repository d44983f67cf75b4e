"""Connect agents by WebSocket (RFC 6455).

docs/specification/transports.md, section 1, has the rules. For example, close code 1008 means an error, and its reason is the
error's machine code. No compression, no redirects and no proxy are used.
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

from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import Malformed
from treaty_io import tracing
from treaty_io.admission.message_turns import MessageTurns
from treaty_io.asgi import Receive, Scope, Send
from treaty_io.codes import NetworkCode
from treaty_io.network.hosts import Network

from .connection import Connection, ConnectionFailed, ConnectionLost
from .parting import is_draining

NORMAL, GOING_AWAY, POLICY, TOO_BIG = 1000, 1001, 1008, 1009
# A TCP connection over a bad line needs several seconds, a TLS handshake a few round trips more.
OPEN_TIMEOUT = 10
# Closing is a courtesy; a peer that is gone never completes it, and must not delay the end of a session.
CLOSE_TIMEOUT = 3
# Shorter than the idle timeouts of common proxies and NATs (30 seconds and more).
PING_INTERVAL = PING_TIMEOUT = 20
MAX_QUEUE = 4
"""Messages read ahead of `receive`. Beyond them, reading stops and TCP slows the peer down."""

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
        await self._socket.close(_code_for(reason), reason.encode("ascii", "replace")[:120].decode())


class ServedWebSocket:
    """The server's end of a WebSocket under ASGI; see `Connection` for the contract. Make it after the accepted handshake."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, turns: MessageTurns) -> None:
        """`turns`: each message waits for its own."""
        self._scope, self._receive, self._send, self._turns = scope, receive, send, turns
        self._arrived: str | bytes | None = None
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
        except OSError as error:  # ASGI servers raise it when the peer is gone
            raise self._lost("") from error

    async def receive(self) -> str | bytes:
        # Kept until its turn comes, because a cancelled call must not lose it.
        if self._arrived is None:
            self._arrived = await self._next()
        await self._turns.take(len(self._arrived))
        message, self._arrived = self._arrived, None
        return message

    async def _next(self) -> str | bytes:
        if self._over is not None:
            raise ConnectionLost(self._over)
        event = await self._receive()
        if event["type"] != "websocket.receive":
            raise self._lost(_reason(event.get("code"), event.get("reason") or ""))
        text = event.get("text")
        message: str | bytes = text if text is not None else event["bytes"]
        # The server's own limit is on bytes; under another ASGI server there may be none.
        if len(message) > MAX_FRAME:
            await self._close(TOO_BIG, "")
            raise ConnectionLost
        return message

    async def close(self, reason: str = "") -> None:
        await self._close(_code_for(reason), reason.encode("ascii", "replace")[:120].decode())

    async def leave(self) -> None:
        """Close the connection because this agent stops."""
        await self._close(GOING_AWAY, "")

    async def _close(self, code: int, reason: str) -> None:
        if self._over is not None:
            return
        self._over = ""
        with suppress(OSError, TimeoutError):
            # A peer that reads nothing keeps the server's buffer full, so this could wait for ever.
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def _lost(self, reason: str) -> ConnectionLost:
        self._over = reason if self._over is None else self._over
        return ConnectionLost(self._over)


async def connect(url: str, network: Network) -> Connection:
    """Open a connection to `ws://HOST:PORT/…` or `wss://…`.

    Raises `Malformed` (`network.url`) or `ConnectionFailed` (`connection.failed`).
    """
    if not url.startswith(("ws://", "wss://")):
        raise Malformed(NetworkCode.URL, f"An agent's address begins with ws:// or wss://, not {url[:80]!r}.")
    endpoint = network.endpoint(url)
    secure: dict[str, Any] = {"ssl": endpoint.tls, "server_hostname": endpoint.server_name} if endpoint.tls else {}
    try:
        socket = await _DirectConnect(
            url,
            host=endpoint.host,
            port=endpoint.port,
            # The address was checked and pinned; a proxy of the environment would look the name up again.
            proxy=None,
            # A compressed message can be a thousand times larger than its compressed form.
            compression=None,
            user_agent_header=None,
            additional_headers=tracing.headers(),
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
        raise Malformed(NetworkCode.URL, f"Not an agent's address: {url[:80]!r}.") from error
    except InvalidStatus as error:
        raise ConnectionFailed(url, again=error.response.status_code in _AGAIN) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(url, again=False) from error
    except (OSError, InvalidHandshake) as error:
        # A server that is no agent answers a handshake wrongly each time; the network may recover.
        raise ConnectionFailed(url, again=isinstance(error, OSError)) from error
    return WebSocketConnection(socket)


class _DirectConnect(_connect):
    """Connect without following redirects: the agent chose the address, and the server there must not change it."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def _lost(error: ConnectionClosed) -> ConnectionLost:
    received = error.rcvd
    return ConnectionLost(_reason(received.code, received.reason) if received is not None else "")


def _reason(code: object, reason: str) -> str:
    """Return the reason of a close as far as it is a machine code of this product, else ""."""
    return reason if code == POLICY or (code == GOING_AWAY and is_draining(reason)) else ""


def _code_for(reason: str) -> int:
    if not reason:
        return NORMAL
    return GOING_AWAY if is_draining(reason) else POLICY
