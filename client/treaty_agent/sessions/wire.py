"""Read and write the messages of one connection for a session's loop, with backpressure.

One task reads and one task writes. The reader hands over one message at a time. It reads the next message when that step is done
and the outbox has room for the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.codes import SessionCode
from treaty_io.identity import ProvedPeer
from treaty_io.line_limit import limited_logger

from ..transport.connection import Connection, ConnectionLost
from ..transport.outbox import Outbox
from ..transport.parting import SessionParting
from .interfaces import SessionTimeouts, Step

INTERNAL = "This side failed; its log says why."
_log = limited_logger(__name__)


class Wire:
    """Read and write one connection. For one event loop: `start` it, then `close` or `release` it."""

    def __init__(
        self,
        connection: Connection,
        timeouts: SessionTimeouts,
        *,
        first: str | bytes | None,
        post: Callable[[Step], None],
        received: Callable[[str | bytes], Awaitable[None]],
        lost: Callable[[str], Awaitable[None]],
        failed: Callable[[TreatyError], Awaitable[None]],
    ) -> None:
        """Set up the wire without reading or writing.

        `first`: a message that was received already.
        `post`: run a step in the connection's task. The next three are called there.
        `received`: called for each message.
        `lost`: called with the peer's reason when the connection is lost.
        `failed`: called for any other failure.
        """
        self.connection = connection
        self._timeouts, self._first = timeouts, first
        self._post, self._received, self._lost, self._failed = post, received, lost, failed
        self.sent = self.received = 0
        """Messages that were queued for the peer, and messages of the peer that were handed over."""
        self._connected = True
        # Backpressure: the reader waits here until the loop allows the next message.
        self._may_read = asyncio.Event()
        self._outbox = Outbox(connection, timeouts.send, failed=self._send_failed, drained=self.wake)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def proof(self) -> ProvedPeer | None:
        """The peer that the transport proved, or None."""
        # The transports check proofs, and say "" without one. From here on a proof is a type.
        return ProvedPeer(self.connection.peer) if self.connection.peer else None

    @property
    def is_readable(self) -> bool:
        """Whether there is room for the answers to the next message. After a loss there is: nothing is sent any more."""
        return self._outbox.may_read or self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent any more."""
        return not self._connected

    @property
    def backlog(self) -> int:
        """The bytes that wait to be sent."""
        return self._outbox.backlog

    def start(self) -> None:
        """Start the tasks that read and write."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._outbox.run())]
        for task in self._tasks:
            task.add_done_callback(self._broke)

    def enqueue(self, message: str | bytes) -> None:
        """Send a message after all earlier messages. Raises `Unavailable` (`session.slow-peer`)."""
        self._outbox.enqueue(message)
        self.sent += 1

    async def wait_writable(self) -> None:
        """Wait until the local application may send more."""
        await self._outbox.wait_writable()

    def allow_reading(self, allowed: bool) -> None:
        """Set whether the next message may be read."""
        if allowed:
            self._may_read.set()
        else:
            self._may_read.clear()

    def wake(self) -> None:
        """Let the loop decide again whether to read."""
        self._post(_nothing)

    async def close(self, error: TreatyError | None) -> None:
        """Send the queued messages, for a bounded time, and close the connection. The peer receives the error's code."""
        connected = self._connected
        await self.release()
        reason = error.reason if isinstance(error, SessionParting) else error.code if error else ""
        await self.connection.close(reason if connected else "")

    async def release(self) -> None:
        """Send the queued messages, for a bounded time, and stop reading and writing. The connection stays open."""
        if self._connected:
            # A peer that does not read must not delay the end of the session.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeouts.flush):
                    await self._outbox.flushed()
        self._outbox.close()
        # Exceptions of the tasks were already handled by `_broke`.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                await self._may_read.wait()
                message, self._first = (await self.connection.receive() if self._first is None else self._first), None
                # The next message is read only after this one is handled, so a peer cannot fill the queue.
                done = asyncio.Event()
                self._post(partial(self._hand_over, message, done))
                await done.wait()
        except ConnectionLost as error:
            self._connected = False
            self._post(partial(self._lost, error.reason))
        except TreatyError as error:  # the transport refuses the peer, which gets the code
            self._post(partial(self._failed, error))

    async def _hand_over(self, message: str | bytes, done: asyncio.Event) -> None:
        self.received += 1
        try:
            await self._received(message)
        finally:
            done.set()

    def _send_failed(self, error: TreatyError) -> None:
        self._connected = False
        if not isinstance(error, ConnectionLost):
            self._post(partial(self._failed, error))
        else:
            # `_read` reports the loss, after all messages that arrived before. It may wait for room that will not come.
            self.wake()

    def _broke(self, task: asyncio.Task[None]) -> None:
        """End the session after an unexpected exception of the reader or writer; else it would wait for ever."""
        if not task.cancelled() and task.exception() is not None:
            _log.error("A connection failed", exc_info=task.exception())
            self._connected = False
            self._post(partial(self._failed, Unavailable(SessionCode.INTERNAL, INTERNAL)))


async def _nothing() -> None:
    """Do nothing; after this step the loop decides again whether to read."""
