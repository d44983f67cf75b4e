"""What is said and not yet sent: so that a session never waits for a slow peer to read while that peer waits for it to read.

One task (`run`) sends what others `put`. Above `CALL_ROOM` local callers are asked to wait, above `READ_ROOM` nothing more is
read from the peer, above `MAX_BACKLOG` it is lost: who asks for more and reads none of it gets no more memory than that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from treaty_consensus.errors import TreatyError, Unavailable

from ..meta.frame import MAX_PAYLOAD
from .connection import Connection

CALL_ROOM = 256 * 1024
READ_ROOM = MAX_PAYLOAD
MAX_BACKLOG = 8 * MAX_PAYLOAD


class Outbox:
    """For one connection and one event loop."""

    def __init__(
        self, connection: Connection, seconds: float, *, failed: Callable[[TreatyError], None], drained: Callable[[], None]
    ) -> None:
        """`seconds`: for the peer to take one message. `failed`: told once, when `run` gives up; `drained`: whenever there is
        room to read again."""
        self._connection, self._seconds = connection, seconds
        self._failed, self._drained = failed, drained
        self._messages: deque[str | bytes] = deque()
        self._backlog = 0
        self._closed = False
        self._waiting = asyncio.Event()
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._note()

    @property
    def may_read(self) -> bool:
        """Whether there is room for the answers to what would be read."""
        return self._backlog <= READ_ROOM

    def put(self, message: str | bytes) -> None:
        """Send this after all that was put before. Raises `Unavailable` (`session.slow-peer`)."""
        if self._backlog > MAX_BACKLOG:
            raise _slow()
        self._messages.append(message)
        self._backlog += len(message)
        self._note()

    async def room(self) -> None:
        """Wait until a caller may add something, which it does at once: of those who wait, others may come first."""
        while not self._room.is_set():
            await self._room.wait()

    async def flushed(self) -> None:
        """Wait until everything is sent."""
        await self._empty.wait()

    def close(self) -> None:
        """Nothing more will be sent: whoever waits need wait no longer."""
        self._closed = True
        self._note()

    async def run(self) -> None:
        """Send until cancelled, or until the connection is lost or too slow."""
        try:
            while True:
                await self._waiting.wait()
                message = self._messages[0]
                async with asyncio.timeout(self._seconds):
                    await self._connection.send(message)
                could_read = self.may_read
                self._messages.popleft()
                self._backlog -= len(message)
                self._note()
                if self.may_read and not could_read:
                    self._drained()
        except TimeoutError:
            self._failed(_slow())
        except TreatyError as error:
            self._failed(error)

    def _note(self) -> None:
        for event, holds in (
            (self._waiting, bool(self._messages)),
            (self._empty, self._closed or not self._messages),
            (self._room, self._closed or self._backlog <= CALL_ROOM),
        ):
            if holds:
                event.set()
            else:
                event.clear()


def _slow() -> Unavailable:
    return Unavailable("session.slow-peer", "The other side does not read what it is sent.")
