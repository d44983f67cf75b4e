"""Files that survive a crash and a second process.

`write` makes the whole file appear at once: a sibling whose name starts with a dot is written, synced, and renamed into place,
then the directory is synced. A crash leaves the old file or the new one, and at worst such a sibling, which nothing reads.
`exclusive` is one process at a time, by an advisory lock on a file that is never deleted.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`, creating its directories. Durable when it returns. Raises OSError; then `path` is as before."""
    _place(path, data, mode, replace=True)


def create(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """As `write`, but raises FileExistsError when `path` exists, even if it came into being meanwhile."""
    _place(path, data, mode, replace=False)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the advisory lock `path`; blocks until it is free. The system releases it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _place(path: Path, data: bytes, mode: int, *, replace: bool) -> None:
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # unlike a rename, fails when the name is taken
            temporary.unlink()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
