"""A synchronous replica of the simulated PostgreSQL.

A commit is written to the primary's log first, and sent to the replica. Its session is told, and others see its rows, when the
replica has it. A session that ends while it waits does not take the commit back: PostgreSQL then shows rows that the replica
lacks. They are lost if the replica is promoted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .scheduler import Scheduler
from .tables import Changes, Tables


class Replica:
    """The replica of one primary. `late`: it receives nothing until then. `dropped`: nothing reaches it any more."""

    def __init__(self, scheduler: Scheduler, tables: Tables, received: Callable[[Tables], None]) -> None:
        """`received` is called with the replica's tables whenever they have changed."""
        self._scheduler = scheduler
        self.tables = tables.copy()
        self._received = received
        self._sent: deque[tuple[Changes, Callable[[], None]]] = deque()
        self.late = 0.0
        self.dropped = False

    def send(self, changes: Changes, confirmed: Callable[[], None]) -> None:
        """Send a commit. `confirmed` is called when the replica has it."""
        self._sent.append((changes, confirmed))
        if len(self._sent) == 1:
            self._expect()

    def _expect(self) -> None:
        delay = 0.0002 + self._scheduler.rng.random() * 0.002
        self._scheduler.at(max(self._scheduler.now, self.late) + delay, None, self._receive)

    def _receive(self) -> None:
        if self.dropped:
            return
        if self.late > self._scheduler.now:
            self._expect()
            return
        # In the order in which the primary wrote them.
        changes, confirmed = self._sent.popleft()
        self.tables.apply(changes)
        self._received(self.tables)
        confirmed()
        if self._sent:
            self._expect()
