"""Hold the facts of a registry that reports need, so that a session need not wait for them: the open epoch, keys of peers, and
the checkpoints that peers have seen.

Facts are read in the background, when a session begins. They are used for a minute. An older epoch is harmless: the other side or
the registry refuses the report, and it is read again. One request for a fact runs at a time, so a registry that hangs gets one.

A registry that did not answer is *silent* for a minute, or until it answers again. Sessions do not wait for it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, Protocol, TypeVar

from treaty_consensus.did import Did
from treaty_consensus.errors import Unavailable

from .report_rules import OpenEpoch

LIFETIME = 60.0
"""Seconds for which a fact is used."""
MAX_FACTS = 1024
"""Facts of a kind: peers are many."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class FactSource(Protocol):
    """The part of a log that is asked; `report.ReportLog` is one."""

    async def epoch(self) -> OpenEpoch:
        """Return the open epoch."""

    async def keys(self, did: Did) -> Mapping[str, bytes]:
        """Return the keys of a DID."""

    async def observe(self, note: bytes) -> None:
        """Verify a checkpoint."""


class ReportFacts:
    """The facts of one agent. For one event loop at a time. `clock`: seconds."""

    def __init__(self, log_of: Callable[[str], FactSource], clock: Callable[[], float]) -> None:
        """Ask for nothing yet."""
        self._log_of, self._clock = log_of, clock
        self._silent_until: dict[str, float] = {}
        self._checkpoints = _Facts[tuple[str, bytes], None](clock)
        self._epochs = _Facts[str, OpenEpoch](clock)
        self._keys = _Facts[tuple[str, Did], Mapping[str, bytes]](clock)

    def has(self, origin: str, peer: Did) -> bool:
        """Return whether the epoch and the keys of a peer are known, so that no request is needed."""
        return self._epochs.has(origin) and self._keys.has((origin, peer))

    async def epoch(self, origin: str) -> OpenEpoch:
        """Return the open epoch of a log. Raises the errors of `FactSource`."""
        return await self._epochs.get(origin, lambda: self._asked(origin, self._log_of(origin).epoch()))

    async def keys(self, origin: str, did: Did) -> Mapping[str, bytes]:
        """Return the keys of a DID. Raises the errors of `FactSource`."""
        # Not `_asked`: the keys of a DID that is new to the log are on its own host, which may be the one that is silent.
        return await self._keys.get((origin, did), lambda: self._log_of(origin).keys(did))

    async def observe(self, origin: str, note: bytes) -> None:
        """Verify a checkpoint of a log. Raises the errors of `FactSource`."""
        await self._checkpoints.get((origin, note), lambda: self._asked(origin, self._log_of(origin).observe(note)))

    def is_silent(self, origin: str) -> bool:
        """Return whether the registry of a log gave no answer in the last minute."""
        return self._clock() < self._silent_until.get(origin, 0.0)

    def forget(self, origin: str, did: Did | None = None) -> None:
        """Read the epoch again at its next use, and the keys of `did`."""
        self._epochs.forget(origin)
        if did is not None:
            self._keys.forget((origin, did))

    async def _asked(self, origin: str, request: Awaitable[_V]) -> _V:
        """Return the answer of a registry, and note whether it gave one."""
        try:
            answer = await request
        except Unavailable:
            self._silent_until[origin] = self._clock() + LIFETIME
            raise
        self._silent_until.pop(origin, None)
        return answer


class _Facts(Generic[_K, _V]):
    """Values that are read when they are missing or too old, one request each at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[_K, tuple[_V, float]] = {}
        self._reading: dict[_K, asyncio.Task[_V]] = {}

    def has(self, key: _K) -> bool:
        return key in self._known and self._clock() < self._known[key][1]

    async def get(self, key: _K, read: Callable[[], Awaitable[_V]]) -> _V:
        if self.has(key):
            return self._known[key][0]
        if key not in self._reading:
            task = self._reading[key] = asyncio.ensure_future(self._read(key, read))
            task.add_done_callback(lambda done: self._done(key, done))
        # Shielded: a caller that gives up leaves the request to the next one.
        return await asyncio.shield(self._reading[key])

    def forget(self, key: _K) -> None:
        self._known.pop(key, None)

    async def _read(self, key: _K, read: Callable[[], Awaitable[_V]]) -> _V:
        value = await read()
        self._known.pop(key, None)
        self._known[key] = (value, self._clock() + LIFETIME)
        if len(self._known) > MAX_FACTS:
            del self._known[next(iter(self._known))]
        return value

    def _done(self, key: _K, task: asyncio.Task[_V]) -> None:
        del self._reading[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: all callers may be gone
