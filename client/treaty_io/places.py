"""Share a bounded number of places fairly among askers: workers that start, sessions that open, threads.

An asker is the network of the address that a peer connects from (`network.turns.asking_for`). All work of the local application
is one more asker, "". A free place goes to the waiting asker that holds the fewest places; among equals, to the one that was
served longest ago; then to the oldest request. So an asker with a thousand requests delays another one by one place, not by a
thousand.

With `keeps_some`, an asker holds at most as many places as are free: at most half of 16, the next asker a quarter, and so on. Use
it for places that may be held for long. One place is always allowed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TypeAlias

asker: ContextVar[str] = ContextVar("asker", default="")
"""The asker of the running code, "" for the local application."""
_Request: TypeAlias = tuple[int, asyncio.Future[None]]


class Places:
    """Places for one kind of work. For one event loop."""

    def __init__(self, size: int, *, keeps_some: bool = False) -> None:
        """Start with all places free."""
        self.size = size
        self.taken = 0
        """How many places are held."""
        self._keeps_some = keeps_some
        self._held: dict[str, int] = {}
        self._waiting: dict[str, deque[_Request]] = {}
        self._served: dict[str, int] = {}
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        """How many requests wait for a place."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_unused(self) -> bool:
        """Whether no place is held or waited for."""
        return not self.taken and not self._waiting

    async def take(self, within: float | None = None) -> str:
        """Wait for a place, at most `within` seconds. Return the asker, for `give_back`. Raises TimeoutError."""
        who = asker.get()
        if not self._waiting and self._may_hold(who):
            self._hold(who)
            return who
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = next(self._numbers), granted
        self._waiting.setdefault(who, deque()).append(request)
        self._grant()
        try:
            async with asyncio.timeout(within):
                await granted
        except BaseException:
            # The place may be granted in the moment in which the caller gives up.
            if granted.done() and not granted.cancelled():
                self.give_back(who)
            else:
                self._forget(who, request)
            raise
        return who

    def give_back(self, who: str) -> None:
        """Free a place of this asker."""
        self.taken -= 1
        self._held[who] -= 1
        self._grant()
        self._drop(who)

    @asynccontextmanager
    async def held(self, within: float | None = None) -> AsyncIterator[None]:
        """Hold a place for the block. Raises TimeoutError before it."""
        who = await self.take(within)
        try:
            yield
        finally:
            self.give_back(who)

    def _grant(self) -> None:
        while (who := self._next()) is not None:
            request = self._waiting[who][0]
            # A caller that was cancelled has not run since, so its request is still here.
            if not request[1].cancelled():
                self._hold(who)
                request[1].set_result(None)
            self._forget(who, request)

    def _next(self) -> str | None:
        """Return the asker that gets the next place, or None."""
        return min(filter(self._may_hold, self._waiting), key=self._rank, default=None)

    def _may_hold(self, who: str) -> bool:
        """Return whether an asker may have one more of the free places, if there are any."""
        free = self.size - self.taken
        return free > 0 and self._held.get(who, 0) < (max(1, free) if self._keeps_some else self.size)

    def _hold(self, who: str) -> None:
        self.taken += 1
        self._held[who] = self._held.get(who, 0) + 1
        self._served[who] = next(self._numbers)

    def _rank(self, who: str) -> tuple[int, int, int]:
        return self._held.get(who, 0), self._served.get(who, -1), self._waiting[who][0][0]

    def _forget(self, who: str, request: _Request) -> None:
        requests = self._waiting.get(who, deque())
        with suppress(ValueError):  # it was passed over already
            requests.remove(request)
        if not requests:
            self._waiting.pop(who, None)
            self._drop(who)

    def _drop(self, who: str) -> None:
        """Forget an asker without a place and a request: strangers choose their networks."""
        if not self._held.get(who) and who not in self._waiting:
            self._held.pop(who, None)
            self._served.pop(who, None)
