"""The packages of earlier releases, to run their agents and registries: `tests/releases/packages.tar.xz`, a folder for each.

All are in one archive, in the order of their files: the releases have most bytes in common, so another one adds a tenth of the
first.
A release adds its own before it is published. TREE is a checkout of it, and the last releases are kept:

    PYTHONPATH=tests/support python tests/support/former_packages.py NAME TREE
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / "releases" / "packages.tar.xz"
KEPT = 4
"""Releases in the archive."""
ROOTS = ("consensus", "client", "registry")
_REGISTRY = "import os, sys; os.environ['PYTHONPATH'] = {path!r}; "
_REGISTRY += "os.execv({python!r}, [{python!r}, '-c', 'from treaty_registry.cli import main; main()', *sys.argv[1:]])"


@cache
def names() -> tuple[str, ...]:
    """The kept releases, the oldest first."""
    with tarfile.open(ARCHIVE) as archive:
        return tuple(sorted({member.name.partition("/")[0] for member in archive}))


def unpack(name: str, folder: Path) -> dict[str, str]:
    """Unpack a release; the environment of a Python that runs it. Its dependencies are those of this environment."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, [one for one in archive if one.name.startswith(f"{name}/")], filter="data")
    # Before the packages of this tree, which a path file of the environment adds at the end.
    return {"PYTHONPATH": os.pathsep.join(str(folder / name / root) for root in ROOTS)}


def registry_program(environment: dict[str, str], path: Path) -> Path:
    """Write a `treaty-registry` that runs in this environment."""
    code = _REGISTRY.format(path=environment["PYTHONPATH"], python=sys.executable)
    path.write_text(f"#!{sys.executable} -I\n{code}\n")
    path.chmod(0o755)
    return path


def add(name: str, tree: Path) -> None:
    """Add a release, and drop the oldest beyond `KEPT`."""
    files: dict[tuple[str, str], bytes] = {}
    if ARCHIVE.exists():
        with tarfile.open(ARCHIVE) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                release, _, path = member.name.partition("/")
                files[path, release] = file.read()
    files |= {(path, name): data for path, data in _packages(tree)}
    releases = sorted({release for _, release in files})[-KEPT:]
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for path, release in sorted(files):
            if release in releases:
                member = tarfile.TarInfo(f"{release}/{path}")
                member.size = len(files[path, release])
                archive.addfile(member, io.BytesIO(files[path, release]))


def _packages(tree: Path) -> Iterator[tuple[str, bytes]]:
    for root in ROOTS:
        for path in (tree / root).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md":
                yield str(path.relative_to(tree)), path.read_bytes()


if __name__ == "__main__":
    add(sys.argv[1], Path(sys.argv[2]))
