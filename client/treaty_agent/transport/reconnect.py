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
from contextvars import copy_context

from treaty_consensus.errors import Malformed, TreatyError
from treaty_io.codes import NetworkCode
from treaty_io.network.hosts import Network

from . import http, websocket
from .connection import Backoff, Connection, ConnectionFailed, ConnectionLost, unwatched
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

    Raises `Malformed` (`network.url`) and `ConnectionFailed`. Over HTTP the first message opens the connection, so
    there `receive` raises `ConnectionFailed`, or `Refused` (`connection.refused`).
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
    """A connection that is opened again until the other side has sent a message; see `Connection` for the contract.

    Only `receive` finds a loss, because messages of the peer may have arrived before it. One task then opens the next connection.
    """

    _connection: Connection

    def __init__(self, connect: Callable[[], Awaitable[Connection]], backoff: Backoff, *, repeat: bool = True) -> None:
        """Open nothing yet. `connect`: opens one connection, and raises `ConnectionFailed`. `repeat`: as in `connect`.

        `connect` runs in the context in which this is made, because that names the trace of the session.
        """
        self._connect, self._backoff = connect, backoff
        self._context = copy_context()
        self._wake: Callable[[], None] = unwatched
        # None: too many bytes were sent, a message arrived, or nothing may be repeated
        self._said: list[str | bytes] | None = [] if repeat else None
        self._room = MAX_REPEATED
        self._failures = 0
        self._opening: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @property
    def address(self) -> str:
        return self._connection.address

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def backlog(self) -> int:
        return self._connection.backlog if self._opening is None else MAX_REPEATED - self._room

    async def open(self) -> None:
        """Connect for the first time. Raises `ConnectionFailed`."""
        self._connection = await self._connected()

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._connection.watch(wake)

    def send(self, message: str | bytes) -> None:
        if self._failure is not None:
            raise self._failure
        if self._opening is None:
            try:
                self._connection.send(message)
            except ConnectionLost as lost:
                if not self._may_repeat(lost):
                    raise
                self._wake()
        # It is unknown whether it arrives, even after `send`. Repeating is safe until the peer spoke, because early messages are
        # idempotent by declaration.
        self._keep(message)

    def receive(self) -> str | bytes | None:
        if self._failure is not None:
            raise self._failure
        if self._opening is not None:
            return None
        try:
            message = self._connection.receive()
        except ConnectionLost as lost:
            if not self._may_repeat(lost):
                raise
            self._opening = asyncio.create_task(self._open_again(lost), context=self._context)
            return None
        if message is not None:
            # The peer has begun the session, so a new connection would be another session.
            self._said = None
        return message

    async def close(self, reason: str = "") -> None:
        opening = self._opening
        self._give_up()
        await self._connection.close(reason)
        self._wake()
        if opening is not None:
            await asyncio.wait([opening])

    def _may_repeat(self, lost: ConnectionLost) -> bool:
        # A reason is an answer: the peer is there and refuses. One that stops may have a successor.
        return self._said is not None and (not lost.reason or is_draining(lost.reason))

    def _keep(self, message: str | bytes) -> None:
        if self._said is None:
            return
        self._room -= len(message)
        if self._room >= 0:
            self._said.append(message)
        else:
            self._give_up()
            self._wake()

    def _give_up(self) -> None:
        """Repeat nothing from now on. The lost connection raises its loss again."""
        self._said = None
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    async def _open_again(self, lost: ConnectionLost) -> None:
        # Nothing waits between the last kept message and the end of this: what `send` keeps meanwhile would be left behind.
        try:
            self._connection = await self._next_connection(lost)
        except Exception as error:
            self._failure = error  # `send` and `receive` raise it
        else:
            self._connection.watch(self._wake)
        self._opening = None
        self._wake()

    async def _next_connection(self, lost: ConnectionLost) -> Connection:
        """Return a new connection on which the kept messages were sent again. Raises `lost` if the attempts fail."""
        while True:
            self._failures += 1
            if not await self._backoff.pause(self._failures):
                raise lost
            try:
                connection = await self._connected()
            except ConnectionFailed as error:
                raise lost from error
            try:
                for message in self._said or ():
                    connection.send(message)
            except TreatyError as error:
                await connection.close()
                if not isinstance(error, ConnectionLost):
                    raise
            else:
                return connection

    async def _connected(self) -> Connection:
        until: float | None = None
        failure: ConnectionFailed | None = None
        while True:
            try:
                if until is None:
                    return await self._connect()  # the transport itself bounds the time of the first attempt
                async with asyncio.timeout_at(until):
                    return await self._connect()
            except TimeoutError:
                assert failure is not None, "only another attempt has a deadline"
                raise failure from None
            except ConnectionFailed as error:
                failure = error
                # From the first failure.
                until = until or self._backoff.until()
                self._failures += 1
                if not error.again or not await self._backoff.pause(self._failures):
                    raise
