"""Run the tasks of an agent that no single session owns, and bound what its sessions do at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cached_property
from typing import Any, TypeVar

from treaty_io.places import Places
from treaty_io.task_set import TaskSet

from .connection_loop import OpenConnections
from .escalation import EscalationLimiter
from .interfaces import Capacity
from .stranger_negotiations import StrangerNegotiations

_T = TypeVar("_T")


class SessionWork:
    """The work of one agent. For one event loop; always call `cancel`.

    `connections`: those that are open now.
    `negotiations`: those that other agents began.
    """

    def __init__(self, capacity: Capacity) -> None:
        self.connections, self.escalations = OpenConnections(), EscalationLimiter()
        self.negotiations = StrangerNegotiations(capacity.negotiations)
        self._capacity = capacity
        self._tasks, self._finishing = TaskSet[Any](), TaskSet[Any]()

    @cached_property
    def lingering(self) -> asyncio.Semaphore:
        """Held by a session that its application has left, while its report is settled."""
        return asyncio.Semaphore(self._capacity.lingering)

    @cached_property
    def admissions(self) -> Places:
        """The sessions of other initiators that are being opened."""
        return Places(self._capacity.openings)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a task beside all sessions. `cancel` ends it."""
        return self._tasks.start(work)

    def finish_later(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a task after its session. `finished` waits for it."""
        return self._finishing.start(work)

    async def finished(self) -> None:
        """Wait for the tasks that sessions left."""
        while self._finishing:
            await asyncio.wait([*self._finishing])

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their end."""
        await asyncio.gather(self._tasks.cancel(), self._finishing.cancel())
