"""Connect to an agent, and connect again after failures that may pass.

docs/specification/transports.md, section 3, has the rules. For example, a refused connection is retried at most 5 times and for
20 seconds, with exponential backoff and jitter (`Backoff`); a wrong certificate is not retried.

A WebSocket that is lost before the first message of the other side is opened again, and the same messages are sent again. They
are the sourceHello and early data, which are declared idempotent. A WebSocket that is lost later ends the session
(`session.peer-lost`), because the state of its calls is unknown; the application decides whether to repeat them. A session over
HTTP continues by itself (`http`). A destination never opens a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from treaty_consensus.errors import Malformed
from treaty_io.codes import NetworkCode
from treaty_io.network.hosts import Network

from . import http, websocket
from .connection import Backoff, Connection, ConnectionFailed, ConnectionLost
from .parting import is_draining

MAX_REPEATED = 1024 * 1024
"""Bytes of messages that are kept for sending again."""


async def connect(
    url: str,
    network: Network,
    *,
    sign: http.Sign | None = None,
    unproved: str = "",
    backoff: Backoff | None = None,
    repeat: bool = True,
) -> Connection:
    """Connect to the agent at `ws://`, `wss://`, `http://` or `https://`. `sign`, `unproved`: for requests over HTTP, as in
    `http.connect`. `repeat`: whether messages are sent again on a new WebSocket; not for messages that count once.

    Raises `Malformed` (`network.url`), `ConnectionFailed`, and over HTTP `Refused` (`connection.refused`). Over HTTP the first
    message opens the connection, so `send` raises the last two.
    """
    backoff = backoff or Backoff()
    if url.startswith(("http://", "https://")):
        return http.connect(url, network, sign=sign, unproved=unproved, backoff=backoff)
    if not url.startswith(("ws://", "wss://")):
        raise Malformed(NetworkCode.URL, f"An agent's address begins with ws, wss, http or https, not {url[:80]!r}.")
    reconnecting = ReconnectingConnection(lambda: websocket.connect(url, network), backoff, repeat=repeat)
    await reconnecting.open()
    return reconnecting


class ReconnectingConnection:
    """A connection that is opened again until the other side has sent a message; see `Connection` for the contract."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], backoff: Backoff, *, repeat: bool = True) -> None:
        """Open nothing yet. `connect`: opens one connection, and raises `ConnectionFailed`. `repeat`: as in `connect`."""
        self._connect, self._backoff = connect, backoff
        self._connection: Connection | None = None
        # None: too many bytes were sent, a message arrived, or nothing may be repeated
        self._said: list[str | bytes] | None = [] if repeat else None
        self._room = MAX_REPEATED
        self._failures = 0
        self._opening = asyncio.Lock()  # `send` and `receive` may both see the loss; one of them reconnects
        self._closed = False

    @property
    def address(self) -> str:
        return self._now.address

    @property
    def peer(self) -> str:
        return self._now.peer

    async def open(self) -> None:
        """Connect for the first time. Raises `ConnectionFailed`."""
        self._connection = await self._connected()

    async def send(self, message: str | bytes) -> None:
        connection = self._now
        # Kept before it is sent: if the connection breaks in `send`, it is unknown whether the message arrived.
        # Repeating is safe until the peer spoke, because early messages are idempotent by declaration.
        if self._said is not None:
            self._room -= len(message)
            self._said = [*self._said, message] if self._room >= 0 else None
        try:
            await connection.send(message)
        except ConnectionLost as lost:
            await self._again(connection, lost)  # which sends this message too

    async def receive(self) -> str | bytes:
        while True:
            connection = self._now
            try:
                message = await connection.receive()
            except ConnectionLost as lost:
                await self._again(connection, lost)
            else:
                # The peer has begun the session, so a new connection would be another session.
                self._said = None
                return message

    async def close(self, reason: str = "") -> None:
        self._closed = True
        await self._now.close(reason)

    @property
    def _now(self) -> Connection:
        assert self._connection is not None, "open it first"
        return self._connection

    async def _again(self, broken: Connection, lost: ConnectionLost) -> None:
        """Replace a broken connection and send the kept messages again. Raises `lost` if this is not allowed or fails."""
        async with self._opening:
            while self._connection is broken:
                # A reason is an answer: the peer is there and refuses. One that stops may have a successor.
                if self._said is None or self._closed or (lost.reason and not is_draining(lost.reason)):
                    raise lost
                try:
                    self._failures += 1
                    if not await self._backoff.pause(self._failures):
                        raise lost
                    connection = await self._connected()
                except ConnectionFailed as error:
                    raise lost from error
                await self._repeat(connection)

    async def _repeat(self, connection: Connection) -> None:
        """Send the kept messages on a new connection, also those added meanwhile; then use it instead of the old one."""
        # `send` may append while this loop waits, so it counts instead of iterating.
        count = 0
        try:
            while self._said is not None and count < len(self._said):
                await connection.send(self._said[count])
                count += 1
        except ConnectionLost:
            await connection.close()
            return
        except BaseException:
            await connection.close()
            raise
        if self._said is None or self._closed:
            await connection.close()
        else:
            self._connection = connection

    async def _connected(self) -> Connection:
        until: float | None = None
        failure: ConnectionFailed | None = None
        while True:
            try:
                async with asyncio.timeout_at(until):
                    return await self._connect()
            except TimeoutError:
                assert failure is not None, "only another attempt has a deadline"
                raise failure from None
            except ConnectionFailed as error:
                failure = error
                # From the first failure: the time of the first attempt is bounded by the transport itself.
                until = until or self._backoff.until()
                self._failures += 1
                if not error.again or not await self._backoff.pause(self._failures):
                    raise
