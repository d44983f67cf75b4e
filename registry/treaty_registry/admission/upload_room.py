"""Share the room for pending uploads out: a part is kept for authors with standing, and the rest is shared by network.

A signature of a did:key costs nothing, and six networks have the quota to fill the room for an hour. So what strangers have
uploaded may fall out: when their part is full, the newest upload of the network that has most makes room for a network that has
less. An honest publisher sends its statement seconds after its uploads, and those of the greediest network are mostly junk.

Which network an upload came from is known in memory alone, of uploads that this process took. After a restart, and of other
nodes, it is not known: those uploads wait for their expiry.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from treaty_consensus.errors import Unavailable

from ..codes import QuotaCode
from ..storage.postgres import Pool

MAX_WAITING = 1024**3
"""Bytes of all pending uploads together."""
RESERVE = 4
"""The last of so many parts of the room is kept for authors with standing."""

_SUM_SECONDS = 2.0  # for which a sum of the pending uploads is used; this process adds its own to it
_MAX_KNOWN = 10_000  # uploads of a network that are kept, about 1 MB; of more the oldest do not fall out

_SUM = "select coalesce(sum(size), 0) from pending_blobs where expires > now()"
# No row: its statement was logged meanwhile.
_FALL_OUT = "update pending_blobs set expires = now() where sha256 = $1 and expires > now() returning size"


class UploadRoom:
    """The bytes of all pending uploads. For one event loop.

    The sum is read at most once in `_SUM_SECONDS`: a sum over all of them for each upload would make many uploads dear. Uploads
    at the same time may each find the same room. The turns of senders bound how far they exceed it.
    """

    def __init__(self, pool: Pool, lifetime: float) -> None:
        """`lifetime`: seconds that an upload is kept."""
        self._pool = pool
        self._lifetime = lifetime
        self._sum, self._until = 0, 0.0
        self._networks: dict[str, _Network] = {}

    async def make(self, sha256: str, size: int, network: str | None) -> bool:
        """Make room for an upload of `size` bytes with this digest. Returns whether others fell out for it: they are expired now.

        `network`: that of a stranger; None for an author with standing, who has the whole room. Raises `Unavailable`
        (`quota.sender`) when there is none, and nothing falls out.
        """
        if self._network_of(sha256) is not None:
            return False  # these bytes wait already
        room = MAX_WAITING if network is None else MAX_WAITING - MAX_WAITING // RESERVE
        fell = False
        while await self._waiting() + size > room:
            own = self._networks[network].size if network in self._networks else 0
            # None falls out for one that would have more itself.
            greediest = max(self._networks.values(), key=lambda each: each.size, default=None)
            if greediest is None or (network is not None and greediest.size <= own + size):
                raise Unavailable(QuotaCode.SENDER, "Too many uploads wait for their statements.", fix="Send again in an hour.")
            digest = next(reversed(greediest.uploads))
            freed = await self._pool.fetchval(_FALL_OUT, bytes.fromhex(digest))
            self._forget(digest)
            self._sum -= freed or 0
            fell = fell or freed is not None
        return fell

    def add(self, sha256: str, size: int, network: str | None) -> None:
        """Count an upload that was stored. `network`: as in `make`.

        Of the same bytes the first network counts, or one could make another's uploads its own and have them fall out.
        """
        self._sum += size
        if network is None:
            self._forget(sha256)
        elif self._network_of(sha256) is None:
            own = self._networks.setdefault(network, _Network())
            own.uploads[sha256] = (size, asyncio.get_running_loop().time() + self._lifetime)
            own.size += size
            if len(own.uploads) > _MAX_KNOWN:
                self._forget(next(iter(own.uploads)))

    def _network_of(self, digest: str) -> str | None:
        return next((name for name, network in self._networks.items() if digest in network.uploads), None)

    def _forget(self, digest: str) -> None:
        if (name := self._network_of(digest)) is not None:
            network = self._networks[name]
            network.size -= network.uploads.pop(digest)[0]
            if not network.uploads:
                del self._networks[name]

    async def _waiting(self) -> int:
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            # Their bytes are no longer in the sum.
            for network in list(self._networks.values()):
                while network.uploads and network.uploads[digest := next(iter(network.uploads))][1] < now:
                    self._forget(digest)
            self._sum, self._until = await self._pool.fetchval(_SUM), now + _SUM_SECONDS
        return self._sum


@dataclass
class _Network:
    """The pending uploads of a network: digest → size and expiry, the oldest first. `size`: of all."""

    uploads: dict[str, tuple[int, float]] = field(default_factory=dict)
    size: int = 0
