"""Representations kept in memory, so that a reader who asks for what another asked before costs no more than sending it.

Each is kept under its target (`views`), with the *subjects* that it follows from (`log.changes`): a protocol's URI, a DID, a
topic, or what stands for much. `renew` says which subjects have changed, and what follows from one of them is forgotten. What has
no subject never changes.

Memory is bounded in bytes. What was asked for once is on probation, a quarter of the room, and is forgotten first. What is asked
for again moves to the rest, where it makes way only for what was asked for twice and later. So a reader who walks through
everything, or asks for many spellings of one thing, pushes nothing out that others use. Bodies of more than `LARGE` bytes have a
room of their own.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..log.checkpoints import Head
from .representation import Representation

SMALL_BYTES = 48 * 1024 * 1024
LARGE_BYTES = 64 * 1024 * 1024
LARGE = 64 * 1024
_OVERHEAD = 1_024  # what an entry takes beside its body: key, headers, events
_PER_SUBJECT = 256


class _Entry(NamedTuple):
    view: Representation
    subjects: frozenset[str]
    cost: int


class Shelf:
    """A map from keys to representations that takes at most about `capacity` bytes, by the rule of the module's docstring."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._probation: OrderedDict[str, _Entry] = OrderedDict()
        self._proven: OrderedDict[str, _Entry] = OrderedDict()
        self._on_probation = self._proved = 0  # the costs of the two
        self._keys: defaultdict[str, set[str]] = defaultdict(set)  # by subject

    def get(self, key: str) -> Representation | None:
        """What is kept under `key`."""
        entry = self._proven.get(key)
        if entry is not None:
            self._proven.move_to_end(key)
            return entry.view
        entry = self._probation.pop(key, None)
        if entry is None:
            return None
        self._proven[key] = entry
        self._on_probation -= entry.cost
        self._proved += entry.cost
        while self._proved > self._capacity * 3 // 4:
            self._forget(next(iter(self._proven)))
        return entry.view

    def put(self, key: str, view: Representation, subjects: Iterable[str] = ()) -> None:
        """Keep `view`, unless it alone would take half of the room for what is on probation."""
        about = frozenset(subjects)
        cost = len(view.body) + _OVERHEAD + _PER_SUBJECT * len(about)
        if cost > self._capacity // 8:
            return
        self._forget(key)
        self._probation[key] = _Entry(view, about, cost)
        self._on_probation += cost
        for subject in about:
            self._keys[subject].add(key)
        while self._on_probation > self._capacity // 4:
            self._forget(next(iter(self._probation)))

    def drop(self, subjects: Iterable[str]) -> None:
        """Forget what follows from one of these subjects."""
        for subject in subjects:
            for key in self._keys.pop(subject, ()):
                self._forget(key)

    def _forget(self, key: str) -> None:
        if (entry := self._probation.pop(key, None)) is not None:
            self._on_probation -= entry.cost
        elif (entry := self._proven.pop(key, None)) is not None:
            self._proved -= entry.cost
        else:
            return
        for subject in entry.subjects:
            keys = self._keys.get(subject)
            if keys is not None:  # `drop` took the set away
                keys.discard(key)
                if not keys:
                    del self._keys[subject]


class Memory:
    """What this process remembers. Used from one event loop."""

    def __init__(self, small: int = SMALL_BYTES, large: int = LARGE_BYTES) -> None:
        self._capacities = small, large
        self._small, self._large = Shelf(small), Shelf(large)
        self.head: Head | None = None
        """The head that everything kept is true at; only `renew` sets it."""

    def get(self, key: str) -> Representation | None:
        """What is remembered under `key`."""
        return self._small.get(key) or self._large.get(key)

    def keep(self, key: str, view: Representation, subjects: Iterable[str] = ()) -> None:
        """Remember `view`, which follows from `subjects` and is true at `head`."""
        shelf = self._large if len(view.body) > LARGE else self._small
        shelf.put(key, view, subjects)

    def renew(self, head: Head, changed: Iterable[str] | None) -> None:
        """`head` is the newest one, and these subjects have changed since the one before; None: anything may have."""
        if changed is None:
            self._small, self._large = map(Shelf, self._capacities)
        else:
            subjects = [*changed]
            self._small.drop(subjects)
            self._large.drop(subjects)
        self.head = head
