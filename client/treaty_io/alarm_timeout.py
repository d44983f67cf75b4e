"""Limit a wait by a due time, as an `Alarm` rings.

After a pause of this process the answer that a caller waits for may lie in a socket, while its time has passed.
`asyncio.timeout_at` would end the wait before the answer is read.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from .alarm import Alarm
from .shared_timer import SharedTimer


class AlarmTimeout:
    """`asyncio.timeout_at` that is late after a pause of this process. Use it as `async with`; it raises TimeoutError."""

    def __init__(self, due: float, timer: SharedTimer | None = None) -> None:
        """`due`: a time of the loop's clock, or `math.inf`. `timer`: as in `Alarm`."""
        self._due = due
        self._timeout = asyncio.timeout(None)
        self._alarm = Alarm(self._expire, timer)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._alarm.set(self._due)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._alarm.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _expire(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time())
