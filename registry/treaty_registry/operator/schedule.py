"""Closing epochs by schedule: in an open electorate the log's clock says when, and nobody else has to.

An epoch that opened at `opened` is due `epoch_seconds` later, and every `epoch_seconds` after that while it has nothing to
decide. Admission holds the operator to it: a decision before its time is refused, and the next epoch begins on the schedule
however late the last one closed (`treaty_consensus.admit`).

The log remembers everything that matters here, so a process may end at any moment and another one goes on: the decisions of an
epoch are one commit, which is there or is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from treaty_consensus.errors import TreatyError
from treaty_consensus.facts import LOG, LogFact, ParametersFact

from ..log.tables import read_fact
from ..storage.postgres import Pool

_LOOK = 5.0
"""Seconds until the log and the clock are looked at again: a clock may be set, and parameters may come into force."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Timetable:
    """The open epoch closes at `due`, Unix seconds, or, with nothing to decide, every `period` seconds after that."""

    epoch: int
    due: int
    period: int

    def after(self, now: float) -> int:
        """The first of these times after `now`."""
        return self.due if now < self.due else self.due + (int(now - self.due) // self.period + 1) * self.period


async def read_timetable(pool: Pool) -> Timetable | None:
    """When the open epoch closes, as of the newest commit. None where epochs are closed by hand."""
    log = await read_fact(pool, LOG)
    if not isinstance(log, LogFact) or log.parameters is None:
        return None
    parameters = await read_fact(pool, f"parameters/{log.parameters}")
    if not isinstance(parameters, ParametersFact) or parameters.epoch_seconds is None:
        return None
    return Timetable(log.epoch, log.opened + parameters.epoch_seconds, parameters.epoch_seconds)


class Schedule:
    """Closes each epoch when it is due, for as long as `run` runs."""

    def __init__(
        self,
        timetable: Callable[[], Awaitable[Timetable | None]],
        close: Callable[[], Awaitable[Sequence[object]]],
        clock: Callable[[], datetime],
    ) -> None:
        """`close` closes the open epoch and returns its decisions; none, and it is still open."""
        self._timetable = timetable
        self._close = close
        self._clock = clock
        self._found_empty: tuple[Timetable, int] | None = None

    async def run(self) -> None:
        """Until it is cancelled. What goes wrong is logged and tried again."""
        while True:
            try:
                pause = await self._step()
            except Exception as error:
                _log.error("epoch not closed", error=str(error), exc_info=None if isinstance(error, TreatyError) else error)
                pause = _LOOK
            await asyncio.sleep(pause)

    async def _step(self) -> float:
        """Close the epoch if it is due. Returns the seconds after which to look again."""
        timetable, now = await self._timetable(), self._clock().timestamp()
        if timetable is None:
            return _LOOK
        due = timetable.due
        if self._found_empty is not None and self._found_empty[0] == timetable:
            due = self._found_empty[1]
        if now < due:
            return min(due - now, _LOOK)
        decided = await self._close()
        if decided:
            _log.info("epoch closed", epoch=timetable.epoch, decisions=len(decided))
            return 0
        self._found_empty = timetable, timetable.after(now)
        return min(self._found_empty[1] - now, _LOOK)
