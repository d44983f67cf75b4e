"""Wait until a file of a project changes.

Files are compared by time and size, twice a second. A project has a few dozen files, so this costs less than one millisecond of
processor time a second, works on every file system, and needs no further dependency.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from ..protocols.project_file import MAX_TOML, SOURCE, TOML, read_protocol_file

PAUSE = 0.5
# A project has a few hundred files at most. The cap keeps a wrong folder, such as a home, from being read as a whole.
MAX_FILES = 4_096

Fingerprint = frozenset[tuple[Path, int, int]]


def fingerprint(folder: Path) -> Fingerprint:
    """Return path, time and size of the files of a project; the handler may be in a folder beside it."""
    entries = set()
    for path in islice(chain(_files(folder), _files(folder / _source(folder))), MAX_FILES):
        # An editor replaces a file when it saves: between two looks it may be gone.
        try:
            status = path.stat()
        except OSError:
            continue
        entries.add((path, status.st_mtime_ns, status.st_size))
    return frozenset(entries)


def _source(folder: Path) -> str:
    """Return the folder of the sources, as protocol.toml names it. A file with a fault is watched until it is mended."""
    try:
        with (folder / TOML).open("rb") as file:
            toml, _ = read_protocol_file(file.read(MAX_TOML))
    except OSError:
        return SOURCE
    return (toml.handler.source if toml is not None and toml.handler is not None else "") or SOURCE


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        # Those of tools, such as .git and .venv, are no part of a project and would use the cap up.
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        yield from (Path(place, name) for name in names)


async def changed(folder: Path, before: Fingerprint) -> None:
    """Return when a file differs from the fingerprint."""
    while True:
        await asyncio.sleep(PAUSE)
        if await asyncio.to_thread(fingerprint, folder) != before:
            return
