"""Share the start of requests and messages fairly between networks.

An HTTP/1.1 connection has one request in progress. A client that sends many requests without waiting (pipelining, RFC 9112
§9.3.2) has its next request ready at once. Hundreds of such connections would start as many requests in every iteration of the
event loop, and delay all other requests. Hundreds of sessions of an agent can do the same with messages. So each network starts
at most `SHARE` requests in a round. Its further requests wait in its own line. A costly one may count for several.

A round is one iteration of the event loop, or a few where the work begins later than its turn. While several networks send
requests, each round in which a request had to wait is followed by a pause of twice its length. So the loop is idle most of the
time, and a network with few requests gets quick answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
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

    def __init__(self, share: int = SHARE, *, iterations: int = 1) -> None:
        """`iterations`: of the event loop in a round, so that the work of a turn is done in it."""
        self.share, self._iterations = share, iterations
        self._begun = dict[str, int]()  # in this round
        self._lines: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}
        self._latest = ""  # the network of the last request
        self._together_at = 0.0  # when the network of the last request changed

    def take(self, network: str, weight: int = 1) -> bool:
        """Start a request of `network` in this round, if its share allows. On False the caller must `wait`.

        `weight`: how many it counts for. The last one of a share may exceed it.
        """
        # Two networks alternate only while both send, so one comparison shows that requests compete.
        if network != self._latest:
            self._latest, self._together_at = network, time.monotonic()
        begun = self._begun.get(network, 0)
        if not self._begun:
            # Runs after everything that is ready now, which is the end of this iteration.
            asyncio.get_running_loop().call_soon(self._end_round, time.monotonic(), self._iterations)
        elif begun >= self.share:
            return False
        self._begun[network] = begun + weight
        return True

    def wait(self, network: str, weight: int = 1) -> asyncio.Future[None]:
        """Return a turn of `network`, after the requests that wait already. Await it, or cancel it to give it to the next one."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        line = self._lines.get(network)
        if line is None:
            line = self._lines[network] = deque()
        line.append((turn, weight))
        if not self._begun:
            # The round of `take` is over, where a task waits that was begun by it. No other one may begin by itself.
            self._begun[network] = 0
            loop.call_soon(self._end_round, time.monotonic(), self._iterations)
        return turn

    def after(self, receive: Callable[[], Awaitable[_Event]], network: str) -> Callable[[], Awaitable[_Event]]:
        """Wrap `receive` so that each message waits for a turn, because many bodies may arrive in one round."""

        async def receive_in_turn() -> _Event:
            message = await receive()
            # The message is here already; only its processing waits.
            if not self.take(network):
                await self.wait(network)
            return message

        return receive_in_turn

    def _end_round(self, begun_at: float, iterations: int) -> None:
        if iterations > 1:
            asyncio.get_running_loop().call_soon(self._end_round, begun_at, iterations - 1)
            return
        if not self._lines:
            self._begun.clear()
            return
        now = time.monotonic()
        # A network that sends alone is not slowed down.
        if now - self._together_at < _TOGETHER:
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
            begun = 0
            while line and begun < self.share:
                turn, weight = line.popleft()
                if not turn.done():  # its request may have been cancelled
                    turn.set_result(None)
                    begun += weight
            if begun:
                self._begun[network] = begun
            if not line:
                del self._lines[network]
        if self._begun:
            asyncio.get_running_loop().call_soon(self._end_round, time.monotonic(), self._iterations)
