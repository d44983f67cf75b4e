"""Connect agents by WebSocket (RFC 6455).

docs/specification/transports.md, section 1, has the rules. For example, close code 1008 means an error, and its reason is the
error's machine code. No compression, no redirects and no proxy are used.

Both ends are one class: bytes go from the transport's callback to the parser of `websockets` and on to the owner, without a task.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, CONNECTING, OPEN, Protocol
from websockets.uri import parse_uri

from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import Malformed
from treaty_io import tracing
from treaty_io.admission.message_turns import MessageTurns
from treaty_io.alarm import Alarm
from treaty_io.alarm_timeout import AlarmTimeout
from treaty_io.codes import NetworkCode
from treaty_io.network.hosts import Network
from treaty_io.shared_timer import SharedTimer

from .connection import Connection, ConnectionFailed, ConnectionLost, unwatched
from .parting import is_draining

NORMAL, GOING_AWAY, POLICY, INVALID, TOO_BIG, INTERNAL = 1000, 1001, 1008, 1007, 1009, 1011
# A TCP connection over a bad line needs several seconds, a TLS handshake a few round trips more.
OPEN_TIMEOUT = 10
# Closing is a courtesy; a peer that is gone never completes it, and must not delay the end of a session.
CLOSE_TIMEOUT = 3
# Shorter than the idle timeouts of common proxies and NATs (30 seconds and more).
PING_INTERVAL = 20
"""Seconds between two pings. A peer that sent nothing from one to the next is gone."""
MAX_QUEUE = 4
"""Messages read ahead of `receive`. Beyond them, reading stops and TCP slows the peer down."""
WRITE_HIGH = 256 * 1024
"""Bytes in the transport's buffer. One that was above this wakes the owner when it is empty."""

_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_AGAIN = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


class WebSocketConnection(asyncio.Protocol):
    """One end of an open WebSocket; see `Connection` for the contract."""

    _transport: asyncio.Transport

    def __init__(self, websocket: Protocol, *, turns: MessageTurns | None = None, alarm: Alarm | None = None) -> None:
        """Set the parser. `turns`: each message waits for its own. `alarm`: that of the request before, to use its timer."""
        self._websocket, self._turns = websocket, turns
        self._address = "?:0"
        self._arrived: deque[str | bytes] = deque()
        # A bytearray and no list: a peer may send a message in pieces of one byte.
        self._unfinished = bytearray()
        self._is_text = False
        self._wake: Callable[[], None] = unwatched
        self._over: str | None = None
        self._closing = self._paused = self._silent = False
        self._alarm = alarm or Alarm(self._ring)
        self._alarm.ring = self._ring
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the socket is closed."""

    # The interface of a connection

    @property
    def address(self) -> str:
        return self._address

    @property
    def peer(self) -> str:
        return ""

    @property
    def backlog(self) -> int:
        return self._transport.get_write_buffer_size() if self._over is None else 0

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def send(self, message: str | bytes) -> None:
        if self._over is not None or self._closing:
            raise ConnectionLost(self._over or "")
        if isinstance(message, str):
            self._websocket.send_text(message.encode())
        else:
            self._websocket.send_binary(message)
        self._write()

    def receive(self) -> str | bytes | None:
        if not self._arrived:
            if self._over is not None or self._closing:
                raise ConnectionLost(self._over or "")
            return None
        if self._turns is not None and not self._turns.take_now(len(self._arrived[0]), self._wake_owner):
            return None
        message = self._arrived.popleft()
        if self._paused and len(self._arrived) < MAX_QUEUE:
            self._resume()
        return message

    async def close(self, reason: str = "") -> None:
        self._close(code_for(reason), reason.encode("ascii", "replace")[:120].decode())
        # The process of a client may end next. A server goes on, and waits at its own end.
        if self._websocket.side is CLIENT:
            await asyncio.shield(self.gone)

    async def leave(self) -> None:
        """Close the connection because this agent stops."""
        self._close(GOING_AWAY, "")

    @property
    def is_closing(self) -> bool:
        """Whether this side has closed, or failed, the connection."""
        return self._closing or self._over is not None

    def abort(self) -> None:
        """End the socket at once, and lose what waits to be sent."""
        self._transport.abort()

    # The interface of asyncio's transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH, low=0)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self._address = f"{host}:{port}"
        self._alarm.set_in(PING_INTERVAL)

    def data_received(self, data: bytes) -> None:
        self._silent = False
        self._websocket.receive_data(data)
        self._proceed()

    def eof_received(self) -> None:
        self._websocket.receive_eof()
        self._proceed()

    def connection_lost(self, error: Exception | None) -> None:
        self._over = self._over or ""
        self._alarm.cancel()
        if not self.gone.done():
            self.gone.set_result(None)
        self._wake()

    def _wake_owner(self) -> None:
        self._wake()  # another one than that who asked for the turn, if the connection has passed on

    def resume_writing(self) -> None:
        self._wake()

    # Parsing

    def _proceed(self) -> None:
        """Take what was parsed, and send what answers it."""
        for event in self._websocket.events_received():
            self._take(event)
        self._write()
        if self._websocket.state is not OPEN and not self._closing:
            self._end(self._websocket.close_rcvd)
        if len(self._arrived) >= MAX_QUEUE and not self._paused and not self._closing:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def _take(self, event: Any) -> None:
        if not isinstance(event, Frame) or event.opcode not in _DATA:
            return
        if event.opcode is not Opcode.CONT:
            self._is_text = event.opcode is Opcode.TEXT
        data = event.data
        if self._unfinished or not event.fin:
            self._unfinished += data
            if not event.fin:
                return
            data, self._unfinished = self._unfinished, bytearray()
        # While this side closes, messages of the peer go by until it has closed too.
        if not self._closing:
            self._arrive(data)

    def _arrive(self, data: Any) -> None:
        try:
            self._arrived.append(str(data, "utf-8") if self._is_text else bytes(data))
        except UnicodeDecodeError:
            self._websocket.fail(INVALID)

    def _write(self) -> None:
        if self._transport.is_closing():
            return
        for data in self._websocket.data_to_send():
            if data:
                self._transport.write(data)
            # The end of the stream. TLS cannot close one direction.
            elif self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    # The end

    def _close(self, code: int, reason: str) -> None:
        if self._closing or self._over is not None:
            return
        self._closing = True
        self._arrived.clear()
        if self._websocket.state is OPEN:
            self._websocket.send_close(code, reason)
            self._write()
        self._part()

    def _end(self, received: Any) -> None:
        """Note the end that the peer, or its fault, has made."""
        if self._over is None:
            self._over = reason_of(received.code, received.reason) if received is not None else ""
            self._part()

    def _part(self) -> None:
        """Wait a bounded time for the peer to close the socket, too. It may read nothing and send nothing."""
        self._resume()  # unread messages would reset the socket, and the peer would lose the last messages and the reason
        self._alarm.set_in(CLOSE_TIMEOUT)

    def _resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._transport.resume_reading()
        self._paused = False

    def _ring(self) -> None:
        if self._closing or self._over is not None:
            self.abort()
        elif self._silent and not self._paused:
            self._websocket.fail(INTERNAL, "keepalive ping timeout")
            self._write()
            self._over = ""
            self.abort()
        else:
            # Any message shows that the peer is there. While this side reads nothing, it cannot know.
            self._silent = True
            self._websocket.send_ping(b"")
            self._write()
            self._alarm.set_in(PING_INTERVAL)


class _OpeningConnection(WebSocketConnection):
    """The client's end, from the TCP connection on. `opened`: done after the handshake."""

    _websocket: ClientProtocol

    def __init__(self, websocket: ClientProtocol) -> None:
        self.timer = SharedTimer()
        """The timer of the opening, which goes on as that of the pings."""
        super().__init__(websocket, alarm=Alarm(self._ring, self.timer))
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_made = False
        """Whether there is a TCP connection, and with TLS a secure one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.is_made = True
        request = self._websocket.connect()
        for name, value in tracing.headers().items():
            request.headers[name] = value
        self._websocket.send_request(request)
        self._write()

    def _proceed(self) -> None:
        if not self.opened.done():
            if self._websocket.handshake_exc is not None:
                self.opened.set_exception(self._websocket.handshake_exc)
            elif self._websocket.state is not CONNECTING:  # it may be over by now
                self.opened.set_result(None)
            else:
                return
        super()._proceed()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(error or ConnectionResetError("The other side closed the connection."))
        super().connection_lost(error)


async def connect(url: str, network: Network) -> Connection:
    """Open a connection to `ws://HOST:PORT/…` or `wss://…`.

    Raises `Malformed` (`network.url`) or `ConnectionFailed` (`connection.failed`).
    """
    if not url.startswith(("ws://", "wss://")):
        raise Malformed(NetworkCode.URL, f"An agent's address begins with ws:// or wss://, not {url[:80]!r}.")
    # The address was checked and pinned; a proxy of the environment would look the name up again.
    endpoint = network.endpoint(url)
    secure: dict[str, Any] = {"ssl": endpoint.tls, "server_hostname": endpoint.server_name} if endpoint.tls else {}
    try:
        # No extension: a compressed message can be a thousand times larger than its compressed form.
        connection = _OpeningConnection(ClientProtocol(parse_uri(url), max_size=MAX_FRAME, logger=_log))
        await _open(connection, endpoint.host, endpoint.port, **secure)
    except InvalidURI as error:
        raise Malformed(NetworkCode.URL, f"Not an agent's address: {url[:80]!r}.") from error
    # A redirect is an answer like this one: the agent chose the address, and the server there must not change it.
    except InvalidStatus as error:
        raise ConnectionFailed(url, again=error.response.status_code in _AGAIN) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(url, again=False) from error
    except (OSError, InvalidHandshake) as error:
        # A server that is no agent answers a handshake wrongly each time; the network may recover.
        raise ConnectionFailed(url, again=isinstance(error, OSError)) from error
    return connection


async def _open(connection: _OpeningConnection, host: str, port: int, **secure: Any) -> None:
    try:
        async with AlarmTimeout(asyncio.get_running_loop().time() + OPEN_TIMEOUT, connection.timer):
            await asyncio.get_running_loop().create_connection(lambda: connection, host, port, **secure)
            await connection.opened
    except BaseException:
        if connection.is_made:
            connection.abort()
        raise


def reason_of(code: object, reason: str) -> str:
    """Return the reason of a close as far as it is a machine code of this product, else ""."""
    return reason if code == POLICY or (code == GOING_AWAY and is_draining(reason)) else ""


def code_for(reason: str) -> int:
    if not reason:
        return NORMAL
    return GOING_AWAY if is_draining(reason) else POLICY
