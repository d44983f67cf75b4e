"""Room on the disks that this process writes to, looked at before it writes.

PostgreSQL ends when it cannot make the next segment of its write-ahead log (16 MiB), and readers with it. So a write is refused
while less than `DATABASE_ROOM` is left for it; and what is refused before it has begun leaves nothing to clear away.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from treaty_consensus.errors import Unavailable

DATABASE_ROOM = 17 * 1024 * 1024
"""Bytes that are kept free for PostgreSQL: one segment of its log, and a MiB."""
BLOBS_ROOM = 1024 * 1024
"""Bytes that are kept free beside what a write needs for itself."""

_log = structlog.get_logger(__name__)


@dataclass
class Room:
    """The free space below one folder. `purpose`: what is kept there, for the refusal. Safe for threads."""

    folder: Path
    purpose: str
    kept: int
    _told: bool = False

    def check(self, needed: int = 0) -> None:
        """Raises `Unavailable` (`disk.full`) unless `needed` bytes and one file can be written. One system call."""
        found = os.statvfs(self.folder)
        no_files = found.f_files > 0 and found.f_favail == 0  # a file system without such a limit says 0 and 0
        free = found.f_bavail * found.f_frsize
        if not no_files and free >= self.kept + needed:
            if self._told:
                _log.warning("there is room again", folder=str(self.folder), free=free)
            self._told = False
            return
        if not self._told:
            _log.critical("disk full", folder=str(self.folder), free=free, files=found.f_favail, kept=self.kept)
        self._told = True
        raise Unavailable(
            "disk.full",
            f"The disk that holds the registry's {self.purpose} is full.",
            fix="Send the same again later; the registry goes on by itself once its operator has made room.",
        )
