"""Serve an agent on one port: `application` under uvicorn, with or without TLS.

This module adds bounds to uvicorn (docs/specification/transports.md, section 4). A TLS handshake and the head of a request must
each arrive within 10 seconds. A closed WebSocket is aborted after 3 seconds, also if its peer reads nothing. An answer over HTTP
is aborted if the peer stops reading for 30 seconds. At most twice `max_connections` sockets are open, because a source over HTTP
uses two, and 64 more, or fewer where the process may open few files. Of these one address has at most half, and a new connection
takes the place of the worst one of the network that has most (`admission.connections`). They are set up in turns of the networks
(`admission.accepting`), and so is the parsing. uvicorn logs only warnings, each once a minute, catches no signals, and sends
neither a `Server` nor a `Date` header.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import MappingProxyType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import Unavailable
from treaty_io.admission.accepting import Accepting
from treaty_io.admission.connections import ConnectionGuard, ConnectionLimits
from treaty_io.admission.rounds import Rounds
from treaty_io.alarm import Alarm
from treaty_io.asgi import ASGI
from treaty_io.codes import ConnectionCode
from treaty_io.line_limit import limit_lines
from treaty_io.network.turns import asker_at
from treaty_io.task_set import TaskSet

from .agora import AgoraProtocol
from .application import Application, Authenticate, Door, Intake, StaticDocument
from .connection import Connection
from .websocket import CLOSE_TIMEOUT, OPEN_TIMEOUT, WebSocketConnection

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
    agora: Mapping[str, AgoraProtocol] = MappingProxyType({}),
    authenticate: Authenticate | None = None,
    challenge: Callable[[], Mapping[str, str]] = dict,
    intake: Intake | None = None,
    doors: Sequence[Door] = (),
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
        agora=agora,
        authenticate=authenticate,
        challenge=challenge,
        intake=intake,
        doors=doors,
    )
    sockets = 2 * max_connections + SPARE_SOCKETS
    async with serving(application, host, port, tls=tls, sockets=sockets, agent=application) as server:
        intake.open(server.close)
        try:
            yield server.port
        finally:
            intake.forget(server.close)
            server.close()
            await application.aclose()


@asynccontextmanager
async def serving(
    application: ASGI,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    sockets: int,
    agent: Application | None = None,
) -> AsyncIterator[Accepting]:
    """Serve any ASGI application, without lifespan events, with the bounds of this module. `sockets`: the most that are open.
    `agent`: serves WebSockets, if there is one.

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
    websockets = _WebSockets(agent) if agent is not None else None
    server = Accepting(listening, lambda: _Http(config, state, rounds, websockets), rounds, tls=tls, handshake=OPEN_TIMEOUT)
    try:
        with ConnectionGuard(server.port, limits):
            yield server
    finally:
        await server.aclose()
        if websockets is not None:
            await websockets.aclose()
        await _shut(state)


async def _shut(state: ServerState) -> None:
    """End the remaining connections: idle ones at once, the others after their answer, at most `CLOSE_TIMEOUT` seconds later."""
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
        ws="none",
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

    alarm: Alarm

    def __init__(self, config: uvicorn.Config, state: ServerState, rounds: Rounds, websockets: _WebSockets | None) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.logger = _log
        self.access_log = False
        self._rounds, self._network, self._websockets = rounds, "", websockets
        self._unparsed = bytearray()
        self._turn: asyncio.Task[None] | None = None
        self._expects_head = False
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._network = asker_at((self.client or ("", 0))[0])
        # `abort` and not `close`: a peer that is not reading would never let a close complete.
        self.alarm = Alarm(transport.abort)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if not self._expects_head and not self._is_answering:
            self._expect_head()
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

    def _should_upgrade(self) -> bool:
        return self._websockets is not None and self._get_upgrade() == b"websocket"

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        assert self._websockets is not None
        self.connections.discard(self)
        self._websockets.accept(self, event)

    def connection_lost(self, exc: Exception | None) -> None:
        self.alarm.cancel()
        if self._turn is not None:
            self._turn.cancel()
        if self._unread is not None:
            self._unread.cancel()
        # uvicorn leaves the timer of a connection that was reset, and with it all that it held, for a minute.
        self._unset_keepalive_if_required()
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

    def _expect_head(self) -> None:
        self._expects_head = True
        self.alarm.set_in(OPEN_TIMEOUT)

    def _relax(self) -> None:
        if self._expects_head:
            self._expects_head = False
            self.alarm.set(math.inf)


class _WebSockets:
    """The WebSockets of one port."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._open = set[WebSocketConnection]()
        self._tasks = TaskSet[None]()

    def accept(self, http: _Http, request: h11.Request) -> None:
        """Answer a request for an upgrade, and serve the WebSocket."""
        transport, address = http.transport, (http.client or ("", 0))[0]
        headers = Headers()
        for name, value in http.headers:
            headers[name.decode("latin-1")] = value.decode("latin-1")
        # The head is read already, so the parser begins with the messages.
        websocket = ServerProtocol(state=OPEN, max_size=MAX_FRAME, logger=_log)
        response = websocket.accept(Request(request.target.decode("ascii"), headers))
        if (request.method, request.http_version) != (b"GET", b"1.1"):  # RFC 6455 section 4.1
            response = websocket.reject(HTTPStatus.BAD_REQUEST, "A WebSocket is opened by GET and HTTP/1.1.\n")
        refusal = self._application.refuse({name.lower(): value for name, value in headers.raw_items()}, address)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS and refusal is not None:
            fields = {**refusal.headers, "Content-Length": str(len(refusal.body)), "Connection": "close"}
            response = Response(refusal.status, HTTPStatus(refusal.status).phrase, Headers(fields), refusal.body)
        transport.write(response.serialize())
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            transport.close()  # the alarm of the head ends it if the peer reads nothing
            return
        connection = WebSocketConnection(websocket, turns=self._application.turns(address), alarm=http.alarm)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        self._open.add(connection)
        connection.gone.add_done_callback(lambda _: self._open.discard(connection))
        unread, _ = http.conn.trailing_data
        if unread:
            connection.data_received(unread)
        self._tasks.start(self._application.serve(connection, headers.get("traceparent") or ""))

    async def aclose(self) -> None:
        """Wait a bounded time for the peers of closed WebSockets to close them too, and end all others."""
        closing = [connection.gone for connection in self._open if connection.is_closing]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_TIMEOUT)
        for connection in list(self._open):
            connection.abort()
        await self._tasks.finish()
