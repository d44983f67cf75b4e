"""The addresses at which the log of a registry is read: the registry, then its mirrors in the order of the policy.

A mirror proves its answers by the same key as the registry, so it can be late or silent, and nothing else. An address that did
not answer is asked last for `REST` seconds, so that each read does not wait for it again. Writes go to the registry alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from treaty_io.base_url import parse_base_url

REST = 30.0
"""Seconds for which an address that did not answer is asked last."""
PATIENCE = 5.0
"""Seconds to wait for an address while another one is left. The last one has the time of every exchange."""


class Sources:
    """The addresses of one log. For one event loop; share one object among the clients of an agent.

    Raises `Malformed` (`registry.url`) if one is not the URL of a registry.
    """

    def __init__(self, base_url: str, mirrors: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = parse_base_url(base_url)
        self._all = list(dict.fromkeys([self.registry, *map(parse_base_url, mirrors)]))
        self._clock = clock
        self._rests: dict[str, float] = {}  # address → the end of its rest

    @property
    def has_mirrors(self) -> bool:
        """Return whether there is another address than the registry's."""
        return len(self._all) > 1

    def order(self) -> list[str]:
        """Return all addresses: first those that do not rest."""
        now = self._clock()
        # Sorting is stable, so the order of the policy stays within both parts.
        return sorted(self._all, key=lambda url: self._rests.get(url, now) > now)

    def rest(self, url: str) -> bool:
        """Ask an address last from now on; return whether another one does not rest."""
        now = self._clock()
        self._rests[url] = now + REST
        return any(self._rests.get(each, now) <= now for each in self._all)

    def answered(self, url: str) -> None:
        """End the rest of an address."""
        self._rests.pop(url, None)
