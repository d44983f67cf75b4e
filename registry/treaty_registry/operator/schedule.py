"""Close the epochs of an open electorate by schedule, with the log's clock.

An epoch that opened at `opened` is due `epoch_seconds` later. If it has nothing to decide then, it is due again after each
further `epoch_seconds`. Admission enforces this: an early decision is refused, and the next epoch starts on the schedule even
when the last one closed late (`treaty_consensus.admit`).

All state is in the log, so a process may end at any moment and another one continues. The decisions of an epoch are one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from treaty_consensus.errors import TreatyError
from treaty_consensus.facts import LOG, LogFact, ParametersFact
from treaty_io import tracing

from ..log.tables import read_fact
from ..storage.postgres import Pool
from ..telemetry.measures import EPOCH_CLOSE_SECONDS, EPOCH_CLOSES

_LOOK = 5.0
"""Most seconds between two checks, because the clock may be set and parameters may come into force."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Timetable:
    """The open epoch closes at `due`, Unix seconds, or, with nothing to decide, every `period` seconds after that."""

    epoch: int
    due: int
    period: int

    def after(self, now: float) -> int:
        """Return the first of these times after `now`."""
        return self.due if now < self.due else self.due + (int(now - self.due) // self.period + 1) * self.period


async def read_timetable(pool: Pool) -> Timetable | None:
    """Return when the open epoch closes, as of the newest commit. None where the operator closes epochs."""
    log = await read_fact(pool, LOG)
    if not isinstance(log, LogFact) or log.parameters is None:
        return None
    parameters = await read_fact(pool, f"parameters/{log.parameters}")
    if not isinstance(parameters, ParametersFact) or parameters.epoch_seconds is None:
        return None
    return Timetable(log.epoch, log.opened + parameters.epoch_seconds, parameters.epoch_seconds)


class Schedule:
    """Closes each epoch when it is due, while `run` runs."""

    def __init__(
        self,
        timetable: Callable[[], Awaitable[Timetable | None]],
        close: Callable[[], Awaitable[Sequence[object]]],
        clock: Callable[[], datetime],
    ) -> None:
        """`close` closes the open epoch and returns its decisions; an empty result means that it is still open."""
        self._timetable = timetable
        self._close = close
        self._clock = clock
        self._found_empty: tuple[Timetable, int] | None = None
        self.known: Timetable | None = None
        """The timetable as it was last read. None where the operator closes epochs."""

    def lag(self, now: float) -> float:
        """Return the seconds by which the close of the open epoch is late; 0 while it is not due, or has nothing to decide."""
        due = self.known.due if self.known else now
        if self._found_empty is not None and self._found_empty[0] == self.known:
            due = self._found_empty[1]
        return max(0.0, now - due)

    async def run(self) -> None:
        """Run until cancelled. Errors are logged, once as long as they are the same, and the close is tried again."""
        reported = ""
        while True:
            try:
                pause = await self.close_if_due()
                reported = ""
            # The schedule must survive any failure: without it the epoch would never close.
            except Exception as error:
                EPOCH_CLOSES.labels("failed").inc()
                if reported != (reported := f"{type(error).__name__}: {error}"):
                    _log.error("epoch not closed", error=str(error), exc_info=None if isinstance(error, TreatyError) else error)
                pause = _LOOK
            await asyncio.sleep(pause)

    async def close_if_due(self) -> float:
        """Close the epoch if it is due. Returns the seconds until the next check."""
        timetable = self.known = await self._timetable()
        if timetable is None:
            return _LOOK
        now = self._clock().timestamp()
        due = timetable.due
        # An empty epoch costs a replay, so it is looked at again only at its next date.
        if self._found_empty is not None and self._found_empty[0] == timetable:
            due = self._found_empty[1]
        if now < due:
            return min(due - now, _LOOK)
        with EPOCH_CLOSE_SECONDS.time(), tracing.span("close epoch"):
            decided = await self._close()
        EPOCH_CLOSES.labels("closed" if decided else "empty").inc()
        if decided:
            _log.info("epoch closed", epoch=timetable.epoch, decisions=len(decided))
            # The next epoch may be due already when this one closed late.
            return 0
        self._found_empty = timetable, timetable.after(now)
        return min(self._found_empty[1] - now, _LOOK)
