"""Folders that tests fill once and keep in pytest's cache: environments of other languages and programs built from source."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def kept(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return `folder`, which `make` fills once.

    A lock, because every process of a test run would fill it. A killed run leaves a folder without `complete`, which is emptied.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "complete").touch()
    return folder
