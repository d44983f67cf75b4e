"""Remember which servers of MCP speak the stateless protocol and which want a handshake, by their origin.

The file is of the home. Its loss costs one request for each origin.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from treaty_io.state_file import StateFile

MAX_ORIGINS = 512
_MAX_FILE = 256 * 1024


class _File(msgspec.Struct, forbid_unknown_fields=True):
    versions: dict[str, str]


class McpEras:
    """The version that each origin answered last. Without a file it is forgotten with this object."""

    def __init__(self, path: Path | None = None) -> None:
        """Read nothing yet."""
        self._file = StateFile(path, _File, limit=_MAX_FILE) if path else None
        self._versions: dict[str, str] = {}

    def get(self, origin: str) -> str:
        """Return the version of an origin, "" if it is not known."""
        if self._file is not None and (content := self._file.latest()) is not None:
            return content.versions.get(origin, "")
        return self._versions.get(origin, "")

    def keep(self, origin: str, version: str) -> None:
        """Remember the version of an origin; "" forgets it. An origin that is "" is not remembered."""
        if not origin or self.get(origin) == version:
            return
        if self._file is not None and (content := self._file.latest()) is not None:
            self._versions = dict(content.versions)
        self._versions.pop(origin, None)
        if version:
            self._versions[origin] = version
        while len(self._versions) > MAX_ORIGINS:
            del self._versions[next(iter(self._versions))]
        if self._file is not None:
            # Two processes may write at once. The later one wins, and the other's origin is asked again.
            self._file.write(_File(self._versions))
