"""How long to wait before trying again: exponential, with full jitter, a bounded number of times."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """`attempts`, the first included. Before the n-th of the others, a random time between 0 and `first` × 2ⁿ⁻¹ seconds, but at
    most `most`: so that those who lost the same server do not all come back at once. The other attempts together have `within`
    seconds, pauses included: an attempt at a host that accepts and says nothing takes much longer than one that is refused.
    Chance and waiting can be replaced."""

    attempts: int = 5
    first: float = 0.2
    most: float = 8.0
    within: float = 20.0
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def until(self) -> float:
        """When the last of the other attempts has to be over, by the event loop's clock, if the first one failed just now."""
        return asyncio.get_running_loop().time() + self.within

    async def pause(self, failures: int) -> bool:
        """Wait after this many failures in a row; at once False, without waiting, when that were all attempts."""
        if failures >= self.attempts:
            return False
        await self.sleep(self.chance() * min(self.most, self.first * 2 ** (failures - 1)))
        return True
