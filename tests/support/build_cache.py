"""Folders that tests fill once and keep in pytest's cache: environments of other languages and programs built from source."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_machine = {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def trust_no_authority() -> None:
    """Have no authority of the machine trusted by the processes that start from here on: tests bring their own.

    Reading the hundred authorities costs each program, and each client of httpx, 50 ms of processor time. The one in their place
    signs nothing: its key was thrown away. Some libraries refuse an empty list.
    """
    os.environ.pop("SSL_CERT_DIR", None)
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))


@contextmanager
def trusting_the_machine() -> Iterator[None]:
    """Have the authorities of the machine trusted by the processes that start in the block: those that download."""
    tests = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    os.environ.update(_machine)
    try:
        yield
    finally:
        for name in _machine:
            del os.environ[name]
        os.environ.update(tests)


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
            with trusting_the_machine():  # it may download
                make(folder)
            (folder / "complete").touch()
    return folder
