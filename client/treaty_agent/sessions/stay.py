"""Stay in a session with another agent, for a role that serves more than it calls.

    async with agent.stay("auctioneer.example", protocols=[AUCTION], role="bidder", serving=[bid]) as auctioneer:
        async for session in auctioneer:
            await session.call("join", name="Ada")        # in each session, also after a loss
            print(await session.wait_ended())

The session is open when the block begins. When it is over (lost, drained, idle), another one is opened: at once, then after
random pauses that double, at most `MOST` seconds. So a bidder needs no call to be there, and no loop of its own.

There is no last attempt. A refusal may pass too: a protocol that is not served for a minute, or a policy that is put right.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.codes import PeerCode

from ..transport.connection import Backoff
from .peer import Peer, PooledSession
from .session import Session

MOST = 60.0
"""Seconds of the longest pause before a session is opened again. It bounds the load on a peer that refuses for days."""
STEADY = 10.0
"""Seconds after which a session counts as a success. One that ends sooner is opened again after a pause, as after a failure."""
_log = logging.getLogger(__name__)


class Stay(Peer):
    """A `Peer` with a session that this side keeps open. Use it with `async with`, which raises the errors of `Agent.connect` if
    the first session cannot be opened. `call` and `stream` use the same session.

    `session`: the present one, None between two. `error`: why the last one ended, or why there is none yet; None before.
    """

    session: Session | None = None
    error: TreatyError | None = None
    _task: asyncio.Task[None] | None = None
    _changed: asyncio.Event

    async def __aenter__(self) -> Stay:
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._keep(await self._open()))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the session, as `Peer.aclose` does."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await super().aclose()

    async def __aiter__(self) -> AsyncIterator[Session]:
        """Yield the present session, and each later one as soon as it is open. A session that came and went meanwhile is left
        out. Ends with `aclose`."""
        last: Session | None = None
        while self._task is not None and not self._task.done():
            if self.session is not None and self.session is not last:
                last = self.session
                yield last
            else:
                self._changed.clear()
                await self._changed.wait()

    async def _keep(self, pooled: PooledSession) -> None:
        """Wait for the end of each session, and open the next one."""
        now, failures = asyncio.get_running_loop().time, 0
        backoff = Backoff(attempts=sys.maxsize, most=MOST, within=math.inf)
        try:
            while True:
                opened_at = now()
                self.error = await self._stay(pooled)
                failures = 0 if now() - opened_at >= STEADY else failures + 1
                _log.info("The session with %s ended and is opened again: %s (%s)", self.did, self.error, self.error.code)
                while True:
                    if failures:
                        await backoff.pause(failures)
                    try:
                        pooled = await self._open()
                        break
                    except TreatyError as error:
                        if error.code == PeerCode.CLOSED:
                            return
                        self.error, failures = error, failures + 1
                        # A peer that is away comes back; a refusal may need a person.
                        level = logging.INFO if isinstance(error, Unavailable) else logging.WARNING
                        _log.log(level, "No session with %s could be opened: %s (%s)", self.did, error, error.code)
        finally:
            self._changed.set()

    async def _open(self) -> PooledSession:
        pooled = await self._pool.get(None, self._backoff)
        pooled.is_kept = True
        self.session = pooled.session
        self._changed.set()
        return pooled

    async def _stay(self, pooled: PooledSession) -> TreatyError:
        """Wait for the end of a session, and return why it ended."""
        try:
            return await pooled.session.wait_ended()
        finally:
            self.session = None
            self._pool.put(pooled)
