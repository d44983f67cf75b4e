"""Wait until a file of a project changes.

Files are compared by time and size, twice a second. A project has a few dozen files, so this costs less than one millisecond of
processor time a second, works on every file system, and needs no further dependency.
"""

from __future__ import annotations

import asyncio
from itertools import chain, islice
from pathlib import Path

from ..protocols.project import examine_project

PAUSE = 0.5
# A project has a few hundred files at most. The cap keeps a wrong folder, such as a home, from being read as a whole.
MAX_FILES = 4_096

Fingerprint = frozenset[tuple[Path, int, int]]


def fingerprint(folder: Path) -> Fingerprint:
    """Return path, time and size of the files of a project; the handler may be in a folder beside it."""
    folders = [folder, folder / examine_project(folder).folder]
    found = set()
    for path in islice(chain.from_iterable(place.rglob("*") for place in folders), MAX_FILES):
        # An editor replaces a file when it saves: between two looks it may be gone.
        try:
            status = path.stat()
        except OSError:
            continue
        if "__pycache__" not in path.parts:
            found.add((path, status.st_mtime_ns, status.st_size))
    return frozenset(found)


async def changed(folder: Path, before: Fingerprint) -> None:
    """Return when a file differs from the fingerprint."""
    while True:
        await asyncio.sleep(PAUSE)
        if await asyncio.to_thread(fingerprint, folder) != before:
            return
