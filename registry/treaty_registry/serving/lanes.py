"""Lanes: how many answers of one kind are made at once, so that the costly ones leave room for all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from treaty_consensus.errors import Unavailable


class Lane:
    """Lets `width` tasks in at once, in their order, and at most `waiting` more wait. Used from one event loop."""

    def __init__(self, width: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(width)
        self._places = width + waiting
        self._taken = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One's turn, for the length of the block. Raises `Unavailable` (`registry.busy`) at once when too many wait already: a
        longer line would only make every one in it later."""
        if self._taken >= self._places:
            raise Unavailable("registry.busy", "Too many such answers are being made just now.", fix="Ask again in a second.")
        self._taken += 1
        try:
            async with self._free:
                yield
        finally:
            self._taken -= 1
