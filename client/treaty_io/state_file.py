"""A small JSON file of a home: one struct, parsed strictly and replaced durably.

The text is indented and its members are sorted, because people read it and keep some of it under version control. Where two
processes change a file, the caller holds a lock (`durable.exclusive`) from `read` to `write`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, TreatyError

from . import durable

_S = TypeVar("_S", bound=msgspec.Struct)


class StateFile(Generic[_S]):
    """A file that holds one struct. Safe among threads. The methods block on the disk, and raise OSError when it fails."""

    def __init__(self, path: Path, kind: type[_S], *, limit: int, code: str = "", fix: str = "") -> None:
        """Read nothing yet. `kind`: the struct; it forbids unknown members. `limit`: the bytes that are read.

        `code`, `fix`: of the error of a damaged file. Without a code a file that cannot be read counts as absent: its loss costs
        only time.
        """
        self.path = path
        self._kind, self._limit, self._code, self._fix = kind, limit, code, fix
        self._last: tuple[tuple[int, int, int], _S] | None = None

    def read(self) -> _S | None:
        """Read the file. Return its content, or None if there is no file. Raises `Malformed` with the code of this file if it is
        larger than the limit, is not strict JSON, or does not have the struct's form."""
        self._last = None
        return self.latest()

    def latest(self) -> _S | None:
        """As `read`, but parse nothing while the file is the one that was read last. The caller changes nothing in the result."""
        last = self._last
        try:
            # Each write makes a new file, so the same one has the same content.
            if last is not None and _version(self.path.stat()) == last[0]:
                return last[1]
            with self.path.open("rb") as file:
                # Of the file that is read: another one may have replaced it since.
                version, data = _version(os.fstat(file.fileno())), file.read(self._limit + 1)
        except FileNotFoundError:
            return None
        except OSError:
            if not self._code:
                return None
            raise
        try:
            content = msgspec.convert(canonical.parse_json(data, limit=self._limit, name=self.path.name), self._kind)
        except (TreatyError, msgspec.ValidationError) as error:
            if not self._code:
                return None
            raise Malformed(self._code, f"{self.path} is damaged: {error}", fix=self._fix) from error
        self._last = version, content
        return content

    def write(self, content: _S, *, mode: int = 0o600) -> None:
        """Replace the file. Durable on return; after an error the file is as before (`durable.write`)."""
        text = json.dumps(msgspec.to_builtins(content), indent=2, sort_keys=True)
        durable.write(self.path, text.encode() + b"\n", mode=mode)


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size
