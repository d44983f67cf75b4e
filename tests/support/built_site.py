"""The built site of the documentation, which all processes of a test run share."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import sphinx
from build_cache import kept
from docs.site.__main__ import main
from docs.site.staging import ROOT, stage

from treaty_consensus import __version__

_STATIC = ROOT / "registry/treaty_registry/pages/static"


def built_site(cache: Path) -> Path:
    """Return the archive of the site, which is built when a source of it changed. A fault of the site, which stderr names, is an
    `AssertionError`.

    `cache`: a folder that outlives the run.
    """

    def build(folder: Path) -> None:
        for old in cache.iterdir():
            if old.is_dir() and old != folder:
                shutil.rmtree(old)
        assert main([str(folder / "site.zip")]) == 0

    return kept(cache / _digest(), build) / "site.zip"


def _digest() -> str:
    """Return a name of everything that the site is made of."""
    digest = hashlib.sha256(f"{__version__} {sphinx.__version__}".encode())
    with tempfile.TemporaryDirectory(prefix="treaty-site-") as name:
        stage(Path(name))
        for root in (Path(name), ROOT / "docs/site", _STATIC):
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
                    digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
