"""Count down the time in which this process runs.

A process is stopped by SIGSTOP, by the pause of a virtual machine, by a limit of its processor time, or by the sleep of a laptop.
No clock of the system knows that. So time is counted in looks: each counts as the seconds for which it was planned, however late
it comes. A pause costs at most one look.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

_LOOKS = 4
"""Looks of one wait. Most waits are over before the first of them, so more would cost little; a pause counts as a quarter."""


class AwakeClock:
    """A time that runs down from `start` to `stop`, or in a `with` block. `left`: the seconds that are left at the next look."""

    def __init__(self, seconds: float) -> None:
        """Start nothing yet."""
        self.left = seconds
        self._pause = seconds / _LOOKS
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def remaining(self) -> float:
        """The seconds that are left now."""
        to_look = self._timer.when() - asyncio.get_running_loop().time() if self._timer is not None else 0.0
        return self.left + max(to_look, 0.0)

    def start(self) -> None:
        """Begin, or look."""
        pause = self.next_look()
        if pause > 0:
            self.left -= pause
            self._timer = asyncio.get_running_loop().call_later(pause, self.start)
        else:
            self.over()

    def stop(self) -> None:
        """Look no more. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()

    def next_look(self) -> float:
        """Return the seconds until the next look; 0 when the time is over."""
        return min(self._pause, self.left)

    def over(self) -> None:
        """Called when the time is over."""
