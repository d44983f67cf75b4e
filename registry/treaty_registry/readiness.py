"""Check whether this process takes writes, for the health check and before each write.

A check takes at most about a second. PostgreSQL gets one query at a time, and counts as failed when it does not answer within a
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from treaty_consensus.errors import TreatyError, Unavailable

from .codes import ServiceCode
from .log.checkpoints import RENEWAL
from .log.clock import LogClock
from .log.leader import Leader
from .nodes import Nodes
from .storage.postgres import DATABASE_ERRORS, Pool, database_silent
from .storage.space import FreeSpace

# Supervisors usually wait a few seconds for a health check, so a silent database must be reported sooner.
_PATIENCE = 1.0
_RECORD_FAILS = "The record of signed heads cannot be read or written: its object store or its disk fails."


class Readiness:
    """The checks. For one event loop; call `close` at the end."""

    def __init__(
        self, leader: Leader, clock: LogClock, rooms: Sequence[FreeSpace], pool: Pool, nodes: Nodes | None = None
    ) -> None:
        """`rooms`: the free space of the disks that a write needs. `nodes`: the other nodes, to which this one sends writes."""
        self._leader = leader
        self._clock = clock
        self._rooms = rooms
        self._pool = pool
        self._nodes = nodes
        self._question: asyncio.Task[bool] | None = None

    def permit_write(self) -> None:
        """Raise `Unavailable` (`disk.full`, `log.clock`) when no write may start."""
        # Before anything is begun: with a wrong clock nothing may be signed.
        self._clock.now()
        for room in self._rooms:
            room.check()

    async def check(self) -> None:
        """Raise `Unavailable` with the reason when this process takes no writes now. Takes about a second at most."""
        self.permit_write()
        # The first cause first: without PostgreSQL no process leads and no write succeeds.
        if not await self._database_answers():
            raise database_silent()
        head, fault = self._leader.head, self._leader.fault
        if isinstance(fault, TreatyError):
            # Without the place, which strangers need not know. The log has it.
            raise Unavailable(fault.code, _RECORD_FAILS, fix="Try again in a few seconds.") from fault
        if fault is not None:
            raise _not_ready(f"the last write failed ({type(fault).__name__})")
        followed = self._nodes.led_elsewhere if self._nodes is not None else None
        if head is None or not (self._leader.leads or followed):
            raise _not_ready("no process leads the log" if self._nodes else "this process does not lead the log")
        # One renewal may be late. After two, readers see a stale log.
        if self._clock.now().timestamp() - head.time >= 2 * RENEWAL:
            raise _not_ready("the checkpoint is not renewed")

    async def close(self) -> None:
        """Cancel a running query."""
        if self._question is not None:
            self._question.cancel()

    async def _database_answers(self) -> bool:
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask())
        # Neither cancelled nor repeated: while PostgreSQL does not answer, health checks must not pile up in it.
        done, _ = await asyncio.wait([self._question], timeout=_PATIENCE)
        return bool(done) and self._question.result()

    async def _ask(self) -> bool:
        with suppress(TreatyError, *DATABASE_ERRORS):
            return bool(await self._pool.fetchval("select true"))
        return False


def _not_ready(why: str) -> Unavailable:
    return Unavailable(ServiceCode.NOT_READY, f"This process takes no writes now: {why}.", fix="Try again in a few seconds.")
