"""The time that a log signs: the machine's clock, held against what was signed before and against the machine's uptime.

A cosignature with a wrong time cannot be taken back. One that is too old makes agents refuse the log as stale. One that is too
new can be replayed as fresh until that time has come. So a time is signed, or put into a statement, a timestamp or a
certificate, only if it is plausible:

- It is never before the newest signed time. A clock that is at most `SLEW` behind is taken to be at that time; one that is
  further behind stops all signing until it has caught up (`log.clock-behind`).
- It has moved by as much as the machine's uptime, which nobody sets and which goes on while the machine sleeps, give or take
  `LEAP` and a thousandth. Otherwise the clock was set, and all signing stops until it is set back, or until the operator has said
  that it is right (`log.clock-ahead`, `log.clock-behind`).

The newest signed time is in the fence's record (`fence`), with the uptime and the id of that boot, as the line

    time TIME BOOT UPTIME       POSIX seconds; the kernel's random id of the boot, or `-`; seconds since then, or 0

so a process that starts again on the same boot compares with what the one before it signed. After another boot, and on another
machine, nothing says how much time has gone by: a clock that is ahead is then taken at its word, and the leap is logged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import structlog

from treaty_consensus.errors import Unavailable

SLEW = 10
"""Seconds that a clock may be behind what was signed: a time service corrects that much without a word."""
LEAP = 300
"""Seconds that a clock may run away from the uptime between two signatures."""
_DRIFT = 1000
_LONG = 3600
"""Seconds after which the first signature of a process is worth a line in its log."""
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
    """The machine's clock."""
    return datetime.now(UTC)


def machine_uptime() -> Uptime | None:
    """The machine's uptime, sleep included; None where the kernel does not tell it (Linux does)."""
    with suppress(OSError, ValueError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return Uptime(boot, float(Path("/proc/uptime").read_text(encoding="ascii").split()[0]))
    return None


@dataclass(frozen=True)
class SignedTime:
    """A time that was signed, or may have been, POSIX seconds, and the uptime then, if it was known."""

    time: int
    uptime: Uptime | None = None

    def format(self) -> str:
        """Its line in the fence's record, without the newline."""
        boot, seconds = (self.uptime.boot, int(self.uptime.seconds)) if self.uptime else ("-", 0)
        return f"time {self.time} {boot} {seconds}"

    @classmethod
    def parse(cls, line: str) -> SignedTime | None:
        """The inverse of `format`; None when the line is another one."""
        found = _RECORD.fullmatch(line)
        if found is None:
            return None
        time, boot, seconds = found.groups()
        return cls(int(time), None if boot == "-" else Uptime(boot, float(seconds)))


class LogClock:
    """The clock of one log. Safe for threads."""

    def __init__(self, wall: Clock, uptime: ReadUptime, newest: SignedTime | None) -> None:
        """`newest`: the recorded one; None for a log that has signed nothing."""
        self._wall = wall
        self._uptime = uptime
        self.newest = newest
        self._told = ""
        self._signed = False

    def now(self) -> datetime:
        """The time, not before the newest signed one. Raises `Unavailable` (`log.clock-behind`, `log.clock-ahead`)."""
        return self._look()[0]

    def stamp(self) -> SignedTime:
        """What to record and then to sign now. Raises as `now`."""
        now, uptime = self._look()
        return SignedTime(int(now.timestamp()), uptime)

    def signed(self, stamp: SignedTime) -> None:
        """Remember a time that is recorded and about to be signed."""
        if self.newest is not None and not self._signed and stamp.time - self.newest.time > _LONG:
            _log.warning("the clock has moved on since the log last signed", seconds=stamp.time - self.newest.time)
        self._signed = True
        self.newest = stamp

    def accept(self) -> datetime:
        """Take the clock at its word from now on, where it is ahead: the operator has looked. Raises `Unavailable` where it is
        behind what was signed, which no operator can permit."""
        now = self._wall()
        if self.newest is not None:
            if now.timestamp() < self.newest.time - SLEW:
                raise self._implausible(now, self.newest.time)
            self.newest = SignedTime(self.newest.time)
        _log.warning("the operator accepted the clock", now=now.isoformat())
        return now

    def _look(self) -> tuple[datetime, Uptime | None]:
        now, uptime, newest = self._wall(), self._uptime(), self.newest
        if newest is not None:
            behind = newest.time - now.timestamp()
            expected, leap = self._expected(newest, uptime)
            if behind > SLEW or abs(now.timestamp() - expected) > leap:
                raise self._implausible(now, max(expected, newest.time))
            if behind > 0:
                now = datetime.fromtimestamp(newest.time, UTC)
        if self._told:
            _log.warning("the clock is plausible again", now=now.isoformat())
            self._told = ""
        return now, uptime

    def _expected(self, newest: SignedTime, uptime: Uptime | None) -> tuple[float, float]:
        """The time that it should be by the uptime, and by how much it may be another; anything goes when that is unknown."""
        before = newest.uptime
        if uptime is None or before is None or uptime.boot != before.boot or uptime.seconds < int(before.seconds):
            return newest.time, float("inf")
        passed = uptime.seconds - before.seconds
        return newest.time + passed, LEAP + passed / _DRIFT

    def _implausible(self, now: datetime, expected: float) -> Unavailable:
        ahead = now.timestamp() > expected
        seconds, code = abs(int(now.timestamp() - expected)), "log.clock-ahead" if ahead else "log.clock-behind"
        if self._told != code:
            todo = (
                "set it right, or run: treaty-registry clock --accept"
                if ahead
                else "set it right, or wait until it has caught up"
            )
            _log.critical("the clock is wrong, and nothing is signed", code=code, seconds=seconds, now=now.isoformat(), todo=todo)
        self._told = code
        return Unavailable(
            code,
            f"The registry's clock is {seconds} seconds {'ahead of' if ahead else 'behind'} what the log has signed: "
            "nothing is signed until it is right.",
            fix="Send again later; the registry's operator has to look at the clock.",
        )
