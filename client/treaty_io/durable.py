"""Files that survive a crash and a second process.

`write` makes the whole file appear at once: a sibling whose name starts with a dot is written, synced, and renamed into place,
then the directory is synced. A crash leaves the old file or the new one, and at worst such a sibling, which nothing reads.
`exclusive` is one process at a time, by an advisory lock on a file that is never deleted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

BINARY = 0
"""The flag of `os.open` without which Windows writes another end of line."""
if sys.platform == "win32":
    import errno
    import msvcrt
    import time

    BINARY = os.O_BINARY
else:
    import fcntl

_AGAIN = 0.05
"""Seconds between two tries for a lock on Windows."""


def write(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`, creating its directories. Durable when it returns. Raises OSError; then `path` is as
    before, or new and perhaps not durable if only its folder could not be synced."""
    _place(path, data, mode)


def write_unsynced(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """As `write`, for bytes that can be had again and are checked when they are read: after a power failure the file may be
    absent, or hold something else."""
    _place(path, data, mode, sync=False)


def create(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """As `write`, but raises FileExistsError when `path` exists, even if it came into being meanwhile."""
    _place(path, data, mode, replace=False)


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the advisory lock `path` in the block. As `open_locked`."""
    descriptor = open_locked(path, wait=wait)
    try:
        yield
    finally:
        os.close(descriptor)


def open_locked(path: Path, *, wait: bool = True) -> int:
    """Take the advisory lock `path`, which is created with its folder, and return its descriptor. Blocks until the lock is free.

    Closing the descriptor releases the lock, and so does the end of the process in any way. Without `wait` a held lock raises
    BlockingIOError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Never deleted: a process could hold the lock of the deleted file while another one locks a new file of this name.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, wait=wait)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, *, wait: bool) -> None:
    if sys.platform == "win32":
        while True:
            try:
                # The first byte, which need not exist. LK_LOCK would give up after ten seconds.
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except PermissionError as error:
                if not wait:
                    raise BlockingIOError(errno.EWOULDBLOCK, "another process holds the lock") from error
            time.sleep(_AGAIN)
    else:
        # flock instead of POSIX locks, which a process loses when it closes any descriptor of the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """As `write`, with a file to write into for data that need not be in memory at once. An error in the block leaves `path`."""
    with _placed(path, mode, replace=True, sync=True) as file:
        yield file


def _place(path: Path, data: bytes, mode: int, *, replace: bool = True, sync: bool = True) -> None:
    with _placed(path, mode, replace=replace, sync=sync) as file:
        file.write(data)


@contextmanager
def _placed(path: Path, mode: int, *, replace: bool, sync: bool) -> Iterator[IO[bytes]]:
    import tempfile  # here: most commands write nothing

    try:
        # In the same folder, because a rename is atomic only within one file system. A random name, so that two writers do not
        # share it.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except FileNotFoundError:
        make_folder(path.parent, private=not mode & 0o077)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # The file is 0600 until here, so a secret is never readable by others. The umask does not change this mode.
            set_mode(file.fileno(), mode)
            yield file
            file.flush()
            if sync:
                # Before the rename: some file systems keep a rename over a power failure without the data that were written
                # before it.
                os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # unlike a rename, fails when the name is taken
            temporary.unlink()
    except BaseException:
        # The old file is untouched until the rename, so only the sibling has to go.
        temporary.unlink(missing_ok=True)
        raise
    # The rename is a change of the folder: without this, a power failure can bring the old file back after `write` returned.
    if sync:
        sync_directory(path.parent)


def make_folder(folder: Path, *, private: bool) -> None:
    """Make a folder and those above it. `private`: the new ones are for this user alone, because names tell as much as contents.
    Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700 if private else 0o777, exist_ok=True)


def sync_directory(folder: Path) -> None:
    """Make the names in a folder durable: files that were created, renamed or deleted. Raises OSError."""
    if sys.platform == "win32":
        return  # it opens no folder, and its file system has a journal of names
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def set_mode(descriptor: int, mode: int) -> None:
    """Set the permissions of an open file. On Windows those of its folder hold instead."""
    if sys.platform != "win32":
        os.fchmod(descriptor, mode)
