"""The connections of a gateway or node to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc

from .security import Security

MAX_IDLE = 64
"""Connections that stay open without a call. A peer may name ever new addresses, and a connection costs a socket."""


MAX_PAUSE = 10_000
"""Milliseconds between two attempts to connect: a heartbeat's interval. gRPC's own bound of two minutes keeps a node away from a
gateway that is back."""


class Channels:
    """A channel for each address and its target. For one event loop."""

    def __init__(self, security: Security, options: Sequence[tuple[str, int]], target: Callable[[str], str]) -> None:
        """Connect to nothing. `target`: returns the target to dial for an address, or raises `OperationError`."""
        self._security, self._target = security, target
        self._options = [*options, ("grpc.max_reconnect_backoff_ms", MAX_PAUSE)]
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}
        self._calls: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """Yield a channel for one call. Raises the errors of `target`."""
        place = (address, self._target(address))
        # The one that was used last stands at the end.
        channel = self._channels.pop(place, None) or self._security.channel(*place, self._options)
        self._channels[place] = channel
        self._calls[place] += 1
        try:
            yield channel
        finally:
            self._calls[place] -= 1
            await self._close_idle()

    async def hang_up(self, address: str) -> None:
        """Close the connections to an address."""
        for place in [each for each in self._channels if each[0] == address]:
            await self._channels.pop(place).close()

    async def close(self) -> None:
        """Close all connections."""
        for address in {each for each, _ in self._channels}:
            await self.hang_up(address)

    async def _close_idle(self) -> None:
        self._calls = +self._calls
        idle = [place for place in self._channels if place not in self._calls]
        closing = [self._channels.pop(place) for place in idle[: max(len(idle) - MAX_IDLE, 0)]]
        for channel in closing:
            await channel.close()
