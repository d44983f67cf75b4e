"""The disks of the simulated machines: the system calls that the fence makes, with errors, slowness and torn writes.

A synchronous write is durable when it returns. A machine that loses its power keeps what was written, and of the last write
maybe a
part.
"""

from __future__ import annotations

import asyncio
import fcntl as real_fcntl
import io
import os as real_os
from dataclasses import dataclass, field
from typing import Any

from .scheduler import Killed


@dataclass
class Disk:
    """The files of one machine. `broken`: every write fails. `tears`: the next write ends in the middle, with the process."""

    name: str
    files: dict[str, bytearray] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    broken: bool = False
    tears: bool = False


@dataclass(frozen=True)
class DiskPath:
    """The part of `pathlib.Path` that the registry uses of its data directory."""

    disk: Disk
    name: str = "data"

    def __truediv__(self, name: str) -> DiskPath:
        return DiskPath(self.disk, f"{self.name}/{name}")

    def __str__(self) -> str:
        return f"{self.disk.name}:{self.name}"

    def exists(self) -> bool:
        return self.name in self.disk.files

    def read_bytes(self) -> bytes:
        return bytes(self.disk.files[self.name])

    def open(self, mode: str) -> io.BytesIO:
        assert mode == "rb"
        if not self.exists():
            raise FileNotFoundError(str(self))
        return io.BytesIO(self.read_bytes())


@dataclass
class _Open:
    path: DiskPath
    process: Any


class SystemCalls:
    """Stands for the modules `os`, `fcntl` and `treaty_io.durable` where the fence uses them."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._next = 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(real_fcntl if name.startswith("LOCK_") else real_os, name)

    def open(self, path: DiskPath, flags: int) -> int:
        """Open an existing file for the calling process."""
        if not path.exists():
            raise FileNotFoundError(str(path))
        self._next += 1
        self._open[self._next] = _Open(path, asyncio.get_running_loop().process)  # type: ignore[attr-defined]
        return self._next

    def flock(self, descriptor: int, flags: int) -> None:
        """Lock a file, or unlock it. The kernel frees the lock of a dead process (`died`).

        A job in a thread runs at once, so the lock of a shared record is always free when another job asks for it.
        """
        opened = self._open.get(descriptor)
        if opened is None:  # the process was killed while it held the lock
            return
        holders = opened.path.disk.holders
        if flags == real_fcntl.LOCK_UN:
            holders.pop(opened.path.name, None)
        elif holders.setdefault(opened.path.name, descriptor) != descriptor:
            raise BlockingIOError(f"{opened.path} is locked.")

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return self._open[descriptor].path.read_bytes()[offset : offset + size]

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        """Write in place."""
        opened = self._open[descriptor]
        disk = opened.path.disk
        if disk.broken:
            raise OSError(5, "Input/output error")
        if disk.tears:
            disk.tears = False
            half = data[: len(data) // 2]
            disk.files[opened.path.name][offset : offset + len(half)] = half
            opened.process.kill("in the middle of a write")
            raise Killed
        disk.files[opened.path.name][offset : offset + len(data)] = data
        return len(data)

    def close(self, descriptor: int) -> None:
        """Close a descriptor, and free its lock."""
        opened = self._open.pop(descriptor, None)
        if opened is not None and opened.path.disk.holders.get(opened.path.name) == descriptor:
            del opened.path.disk.holders[opened.path.name]

    def write(self, path: DiskPath, data: bytes, *, mode: int) -> None:
        """Replace a file (`durable.write`)."""
        path.disk.files[path.name] = bytearray(data)

    def died(self, process: Any) -> None:
        """Close everything that a dead process had open."""
        for descriptor in [number for number, opened in self._open.items() if opened.process is process]:
            self.close(descriptor)
