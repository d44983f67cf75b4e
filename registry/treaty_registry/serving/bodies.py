"""Limit the memory that all request bodies hold together.

A body is in memory from the start of its request to the end: while it arrives, which its sender can make slow, and while it
waits for its turn. So its memory is reserved before it is read: the announced length, or the largest length that is ever read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from treaty_client.network.addresses import site_network
from treaty_consensus.codes import RegistryCode
from treaty_consensus.errors import Unavailable

MAX_BODY = 4 * 1024 * 1024 + 1
"""Bytes of one body, larger than the cap of every route."""
MAX_HELD = 256 * 1024 * 1024
"""Bytes of all bodies together. One network (IPv4 /24, IPv6 /48) may hold a quarter of them."""


class BodyRoom:
    """The memory reserved for request bodies. For one event loop."""

    def __init__(self, most: int = MAX_HELD) -> None:
        self._most = most
        self._held = 0
        self._of: Counter[str] = Counter()

    @contextmanager
    def take(self, sender: str | None, size: int) -> Iterator[None]:
        """Reserve `size` bytes for the IP address `sender` during the block. Raises `Unavailable` (`registry.busy`)."""
        network = site_network(sender) if sender else ""
        # A quarter for one network: its slow bodies must not refuse everybody else's.
        if self._held + size > self._most or self._of[network] + size > self._most // 4:
            raise Unavailable(RegistryCode.BUSY, "Too many large requests are under way just now.", fix="Send again in a while.")
        self._held += size
        self._of[network] += size
        try:
            yield
        finally:
            self._held -= size
            self._of[network] -= size
            # Only networks with bodies under way are counted, so the table is bounded too.
            if not self._of[network]:
                del self._of[network]
