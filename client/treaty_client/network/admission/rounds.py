"""Share the start of requests fairly between networks.

An HTTP/1.1 connection has one request in progress. A client that sends many requests without waiting (pipelining, RFC 9112
§9.3.2) has its next request ready at once. Hundreds of such connections would start as many requests in every iteration of the
event loop, and delay all other requests. So each network starts at most `SHARE` requests in a round. Its further requests wait
in its own line.

A round is one iteration of the event loop. While several networks send requests, each round in which a request had to wait is
followed by a pause of twice its length. So the loop is idle most of the time, and a network with few requests gets quick
answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

SHARE = 4
"""Requests of one network that start in a round."""
_PAUSE = 2  # in rounds
_LEAST_PAUSE = 0.001  # seconds: the resolution of the event loop's clock
_TOGETHER = 1.0  # seconds within which two networks count as active together
_Event = TypeVar("_Event")


class Rounds:
    """The rounds of an event loop."""

    def __init__(self, share: int = SHARE) -> None:
        self._share = share
        self._begun: Counter[str] = Counter()  # in this round
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._latest = ""  # the network of the last request
        self._together_at = 0.0  # when the network of the last request changed

    def take(self, network: str) -> bool:
        """Start a request of `network` in this round, if its share allows. On False the caller must `wait`."""
        # Two networks alternate only while both send, so one comparison shows that requests compete.
        if network != self._latest:
            self._latest, self._together_at = network, time.monotonic()
        begun = self._begun
        if not begun:
            # Runs after everything that is ready now, which is the end of this iteration.
            asyncio.get_running_loop().call_soon(self._end_round, time.monotonic())
        elif begun[network] >= self._share:
            return False
        begun[network] += 1
        return True

    async def wait(self, network: str) -> None:
        """Wait for a turn of `network`, after the requests that wait already."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(network, deque()).append(turn)
        await turn

    def after(self, receive: Callable[[], Awaitable[_Event]], network: str) -> Callable[[], Awaitable[_Event]]:
        """Wrap `receive` so that each message waits for a turn, because many bodies may arrive in one round."""

        async def receive_in_turn() -> _Event:
            message = await receive()
            # The message is here already; only its processing waits.
            if not self.take(network):
                await self.wait(network)
            return message

        return receive_in_turn

    def _end_round(self, begun_at: float) -> None:
        now = time.monotonic()
        # A network that sends alone is not slowed down.
        if self._lines and now - self._together_at < _TOGETHER:
            # Otherwise the loop would be busy all the time, and the server's threads would wait for the interpreter's
            # lock.
            pause = max(_LEAST_PAUSE, _PAUSE * (now - begun_at))
            asyncio.get_running_loop().call_later(pause, self._begin_round)
        else:
            self._begin_round()

    def _begin_round(self) -> None:
        self._begun.clear()
        # A copy, because empty lines are removed.
        for network, line in [*self._lines.items()]:
            while line and self._begun[network] < self._share:
                turn = line.popleft()
                if not turn.done():  # its request may have been cancelled
                    turn.set_result(None)
                    self._begun[network] += 1
            if not line:
                del self._lines[network]
        if self._begun:
            asyncio.get_running_loop().call_soon(self._end_round, time.monotonic())
