"""Programs of Debian packages: the system's, or Debian's package, unpacked without root into a folder that is kept."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from build_cache import kept


def debian_program(name: str, package: str) -> str:
    """Return a program. Raises `CalledProcessError` where apt has no such package."""
    program = shutil.which(name)
    if program is not None:
        return program

    def unpack(folder: Path) -> None:
        # apt drops its rights for a download, unless it may not write into the folder.
        with tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o777)
            subprocess.run(["apt-get", "download", package], cwd=place, check=True, capture_output=True)
            for archive in sorted(Path(place).glob("*.deb")):
                subprocess.run(["dpkg", "-x", archive, folder / "root"], check=True, capture_output=True)

    cache = Path(__file__).parents[2] / ".pytest_cache" / "d" / "debian" / package
    root = kept(cache, unpack) / "root" / "usr"
    return str(root / "sbin" / name if (root / "sbin" / name).exists() else root / "bin" / name)
