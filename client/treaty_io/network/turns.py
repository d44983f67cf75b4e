"""Limit how often a host is asked: a token bucket for each host, and a bounded queue that is fair among the askers.

A stranger chooses the host that we ask. The limit protects that host from us. The queue protects other askers of the same host
from the stranger.

- A key (a host, or a site of addresses) is asked `burst` times at once, and then once in `interval` seconds.
- Further requests wait: at most `MAX_WAITING` for each key, at most `patience` seconds. The asker that was served longest ago, or
  never, is next; among equals, the oldest request. For example, an asker with a thousand URLs of a host gets every n-th turn if n
  askers wait.
- An asker is the network of the address that a request came from (`addresses.site_network`), because names and keys are free and
  networks are not. `asking_for` sets the asker for all code inside it.
- If the queue of a key is full, a new request replaces the newest request of the asker with the most requests. If no asker has
  more than the new one would have, the new request is refused.
- Several askers may wait for one URL. It is served when the turn of any of them comes.

A key with a full bucket is forgotten. If `MAX_KEYS` keys cannot be forgotten, requests for new keys are refused.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from treaty_consensus.errors import Unavailable

from ..codes import EgressCode
from ..places import asker as _asker
from .addresses import site_network

# More than `PATIENCE` seconds of turns would be refused anyway; this bounds the memory of each key.
MAX_WAITING = 64
# Strangers choose the keys. A key with a full bucket and an empty queue holds nothing and is dropped.
MAX_KEYS = 10_000
# Shorter than the 30 seconds that clients wait for the answer to a statement.
PATIENCE = 10.0
_ASKERS = 256
"""The number of askers whose last turn a key remembers."""


@contextmanager
def asking_for(address: str | None) -> Iterator[None]:
    """Count all requests inside this context for the asker at this IP address.

    None, or a text that is not an IP address, stands for one common unknown asker.
    """
    token = _asker.set(asker_at(address))
    try:
        yield
    finally:
        _asker.reset(token)


def asker_at(address: str | None) -> str:
    """Return the asker at an IP address, "" for None or another text."""
    try:
        return site_network(address) if address else ""
    except ValueError:
        return ""


@dataclass
class _Waiting:
    askers: set[str]
    until: float
    granted: asyncio.Future[None]


@dataclass
class _Key:
    """The state of one key. `lacks`: tokens missing in the bucket at the time `at`. `served`: askers, the latest at the end."""

    lacks: float = 0.0
    at: float = -math.inf
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    served: OrderedDict[str, None] = field(default_factory=OrderedDict)
    granting: asyncio.Task[None] | None = None


class Turns:
    """Grant turns for keys. For one event loop.

    `interval`: seconds between two turns of a key; 0 disables all waiting. `burst`: turns at once. `patience`: seconds that a
    request may wait. `clock` and `sleep`: replaceable for tests.
    """

    def __init__(
        self,
        *,
        interval: float,
        burst: int,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval, self._burst, self._patience = interval, burst, patience
        self._clock, self._sleep = clock, sleep
        self._keys: OrderedDict[str, _Key] = OrderedDict()  # the latest asked key is at the end

    async def take(self, name: str, url: str) -> None:
        """Wait until `name` may be asked for `url`. If a request for `url` waits already, call `join` instead.

        Raises `Unavailable` (`egress.unreachable`).
        """
        if self._interval <= 0:
            return
        key, asker = self._key(name), _asker.get()
        assert url not in key.waiting, "its first request would never come up"
        if not key.waiting and self._lacking(key) <= self._burst - 1:
            self._spend(name, key, asker)
            return
        waiting = self._enqueue(name, key, url, asker)
        if key.granting is None:
            # One task for each key grants the turns, so that two requests never take the same token.
            key.granting = asyncio.create_task(self._grant(name, key))
        try:
            await waiting.granted
        finally:
            if key.waiting.get(url) is waiting:
                del key.waiting[url]

    def join(self, name: str, url: str) -> None:
        """Add the current asker to a waiting request for `url`, if there is one."""
        key = self._keys.get(name)
        waiting = key.waiting.get(url) if key is not None else None
        if waiting is not None and len(waiting.askers) < _ASKERS:
            waiting.askers.add(_asker.get())

    def _key(self, name: str) -> _Key:
        key = self._keys.get(name)
        if key is None:
            while self._keys:  # the keys asked longest ago are first
                oldest, state = next(iter(self._keys.items()))
                if state.waiting or self._lacking(state) > 0:
                    break
                del self._keys[oldest]
            if len(self._keys) >= MAX_KEYS:
                raise _refusal(name, self._interval)
            key = self._keys[name] = _Key()
        return key

    def _lacking(self, key: _Key) -> float:
        return max(0.0, key.lacks - (self._clock() - key.at) / self._interval)

    def _spend(self, name: str, key: _Key, asker: str) -> None:
        key.lacks, key.at = self._lacking(key) + 1, self._clock()
        key.served[asker] = None
        key.served.move_to_end(asker)
        if len(key.served) > _ASKERS:
            key.served.popitem(last=False)
        self._keys.move_to_end(name)

    def _enqueue(self, name: str, key: _Key, url: str, asker: str) -> _Waiting:
        if len(key.waiting) >= MAX_WAITING:
            counts = Counter(one for waiting in key.waiting.values() for one in waiting.askers)
            # The asker with most requests gives one up, so that a flood displaces itself and no other.
            greediest = max(counts, key=lambda one: counts[one])
            if counts[greediest] <= counts[asker] + 1:
                raise _refusal(name, self._interval)
            newest = next(url for url, waiting in reversed(key.waiting.items()) if greediest in waiting.askers)
            self._settle(key, newest, _refusal(name, self._interval))
        waiting = _Waiting({asker}, self._clock() + self._patience, asyncio.get_running_loop().create_future())
        key.waiting[url] = waiting
        return waiting

    async def _grant(self, name: str, key: _Key) -> None:
        """Grant the waiting requests, one at a time, until none is left."""
        try:
            while key.waiting:
                await self._sleep(max(0.0, (self._lacking(key) - self._burst + 1) * self._interval))
                for url in [url for url, waiting in key.waiting.items() if waiting.until < self._clock()]:
                    self._settle(key, url, _refusal(name, self._interval))
                if key.waiting and self._lacking(key) <= self._burst - 1 + 1e-9:
                    url, asker = _next(key)
                    self._spend(name, key, asker)
                    self._settle(key, url, None)
        finally:
            key.granting = None

    @staticmethod
    def _settle(key: _Key, url: str, refusal: Unavailable | None) -> None:
        granted = key.waiting.pop(url).granted
        if granted.done():  # the waiting task was cancelled
            return
        if refusal is None:
            granted.set_result(None)
        else:
            granted.set_exception(refusal)


def _next(key: _Key) -> tuple[str, str]:
    """Return the URL to serve next, and the asker whose turn it uses."""
    order = {asker: number for number, asker in enumerate(key.served)}
    candidates = [(url, asker) for url, waiting in key.waiting.items() for asker in waiting.askers]
    return min(candidates, key=lambda pair: order.get(pair[1], -1))  # `min` returns the first of equals, which is the oldest


def _refusal(name: str, interval: float) -> Unavailable:
    return Unavailable(
        EgressCode.UNREACHABLE,
        f"{name} is asked once in {interval:g} seconds, and too many others wait for it.",
        fix=f"Try again in {max(interval, 1):.0f} seconds.",
    )
