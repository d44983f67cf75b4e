"""Limit the memory that all request bodies hold together.

A body is in memory from the start of its request to the end: while it arrives, which its sender can make slow, and while it
waits for its turn. So its memory is reserved before it is read: the announced length, or the largest length that is ever read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from treaty_consensus.codes import RegistryCode
from treaty_consensus.errors import Unavailable
from treaty_io.admission.byte_room import ByteRoom
from treaty_io.network.addresses import site_network

MAX_BODY = 4 * 1024 * 1024 + 1
"""Bytes of one body, larger than the cap of every route."""
MAX_HELD = 256 * 1024 * 1024
"""Bytes of all bodies together. One network (IPv4 /24, IPv6 /48) may hold a quarter of them."""


class BodyRoom:
    """The memory reserved for request bodies. For one event loop."""

    def __init__(self, most: int = MAX_HELD) -> None:
        self._room = ByteRoom(most)

    @contextmanager
    def take(self, sender: str | None, size: int) -> Iterator[None]:
        """Reserve `size` bytes for the IP address `sender` during the block. Raises `Unavailable` (`registry.busy`)."""
        network = site_network(sender) if sender else ""
        if not self._room.take(network, size):
            raise Unavailable(RegistryCode.BUSY, "Too many large requests are under way just now.", fix="Send again in a while.")
        try:
            yield
        finally:
            self._room.give_back(network, size)
