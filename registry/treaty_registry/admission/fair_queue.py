"""Share limited work fairly between networks, and measure how much work gets done.

An agent that sends one statement must not wait for thousands of statements of another agent. So each network has a line of
waiting submissions, and the lines are served in rotation. The work in progress is limited to the amount that this machine
finishes in `LATENCY` seconds, or to `width`. A single network gets at most three quarters of that, so a second network starts at
once.

The capacity is measured while submissions wait. The quotas follow it (`FairQueue.capacity`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from treaty_consensus.errors import Unavailable
from treaty_io.network.addresses import site_network

from ..codes import QuotaCode

LATENCY = 0.25
"""Seconds of work in progress: a new submission waits about this long for its turn."""
QUANTUM = 16
"""Leaves of one network that are granted before the next network's turn."""
LEAST = 32
"""Least number of leaves in work, even on a slow machine, because one commit serves all of them."""
PATIENCE = 5.0
"""Seconds that a submission may wait. A submission that would wait longer is refused at once, which is cheap for both sides."""
MAX_WAITING = 8_192
"""Leaves that may wait, so that memory is bounded."""
RECOVERY = 5.0
"""Seconds without waiting submissions after which the assumed capacity doubles, up to the largest measured value. Otherwise a
flood of costly work would leave the quotas small."""
_WINDOW = 0.5  # seconds over which the work done is measured
_WEIGHT = 0.3  # weight of the newest measurement
_SLOWEST = 10.0  # leaves a second: a lower measurement is an outage and not the machine's speed


@dataclass(eq=False)
class _Turn:
    wanted: int
    granted: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FairQueue:
    """A queue with one line per network. For one event loop.

    `clock`: monotonic seconds. `capacity`: leaves a second, used until the first measurement. `width`: leaves in work at a time;
    None derives it from the capacity. `waiting`: the most leaves that may wait, half of them of one network. `code`: of the
    refusal when the wait would be too long.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        capacity: float = 200.0,
        width: int | None = None,
        waiting: int = MAX_WAITING,
        code: str = QuotaCode.TOTAL,
    ) -> None:
        self._clock = clock
        self._most = waiting
        self._code = code
        self._width = width
        self._measured, self._measured_at = capacity, clock()
        self._best = capacity
        self._is_known = False  # until the first measurement the capacity is a guess, and the wait is no reason to refuse
        self._lines: OrderedDict[str, deque[_Turn]] = OrderedDict()  # the line to be served next comes first
        self._waiting = 0
        self._working: Counter[str] = Counter()
        self._window: tuple[float, int] | None = None  # since when leaves have been waiting, and the leaves done since

    @property
    def capacity(self) -> float:
        """Return the leaves a second that this machine finishes, as last measured under load."""
        if self._window is not None:
            return self._measured
        # Bounded, because 2**x overflows a float when the queue was empty for some hours.
        doublings = min(64.0, (self._clock() - self._measured_at) / RECOVERY)
        return min(self._best, self._measured * 2**doublings)

    @property
    def waiting(self) -> int:
        """Return the leaves that wait for a turn."""
        return self._waiting

    @property
    def working(self) -> int:
        """Return the leaves that have a turn."""
        return self._working.total()

    @asynccontextmanager
    async def turn(self, source: str, count: int, *, begun: bool = False) -> AsyncIterator[int]:
        """Wait for a turn for the network of the IP address `source`. Yields the number of leaves to work on in the block: from
        1 to `count`.

        `begun`: the rest of a submission that had a turn already; it goes to the front of its network's line and is never
        refused. All others raise `Unavailable` (`code`) at once when they would wait longer than `PATIENCE`.
        """
        network = site_network(source)
        granted = await self._enter(network, count, begun)
        try:
            yield granted
        finally:
            self._leave(network, granted)
            self._measure(granted)
            self._serve()

    @contextmanager
    def aside(self, source: str | None) -> Iterator[None]:
        """Free the place of one leaf while it waits for another host or another queue.

        After the block the leaf continues without waiting. Without a `source` there was no turn, and nothing happens.
        """
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

    async def _enter(self, network: str, count: int, begun: bool) -> int:
        if not begun:
            self._check_patience(network, count)
        turn = _Turn(count)
        line = self._lines.setdefault(network, deque())
        # The rest of a submission goes first: some of its leaves are logged, and its sender waits for all answers
        # together.
        line.insert(0 if begun else len(line), turn)
        self._waiting += count
        self._serve()
        try:
            # A timeout as well: if the work in front hangs, those behind it must not. Submissions that have begun are not ended.
            async with asyncio.timeout(None if begun else PATIENCE):
                return await turn.granted
        except TimeoutError as error:
            self._forget(network, turn)
            raise self._busy() from error
        except asyncio.CancelledError:
            self._forget(network, turn)
            raise

    def _check_patience(self, network: str, count: int) -> None:
        line = self._lines.get(network, ())
        # Nothing waits, so there is no wait to estimate.
        if not self._waiting:
            return
        sharing = len(self._lines) + (0 if line else 1)
        own, everybody = sum(turn.wanted for turn in line) + count, self._waiting + count
        # At most everything that waits goes first; with turns, at most the own line once for each line.
        seconds = min(everybody, own * sharing) / self.capacity
        # Half of the queue for one network: a flood must leave the others a place in it.
        if everybody > self._most or own > self._most // 2 or (self._is_known and seconds > PATIENCE):
            raise self._busy()

    def _busy(self) -> Unavailable:
        return Unavailable(
            self._code,
            f"More work is waiting than this registry can do in {PATIENCE:.0f} seconds.",
            fix="Send again in a while, or send fewer at a time.",
        )

    def _serve(self) -> None:
        """Grant turns while the work in progress is below its limit."""
        room = self._width or max(LEAST, int(self.capacity * LATENCY))
        # A quarter stays free of any single network, so that a second network begins at once.
        share = max(1, room * 3 // 4)
        while (free := room - self._working.total()) > 0:
            network = next((network for network in self._lines if self._working[network] < share), None)
            if network is None:
                break
            line = self._lines[network]
            turn = line.popleft()
            self._waiting -= turn.wanted
            alone = len(self._lines) == 1
            # Alone, a network gets all it wants, because larger commits are cheaper. With others it gets a quantum,
            # so each round is short.
            granted = min(turn.wanted, free, share - self._working[network], turn.wanted if alone else QUANTUM)
            if line:
                # To the end of the rotation: agents are free to make, so networks take turns and not submissions.
                self._lines.move_to_end(network)
            else:
                del self._lines[network]
            if not turn.granted.done():  # its submitter may have been cancelled
                self._working[network] += granted
                turn.granted.set_result(granted)
        # Measured only while something waits. Otherwise the rate would show how much was sent, not how much the
        # machine can do.
        if not self._lines:
            self._window = None
        elif self._window is None:
            self._window = (self._clock(), 0)

    def _leave(self, network: str, granted: int) -> None:
        self._working[network] -= granted
        if not self._working[network]:
            del self._working[network]

    def _forget(self, network: str, turn: _Turn) -> None:
        """Take back the turn of a submission that was cancelled."""
        line = self._lines.get(network)
        if line is not None and turn in line:
            line.remove(turn)
            self._waiting -= turn.wanted
            if not line:
                del self._lines[network]
        # The turn was granted just before the cancellation. Free its places, or they would be lost for ever.
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
