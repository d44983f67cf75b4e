"""Turns at the registry's work, one network after another, and how much work it gets done.

Whoever sends one statement must not wait for the thousands of somebody else. So submissions wait in a line for each network, and
the lines are served in turn. Only as much is in work at a time as this machine finishes in `LATENCY` seconds; that is how long
the next in turn waits at most, whatever queues behind it. With one line there is nothing to share, and a batch goes in whole.

How much the machine finishes is measured while statements wait: `FairQueue.capacity`, which the quotas follow.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from treaty_consensus.errors import Unavailable

from ..networks import site_network

LATENCY = 0.25
QUANTUM = 16
"""Leaves of one network that go in before the next network's turn."""
LEAST = 32
"""Leaves in work, however slow the machine: a commit is for all of them together."""
PATIENCE = 5.0
"""Seconds that a submission may have to wait. One that would wait longer is sent away at once, which costs nobody anything."""
MAX_WAITING = 8_192
_WINDOW = 0.5  # seconds over which the work done is measured
_WEIGHT = 0.3  # of the newest measurement
_SLOWEST = 10.0


@dataclass(eq=False)
class _Turn:
    wanted: int
    granted: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FairQueue:
    """For one event loop. `clock`: monotonic seconds. `capacity`: leaves a second to begin with, until work was measured."""

    def __init__(self, clock: Callable[[], float], capacity: float = 200.0) -> None:
        self._clock = clock
        self._capacity = capacity
        self._lines: OrderedDict[str, deque[_Turn]] = OrderedDict()  # the line whose turn it is comes first
        self._waiting = 0
        self._working = 0
        self._window: tuple[float, int] | None = None  # since when leaves wait without a break, and how many were done since

    @property
    def capacity(self) -> float:
        """Leaves a second that this machine brings into the log, as last measured under load."""
        return self._capacity

    @asynccontextmanager
    async def turn(self, source: str, wanted: int, *, begun: bool = False) -> AsyncIterator[int]:
        """Wait for a turn of the network of the IP address `source`. Yields how many leaves may be worked on until the block
        ends: at least 1, at most `wanted`.

        `begun`: these are the rest of a submission that had a turn already; it is the next of its network. Any other one raises
        `Unavailable` (`quota.busy`) at once when it would wait longer than `PATIENCE`.
        """
        granted = await self._enter(site_network(source), wanted, begun)
        try:
            yield granted
        finally:
            self._working -= granted
            self._measure(granted)
            self._serve()

    async def _enter(self, network: str, wanted: int, begun: bool) -> int:
        if not begun:
            self._check_patience(network, wanted)
        turn = _Turn(wanted)
        line = self._lines.setdefault(network, deque())
        line.insert(0 if begun else len(line), turn)
        self._waiting += wanted
        self._serve()
        try:
            return await turn.granted
        except asyncio.CancelledError:
            self._forget(network, turn)
            raise

    def _check_patience(self, network: str, wanted: int) -> None:
        if not self._waiting:
            return
        line = self._lines.get(network, ())
        sharing = len(self._lines) + (0 if line else 1)
        first = min(self._waiting + wanted, (sum(turn.wanted for turn in line) + wanted) * sharing)
        if first / self._capacity > PATIENCE or self._waiting + wanted > MAX_WAITING:
            raise Unavailable(
                "quota.busy",
                f"More statements wait here than this registry takes in {PATIENCE:.0f} seconds.",
                fix="Send again in a while, or send fewer at a time.",
            )

    def _serve(self) -> None:
        """Grant turns while there is room for more work."""
        room = max(LEAST, int(self._capacity * LATENCY))
        while self._lines and self._working < room:
            network, line = next(iter(self._lines.items()))
            turn = line.popleft()
            self._waiting -= turn.wanted
            granted = min(turn.wanted, room - self._working, QUANTUM if len(self._lines) > 1 else turn.wanted)
            if line:
                self._lines.move_to_end(network)
            else:
                del self._lines[network]
            if not turn.granted.done():  # its submitter may have gone
                self._working += granted
                turn.granted.set_result(granted)
        if not self._lines:
            self._window = None
        elif self._window is None:
            self._window = (self._clock(), 0)

    def _forget(self, network: str, turn: _Turn) -> None:
        """Take back a turn whose submitter has gone."""
        line = self._lines.get(network)
        if line is not None and turn in line:
            line.remove(turn)
            self._waiting -= turn.wanted
            if not line:
                del self._lines[network]
        elif turn.granted.done() and not turn.granted.cancelled():
            self._working -= turn.granted.result()
            self._serve()

    def _measure(self, done: int) -> None:
        if self._window is None:
            return
        since, before = self._window
        elapsed = self._clock() - since
        if elapsed < _WINDOW:
            self._window = (since, before + done)
            return
        self._capacity += _WEIGHT * ((before + done) / elapsed - self._capacity)
        self._capacity = max(self._capacity, _SLOWEST)
        self._window = (self._clock(), 0)
