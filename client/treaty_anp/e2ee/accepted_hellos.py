"""Remember the Hellos that an agent accepted as a destination, so that none opens two sessions.

A destination has to answer a sourceHello before the peer's `finished` proves that the peer has the keys. So whoever recorded a
Hello could open a session in its sender's name with it, without being able to say a word there. Each Hello is fresh for
`hello.FRESHNESS` seconds; for as long its sender and its random number are remembered.

Beyond `capacity` Hellos the oldest is forgotten, and no Hello as old is accepted any more. So a flood of Hellos shortens the time
for which others are fresh, and keeps no fresh one out.

The memory is that of a process. In the minutes after a restart a Hello of the process before can be used once more.
"""

from __future__ import annotations

import heapq
from typing import Final

from treaty_consensus.errors import Refused, Unauthorized
from treaty_io.codes import SecureCode

from .hello import FRESHNESS

# A hundred sessions a second for the time that a Hello is fresh, in about 10 MiB.
CAPACITY: Final = 65_536


class AcceptedHellos:
    """The Hellos that one agent accepted. For one event loop."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Start empty. `capacity`: the most Hellos that are remembered."""
        self._capacity = capacity
        self._floor = 0.0
        self._known: set[tuple[str, str]] = set()
        # A heap by time: clocks of senders differ, so Hellos do not arrive in the order of their times.
        self._oldest: list[tuple[float, tuple[str, str]]] = []

    def accept(self, did: str, random: str, at: float, now: float) -> None:
        """Accept a verified sourceHello. `random`: its random number. `at`, `now`: Unix seconds.

        Raises `Unauthorized` (`secure.replayed`) if it was accepted before, and `Refused` (`secure.stale`) if it is not newer
        than one that was forgotten. Then nothing changes.
        """
        while self._oldest and self._oldest[0][0] < now - FRESHNESS:
            self._forget()
        if at <= self._floor:
            raise Refused(SecureCode.STALE, "This Hello is older than this agent's memory of Hellos.", fix="Make a new one.")
        if (did, random) in self._known:
            raise Unauthorized(SecureCode.REPLAYED, "This Hello was used before.", fix="Make a new one for each session.")
        self._known.add((did, random))
        heapq.heappush(self._oldest, (at, (did, random)))
        if len(self._known) > self._capacity:
            self._forget()

    def _forget(self) -> None:
        accepted_at, hello = heapq.heappop(self._oldest)
        self._known.remove(hello)
        self._floor = max(self._floor, accepted_at)
