"""Whether this process takes writes, and if not, why: for the health check, and for each write before it begins.

An answer is given within about a second, whatever is out of order: PostgreSQL is asked one question at a time, and is out of
order when it does not answer within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from treaty_consensus.errors import TreatyError, Unavailable

from .log.checkpoints import RENEWAL
from .log.clock import LogClock
from .log.leader import Leader
from .storage.postgres import DATABASE_ERRORS, Pool, database_silent
from .storage.space import Room

_PATIENCE = 1.0


class Readiness:
    """For one event loop; `close` in the end."""

    def __init__(self, leader: Leader, clock: LogClock, rooms: Sequence[Room], pool: Pool) -> None:
        """`rooms`: on the disks that a write needs."""
        self._leader = leader
        self._clock = clock
        self._rooms = rooms
        self._pool = pool
        self._question: asyncio.Task[bool] | None = None

    def permit_write(self) -> None:
        """Raises `Unavailable` (`disk.full`, `log.clock-behind`, `log.clock-ahead`) when a write must not even begin."""
        self._clock.now()
        for room in self._rooms:
            room.check()

    async def check(self) -> None:
        """Raises `Unavailable` with the reason when this process does not take writes now. Takes about a second at most."""
        self.permit_write()
        head = self._leader.head
        if self._leader.fault is not None:
            raise _not_ready(f"the last write failed ({type(self._leader.fault).__name__})")
        if not self._leader.leads or head is None:
            raise _not_ready("this process does not lead the log")
        if not await self._database_answers():
            raise database_silent()
        if self._clock.now().timestamp() - head.time >= 2 * RENEWAL:
            raise _not_ready("the checkpoint is not renewed")

    async def close(self) -> None:
        """Ask nothing more."""
        if self._question is not None:
            self._question.cancel()

    async def _database_answers(self) -> bool:
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask())
        # Neither cancelled nor asked a second time: while PostgreSQL stands still, health checks must not pile up in it.
        done, _ = await asyncio.wait([self._question], timeout=_PATIENCE)
        return bool(done) and self._question.result()

    async def _ask(self) -> bool:
        with suppress(TreatyError, *DATABASE_ERRORS):
            return bool(await self._pool.fetchval("select true"))
        return False


def _not_ready(why: str) -> Unavailable:
    return Unavailable("registry.not-ready", f"This process does not take writes now: {why}.", fix="Try again in a few seconds.")
