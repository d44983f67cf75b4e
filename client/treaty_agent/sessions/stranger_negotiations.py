"""Admit the negotiations that other agents begin: a bounded number at once, and after failures only with pauses.

A failure is a negotiation for which this side's negotiator worked, and that led to no session. The first `FREE` failures of a
party in a row cost no pause, because honest models fail, too. The next one does, and each further one twice as long, at most
`MAX_PAUSE`. A success ends the memory. A party is a proved DID, and a network (`Payer.keys`): a flood of identities of one
network has one memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from treaty_consensus.errors import Unavailable
from treaty_io.codes import SessionCode

from ..negotiators.negotiator import Payer

FREE = 2
PAUSE, MAX_PAUSE = 30.0, 3600.0
"""Seconds."""
# Strangers choose their DIDs. The party whose last failure is the oldest is forgotten first.
MAX_PARTIES = 4096


@dataclass
class _Failures:
    count: int = 0
    until: float = 0.0


class StrangerNegotiations:
    """For one event loop. `taken`: those under way."""

    def __init__(self, size: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember nothing yet. `size`: at once. `clock`: monotonic seconds."""
        self.taken = 0
        self._size, self._clock = size, clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def begin(self, payer: Payer) -> None:
        """Take a place. Raises `Unavailable` (`session.busy`) without one, and during a pause; then nothing changed."""
        left = max((self._failures[key].until - self._clock() for key in payer.keys if key in self._failures), default=0.0)
        if left > 0:
            error = Unavailable(SessionCode.BUSY, f"{payer.keys[0]} failed too often, and waits for {left:,.0f} seconds.")
            error.retry_after = left
            raise error
        if self.taken >= self._size:
            raise Unavailable(SessionCode.BUSY, f"{self.taken} negotiations with other agents are under way.")
        self.taken += 1

    def end(self, payer: Payer, *, failed: bool | None) -> None:
        """Give a place back. `failed`: None if that was not the peer's fault."""
        self.taken -= 1
        if failed is None:
            return
        for key in payer.keys:
            failures = self._failures.pop(key, _Failures())
            if failed:
                failures.count += 1
                pauses = failures.count - FREE
                failures.until = self._clock() + min(PAUSE * 2 ** min(pauses - 1, 16), MAX_PAUSE) if pauses > 0 else 0.0
                self._failures[key] = failures
        while len(self._failures) > MAX_PARTIES:
            self._failures.popitem(last=False)
