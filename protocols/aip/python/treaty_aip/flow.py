"""The messages of one call that wait for their way out."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

MAX_WAITING = 16
"""Messages that wait before the sender of further ones is held up."""
MAX_WAITING_BYTES = 16 * 1024 * 1024
"""Bytes that wait before the call is given up: a gateway cannot hold up every sender, such as one of updates."""


class Ended(NamedTuple):
    """The end of a call. `code`, `text`: of its status; "" for the end of requests."""

    code: str
    text: str


FULL = Ended("RESOURCE_EXHAUSTED", "Too many bytes wait for this call.")

MAX_WAITING_TOTAL = 64 * 1024 * 1024
"""Bytes that wait for all calls of one server. A peer may open many calls and read none of them."""


class Waiting:
    """The bytes that wait for the calls of one server."""

    def __init__(self) -> None:
        self._flows: set[Flow] = set()
        self.total = 0
        """Kept by the flows: to add them all up for each message would cost more with each call."""

    def add(self, flow: Flow) -> None:
        """Count a flow from now on."""
        self._flows.add(flow)
        flow.waiting = self
        self.total += flow.size

    def discard(self, flow: Flow) -> None:
        """Count a flow no more."""
        if flow.waiting is self:
            self._flows.discard(flow)
            flow.waiting = None
            self.total -= flow.size

    def enforce(self) -> None:
        """End the calls for which most bytes wait, until the others fit. A call that is read loses nothing."""
        while self._flows and self.total > MAX_WAITING_TOTAL:
            max(self._flows, key=lambda flow: flow.size).replace(FULL)


class Flow:
    """A queue with bounds. For one event loop."""

    def __init__(self) -> None:
        self._items: deque[bytes | Ended] = deque()
        self._bytes = 0
        self._filled, self._emptied = asyncio.Event(), asyncio.Event()
        self._emptied.set()
        self.over = False
        self.waiting: Waiting | None = None

    @property
    def size(self) -> int:
        """Return the bytes that wait."""
        return self._bytes

    def _count(self, added: int) -> None:
        self._bytes += added
        if self.waiting is not None:
            self.waiting.total += added

    def put(self, item: bytes | Ended) -> bool:
        """Add a message or the end. Nothing follows the end. Return False if the bound is reached; then the call has to end."""
        if self.over:
            return True
        self.over = isinstance(item, Ended)
        self._items.append(item)
        self._count(len(item) if isinstance(item, bytes) else 0)
        self._filled.set()
        if len(self._items) > MAX_WAITING:
            self._emptied.clear()
        return self._bytes <= MAX_WAITING_BYTES

    def replace(self, item: Ended) -> None:
        """Drop everything that waits, and end."""
        self._items.clear()
        self._count(-self._bytes)
        self.over = False
        self.put(item)
        self._emptied.set()

    async def get(self) -> bytes | Ended:
        """Wait for the next message, or the end."""
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        item = self._items.popleft()
        self._count(-len(item) if isinstance(item, bytes) else 0)
        if len(self._items) <= MAX_WAITING:
            self._emptied.set()
        return item

    async def room(self) -> None:
        """Wait until few messages wait."""
        await self._emptied.wait()

    def close(self) -> None:
        """Let waiting senders go on: the messages go nowhere."""
        self.over = True
        self._items.clear()
        self._count(-self._bytes)
        self._emptied.set()
