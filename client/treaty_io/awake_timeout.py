"""Limit a wait by the time in which this process ran.

A process is stopped by SIGSTOP, by the pause of a virtual machine, by a limit of its processor time, or by the sleep of a laptop.
`asyncio.timeout` is over when such a pause ends, although the reply that it waits for may have arrived long ago. So time is
counted in looks: each counts as the seconds for which it was planned, however late it comes. A pause costs at most one look.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

_LOOKS = 4
"""Looks of one wait. Most waits are over before the first of them, so more would cost little; a pause counts as a quarter."""


class AwakeTimeout:
    """`asyncio.timeout` that counts only the time in which this process ran. Use it as `async with`; it raises TimeoutError.

    `left`: the seconds that are left at the next look.
    """

    def __init__(self, seconds: float) -> None:
        """Start nothing before the block."""
        self.left = seconds
        self._pause = seconds / _LOOKS
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._plan()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def next_look(self) -> float:
        """Return the seconds until the next look; 0 when the time is over."""
        return min(self._pause, self.left)

    def _plan(self) -> None:
        pause = self.next_look()
        if pause > 0:
            self.left -= pause
            self._timer = asyncio.get_running_loop().call_later(pause, self._plan)
        else:
            # One turn of the loop later: a reply that was read in this turn ends the block first.
            self._timeout.reschedule(asyncio.get_running_loop().time())
