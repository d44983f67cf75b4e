"""Hold the wheels of the registry's own package index: Treaty and its runtime, which no other index has (`--wheels`).

They are the operator's own files, so they are read once, at the start. A build while the registry runs changes nothing.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed

from ..codes import SettingsCode

MAX_WHEELS = 64
MAX_BYTES = 128 * 1024 * 1024
"""Of all wheels together, because they stay in memory."""


@dataclass(frozen=True)
class OwnWheel:
    """A wheel. `project`: its normalized name. `changed`: the time of its file, Unix seconds."""

    filename: str
    project: str
    version: Version
    data: bytes
    metadata: bytes
    requires_python: str | None
    changed: int

    @classmethod
    def read(cls, path: Path) -> OwnWheel:
        """Read a wheel. Raises `Malformed` (`settings.value`)."""
        try:
            data = path.read_bytes()
            project, version, _, _ = parse_wheel_filename(path.name)
            with zipfile.ZipFile(BytesIO(data)) as archive:
                (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
                metadata = archive.read(name)
            requires = parse_email(metadata)[0].get("requires_python")
            return cls(path.name, project, version, data, metadata, requires, int(path.stat().st_mtime))
        except (OSError, ValueError, InvalidWheelFilename, zipfile.BadZipFile) as error:
            raise _unusable(f"{path} cannot be read as a wheel: {error}.") from error

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the wheel."""
        return hex_digest(self.data)


@dataclass(frozen=True)
class OwnWheels:
    """The wheels, in the order of their names; none unless the operator gives a folder."""

    wheels: Sequence[OwnWheel] = ()
    by_digest: Mapping[tuple[str, str], OwnWheel] = field(init=False)
    """SHA-256 and file name → wheel."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_digest", {(wheel.digest, wheel.filename): wheel for wheel in self.wheels})

    @classmethod
    def read(cls, folder: Path | None) -> OwnWheels:
        """Read the wheels of a folder. Raises `Malformed` (`settings.value`) if it has none, or one that cannot be read."""
        if folder is None:
            return cls()
        paths = sorted(folder.glob("*.whl"))
        # Before they are read: another folder may have been meant.
        if not paths or len(paths) > MAX_WHEELS or sum(path.stat().st_size for path in paths) > MAX_BYTES:
            raise _unusable(f"{folder} has no wheels, more than {MAX_WHEELS}, or more than {MAX_BYTES >> 20} MiB of them.")
        return cls([OwnWheel.read(path) for path in paths])


def _unusable(fault: str) -> Malformed:
    return Malformed(
        SettingsCode.VALUE, fault, fix="Build them in a clone with `make wheel`, and give that folder: --wheels dist"
    )
