"""Check the machine's clock before its time is signed.

A cosignature with a wrong time cannot be revoked. If its time is too old, agents refuse the log as stale. If its time is in the
future, it can be replayed as fresh until then. So a time is signed, or used in a statement, a timestamp or a certificate, only
if it is plausible:

- It is not before the newest signed time. If the clock is at most `SLEW` behind, the newest signed time is used. If it is
  further behind, all signing stops until it has caught up (`log.clock`).
- No other process signs this log (`operator.other_signer`). Otherwise all signing stops until the operator decides.
- It has advanced as much as the machine's uptime since then, with a tolerance of `LEAP` and a thousandth. The uptime cannot be
  set, and continues while the machine sleeps. On a larger difference the clock was set. All signing then stops until the clock
  is set back, or until the operator confirms it (`log.clock`).

The newest signed time is in the fence's record (`fence`), with the uptime and the id of that boot, as the line

    time TIME BOOT UPTIME       POSIX seconds; the kernel's random id of the boot, or `-`; seconds since then, or 0

So a process that restarts during the same boot compares with the time that its predecessor signed. After another boot, or on
another machine, the elapsed time is unknown. A clock that is ahead is then accepted, and the difference is logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeAlias

import structlog

from treaty_consensus.errors import Unavailable

from ..codes import RegistryLogCode

SLEW = 10
"""Seconds that the clock may be behind the newest signed time. Time services make corrections of this size routinely."""
LEAP = 300
"""Seconds that the clock may differ from the uptime between two signatures."""
# The tolerance grows by a thousandth of the elapsed uptime, because two clocks drift apart.
_DRIFT = 1000
_LONG = 3600
"""If the last signature is older than this many seconds, the first signature of a process logs a warning."""
_RECORD = re.compile(r"time (0|[1-9]\d{0,15}) ([0-9a-f-]{1,64}) (0|[1-9]\d{0,15})", re.ASCII)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Uptime:
    """Seconds since the boot with the id `boot`."""

    boot: str
    seconds: float


Clock: TypeAlias = Callable[[], datetime]
ReadUptime: TypeAlias = Callable[[], Uptime | None]


def machine_clock() -> datetime:
    """Return the machine's time."""
    return datetime.now(UTC)


def machine_uptime() -> Uptime | None:
    """Return the machine's uptime, including sleep, or None where the kernel does not provide it (Linux does)."""
    boot = _boot()
    # The number in /proc/uptime. A system call costs a hundredth of opening and reading the file, and each write asks twice.
    return Uptime(boot, time.clock_gettime(time.CLOCK_BOOTTIME)) if boot else None


@cache
def _boot() -> str:
    """Return the random id of this boot, "" where the kernel has none. It is read once: a process does not outlive its boot."""
    # Only Linux has the file, and the clock. Without them the machine's clock is compared with the newest signed time alone.
    with suppress(OSError, ValueError):
        if hasattr(time, "CLOCK_BOOTTIME"):
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


@dataclass(frozen=True)
class SignedTime:
    """A time that was signed, or may have been, in POSIX seconds; and the uptime at that time, if known."""

    time: int
    uptime: Uptime | None = None

    def format(self) -> str:
        """Return the line of the fence's record, without the newline."""
        boot, seconds = (self.uptime.boot, int(self.uptime.seconds)) if self.uptime else ("-", 0)
        return f"time {self.time} {boot} {seconds}"

    @classmethod
    def parse(cls, line: str) -> SignedTime | None:
        """Parse the output of `format`; None when the line has another form."""
        match = _RECORD.fullmatch(line)
        if match is None:
            return None
        time, boot, seconds = match.groups()
        return cls(int(time), None if boot == "-" else Uptime(boot, float(seconds)))


class LogClock:
    """The clock of one log. Safe for threads."""

    def __init__(self, wall: Clock, uptime: ReadUptime, newest: SignedTime | None) -> None:
        """`newest`: the recorded time; None for a log that has signed nothing."""
        self._wall = wall
        self._uptime = uptime
        self.newest = newest
        self._reported = ""
        self._signed = False
        self.barred: Unavailable | None = None
        """The reason for which no time may be signed, whatever the clock says (`bar`)."""

    def now(self) -> datetime:
        """Return the time, not before the newest signed time.

        Raises `Unavailable` (`log.clock`), and the error of `bar`.
        """
        return self._look()[0]

    def stamp(self) -> SignedTime:
        """Return the time to record and then sign. Raises as `now`."""
        now, uptime = self._look()
        return SignedTime(int(now.timestamp()), uptime)

    def signed(self, stamp: SignedTime) -> None:
        """Store a time that is recorded and will now be signed."""
        if self.newest is not None and not self._signed and stamp.time - self.newest.time > _LONG:
            _log.warning("the clock has moved on since the log last signed", seconds=stamp.time - self.newest.time)
        self._signed = True
        self.newest = stamp

    def machine(self) -> datetime:
        """Return the time of the machine, right or wrong."""
        return self._wall()

    def bar(self, reason: Unavailable) -> None:
        """Let nothing be signed: from now on `now` and `stamp` raise `reason`. A person decides when it ends (`unbar`)."""
        self.barred = reason

    def unbar(self) -> None:
        """Let times be signed again."""
        self.barred = None

    def read(self, recorded: SignedTime | None) -> None:
        """Take in the newest recorded time, which another node may have signed."""
        # Only a later one: an accepted clock (`accept`) is not compared with the older record again.
        if recorded is not None and (self.newest is None or recorded.time > self.newest.time):
            self.newest = recorded

    def accept(self) -> datetime:
        """Accept a clock that is ahead, after the operator has checked it.

        Raises `Unavailable` when the clock is behind the newest signed time; an operator cannot permit that.
        """
        now = self._wall()
        if self.newest is not None:
            # Signed times never go backwards: agents would refuse the log as stale.
            if now.timestamp() < self.newest.time - SLEW:
                raise self._implausible(now, self.newest.time)
            # Without an uptime, the next comparison has an infinite tolerance. The one after it is strict again.
            self.newest = SignedTime(self.newest.time)
        _log.warning("the operator accepted the clock", now=now.isoformat())
        return now

    def _look(self) -> tuple[datetime, Uptime | None]:
        if (barred := self.barred) is not None:
            # A new object for each: one exception raised in several tasks would mix their tracebacks.
            raise Unavailable(barred.code, barred.message, fix=barred.fix)
        now, uptime, newest = self._wall(), self._uptime(), self.newest
        if newest is not None:
            behind = newest.time - now.timestamp()
            expected, leap = self._expected(newest, uptime)
            if behind > SLEW or abs(now.timestamp() - expected) > leap:
                raise self._implausible(now, max(expected, newest.time))
            # Repeat the newest time, so that no signed time is before another.
            if behind > 0:
                now = datetime.fromtimestamp(newest.time, UTC)
        if self._reported:
            _log.warning("the clock is plausible again", now=now.isoformat())
            self._reported = ""
        return now, uptime

    def _expected(self, newest: SignedTime, uptime: Uptime | None) -> tuple[float, float]:
        """Return the time expected from the uptime, and the tolerance. The tolerance is infinite when the uptime is unknown."""
        before = newest.uptime
        # After another boot the time in between is unknown, and a registry that was off for a month must start.
        if uptime is None or before is None or uptime.boot != before.boot or uptime.seconds < int(before.seconds):
            return newest.time, float("inf")
        passed = uptime.seconds - before.seconds
        return newest.time + passed, LEAP + passed / _DRIFT

    def _implausible(self, now: datetime, expected: float) -> Unavailable:
        ahead = now.timestamp() > expected
        seconds = abs(int(now.timestamp() - expected))
        where = "ahead of" if ahead else "behind"
        # Once, because every refused write comes here.
        if self._reported != where:
            todo = (
                "set it right, or run: treaty-registry accept-clock" if ahead else "set it right, or wait until it has caught up"
            )
            _log.critical(
                "the clock is wrong, and nothing is signed",
                code=RegistryLogCode.CLOCK,
                clock=where,
                seconds=seconds,
                now=now.isoformat(),
                todo=todo,
            )
        self._reported = where
        return Unavailable(
            RegistryLogCode.CLOCK,
            f"The registry's clock is {seconds} seconds {where} the time that the log has signed. "
            "Nothing is signed until it is right.",
            fix="Send again later; the registry's operator has to look at the clock.",
        )
