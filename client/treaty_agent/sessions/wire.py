"""Read and write the messages of one connection for a session's loop, with backpressure.

Above `CALL_ROOM` bytes that wait to be sent, local callers wait. Above `READ_ROOM` the session stops reading from the peer. Above
`MAX_BACKLOG` the session fails, and so it does when the peer takes nothing of more than `CALL_ROOM` for some time. So a peer that
sends requests and reads no answers gets a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import cached_property

from treaty_anp.frame import MAX_PAYLOAD
from treaty_consensus.errors import TreatyError
from treaty_io.codes import SessionCode
from treaty_io.errors import PeerUnavailable
from treaty_io.identity import ProvedPeer

from ..transport.connection import Connection, ConnectionLost, unwatched
from ..transport.parting import SessionParting

# Local callers wait early, so that answers to the peer still find room: answers cannot wait, because the
# handler that makes them must not be stopped between two effects. Above the last cap the peer reads so
# slowly that the session ends.
CALL_ROOM = 256 * 1024
READ_ROOM = MAX_PAYLOAD
MAX_BACKLOG = 8 * MAX_PAYLOAD


class Wire:
    """Read and write one connection. For one event loop: `start` it, then `close` or `release` it."""

    def __init__(
        self, connection: Connection, wake: Callable[[], None], *, patience: float, first: str | bytes | None = None
    ) -> None:
        """Set up the wire without reading or writing.

        `wake`: called when `receive` or `may_read` may have changed. `patience`: seconds for a peer that takes nothing.
        `first`: a message that was received already.
        """
        self.connection = connection
        self._wake, self._patience, self._first = wake, patience, first
        self.sent = self.received = 0
        """Messages that were sent to the peer, and messages of the peer that were received."""
        self.is_lost = False
        """Whether nothing can be sent any more."""
        self.due = math.inf
        """The time of the event loop's clock when `check` is due, or `math.inf`."""
        self._is_crowded, self._noted = False, 0
        # The bytes that were sent, and of them those that were on their way when `due` was set.
        self._said = self._taken = 0

    @property
    def proof(self) -> ProvedPeer | None:
        """The peer that the transport proved, or None."""
        # The transports check proofs, and say "" without one. From here on a proof is a type.
        return ProvedPeer(self.connection.peer) if self.connection.peer else None

    @property
    def may_read(self) -> bool:
        """Whether there is room for the answers to the next message. After a loss there is: nothing is sent any more."""
        # With room for callers there is room, which was noted when it changed. Before its first message a peer has asked for
        # nothing, and with encryption early data wait for its Hello.
        return not self._is_crowded or self.is_lost or not self.received or self.connection.backlog <= READ_ROOM

    @property
    def backlog(self) -> int:
        """The bytes that wait to be sent."""
        return self.connection.backlog

    def start(self) -> None:
        """Begin to be woken."""
        self.connection.watch(self._woken)

    def receive(self) -> str | bytes | None:
        """Return the next message of the peer, or None. Raises what `Connection.receive` raises."""
        if self._first is not None:
            message, self._first = self._first, None
        else:
            try:
                received = self.connection.receive()
            except ConnectionLost:
                self._lose()
                raise
            if received is None:
                return None
            message = received
        self.received += 1
        return message

    def send(self, message: str | bytes) -> None:
        """Send a message after all earlier messages. Raises `Unavailable` (`session.slow-peer`).

        A loss is not raised: `receive` tells it, after all messages that arrived before.
        """
        # Only what was sent makes it larger, so a smaller one need not be read again.
        if self._noted > MAX_BACKLOG and self.connection.backlog > MAX_BACKLOG:
            raise _slow()
        self.sent += 1
        try:
            self.connection.send(message)
        except ConnectionLost:
            self._lose()
        self._said += len(message)
        self._note()

    async def wait_writable(self) -> None:
        """Wait until the local application may send more. The caller must send before it awaits again."""
        while self._is_crowded:  # another waiting caller may run first and fill the room again
            await self._has_room.wait()

    def check(self) -> None:
        """Raise `Unavailable` (`session.slow-peer`) if the peer has taken nothing for `patience` seconds."""
        self._note()
        if self.due <= asyncio.get_running_loop().time():
            raise _slow()

    async def close(self, error: TreatyError | None) -> None:
        """Close the connection, in bounded time. What was sent goes first. The peer receives the error's code."""
        self.release()
        reason = error.reason if isinstance(error, SessionParting) else error.code if error else ""
        await self.connection.close("" if self.is_lost else reason)

    def release(self) -> None:
        """Stop reading and writing. The connection stays open."""
        self.connection.watch(unwatched)
        if self._is_crowded:
            self._make_room()

    @cached_property
    def _has_room(self) -> asyncio.Event:
        return asyncio.Event()  # made when the peer is slow for the first time: most sessions never wait

    def _woken(self) -> None:
        if self._is_crowded:
            self._note()
        self._wake()

    def _lose(self) -> None:
        self.is_lost = True
        self._note()
        self._wake()

    def _note(self) -> None:
        """Note the progress of the peer, and whether there is room for local callers."""
        backlog = 0 if self.is_lost else self.connection.backlog
        # Less than this holds nobody up, and over HTTP a whole pause of the peer may lie between two answers.
        if backlog <= CALL_ROOM:
            if self._is_crowded:
                self._make_room()
        elif not self._is_crowded:
            self._is_crowded, self.due = True, asyncio.get_running_loop().time() + self._patience
            self._has_room.clear()
            self._wake()  # the loop has a new deadline; a shared session sends beside its steps
        # A slow peer that makes progress is not cut off.
        elif self._said - backlog > self._taken:
            self.due = asyncio.get_running_loop().time() + self._patience
        self._taken, self._noted = self._said - backlog, backlog

    def _make_room(self) -> None:
        self._is_crowded, self.due = False, math.inf
        self._has_room.set()


def _slow() -> PeerUnavailable:
    return PeerUnavailable(SessionCode.SLOW_PEER, "The other side reads its messages too slowly.")
