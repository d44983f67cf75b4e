"""Hold the log in object stores besides the database: as much of it as receipts promise before a head is signed, the rest behind.

A lost disk ends a log unless every leaf of every signed head is elsewhere. So a head is signed after `hold`: its leaves are in
as many stores as the operator has set. The checkpoint in a store comes some seconds later, for readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from treaty_consensus.errors import Unavailable, Untrusted
from treaty_consensus.log.tiles import TreeEdge

from ..codes import RegistryLogCode
from ..telemetry.measures import STORE_OUTAGES
from .tile_copy import TileCopy

# The stores that answer in time count. All writers wait for them, as they wait for the record.
_PATIENCE = 5.0  # seconds


class TileCopies:
    """All copies of one log. For one event loop. `needed`: those that must hold a head's leaves before it is signed."""

    def __init__(self, copies: Sequence[TileCopy], needed: int) -> None:
        self.copies = copies
        self._needed = needed

    @property
    def time(self) -> int | None:
        """Return the time of the head that every copy has; 0: one has none yet. None: there are no copies."""
        return min((copy.time for copy in self.copies), default=None)

    async def hold(self, edge: TreeEdge, *, begins: bool = False) -> None:
        """Have the tree of `edge`, which was committed, held by as many copies as are needed. At once where none is.

        `begins`: this process has begun to lead. Raises `Unavailable` (`log.copies`) when fewer hold it after 5 seconds; they may
        hold it later. With `begins`, raises `Untrusted` (`log.damaged`) when a copy has more of the log.
        """
        if self._needed:
            await self._held([copy.follow(edge, begins=begins) for copy in self.copies])

    def end(self) -> None:
        """Hold no more: this process does not lead any longer."""
        for copy in self.copies:
            copy.end()

    async def _held(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        copies, failure, waiting = 0, None, set(tasks)
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE
        while copies < self._needed <= copies + len(waiting):
            done, waiting = await asyncio.wait(waiting, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            failed = [error for task in done if (error := _error(task))]
            copies += len(done) - len(failed)
            failure = next(iter(failed), failure)
        if isinstance(failure, Untrusted):
            raise failure
        if copies < self._needed:
            STORE_OUTAGES.labels("copies").inc()
            raise Unavailable(
                RegistryLogCode.COPIES,
                f"{copies} of the {len(tasks)} stores hold the newest leaves, and receipts promise {self._needed}"
                + (f": {str(failure).partition(chr(10))[0][:300]}" if failure else "."),
                fix="See that the stores of --tiles work. The registry tries again by itself.",
            ) from failure


def _error(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
