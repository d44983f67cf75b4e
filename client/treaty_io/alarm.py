"""Wait for the latest of many due times with one timer of the event loop.

Most deadlines are moved before they are due: by each message, by each step. A timer for each would cost more than the step. An
alarm that is put off keeps its timer, which looks again when it rings.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """One due time. For one event loop. End it by `cancel`."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """Set no time. `ring`: called once when the time is due; it may set another one."""
        self.ring = ring
        self._loop = asyncio.get_running_loop()
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: float) -> None:
        """Ring at a time of the loop's clock, in place of any earlier one. `math.inf`: never."""
        self._due = due
        # A timer that is due earlier looks again then.
        if due < math.inf and (self._timer is None or self._timer.when() > due):
            self._arm()

    def set_in(self, seconds: float) -> None:
        """Ring after some seconds."""
        self.set(self._loop.time() + seconds)

    def cancel(self) -> None:
        """Never ring, and let the loop forget this object."""
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due == math.inf:
            return
        # The loop rings a timer up to its resolution early.
        if self._due - self._loop.time() > _EARLY:
            self._arm()
        else:
            self._due = math.inf
            self.ring()


_EARLY = 0.001
"""Seconds. The clocks of the event loops tick in milliseconds or less."""
