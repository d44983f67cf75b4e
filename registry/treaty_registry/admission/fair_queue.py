"""Turns at work that few can do at once, one network after another; and how much of it gets done.

An agent that sends one statement must not wait for the thousands of another one. So submissions wait in a line for each network,
and the lines are served in turn. Only so much is in work at a time: what this machine finishes in `LATENCY` seconds, or `width`.
A network alone gets three quarters of that, so that the next one to come begins at once.

How much the machine finishes is measured while somebody waits: `FairQueue.capacity`, which the quotas follow.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from treaty_client.network.addresses import site_network
from treaty_consensus.errors import Unavailable

LATENCY = 0.25
QUANTUM = 16
"""Leaves of one network that go in before the next network's turn."""
LEAST = 32
"""Leaves in work, however slow the machine: a commit is for all of them together."""
PATIENCE = 5.0
"""Seconds that a submission may have to wait. One that would wait longer is sent away at once, which costs nobody anything."""
MAX_WAITING = 8_192
RECOVERY = 5.0
"""Seconds without a wait in which the capacity is taken to double, up to the largest one measured: what once was slow (a flood
of costly work) must not leave small quotas behind."""
_WINDOW = 0.5  # seconds over which the work done is measured
_WEIGHT = 0.3  # of the newest measurement
_SLOWEST = 10.0


@dataclass(eq=False)
class _Turn:
    wanted: int
    granted: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FairQueue:
    """For one event loop. `clock`: monotonic seconds. `capacity`: leaves a second to begin with, until work was measured.
    `width`: how many to work on at a time; None follows the capacity. `waiting`: how many may wait, half of them of one network.
    `code`: of the refusal of those that would wait too long."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        capacity: float = 200.0,
        width: int | None = None,
        waiting: int = MAX_WAITING,
        code: str = "quota.busy",
    ) -> None:
        self._clock = clock
        self._most = waiting
        self._code = code
        self._width = width
        self._measured, self._measured_at = capacity, clock()
        self._best = capacity
        self._is_known = False  # until then the capacity is a guess, for which nothing is refused
        self._lines: OrderedDict[str, deque[_Turn]] = OrderedDict()  # the line whose turn it is comes first
        self._waiting = 0
        self._working: Counter[str] = Counter()
        self._window: tuple[float, int] | None = None  # since when leaves wait without a break, and how many were done since

    @property
    def capacity(self) -> float:
        """Leaves a second that this machine finishes, as last measured under load."""
        if self._window is not None:
            return self._measured
        doublings = min(64.0, (self._clock() - self._measured_at) / RECOVERY)
        return min(self._best, self._measured * 2**doublings)

    @asynccontextmanager
    async def turn(self, source: str, wanted: int, *, begun: bool = False) -> AsyncIterator[int]:
        """Wait for a turn of the network of the IP address `source`. Yields how many leaves may be worked on until the block
        ends: at least 1, at most `wanted`.

        `begun`: these are the rest of a submission that had a turn already; it is the next of its network. Any other one raises
        `Unavailable` (`code`) at once when it would wait longer than `PATIENCE`.
        """
        network = site_network(source)
        granted = await self._enter(network, wanted, begun)
        try:
            yield granted
        finally:
            self._leave(network, granted)
            self._measure(granted)
            self._serve()

    @contextmanager
    def aside(self, source: str | None) -> Iterator[None]:
        """Let others work while one leaf of a turn waits for something else: another host, or its turn at another queue. It goes
        on without a further wait. Without a `source` it was no turn."""
        if source is None:
            yield
            return
        network = site_network(source)
        self._leave(network, 1)
        self._serve()
        try:
            yield
        finally:
            self._working[network] += 1

    async def _enter(self, network: str, wanted: int, begun: bool) -> int:
        if not begun:
            self._check_patience(network, wanted)
        turn = _Turn(wanted)
        line = self._lines.setdefault(network, deque())
        line.insert(0 if begun else len(line), turn)
        self._waiting += wanted
        self._serve()
        try:
            # By the wall clock too: work that hangs must not make those behind it hang as well. What has begun is not broken off.
            async with asyncio.timeout(None if begun else PATIENCE):
                return await turn.granted
        except TimeoutError as error:
            self._forget(network, turn)
            raise self._busy() from error
        except asyncio.CancelledError:
            self._forget(network, turn)
            raise

    def _check_patience(self, network: str, wanted: int) -> None:
        line = self._lines.get(network, ())
        if not self._waiting:
            return
        sharing = len(self._lines) + (0 if line else 1)
        own, everybody = sum(turn.wanted for turn in line) + wanted, self._waiting + wanted
        seconds = min(everybody, own * sharing) / self.capacity
        if everybody > self._most or own > self._most // 2 or (self._is_known and seconds > PATIENCE):
            raise self._busy()

    def _busy(self) -> Unavailable:
        return Unavailable(
            self._code,
            f"More waits here than this registry takes in {PATIENCE:.0f} seconds.",
            fix="Send again in a while, or send fewer at a time.",
        )

    def _serve(self) -> None:
        """Grant turns while there is room for more work."""
        room = self._width or max(LEAST, int(self.capacity * LATENCY))
        share = max(1, room * 3 // 4)
        while (free := room - self._working.total()) > 0:
            network = next((network for network in self._lines if self._working[network] < share), None)
            if network is None:
                break
            line = self._lines[network]
            turn = line.popleft()
            self._waiting -= turn.wanted
            alone = len(self._lines) == 1
            granted = min(turn.wanted, free, share - self._working[network], turn.wanted if alone else QUANTUM)
            if line:
                self._lines.move_to_end(network)
            else:
                del self._lines[network]
            if not turn.granted.done():  # its submitter may have gone
                self._working[network] += granted
                turn.granted.set_result(granted)
        if not self._lines:
            self._window = None
        elif self._window is None:
            self._window = (self._clock(), 0)

    def _leave(self, network: str, granted: int) -> None:
        self._working[network] -= granted
        if not self._working[network]:
            del self._working[network]

    def _forget(self, network: str, turn: _Turn) -> None:
        """Take back a turn whose submitter has gone."""
        line = self._lines.get(network)
        if line is not None and turn in line:
            line.remove(turn)
            self._waiting -= turn.wanted
            if not line:
                del self._lines[network]
        elif turn.granted.done() and not turn.granted.cancelled():
            self._leave(network, turn.granted.result())
        self._serve()

    def _measure(self, done: int) -> None:
        if self._window is None:
            return
        since, before = self._window
        elapsed = self._clock() - since
        if elapsed < _WINDOW:
            self._window = (since, before + done)
            return
        newest = (before + done) / elapsed
        measured = self._measured + _WEIGHT * (newest - self._measured) if self._is_known else newest
        self._measured, self._measured_at = max(measured, _SLOWEST), self._clock()
        self._best = max(self._best, self._measured)
        self._is_known = True
        self._window = (self._clock(), 0)
