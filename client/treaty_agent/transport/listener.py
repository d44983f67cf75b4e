"""Serve an agent on one port: `application` under uvicorn, with or without TLS.

This module adds bounds to uvicorn (docs/specification/transports.md, section 4). A TLS handshake and the head of a request must
each arrive within 10 seconds. A closed WebSocket is aborted after 3 seconds, also if its peer reads nothing. An answer over HTTP
is aborted if the peer stops reading for 30 seconds. At most twice `max_connections` sockets are open, because a source over HTTP
uses two, and 64 more, or fewer where the process may open few files. Of these one address has at most half, and a new connection
takes the place of the worst one of the network that has most (`admission.connections`). They are set up in turns of the networks
(`admission.accepting`). uvicorn logs only warnings, each once a minute, catches no signals, and sends neither a `Server` nor a
`Date` header.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import Unavailable
from treaty_io.admission.accepting import Accepting
from treaty_io.admission.connections import ConnectionGuard, ConnectionLimits
from treaty_io.admission.rounds import Rounds
from treaty_io.asgi import ASGI
from treaty_io.codes import ConnectionCode
from treaty_io.line_limit import limit_lines
from treaty_io.network.turns import asker_at

from .application import Application, Authenticate, Intake, StaticDocument
from .connection import Connection
from .websocket import CLOSE_TIMEOUT, OPEN_TIMEOUT, PING_INTERVAL, PING_TIMEOUT

# Connections that the kernel accepts while the loop is busy; a burst of sessions must not meet refusals.
BACKLOG = 2048
KEEP_ALIVE = 60
"""Seconds for which an idle HTTP connection is kept."""
# Signatures take about 1 KiB; proxies add a few headers. uvicorn's default would be 64 KiB for each socket.
MAX_HEAD = 16 * 1024
# For readers of the documents, also when all sessions are taken.
SPARE_SOCKETS = 64
READ_TIMEOUT = 30
"""Seconds for a peer to read on, while its answer is waiting."""
_STALLED = 2 * READ_TIMEOUT  # seconds; the bounds of an answer and of a message end earlier, and tell the session

# uvicorn writes two lines at INFO for each WebSocket. A session has its own events, and a busy agent thousands of them.
_log = logging.getLogger(f"{__name__}.uvicorn")
_log.setLevel(logging.WARNING)


@asynccontextmanager
async def listen(
    accept: Callable[[Connection], Awaitable[None]],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    max_connections: int,
    documents: Mapping[str, StaticDocument] = MappingProxyType({}),
    authenticate: Authenticate | None = None,
    challenge: Callable[[], Mapping[str, str]] = dict,
    intake: Intake | None = None,
) -> AsyncIterator[int]:
    """Serve an `Application` (see there for the arguments), and yield the port. `port` 0 chooses a free one.

    When the intake is closed, the port is closed too, and another process may open it. On exit, close all connections (1001) and
    wait until `accept` has returned. Raises `Unavailable` (`connection.listen`).
    """
    intake = intake or Intake()
    application = Application(
        accept,
        max_connections=max_connections,
        documents=documents,
        authenticate=authenticate,
        challenge=challenge,
        intake=intake,
    )
    async with serving(application, host, port, tls=tls, sockets=2 * max_connections + SPARE_SOCKETS) as server:
        intake.open(server.close)
        try:
            yield server.port
        finally:
            intake.forget(server.close)
            server.close()
            await application.aclose()


@asynccontextmanager
async def serving(
    application: ASGI, host: str, port: int, *, tls: ssl.SSLContext | None = None, sockets: int
) -> AsyncIterator[Accepting]:
    """Serve any ASGI application, without lifespan events, with the bounds of this module. `sockets`: the most that are open.

    On exit, close the port and all connections, idle ones at once. Raises `Unavailable` (`connection.listen`).
    """
    limit_lines("asyncio", _log.name)
    config, state, loop = _configuration(application), ServerState(), asyncio.get_running_loop()
    limits = ConnectionLimits.halved(sockets, silent=OPEN_TIMEOUT, stalled=_STALLED)
    try:
        # asyncio finds the addresses of the host and binds. It would set up each connection as it accepts it.
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        listening = [each.dup() for each in bound.sockets]
        bound.close()
        for each in listening:
            each.listen(BACKLOG)
    except OSError as error:
        raise Unavailable(ConnectionCode.LISTEN, f"Cannot listen on {host}:{port}: {error.strerror}.") from error
    # Turn, connection made or bytes read, request begun: each in an iteration of its own.
    rounds = Rounds(iterations=3)
    server = Accepting(listening, lambda: _Http(config, state, rounds), rounds, tls=tls, handshake=OPEN_TIMEOUT)
    try:
        with ConnectionGuard(server.port, limits):
            yield server
    finally:
        await server.aclose()
        await _shut(state)


async def _shut(state: ServerState) -> None:
    """End the remaining connections: idle ones at once, the others after their answer, at most `CLOSE_TIMEOUT` seconds later."""
    # First the handshakes that close WebSockets. To close a socket with unread messages resets it, and the peer would lose the
    # last messages and the reason.
    closing = [
        asyncio.create_task(one.gone.wait()) for one in state.connections if isinstance(one, _WebSocket) and one.close_sent
    ]
    if closing:
        _, late = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT)
        for task in late:
            task.cancel()
    for connection in list(state.connections):
        connection.shutdown()
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=CLOSE_TIMEOUT)
    # The remaining connections read nothing, and the process must be able to end.
    for connection in list(state.connections):
        connection.transport.abort()


def _configuration(application: ASGI) -> uvicorn.Config:
    config = uvicorn.Config(
        application,
        http=_Http,
        ws=_WebSocket,
        ws_max_size=MAX_FRAME,
        # A compressed message can be a thousand times larger than its compressed form.
        ws_per_message_deflate=False,
        ws_ping_interval=PING_INTERVAL,
        ws_ping_timeout=PING_TIMEOUT,
        lifespan="off",
        log_config=None,
        interface="asgi3",
        # Every client can send X-Forwarded-For; the fair queue must count the true address.
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        h11_max_incomplete_event_size=MAX_HEAD,
    )
    config.load()
    return config


class _Http(H11Protocol):
    """An HTTP connection that must send the head of its request within `OPEN_TIMEOUT` seconds.

    What it sends is parsed in a turn of its network. Parsing costs more than the rest of a request that is refused, and hundreds
    of connections can send at once.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, rounds: Rounds) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.logger = _log
        self.access_log = False
        self._rounds, self._network = rounds, ""
        self._unparsed = bytearray()
        self._turn: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._network = asker_at((self.client or ("", 0))[0])
        # `abort` and not `close`: a peer that is not reading would never let a close complete.
        self._patience = self.loop.call_later(OPEN_TIMEOUT, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._patience is None and not self._is_answering:
            self._patience = self.loop.call_later(OPEN_TIMEOUT, self.transport.abort)
        if self._turn is None and self._rounds.take(self._network):
            super().data_received(data)
        else:
            self._unparsed += data
            self.transport.pause_reading()  # again, if the application has read on meanwhile
            self._turn = self._turn or self.loop.create_task(self._parse_in_turn())

    async def _parse_in_turn(self) -> None:
        await self._rounds.wait(self._network)
        unparsed, self._unparsed, self._turn = bytes(self._unparsed), bytearray(), None
        if not self.transport.is_closing():
            if not self.flow.read_paused:
                self.transport.resume_reading()
            super().data_received(unparsed)

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_answering:
            self._relax()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._relax()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        if self._turn is not None:
            self._turn.cancel()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        # uvicorn waits for ever for a peer that stops reading, with the whole answer in memory.
        self._unread = self.loop.call_later(READ_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _relax(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _WebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that is aborted if the peer does not complete the close."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = self.conn.logger = _log
        self.close_timeout = CLOSE_TIMEOUT
        self.gone = asyncio.Event()
        """Set when the socket is closed."""
        self._end: asyncio.TimerHandle | None = None

    async def send(self, message: Any) -> None:
        await super().send(message)
        # uvicorn takes an answer without an upgrade for a fault, with a line of the log for each that a stranger provokes.
        self.handshake_complete = self.handshake_complete or self.close_sent

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        # The peer may never answer the close frame; uvicorn then keeps the socket.
        if not self.disconnected:
            self._end = self.loop.call_later(CLOSE_TIMEOUT, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()
        self.gone.set()
        super().connection_lost(exc)
