"""Share the memory for foreign bytes, such as bodies that arrive slowly and answers that are read slowly, between networks."""

from __future__ import annotations

from collections import Counter


class ByteRoom:
    """The bytes that are held for all peers together. For one event loop."""

    def __init__(self, most: int) -> None:
        """`most`: bytes. One network may hold a quarter of them: its slow peers must not refuse everybody else's."""
        self._most, self._of, self.held = most, Counter[str](), 0

    def take(self, network: str, size: int) -> bool:
        """Hold bytes for a network. Return False, and hold nothing, if there is no room."""
        if self.held + size > self._most or self._of[network] + size > self._most // 4:
            return False
        self.held += size
        self._of[network] += size
        return True

    def give_back(self, network: str, size: int) -> None:
        """Hold these bytes no more."""
        self.held -= size
        self._of[network] -= size
        # Only networks with bytes are counted: strangers choose their networks.
        if not self._of[network]:
            del self._of[network]
