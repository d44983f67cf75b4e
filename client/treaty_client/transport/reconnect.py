"""Connecting, and connecting again: what of a lost network a source does not notice.

- While a connection is being opened, whatever may pass (nobody listens, the network fails, the agent is busy) is tried again, a
  bounded number of times and for a bounded time, with exponential backoff and jitter (`Backoff`). A wrong certificate, a redirect
  or a refusal is not.
- A WebSocket that is lost before the other side has said anything is opened again, and what was said is said again: until the
  destinationHello has come, that is the sourceHello and early data, which are idempotent by declaration. It is not when the other
  side gave a reason, when more than 1 MiB was said, or when the attempts are used up.
- After that a lost WebSocket is a lost session (`session.peer-lost`): the other side's session is gone, and what was under way
  there is unknown. A new session resumes the agreement by its hash; repeating calls is for whoever knows that they may be.
- A session over HTTP goes on where it was: requests are repeated until they are answered, and numbers keep their messages from
  arriving twice (`http`). After about 20 seconds without an answer it is lost.
- A destination never connects by itself, and nothing is repeated from its side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from treaty_consensus.errors import Malformed

from ..network.hosts import Network
from . import http, websocket
from .backoff import Backoff
from .connection import Connection, ConnectionFailed, ConnectionLost

MAX_REPEATED = 1024 * 1024
"""Bytes that are kept to be said again."""


async def connect(url: str, network: Network, *, sign: http.Sign | None = None, backoff: Backoff | None = None) -> Connection:
    """A connection to the agent at `ws://`, `wss://`, `http://` or `https://`. `sign`: proves over HTTP who asks.

    Over HTTP the first message opens the connection, so what follows may come out of `send`. Raises `Malformed`
    (`connection.url`), `ConnectionFailed`, over HTTP also `Refused` (`connection.refused`).
    """
    backoff = backoff or Backoff()
    if url.startswith(("http://", "https://")):
        return http.connect(url, network, sign=sign, backoff=backoff)
    if not url.startswith(("ws://", "wss://")):
        raise Malformed("connection.url", f"An agent's address begins with ws, wss, http or https, not {url[:80]!r}.")
    reconnecting = ReconnectingConnection(lambda: websocket.connect(url, network), backoff)
    await reconnecting.open()
    return reconnecting


class ReconnectingConnection:
    """A connection that is opened again until the other side has spoken; see `Connection` for the contract."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], backoff: Backoff) -> None:
        """`connect` raises `ConnectionFailed`."""
        self._connect, self._backoff = connect, backoff
        self._connection: Connection | None = None
        self._said: list[str | bytes] | None = []  # None: too much was said, or something was heard
        self._room = MAX_REPEATED
        self._failures = 0
        self._opening = asyncio.Lock()
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
        if self._said is not None:
            self._room -= len(message)
            self._said = [*self._said, message] if self._room >= 0 else None
        try:
            await connection.send(message)
        except ConnectionLost as lost:
            await self._again(connection, lost)  # which says this message too

    async def receive(self) -> str | bytes:
        while True:
            connection = self._now
            try:
                message = await connection.receive()
            except ConnectionLost as lost:
                await self._again(connection, lost)
            else:
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
        """Open another connection in the place of a broken one, and say again what was said. Raises `lost` where that is not to
        be."""
        async with self._opening:
            while self._connection is broken:
                if self._said is None or self._closed or lost.reason:
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
        """Say again on a new connection what was said, also what is said meanwhile; then it takes the old one's place."""
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
                until = until or self._backoff.until()
                self._failures += 1
                if not error.again or not await self._backoff.pause(self._failures):
                    raise
