"""Quotas: token buckets that bound what one principal, one address prefix and everybody together may send.

Standing (`treaty_consensus.election.credit`) buys two things here. A sender's own bucket is up to `MAX_FACTOR` times as large:
1 + its standing in full credits. And the last `RESERVE` of everybody's bucket is for those with standing: when the registry is
busy, they go on, and the others are sent away before their signatures are looked at, without using any of it up. (Who sends is
believed at that point: a forger uses up some of the reserve until its signature fails; its network's quota bounds how much.)

They live in this process's memory, so with several processes each allows its share. A bucket that is full again is forgotten;
when `MAX_BUCKETS` are waiting to fill up, newcomers are refused: memory is bounded too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from treaty_client.network.addresses import network_of
from treaty_consensus.did import Did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.errors import Unavailable

from ..settings import Quotas, Rate

MAX_BUCKETS = 100_000
MAX_FACTOR = 4
RESERVE = 1 / 4


class Quota:
    """The three quotas. One event loop calls it. `clock`: monotonic seconds. `standing`: of a DID, in units of 1 / ONE."""

    def __init__(self, quotas: Quotas, clock: Callable[[], float], standing: Callable[[str], int]) -> None:
        self._principals = _Buckets(quotas.principal, clock)
        self._prefixes = _Buckets(quotas.prefix, clock)
        self._total = _Buckets(quotas.total, clock)
        self._reserve = quotas.total.burst * RESERVE
        self._standing = standing

    def take_from(self, source: str | None, count: int = 1) -> bool:
        """Before anything is parsed: `count` statements came from the IP address `source` (None: from this very process). False
        when the registry is so busy that each of them has to `take_reserved`.

        Raises `Unavailable` (`quota.prefix`, `quota.total`).
        """
        if source is None:
            return True
        if not self._prefixes.take(network_of(source), count):  # first: one network's flood must not use up what is everybody's
            raise _exhausted("quota.prefix", "Your network sends too many statements.")
        if self._total.take("", count, spare=self._reserve):
            return True
        if self._total.left("") < 1:
            raise _exhausted("quota.total", "This registry takes no more statements just now.")
        return False

    def take_reserved(self, *authors: str) -> None:
        """While the registry is busy, before a signature is verified: a statement came that says it is by these DIDs. Raises
        `Unavailable` (`quota.total`) when none of them has standing, or the reserve is used up."""
        if not any(map(self._standing, authors)):
            raise _exhausted("quota.total", "This registry is busy, and takes only what agents with standing send just now.")
        if not self._total.take("", 1):
            raise _exhausted("quota.total", "This registry takes no more statements just now.")

    def take_of(self, author: Did) -> None:
        """After its signature was verified: a statement of `author` came. The DIDs of a host share a bucket. Raises `Unavailable`
        (`quota.principal`)."""
        owner = author.host or author.text
        factor = min(1 + self._standing(author.text) / ONE, MAX_FACTOR)
        if not self._principals.take(owner, 1, factor=factor):
            raise _exhausted("quota.principal", f"{owner} sends too many statements.")


class _Buckets:
    """Buckets of one rate by key, the one that was used last at the end. What is kept of each is how much it lacks."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._lacks: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key → tokens, and when it lacked so many

    def take(self, key: str, count: int, *, factor: float = 1, spare: float = 0) -> bool:
        """Take tokens out of a bucket that is `factor` times as large as the others, and fills up as much faster; the last
        `spare` stay in it."""
        now = self._clock()
        if key not in self._lacks and not self._make_room(now):
            return False
        lacks = self._lacking(key, now, factor)
        allowed = lacks + count <= self._rate.burst * factor - spare
        self._lacks[key] = (lacks + count if allowed else lacks, now)
        self._lacks.move_to_end(key)
        return allowed

    def left(self, key: str) -> float:
        """How many tokens are in a bucket."""
        return self._rate.burst - self._lacking(key, self._clock())

    def _lacking(self, key: str, now: float, factor: float = 1) -> float:
        lacks, at = self._lacks.get(key, (0.0, now))
        return max(0.0, lacks - (now - at) * self._rate.per_second * factor)

    def _make_room(self, now: float) -> bool:
        while self._lacks:
            oldest = next(iter(self._lacks))
            if self._lacking(oldest, now) > 0:
                break
            del self._lacks[oldest]
        return len(self._lacks) < MAX_BUCKETS


def _exhausted(code: str, message: str) -> Unavailable:
    return Unavailable(code, message, fix="Send again in a while, or send fewer at a time.")
