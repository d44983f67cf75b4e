"""Remember the documents of discovery for the time that they allow, and ask again after failures that may pass.

A document is used without a request for the `max-age` of its Cache-Control, at most an hour. Without one it is 60 seconds; with
`no-cache` or `no-store` it is no time. Afterwards it is asked for with its ETag, so an unchanged document costs one small answer.
The cache is in memory only, and holds 256 documents of at most 64 KiB.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from treaty_consensus.errors import Unavailable
from treaty_io.network.egress import EgressGuard
from treaty_io.network.exchange import HttpReply
from treaty_io.network.hosts import Network

from ..transport.connection import Backoff
from .client import Discoverer, Discovery

MAX_DOCUMENTS = 256
DEFAULT_LIFETIME, MAX_LIFETIME = 60.0, 3600.0
# A tag is sent back as a header, so only the characters of RFC 9110 are kept.
_ETAG = re.compile(r'(W/)?"[\x21\x23-\x7e]{0,200}"')
_MAX_AGE = re.compile(r"max-age=(\d{1,9})")


class _Document(NamedTuple):
    body: bytes
    etag: str
    until: float


class CachedDiscoverer:
    """Discover agents as `Discoverer` does, with a cache and with retries. For one event loop."""

    def __init__(
        self,
        network: Network,
        *,
        guard: EgressGuard | None = None,
        clock: Callable[[], float] = time.monotonic,
        backoff: Backoff | None = None,
    ) -> None:
        """Ask for nothing yet. `guard`: must remember no failures. `clock`: monotonic seconds."""
        # The user named the host. The backoff bounds the requests, and a remembered failure would make it useless.
        self._guard = guard or EgressGuard(network, interval=0, failure_lifetime=0)
        self._network, self._clock, self._backoff = network, clock, backoff or Backoff()
        self._documents: dict[str, _Document] = {}

    async def discover(self, name: str, *, fresh: bool = False) -> Discovery:
        """Find the agents of a domain, a DID or a URL. `fresh`: ask the host about each document, as after an address failed.

        Raises the errors of `Discoverer.discover`, `Unavailable` only after the retries of `Backoff`.
        """
        discoverer, failures = Discoverer(self._network, get=partial(self._get, fresh=fresh)), 0
        while True:
            try:
                return await discoverer.discover(name)
            except Unavailable:
                failures += 1
                if not await self._backoff.pause(failures):
                    raise

    async def _get(self, url: str, *, fresh: bool) -> bytes:
        cached = self._documents.get(url)
        if cached is not None and not fresh and self._clock() < cached.until:
            return cached.body
        reply = await self._guard.exchange(url, etag=cached.etag if cached else "")
        until = self._clock() + _lifetime(reply)
        if cached is not None and reply.status == 304:
            document = cached._replace(until=until)
        else:
            etag = reply.headers.get("etag", "")
            document = _Document(reply.body, etag if _ETAG.fullmatch(etag) else "", until)
        self._documents.pop(url, None)
        self._documents[url] = document
        if len(self._documents) > MAX_DOCUMENTS:
            del self._documents[next(iter(self._documents))]  # the one that was asked for longest ago
        return document.body


def _lifetime(reply: HttpReply) -> float:
    cache_control = reply.headers.get("cache-control", "").lower()
    if "no-cache" in cache_control or "no-store" in cache_control:
        return 0.0
    match = _MAX_AGE.search(cache_control)
    return min(float(match[1]), MAX_LIFETIME) if match else DEFAULT_LIFETIME
