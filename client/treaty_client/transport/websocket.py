"""WebSocket (RFC 6455): the Hellos are text messages, frames are binary messages.

No compression, no redirects, no proxy. A peer that answers no ping for 20 seconds is lost. Close code 1000 is a normal end; 1008
carries the machine code of the error that ended the session as its reason. A server refuses requests that carry an `Origin`,
which only browsers send: no web page speaks to an agent behind its user's back.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from websockets.asyncio.client import connect as _connect
from websockets.asyncio.connection import Connection as _Socket
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.http11 import Request, Response

from treaty_consensus.errors import Malformed, Unavailable

from ..meta.frame import MAX_FRAME
from ..network.hosts import Network
from .connection import Connection, ConnectionLost

NORMAL, GOING_AWAY, POLICY = 1000, 1001, 1008
OPEN_TIMEOUT = 10
CLOSE_TIMEOUT = 3
PING_INTERVAL = PING_TIMEOUT = 20
MAX_QUEUE = 4
"""Messages read ahead of `receive`; beyond them TCP tells the peer to wait."""

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
    except (OSError, InvalidHandshake) as error:
        raise Unavailable(
            "connection.failed",
            f"No agent answers at {url[:120]}.",
            fix="See whether the agent runs there; try again later.",
        ) from error
    return WebSocketConnection(socket)


@asynccontextmanager
async def listen(
    accept: Callable[[Connection], Awaitable[None]],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    max_connections: int,
) -> AsyncIterator[int]:
    """Serve connections: `accept` is called for each, and the connection closed when it returns. Yields the port.

    One connection more than `max_connections` gets HTTP 503. On exit all are closed (1001), and `accept` is waited for. Raises
    `Unavailable` (`connection.listen`).
    """
    free = asyncio.Semaphore(max_connections)

    def admit(socket: ServerConnection, request: Request) -> Response | None:
        if free.locked():
            return socket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "This agent is busy; try again later.\n")
        return None

    async def handle(socket: ServerConnection) -> None:
        async with free:
            await accept(WebSocketConnection(socket))

    try:
        server = await serve(
            handle,
            host,
            port,
            ssl=tls,
            origins=[None],
            process_request=admit,
            compression=None,
            server_header=None,
            open_timeout=OPEN_TIMEOUT,
            close_timeout=CLOSE_TIMEOUT,
            ping_interval=PING_INTERVAL,
            ping_timeout=PING_TIMEOUT,
            max_size=MAX_FRAME,
            max_queue=MAX_QUEUE,
            logger=_log,
        )
    except OSError as error:
        raise Unavailable("connection.listen", f"Cannot listen on {host}:{port}: {error.strerror}.") from error
    async with server:
        yield next(iter(server.sockets)).getsockname()[1]


class _DirectConnect(_connect):
    """Follows no redirect: the address was chosen by the agent, not by whoever answers there."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def _lost(error: ConnectionClosed) -> ConnectionLost:
    received = error.rcvd
    return ConnectionLost(received.reason if received is not None and received.code == POLICY else "")
