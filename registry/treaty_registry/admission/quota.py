"""Limit with token buckets how much one principal, one address prefix, and all senders together may send.

The rates are shares of the measured capacity of this machine (`fair_queue`). A did:key costs nothing to make, so a bucket for
each did:key would limit nothing. All did:keys of one prefix share a bucket, and all did:keys together share another.

The operator can multiply the quota of a DID or of a domain (`senders`). A did:key with a quota of its own has its own bucket.

Standing (`treaty_consensus.election.credit`) has two effects:

- A sender's own bucket grows with its standing: by the factor 1 + standing in full credits, at most `MAX_FACTOR`.
- The last quarter (`RESERVE`) of the common bucket is kept for senders with standing. When the registry is busy, other senders
  are refused before their signatures are verified, and use up none of the reserve.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable

from treaty_consensus.did import Did
from treaty_consensus.election.arithmetic import ONE
from treaty_consensus.errors import Unavailable
from treaty_io.network.addresses import site_network

from ..codes import QuotaCode
from ..settings import Quotas, Rate

# Senders choose the keys of the buckets, so memory needs a bound. A full bucket is forgotten. When this many buckets
# are not full, new senders are refused. Each process of several has its own buckets and grants its own share.
MAX_BUCKETS = 100_000
# A principal's quota is a quarter of the capacity by default, so the highest standing allows all of it.
MAX_FACTOR = 4
RESERVE = 1 / 4


class Quota:
    """All quotas of a process. For one event loop.

    `clock`: monotonic seconds. `standing`: of a DID, in units of 1 / ONE. `capacity`: statements a second that the machine
    takes, as measured now. `special`: the factor that the operator set for an author, or None.
    """

    def __init__(
        self,
        quotas: Quotas,
        clock: Callable[[], float],
        standing: Callable[[str], int],
        capacity: Callable[[], float],
        special: Callable[[Did], float | None] = lambda _: None,
    ) -> None:
        self._principals = _Buckets(lambda: quotas.principal.of(capacity()), clock)
        self._prefixes = _Buckets(lambda: quotas.prefix.of(capacity()), clock)
        self._total = _Buckets(lambda: quotas.total.of(capacity()), clock)
        self._strangers_by_prefix = _Buckets(lambda: quotas.strangers_prefix, clock)
        self._known_keys = _Buckets(lambda: quotas.strangers_prefix, clock)
        self._strangers = _Buckets(lambda: quotas.strangers, clock)
        self._services = _Buckets(lambda: quotas.services, clock)
        self._uploads = _Buckets(lambda: quotas.uploads, clock)
        self._reserve: Callable[[], float] = lambda: quotas.total.of(capacity()).burst * RESERVE
        self._standing = standing
        self._special = special

    def take_from(self, source: str | None, count: int = 1) -> bool:
        """Charge `count` statements to the IP address `source`, before they are parsed. None stands for this process itself.

        Returns False when the registry is so busy that each statement must also `take_reserved`. Raises `Unavailable`
        (`quota.sender`, `quota.total`).
        """
        # This process's own statements, such as identities and decisions. Floods must not keep them out.
        if source is None:
            return True
        # First, so that one network's flood does not use up the common bucket.
        if not self._prefixes.take(site_network(source), count):
            raise _exhausted(QuotaCode.SENDER, "Your network sends too many statements.")
        if self._total.take("", count, spare=self._reserve()):
            return True
        if self._total.left("") < 1:
            raise _exhausted(QuotaCode.TOTAL, "This registry takes no more statements just now.")
        return False

    def take_reserved(self, *authors: str) -> None:
        """Charge one statement to the reserve, before its signature is verified. `authors`: the DIDs it names as its authors.

        Call it only while the registry is busy. Raises `Unavailable` (`quota.total`) when no author has standing, or when the
        reserve is used up.
        """
        # Before the signature is verified, because verifying is the work to save. So a forger can name a DID with
        # standing and use up some of the reserve; the quota of its network limits how much.
        if not any(map(self._standing, authors)):
            raise _exhausted(QuotaCode.TOTAL, "This registry is busy, and takes only what agents with standing send just now.")
        if not self._total.take("", 1):
            raise _exhausted(QuotaCode.TOTAL, "This registry takes no more statements just now.")

    def take_of(self, author: Did, source: str | None = None) -> None:
        """Charge one statement to its `author`, after its signature was verified. `source`: the IP address it came from.

        The DIDs of a host share one bucket, and all did:keys share one. Raises `Unavailable` (`quota.sender`,
        `quota.strangers`).
        """
        # A did:key costs nothing, so a bucket for each would limit nothing.
        special = self._special(author)
        if author.host is None:
            self._take_of_stranger(author, source, special)
            return
        # Of its own, because all accounts share a host. As small as a stranger's: an account costs nothing.
        if author.validated_by is not None:
            if source is not None and not self._known_keys.take(author.text, 1, factor=special or 1):
                raise _exhausted(QuotaCode.SENDER, f"{author.text} sends too many statements.")
            return
        # By host, because a domain can have any number of DIDs. After the signature, because a forger must not use up
        # the quota of another author.
        factor = min(1 + self._standing(author.text) / ONE, MAX_FACTOR) * (special or 1)
        if not self._principals.take(author.host, 1, factor=factor):
            raise _exhausted(QuotaCode.SENDER, f"{author.host} sends too many statements.")

    def has_standing(self, authors: Iterable[Did]) -> bool:
        """Whether one of these DIDs has standing."""
        return any(self._standing(author.text) for author in authors)

    def take_upload(self, source: str | None, size: int) -> None:
        """Charge `size` uploaded bytes to an IP address. Raises `Unavailable` (`quota.sender`)."""
        if source is not None and not self._uploads.take(site_network(source), size):
            raise _exhausted(QuotaCode.SENDER, "Your network has uploaded too much in the last hour.")

    def take_service(self, source: str) -> None:
        """Charge one request to the Sigstore services to an IP address, before the request is read.

        Raises `Unavailable` (`quota.sender`, `quota.total`).
        """
        if not self._services.take(site_network(source), 1):
            raise _exhausted(QuotaCode.SENDER, "Your network asks for too many certificates, timestamps and entries.")
        if not self.take_from(source):
            raise _exhausted(QuotaCode.TOTAL, "This registry is busy, and takes only what agents with standing send just now.")

    def busiest(self, count: int) -> tuple[dict[str, float], dict[str, float]]:
        """Return the hosts and the networks that have used most of their quotas now: name → used share, at most `count` each."""
        return self._principals.emptiest(count), self._prefixes.emptiest(count)

    def _take_of_stranger(self, author: Did, source: str | None, special: float | None) -> None:
        if source is None:
            return
        # Its own bucket, because the operator knows it. With a raised quota it needs none of the common ones.
        if special is not None:
            if not self._known_keys.take(author.text, 1, factor=special):
                raise _exhausted(QuotaCode.SENDER, f"{author.text} sends too many statements.")
            if special > 1:
                return
        if not self._strangers_by_prefix.take(site_network(source), 1):  # first, as in `take_from`
            raise _exhausted(QuotaCode.STRANGERS, "Your network sends too many statements signed by did:keys.")
        if not self._strangers.take("", 1):
            raise _exhausted(QuotaCode.STRANGERS, "This registry takes no more statements signed by did:keys just now.")


class _Buckets:
    """Token buckets with one common rate, by key, the last used at the end.

    Each entry stores the number of missing tokens. So a new rate takes effect for all buckets at once.
    """

    def __init__(self, rate: Callable[[], Rate], clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._lacks: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key → missing tokens, and the time of that count

    def take(self, key: str, count: int, *, factor: float = 1, spare: float = 0) -> bool:
        """Take tokens from a bucket, and return whether it had enough.

        The bucket is `factor` times as large as normal and fills `factor` times as fast. The last `spare` tokens stay in it.
        """
        now = self._clock()
        # Refuse a new sender rather than forget a bucket that is not full: a forgotten bucket is full again.
        if key not in self._lacks and not self._make_room(now):
            return False
        lacks = self._lacking(key, now, factor)
        allowed = lacks + count <= self._rate().burst * factor - spare
        # A refusal takes no tokens, so a sender gets through after the wait that it was told.
        self._lacks[key] = (lacks + count if allowed else lacks, now)
        self._lacks.move_to_end(key)
        return allowed

    def left(self, key: str) -> float:
        """Return the number of tokens in a bucket."""
        return self._rate().burst - self._lacking(key, self._clock())

    def emptiest(self, count: int) -> dict[str, float]:
        """Return the buckets that lack most: key → the lacking share, the largest first."""
        now, full = self._clock(), self._rate().burst
        shares = ((self._lacking(key, now) / full, key) for key in self._lacks)
        return {key: share for share, key in heapq.nlargest(count, shares) if share > 0}

    def _lacking(self, key: str, now: float, factor: float = 1) -> float:
        lacks, at = self._lacks.get(key, (0.0, now))
        rate = self._rate()
        # At most the whole bucket: after the rate falls, tokens taken at a higher rate must not block the bucket for minutes.
        return max(0.0, min(lacks, rate.burst * factor) - (now - at) * rate.per_second * factor)

    def _make_room(self, now: float) -> bool:
        while self._lacks:
            # In the order of last use. The search ends at the first bucket that is not full, so it costs little for
            # each call.
            oldest = next(iter(self._lacks))
            if self._lacking(oldest, now) > 0:
                break
            del self._lacks[oldest]
        return len(self._lacks) < MAX_BUCKETS


def _exhausted(code: str, message: str) -> Unavailable:
    return Unavailable(code, message, fix="Send again in a while, or send fewer at a time.")
