"""How often a host is asked, and in whose turn: a token bucket a host, and a bounded queue that is fair among those who ask.

A stranger names the host that we ask, so two others need protection: the host, from us, and everybody else who needs an answer
of that host, from the stranger.

- A key (a host, or a site of addresses) is asked `burst` times at once, and from then on once in `interval` seconds.
- Requests beyond that wait, at most `MAX_WAITING` a key and `patience` seconds. The next one is that of the asker who was served
  longest ago, or never; among those, the one that came first. So an asker who names a thousand documents of a host gets one turn
  of n where n askers want one.
- An asker is the network of the address that a request came from (`addresses.site_network`): names and keys cost nothing, and
  networks do. `asking_for` says who it is, for all that is awaited inside.
- When the queue of a key is full, a newcomer takes the place of the newest request of the asker who has the most in it. Where
  nobody has more than the newcomer would have, it is refused.
- Several askers may want one URL: it comes up when it is the turn of any of them.

A key that may be asked `burst` times again is forgotten. When `MAX_KEYS` cannot be forgotten, new ones are refused.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from treaty_consensus.errors import Unavailable

from .addresses import site_network

MAX_WAITING = 64
MAX_KEYS = 10_000
PATIENCE = 10.0
_ASKERS = 256
"""Of which a key remembers when they were served."""

_asker: ContextVar[str] = ContextVar("asker", default="")


@contextmanager
def asking_for(address: str | None) -> Iterator[None]:
    """Whatever is asked inside is asked for who came from this IP address. Without one, or from what is no IP address, it is for
    the one asker of whom nothing is known."""
    try:
        asker = site_network(address) if address else ""
    except ValueError:
        asker = ""
    token = _asker.set(asker)
    try:
        yield
    finally:
        _asker.reset(token)


@dataclass
class _Waiting:
    askers: set[str]
    until: float
    granted: asyncio.Future[None]


@dataclass
class _Key:
    """`lacks`: how many requests the bucket lacked at the time `at`. `served`: askers, the one served last at the end."""

    lacks: float = 0.0
    at: float = -math.inf
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    served: OrderedDict[str, None] = field(default_factory=OrderedDict)
    granting: asyncio.Task[None] | None = None


class Turns:
    """For one event loop. `interval` 0: no request waits. `clock`: monotonic seconds; `sleep` waits for so many of them."""

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
        self._keys: OrderedDict[str, _Key] = OrderedDict()  # the one that was asked last at the end

    async def take(self, name: str, url: str) -> None:
        """Wait until `name` may be asked for `url`, which nobody waits for yet (`join`). Raises `Unavailable`
        (`egress.host-interval`)."""
        if self._interval <= 0:
            return
        key, asker = self._key(name), _asker.get()
        assert url not in key.waiting, "its first request would never come up"
        if not key.waiting and self._lacking(key) <= self._burst - 1:
            self._spend(name, key, asker)
            return
        waiting = self._enqueue(name, key, url, asker)
        if key.granting is None:
            key.granting = asyncio.create_task(self._grant(name, key))
        try:
            await waiting.granted
        finally:
            if key.waiting.get(url) is waiting:
                del key.waiting[url]

    def join(self, name: str, url: str) -> None:
        """The asker wants a URL that perhaps waits already, for another one."""
        key = self._keys.get(name)
        waiting = key.waiting.get(url) if key is not None else None
        if waiting is not None and len(waiting.askers) < _ASKERS:
            waiting.askers.add(_asker.get())

    def _key(self, name: str) -> _Key:
        key = self._keys.get(name)
        if key is None:
            while self._keys:  # those that were not asked for a while are first
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
            greediest = max(counts, key=lambda one: counts[one])
            if counts[greediest] <= counts[asker] + 1:
                raise _refusal(name, self._interval)
            newest = next(url for url, waiting in reversed(key.waiting.items()) if greediest in waiting.askers)
            self._settle(key, newest, _refusal(name, self._interval))
        waiting = _Waiting({asker}, self._clock() + self._patience, asyncio.get_running_loop().create_future())
        key.waiting[url] = waiting
        return waiting

    async def _grant(self, name: str, key: _Key) -> None:
        """Let requests go, one at a time, while there are any."""
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
        if granted.done():  # who waited was cancelled
            return
        if refusal is None:
            granted.set_result(None)
        else:
            granted.set_exception(refusal)


def _next(key: _Key) -> tuple[str, str]:
    """The URL whose turn it is, and the asker by whose turn it is."""
    order = {asker: number for number, asker in enumerate(key.served)}
    wanted = [(url, asker) for url, waiting in key.waiting.items() for asker in waiting.askers]
    return min(wanted, key=lambda pair: order.get(pair[1], -1))  # the first of equals: the one that came first


def _refusal(name: str, interval: float) -> Unavailable:
    return Unavailable(
        "egress.host-interval",
        f"{name} is asked once in {interval:g} seconds, and too many others wait for it.",
        fix=f"Try again in {max(interval, 1):.0f} seconds.",
    )
