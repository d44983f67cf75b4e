"""Turns at something that few can do at once: sources take turns, so that one with much to do does not keep out the others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from treaty_consensus.errors import Unavailable

MAX_WAITING = 2_048
"""Those who wait hold little, but each holds a request open."""
MAX_WAITING_OF_ONE = 512
"""Two full batches of statements."""


class Turns:
    """At most `width` at once. Those who wait stand in a line per source, and the lines are served in a circle. For one event
    loop."""

    def __init__(self, width: int) -> None:
        self._free = width
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._waiting = 0

    async def take(self, source: str) -> None:
        """Wait for a turn; when this returns, it must be given back. Raises `Unavailable` (`quota.contents`) when too many
        wait."""
        if self._free:
            self._free -= 1
            return
        if self._waiting >= MAX_WAITING or len(self._lines.get(source, ())) >= MAX_WAITING_OF_ONE:
            raise Unavailable("quota.contents", "Too much waits to be checked already.", fix="Send it again in a few seconds.")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(source, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(source, turn)
            else:  # it got the turn in the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """End a turn; the next source's begins."""
        if not self._lines:
            self._free += 1
            return
        source, line = self._lines.popitem(last=False)
        line.popleft().set_result(None)
        self._waiting -= 1
        if line:
            self._lines[source] = line  # behind the others

    def _leave(self, source: str, turn: asyncio.Future[None]) -> None:
        self._lines[source].remove(turn)
        self._waiting -= 1
        if not self._lines[source]:
            del self._lines[source]
