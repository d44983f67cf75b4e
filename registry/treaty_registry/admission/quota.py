"""Quotas: token buckets that bound what one principal, one address prefix and everybody together may send.

They live in this process's memory, so with several processes each allows its share. A bucket that is full again is forgotten;
when
`MAX_BUCKETS` are waiting to fill up, newcomers are refused: memory is bounded too.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

from treaty_consensus.errors import Unavailable

from ..settings import Quotas, Rate

MAX_BUCKETS = 100_000


class Quota:
    """The three quotas. One event loop calls it. `clock`: monotonic seconds."""

    def __init__(self, quotas: Quotas, clock: Callable[[], float]) -> None:
        self._principals = _Buckets(quotas.principal, clock)
        self._prefixes = _Buckets(quotas.prefix, clock)
        self._total = _Buckets(quotas.total, clock)

    def take_from(self, source: str | None, count: int = 1) -> None:
        """Before anything is parsed: `count` statements came from the IP address `source` (None: from this very process).

        Raises `Unavailable` (`quota.prefix`, `quota.total`).
        """
        if source is None:
            return
        if not self._prefixes.take(_prefix(source), count):  # first: one network's flood must not use up what is everybody's
            raise _exhausted("quota.prefix", "Your network sends too many statements.")
        if not self._total.take("", count):
            raise _exhausted("quota.total", "This registry takes no more statements just now.")

    def take_of(self, principal: str) -> None:
        """After its signature was verified: a statement of `principal` came. Raises `Unavailable("quota.principal")`."""
        if not self._principals.take(principal, 1):
            raise _exhausted("quota.principal", f"{principal} sends too many statements.")


class _Buckets:
    """Buckets of one rate by key, the one that was used last at the end."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key → tokens, and when there were so many

    def take(self, key: str, count: int) -> bool:
        now = self._clock()
        if key not in self._levels and not self._make_room(now):
            return False
        tokens = self._tokens(key, now)
        allowed = tokens >= count
        self._levels[key] = (tokens - count if allowed else tokens, now)
        self._levels.move_to_end(key)
        return allowed

    def _tokens(self, key: str, now: float) -> float:
        tokens, at = self._levels.get(key, (self._rate.burst, now))
        return min(self._rate.burst, tokens + (now - at) * self._rate.per_second)

    def _make_room(self, now: float) -> bool:
        while self._levels:
            oldest = next(iter(self._levels))
            if self._tokens(oldest, now) < self._rate.burst:
                break
            del self._levels[oldest]
        return len(self._levels) < MAX_BUCKETS


@lru_cache(maxsize=4096)
def _prefix(source: str) -> str:
    address = ipaddress.ip_address(source)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


def _exhausted(code: str, message: str) -> Unavailable:
    return Unavailable(code, message, fix="Send again in a while, or send fewer at a time.")
