"""Wait for the latest of many due times with one timer of the event loop.

Most deadlines are moved before they are due: by each message, by each step. A timer for each would cost more than the step. An
alarm that is put off keeps its timer, which looks again when it rings.

A process that was stopped, or a virtual machine that was paused, finds its due times passed when it goes on. What arrived
meanwhile is in its sockets, and may be the message that a deadline waits for. So an alarm that finds itself late first lets the
loop read for `GRACE` seconds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from .shared_timer import SharedCall, SharedTimer


class Alarm:
    """One due time. For one event loop. End it by `cancel`."""

    def __init__(self, ring: Callable[[], None], timer: SharedTimer | None = None) -> None:
        """Set no time. `ring`: called once when the time is due; it may set another one. `timer`: to use in place of one of its
        own."""
        self.ring = ring
        self._loop = asyncio.get_running_loop()
        self._timers = timer or self._loop
        self._due = self._begins = math.inf
        self._held_until = -math.inf
        self._timer: asyncio.TimerHandle | SharedCall | None = None

    @property
    def is_held(self) -> bool:
        """Whether its time has passed in a pause of this process, and what arrived meanwhile goes first."""
        now = self._loop.time()
        # A time that had passed when the hold began waits for its end, also if it is set again: a peer with many messages delays
        # it by `GRACE` and no more.
        if now - self._begins > _LATE and self._begins > self._held_until:
            self._held_until = now + GRACE
        return self._held_until - now > _EARLY

    def set(self, due: float) -> None:
        """Ring at a time of the loop's clock, in place of any earlier one. `math.inf`: never."""
        if abs(due - self._due) > _EARLY or due == math.inf:
            # One that has passed already was not passed over in a pause.
            self._due, self._begins = due, max(due, self._loop.time())
        # A timer that is due earlier looks again then.
        if due < math.inf and (self._timer is None or self._timer.when() > max(due, self._held_until)):
            self._arm()

    def set_in(self, seconds: float) -> None:
        """Ring after some seconds."""
        self.set(self._loop.time() + seconds)

    def cancel(self) -> None:
        """Never ring, and let the loop forget this object."""
        self._due = self._begins = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timers.call_at(max(self._due, self._held_until), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due == math.inf:
            return
        # The loop rings a timer up to its resolution early.
        if self.is_held or self._due - self._loop.time() > _EARLY:
            self._arm()
        else:
            self._due = self._begins = math.inf
            self.ring()


GRACE = 0.5
"""Seconds in which messages that were there already are read, before a late alarm rings."""
_LATE = 0.25
"""Seconds after which the process did not run when the alarm was due. A loop that is merely busy is faster."""
_EARLY = 0.001
"""Seconds. The clocks of the event loops tick in milliseconds or less."""
