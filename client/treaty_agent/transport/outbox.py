"""Queue outgoing messages, so that a session and a slow peer never wait for each other to read.

One task (`run`) sends the messages that other tasks `enqueue`. Above `CALL_ROOM` bytes local callers wait. Above `READ_ROOM` the
session stops reading from the peer. Above `MAX_BACKLOG` the session fails. So a peer that sends requests and reads no answers
gets a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from treaty_anp.frame import MAX_PAYLOAD
from treaty_consensus.errors import TreatyError
from treaty_io.codes import SessionCode
from treaty_io.errors import PeerUnavailable

from .connection import Connection

# Local callers wait early, so that answers to the peer still find room: answers cannot wait, because the
# handler that makes them must not be stopped between two effects. Above the last cap the peer reads so
# slowly that the session ends.
CALL_ROOM = 256 * 1024
READ_ROOM = MAX_PAYLOAD
MAX_BACKLOG = 8 * MAX_PAYLOAD


class Outbox:
    """A queue of messages for one connection and one event loop."""

    def __init__(
        self, connection: Connection, seconds: float, *, failed: Callable[[TreatyError], None], drained: Callable[[], None]
    ) -> None:
        """Start empty.

        `seconds`: the time for the peer to take one message. `failed`: called once, when `run` ends by an error. `drained`:
        called when `may_read` becomes true again.
        """
        self._connection, self._seconds = connection, seconds
        self._failed, self._drained = failed, drained
        self._messages: deque[str | bytes] = deque()
        self.backlog = 0
        """Bytes that were put and not sent."""
        self._closed = False
        # Events and no queue: a caller must wait for room in bytes, and `flushed` for emptiness.
        self._waiting = asyncio.Event()
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._note()

    @property
    def may_read(self) -> bool:
        """Return whether the session may read from the peer: there is room for the answers."""
        return self.backlog <= READ_ROOM

    def enqueue(self, message: str | bytes) -> None:
        """Add a message to the queue. Raises `Unavailable` (`session.slow-peer`) above `MAX_BACKLOG`."""
        if self.backlog > MAX_BACKLOG:
            raise _slow()
        self._messages.append(message)
        self.backlog += len(message)
        self._note()

    async def wait_writable(self) -> None:
        """Wait until a local caller may add a message. The caller must add it before it awaits again."""
        while not self._room.is_set():  # another waiting caller may run first and fill the room again
            await self._room.wait()

    async def flushed(self) -> None:
        """Wait until all messages are sent, or the queue is closed."""
        await self._empty.wait()

    def close(self) -> None:
        """Stop all waiting calls; no further message will be sent."""
        self._closed = True
        self._note()

    async def run(self) -> None:
        """Send messages until it is cancelled, or the connection is lost or too slow."""
        try:
            while True:
                await self._waiting.wait()
                message = self._messages[0]
                # For each message and not for the queue: a slow peer that makes progress is not cut off.
                async with asyncio.timeout(self._seconds):
                    await self._connection.send(message)
                could_read = self.may_read
                # Only now: a message under way still takes memory, and counts.
                self._messages.popleft()
                self.backlog -= len(message)
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
            (self._room, self._closed or self.backlog <= CALL_ROOM),
        ):
            if holds:
                event.set()
            else:
                event.clear()


def _slow() -> PeerUnavailable:
    return PeerUnavailable(SessionCode.SLOW_PEER, "The other side reads its messages too slowly.")
