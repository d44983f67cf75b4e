"""Cache representations, so that a repeated request costs only the sending.

Each representation is stored under its target (`views`), with the *subjects* that it depends on (`log.changes`): a protocol's
URI, a DID, a topic, or a general subject. `renew` gets the changed subjects, and drops the representations that depend on them.
A representation without subjects never changes.

The cache is bounded in bytes and has two segments. A new entry goes to the probation segment, a quarter of the space, whose
entries are evicted first. An entry that is requested again moves to the other segment, where only entries that were also
requested again evict it. So a client that requests everything once, or many spellings of one query, evicts nothing that others
use. Bodies of more than `LARGE` bytes have a cache of their own.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..log.checkpoints import Head
from .representation import Representation

SMALL_BYTES = 48 * 1024 * 1024
LARGE_BYTES = 64 * 1024 * 1024
LARGE = 64 * 1024  # bytes of a body; larger ones must not evict many small ones
_OVERHEAD = 1_024  # bytes of an entry besides its body: key, headers, events
_PER_SUBJECT = 256  # bytes of an entry for each of its subjects


class _Entry(NamedTuple):
    view: Representation
    subjects: frozenset[str]
    cost: int


class LruCache:
    """A segmented least-recently-used cache of about `capacity` bytes at most; see the module."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._probation: OrderedDict[str, _Entry] = OrderedDict()
        self._proven: OrderedDict[str, _Entry] = OrderedDict()
        self._on_probation = self._proved = 0  # bytes in each segment
        self._keys: defaultdict[str, set[str]] = defaultdict(set)  # subject → keys of its entries

    @property
    def used(self) -> int:
        """Return the bytes of all entries."""
        return self._on_probation + self._proved

    def get(self, key: str) -> Representation | None:
        """Return the entry under `key`, or None. An entry on probation moves to the other segment."""
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
        """Store `view`, unless it alone would take half of the probation segment."""
        about = frozenset(subjects)
        cost = len(view.body) + _OVERHEAD + _PER_SUBJECT * len(about)
        # One answer must not empty the probation segment.
        if cost > self._capacity // 8:
            return
        # An older answer may be in either segment.
        self._forget(key)
        self._probation[key] = _Entry(view, about, cost)
        self._on_probation += cost
        for subject in about:
            self._keys[subject].add(key)
        # Evicted here first, so answers that were asked for once do not evict those in use.
        while self._on_probation > self._capacity // 4:
            self._forget(next(iter(self._probation)))

    def drop(self, subjects: Iterable[str]) -> None:
        """Drop all entries that depend on one of these subjects."""
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
            if keys is not None:  # None while `drop` runs, which removed the set
                keys.discard(key)
                if not keys:
                    del self._keys[subject]


class ResponseCache:
    """The cached representations of this process. Used from one event loop."""

    def __init__(self, small: int = SMALL_BYTES, large: int = LARGE_BYTES) -> None:
        self._capacities = small, large
        self._small, self._large = LruCache(small), LruCache(large)
        self.head: Head | None = None
        """The head at which all entries are valid. Only `renew` sets it."""
        self.hits = self.misses = 0
        """Look-ups that found an answer, and the others. A request looks up once for each form of its target."""

    def get(self, key: str) -> Representation | None:
        """Return the representation under `key`, or None."""
        response = self._small.get(key) or self._large.get(key)
        if response is None:
            self.misses += 1
        else:
            self.hits += 1
        return response

    def ready(self, key: str) -> Representation | None:
        """Return the same for a request that calls `get` when it finds none, which counts it."""
        response = self._small.get(key) or self._large.get(key)
        if response is not None:
            self.hits += 1
        return response

    @property
    def used(self) -> dict[str, int]:
        """Return the bytes of each of the two caches."""
        return {"small": self._small.used, "large": self._large.used}

    def keep(self, key: str, view: Representation, subjects: Iterable[str] = ()) -> None:
        """Store `view`, which depends on `subjects` and is valid at `head`."""
        cache = self._large if len(view.body) > LARGE else self._small
        cache.put(key, view, subjects)

    def renew(self, head: Head, changed: Iterable[str] | None) -> None:
        """Drop the entries that depend on `changed`, and set `head`.

        `changed`: the subjects that changed since the previous head. None: any subject may have changed, so everything is
        dropped.
        """
        # New caches are quicker than dropping each entry, and leave no subject behind.
        if changed is None:
            self._small, self._large = map(LruCache, self._capacities)
        else:
            subjects = [*changed]
            self._small.drop(subjects)
            self._large.drop(subjects)
        self.head = head
