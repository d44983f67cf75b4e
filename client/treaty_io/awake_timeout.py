"""Limit a wait by the time in which this process ran (`awake_clock`).

`asyncio.timeout` is over when a pause of the process ends, although the reply that it waits for may have arrived long ago.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from .awake_clock import AwakeClock


class AwakeTimeout(AwakeClock):
    """`asyncio.timeout` that counts only the time in which this process ran. Use it as `async with`; it raises TimeoutError."""

    def __init__(self, seconds: float) -> None:
        """Start nothing before the block."""
        super().__init__(seconds)
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        await self._timeout.__aexit__(kind, error, trace)

    def over(self) -> None:
        # One turn of the loop later: a reply that was read in this turn ends the block first.
        self._timeout.reschedule(asyncio.get_running_loop().time())
