"""Record the ids of the statements that a home has signed: HOME/signed.txt, one id a line.

`treaty watch` calls a statement expected if its id is here. An id is written before its statement is sent, so a statement whose
answer was lost is here too. The file only grows, by 65 bytes a statement, and is never read as a whole. A reader may add ids by
hand; lines that are no id are comments.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from treaty_io import durable

SIGNED = "signed.txt"
"""The file below a home."""
# Lines of other programs in a file that a reader names. A longer line is no id, and must not fill the memory.
_MAX_LINE = 4_096


class SignedIds:
    """The ids in one file. Safe among threads and processes."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet."""
        self._path = path

    def add(self, *ids: str) -> None:
        """Append ids. Durable on return. Raises OSError."""
        with durable.exclusive(self._path.with_name(f"{self._path.name}.lock")):
            is_new = not self._path.exists()
            with self._path.open("ab") as file:
                durable.set_mode(file.fileno(), 0o600)  # the ids of statements that were never logged are private
                # A crash can leave half a line, which would spoil the next one.
                lines = ([] if self._ends_whole() else [""]) + [*ids, ""]
                file.write("\n".join(lines).encode("ascii"))
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                durable.sync_directory(self._path.parent)

    def among(self, ids: Collection[str]) -> frozenset[str]:
        """Return the ids of `ids` that are in the file. A missing file has none. Raises OSError."""
        id_bytes, matches = {id_.encode() for id_ in ids}, set[str]()
        if not id_bytes:
            return frozenset()
        try:
            with self._path.open("rb") as file:
                # Line by line, so that the memory does not grow with the file.
                while line := file.readline(_MAX_LINE):
                    words = line.split(maxsplit=1)
                    if words and words[0] in id_bytes:
                        matches.add(words[0].decode())
        except FileNotFoundError:
            return frozenset()
        return frozenset(matches)

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                return True
            file.seek(size - 1)
            return file.read(1) == b"\n"
