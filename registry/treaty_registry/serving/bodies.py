"""Room for the bodies of requests: what all of them together may hold in memory.

A body is held from the beginning of its request to the end: while it arrives, which its sender may draw out, and while it waits
for its turn. So room for it is taken before any of it is read: as much as its head announces, or the most that is ever read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from treaty_client.network.addresses import site_network
from treaty_consensus.errors import Unavailable

MAX_BODY = 4 * 1024 * 1024 + 1
"""Beyond every cap that a route has of its own."""
MAX_HELD = 256 * 1024 * 1024
"""Bytes of all bodies together; a quarter of it of one network (IPv4 /24, IPv6 /48)."""


class BodyRoom:
    """For one event loop."""

    def __init__(self, most: int = MAX_HELD) -> None:
        self._most = most
        self._held = 0
        self._of: Counter[str] = Counter()

    @contextmanager
    def take(self, sender: str | None, size: int) -> Iterator[None]:
        """Hold room for `size` bytes from the IP address `sender` for the block. Raises `Unavailable` (`registry.busy`)."""
        network = site_network(sender) if sender else ""
        if self._held + size > self._most or self._of[network] + size > self._most // 4:
            raise Unavailable("registry.busy", "Too many large requests are under way just now.", fix="Send again in a while.")
        self._held += size
        self._of[network] += size
        try:
            yield
        finally:
            self._held -= size
            self._of[network] -= size
            if not self._of[network]:
                del self._of[network]
