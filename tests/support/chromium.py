"""Debian's Chromium: the system's, or Debian's package, which root installs and others unpack into a folder that is kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from build_cache import kept

PACKAGE = "chromium"


@dataclass(frozen=True)
class Program:
    """A program, and what its environment needs beside the usual."""

    path: str
    environment: Mapping[str, str] = field(default_factory=dict)


def chromium() -> Program:
    """Return the browser. Raises `CalledProcessError` where apt has no such package."""
    program = shutil.which(PACKAGE)
    if program is None and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", PACKAGE], check=True, capture_output=True)
        program = shutil.which(PACKAGE)
    return Program(program) if program else _unpacked()


def _unpacked() -> Program:
    root = kept(Path(__file__).parents[2] / ".pytest_cache" / "d" / "debian" / PACKAGE, _unpack) / "root"
    # Debian's script in /usr/bin has the place of a system-wide installation in it.
    program = root / "usr" / "lib" / "chromium" / "chromium"
    libraries = {str(library.parent) for library in root.glob("usr/lib/**/*.so*")}
    return Program(str(program), {"LD_LIBRARY_PATH": ":".join(sorted(libraries))})


def _unpack(folder: Path) -> None:
    simulated = ["apt-get", "--simulate", "--no-install-recommends", "install", PACKAGE]
    plan = subprocess.run(simulated, check=True, capture_output=True, text=True).stdout
    packages = re.findall(r"^Inst (\S+)", plan, re.MULTILINE)
    # apt drops its rights for a download, unless it may not write into the folder.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        subprocess.run(["apt-get", "download", *packages], cwd=place, check=True, capture_output=True)
        for package in sorted(Path(place).glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, folder / "root"], check=True, capture_output=True)
