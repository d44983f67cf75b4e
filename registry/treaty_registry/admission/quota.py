"""Quotas: token buckets that bound what one principal, one address prefix and everybody together may send.

Their rates are shares of what this machine was measured to take (`fair_queue`), so they are neither beyond it nor far below.
A did:key costs nothing, so a bucket for each would bound nothing. They share one for each prefix, and one for all.

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

from treaty_client.network.addresses import site_network
from treaty_consensus.did import Did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.errors import Unavailable

from ..settings import Quotas, Rate

MAX_BUCKETS = 100_000
MAX_FACTOR = 4
RESERVE = 1 / 4


class Quota:
    """The quotas. One event loop calls it. `clock`: monotonic seconds. `standing`: of a DID, in units of 1 / ONE. `capacity`:
    statements a second that the machine takes, as measured now."""

    def __init__(
        self, quotas: Quotas, clock: Callable[[], float], standing: Callable[[str], int], capacity: Callable[[], float]
    ) -> None:
        self._principals = _Buckets(lambda: quotas.principal.of(capacity()), clock)
        self._prefixes = _Buckets(lambda: quotas.prefix.of(capacity()), clock)
        self._total = _Buckets(lambda: quotas.total.of(capacity()), clock)
        self._strangers_by_prefix = _Buckets(lambda: quotas.strangers_prefix, clock)
        self._strangers = _Buckets(lambda: quotas.strangers, clock)
        self._services = _Buckets(lambda: quotas.services, clock)
        self._uploads = _Buckets(lambda: quotas.uploads, clock)
        self._reserve: Callable[[], float] = lambda: quotas.total.of(capacity()).burst * RESERVE
        self._standing = standing

    def take_from(self, source: str | None, count: int = 1) -> bool:
        """Before anything is parsed: `count` statements came from the IP address `source` (None: from this very process). False
        when the registry is so busy that each of them has to `take_reserved`.

        Raises `Unavailable` (`quota.prefix`, `quota.total`).
        """
        if source is None:
            return True
        if not self._prefixes.take(site_network(source), count):  # first: one network's flood must not use up what is everybody's
            raise _exhausted("quota.prefix", "Your network sends too many statements.")
        if self._total.take("", count, spare=self._reserve()):
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

    def take_of(self, author: Did, source: str | None = None) -> None:
        """After its signature was verified: a statement of `author` came from the IP address `source`. The DIDs of a host share a
        bucket, and so do all did:keys. Raises `Unavailable` (`quota.principal`, `quota.strangers`)."""
        if author.host is None:
            self._take_of_stranger(source)
            return
        factor = min(1 + self._standing(author.text) / ONE, MAX_FACTOR)
        if not self._principals.take(author.host, 1, factor=factor):
            raise _exhausted("quota.principal", f"{author.host} sends too many statements.")

    def take_upload(self, source: str | None, size: int) -> None:
        """So many bytes were uploaded from an IP address. Raises `Unavailable` (`quota.uploads`)."""
        if source is not None and not self._uploads.take(site_network(source), size):
            raise _exhausted("quota.uploads", "Your network has uploaded too much in the last hour.")

    def take_service(self, source: str) -> None:
        """Before a request to the Sigstore services is read: it came from an IP address. Raises `Unavailable` (`quota.prefix`,
        `quota.services`, `quota.total`)."""
        if not self._services.take(site_network(source), 1):
            raise _exhausted("quota.services", "Your network asks for too many certificates, timestamps and entries.")
        if not self.take_from(source):
            raise _exhausted("quota.total", "This registry is busy, and takes only what agents with standing send just now.")

    def _take_of_stranger(self, source: str | None) -> None:
        if source is None:
            return
        if not self._strangers_by_prefix.take(site_network(source), 1):  # first, as in `take_from`
            raise _exhausted("quota.strangers", "Your network sends too many statements signed by did:keys.")
        if not self._strangers.take("", 1):
            raise _exhausted("quota.strangers", "This registry takes no more statements signed by did:keys just now.")


class _Buckets:
    """Buckets of one rate by key, the one that was used last at the end. What is kept of each is how much it lacks: a rate that
    changes is right for all of them at once."""

    def __init__(self, rate: Callable[[], Rate], clock: Callable[[], float]) -> None:
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
        allowed = lacks + count <= self._rate().burst * factor - spare
        self._lacks[key] = (lacks + count if allowed else lacks, now)
        self._lacks.move_to_end(key)
        return allowed

    def left(self, key: str) -> float:
        """How many tokens are in a bucket."""
        return self._rate().burst - self._lacking(key, self._clock())

    def _lacking(self, key: str, now: float, factor: float = 1) -> float:
        lacks, at = self._lacks.get(key, (0.0, now))
        rate = self._rate()
        # No more than the whole bucket: when the rate falls, what was taken at a higher one must not be owed for minutes.
        return max(0.0, min(lacks, rate.burst * factor) - (now - at) * rate.per_second * factor)

    def _make_room(self, now: float) -> bool:
        while self._lacks:
            oldest = next(iter(self._lacks))
            if self._lacking(oldest, now) > 0:
                break
            del self._lacks[oldest]
        return len(self._lacks) < MAX_BUCKETS


def _exhausted(code: str, message: str) -> Unavailable:
    return Unavailable(code, message, fix="Send again in a while, or send fewer at a time.")
