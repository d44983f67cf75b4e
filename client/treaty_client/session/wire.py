"""A session's end of the wire: one task reads, one writes, and neither lets the peer run ahead.

One message at a time is handed over, and the next is read when that is done with and there is room for what it may cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from treaty_consensus.errors import TreatyError, Unavailable

from ..transport.connection import Connection, ConnectionLost
from ..transport.outbox import Outbox
from .hosting import Step
from .timing import SessionTimeouts

_log = logging.getLogger(__name__)


class Wire:
    """For one session and one event loop: `start` it, and `hang_up` in any case."""

    def __init__(
        self,
        connection: Connection,
        timeouts: SessionTimeouts,
        *,
        post: Callable[[Step], None],
        received: Callable[[str | bytes], Awaitable[None]],
        lost: Callable[[str], Awaitable[None]],
        failed: Callable[[TreatyError], Awaitable[None]],
    ) -> None:
        """`post`: runs a step in the session's task, where the other three are called: for each message, for the loss of the
        connection with the reason that the peer gave, for what else goes wrong."""
        self._connection, self._timeouts = connection, timeouts
        self._post, self._received, self._lost, self._failed = post, received, lost, failed
        self._connected = True
        self._may_read = asyncio.Event()
        self._outbox = Outbox(connection, timeouts.send, failed=self._send_failed, drained=self.wake)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def peer(self) -> str:
        """The DID that the transport proved, or ""."""
        return self._connection.peer

    @property
    def has_room(self) -> bool:
        """Whether there is room for the answers to what would be read."""
        return self._outbox.may_read

    def start(self) -> None:
        """Begin to read, as far as that is allowed, and to write."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._outbox.run())]
        for task in self._tasks:
            task.add_done_callback(self._broke)

    def put(self, message: str | bytes) -> None:
        """Send this after all that was put before. Raises `Unavailable` (`session.slow-peer`)."""
        self._outbox.put(message)

    async def room(self) -> None:
        """Wait until the local application may add something."""
        await self._outbox.room()

    def allow(self, reading: bool) -> None:
        """Say whether the next message may be read."""
        if reading:
            self._may_read.set()
        else:
            self._may_read.clear()

    def wake(self) -> None:
        """Have it decided anew, after a step, whether to read."""
        self._post(_nothing)

    async def hang_up(self, error: TreatyError | None) -> None:
        """Send what there is still to send, for a bounded time, and close; the peer learns the error's code."""
        if self._connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeouts.flush):
                    await self._outbox.flushed()
        self._outbox.close()
        for task in self._tasks:
            task.cancel()
        await self._connection.close(error.code if error and self._connected else "")

    async def _read(self) -> None:
        try:
            while True:
                await self._may_read.wait()
                message = await self._connection.receive()
                done = asyncio.Event()
                self._post(partial(self._hand_over, message, done))
                await done.wait()
        except ConnectionLost as error:
            self._connected = False
            self._post(partial(self._lost, error.reason))
        except TreatyError as error:  # the transport refuses the peer, who is told why
            self._post(partial(self._failed, error))

    async def _hand_over(self, message: str | bytes, done: asyncio.Event) -> None:
        try:
            await self._received(message)
        finally:
            done.set()

    def _send_failed(self, error: TreatyError) -> None:
        self._connected = False
        if not isinstance(error, ConnectionLost):  # else `_read` says so, after all that arrived before
            self._post(partial(self._failed, error))

    def _broke(self, task: asyncio.Task[None]) -> None:
        """Neither task fails in any way that it knows of; if one does, the session must not wait for it."""
        if not task.cancelled() and task.exception() is not None:
            _log.error("A connection failed", exc_info=task.exception())
            self._connected = False
            self._post(partial(self._failed, Unavailable("session.internal", "This side failed; its log says why.")))


async def _nothing() -> None:
    """A step after which it is decided anew whether to read."""
