"""Call functions at times of the event loop, with one timer of it for all.

A session has a deadline of its own, one for each call, and those of its handler. Most are over before their time, so a timer
of the loop for each costs more than it does. Here the loop has one timer, at the earliest time. It stays when that call is
cancelled, and then looks in vain once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class SharedCall:
    """A call to come, as `asyncio.TimerHandle`."""

    def __init__(self, timer: SharedTimer, due: float, callback: Callable[[], object]) -> None:
        self._timer, self._due, self.callback = timer, due, callback

    def when(self) -> float:
        """Return the time, of the loop's clock."""
        return self._due

    def cancel(self) -> None:
        """Do not call. Safe to repeat, and after the call."""
        self._timer.forget(self)


class SharedTimer:
    """The calls to come of one object. For few at a time: each look reads all. For one event loop."""

    def __init__(self) -> None:
        """Set no timer."""
        self._loop = asyncio.get_running_loop()
        # A dictionary keeps their order where times are equal.
        self._calls: dict[SharedCall, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def call_at(self, when: float, callback: Callable[[], object]) -> SharedCall:
        """Call a function at a time, as the loop's method does."""
        call = SharedCall(self, when, callback)
        self._calls[call] = None
        self._set(when)
        return call

    def forget(self, call: SharedCall) -> None:
        """Do not make this call."""
        self._calls.pop(call, None)
        if not self._calls and self._timer is not None:
            self._timer.cancel()  # the loop would hold this object until then
            self._timer = None

    def _set(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        assert self._timer is not None
        # The loop may be early by the resolution of its clock.
        now, self._timer = max(self._timer.when(), self._loop.time()), None
        try:
            for call in sorted((call for call in self._calls if call.when() <= now), key=SharedCall.when):
                if call in self._calls:  # else a call before it has cancelled it
                    del self._calls[call]
                    call.callback()
        finally:
            if self._calls:
                self._set(min(map(SharedCall.when, self._calls)))
