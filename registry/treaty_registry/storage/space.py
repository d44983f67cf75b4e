"""Check the free disk space before a write.

PostgreSQL ends, for readers too, when it cannot create the next segment of its write-ahead log (16 MiB). So a write is refused
while less than `DATABASE_ROOM` is free. The refusal comes before the write starts, so nothing has to be cleaned up.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from treaty_consensus.errors import Unavailable

from ..codes import DiskCode

DATABASE_ROOM = 17 * 1024 * 1024
"""Bytes kept free for PostgreSQL: one segment of its write-ahead log, and a MiB."""
BLOBS_ROOM = 1024 * 1024
"""Bytes kept free in addition to the bytes of a write."""

_log = structlog.get_logger(__name__)


@dataclass
class FreeSpace:
    """The free space of one folder. `purpose`: its use, for the error message. Safe for threads."""

    folder: Path
    purpose: str
    kept: int
    _reported: bool = False

    @property
    def free(self) -> int:
        """Return the bytes that are free. One system call. Raises `OSError`."""
        usage = os.statvfs(self.folder)
        return usage.f_bavail * usage.f_frsize

    @property
    def full(self) -> bool:
        """Whether every write is refused. One system call. Raises `OSError`."""
        return not self._holds(os.statvfs(self.folder), 0)

    def check(self, needed: int = 0) -> None:
        """Raise `Unavailable` (`disk.full`) unless `needed` bytes and one file can be written. One system call."""
        usage = os.statvfs(self.folder)
        free = usage.f_bavail * usage.f_frsize
        if self._holds(usage, needed):
            if self._reported:
                _log.warning("there is room again", folder=str(self.folder), free=free)
            self._reported = False
            return
        # Once, because every refused write comes here.
        if not self._reported:
            _log.critical("disk full", folder=str(self.folder), free=free, files=usage.f_favail, kept=self.kept)
        self._reported = True
        raise Unavailable(
            DiskCode.FULL,
            f"The disk that holds the registry's {self.purpose} is full.",
            fix="Send the same again later. The registry continues by itself once its operator has freed space.",
        )

    def _holds(self, space: os.statvfs_result, needed: int) -> bool:
        no_files = space.f_files > 0 and space.f_favail == 0  # a file system without a limit on files reports 0 and 0
        return not no_files and space.f_bavail * space.f_frsize >= self.kept + needed
