"""Representations kept in memory, so that a reader who asks for what another asked before costs no more than sending it.

Two kinds, each with its own share of memory:

- *lasting* ones, of what never changes: blobs, documents, full tiles. A withdrawal of the blob they are drops them.
- *current* ones, of what follows from the log: records, bundles, pages, the checkpoint. They hold for exactly one head. When this
  process sees another one they are all forgotten, whoever wrote it: so any number of API nodes agree with no word between them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..registry import Head
from .representation import Representation

_OVERHEAD = 1_024  # what an entry takes beside its body: key, headers, events
LASTING_BYTES = 64 * 1024 * 1024
CURRENT_BYTES = 32 * 1024 * 1024


class Shelf:
    """A map from keys to representations that takes at most about `capacity` bytes.

    Two generations: what is asked for moves to the young one; when that is full, it becomes the old one and what was old is
    forgotten. So what is used stays, at the price of one dictionary look-up.
    """

    def __init__(self, capacity: int) -> None:
        self._limit = capacity // 2
        self._used = 0
        self._young: dict[str, Representation] = {}
        self._old: dict[str, Representation] = {}

    def get(self, key: str) -> Representation | None:
        """What is kept under `key`."""
        entry = self._young.get(key)
        if entry is None and key in self._old:
            entry = self._old.pop(key)
            self.put(key, entry)
        return entry

    def put(self, key: str, entry: Representation) -> None:
        """Keep `entry`, unless it alone would take a quarter of a generation."""
        cost = len(entry.body) + _OVERHEAD
        if cost > self._limit // 4:
            return
        if self._used + cost > self._limit:
            self._old, self._young, self._used = self._young, {}, 0
        self._young[key] = entry
        self._used += cost

    def drop_blobs(self, digests: Iterable[str]) -> None:
        """Forget every representation of these blobs."""
        withdrawn = set(digests)
        for generation in (self._young, self._old):
            for key in [key for key, entry in generation.items() if entry.digest in withdrawn]:
                del generation[key]

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old, self._used = {}, {}, 0


class Memory:
    """What this process remembers. Used from one event loop."""

    def __init__(self, lasting: int = LASTING_BYTES, current: int = CURRENT_BYTES) -> None:
        self._lasting = Shelf(lasting)
        self._current = Shelf(current)
        self.head: Head | None = None
        """The head that the current representations are of; only `renew` sets it."""

    def get(self, key: str) -> Representation | None:
        """What is remembered under `key`, lasting or of the head last given to `renew`."""
        return self._current.get(key) or self._lasting.get(key)

    def keep(self, head: Head, key: str, entry: Representation) -> None:
        """Remember what never changes. `head`: the newest one before its bytes were read; if another one came since, a withdrawal
        may have come with it, and nothing is kept."""
        if head is self.head:
            self._lasting.put(key, entry)

    def keep_for(self, head: Head, key: str, entry: Representation) -> None:
        """Remember what was made at `head`, unless that is not the newest one any more."""
        if head is self.head:
            self._current.put(key, entry)

    def renew(self, head: Head, withdrawn: Iterable[str]) -> None:
        """Another head is the newest: forget what held for the last one, and the blobs withdrawn since."""
        self._current.clear()
        self._lasting.drop_blobs(withdrawn)
        self.head = head
