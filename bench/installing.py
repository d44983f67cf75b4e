"""What an installation takes: the size on disk and the packages of each extra, each in an environment of its own.

Everything counts that `pip install` puts there, compiled modules included, and neither pip nor setuptools, which came with the
environment. A megabyte has 10^6 bytes. There is no baseline and no bar: the sizes are those of the packages on that day.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from . import RESULTS

ROOT = Path(__file__).parents[1]
RESULT = RESULTS / "installing.json"
_COMBINED = "agent,audit,embedded"
"""The extras of one machine that does everything."""


@dataclass(frozen=True)
class Installation:
    """`extras`: as in `pip install '.[EXTRAS]'`, or nothing."""

    extras: str
    megabytes: int
    packages: int


def main(arguments: Sequence[str]) -> int:
    """Install everything that is asked for, or all; keep the results."""
    parser = argparse.ArgumentParser(prog="python -m bench installing", description=__doc__)
    parser.add_argument("--only", action="append", metavar="EXTRAS", help="these extras; the other results stay as they were")
    chosen = parser.parse_args(arguments).only or choices()
    found = {item.extras: item for item in load()} if RESULT.is_file() else {}
    for extras in chosen:
        found[extras] = measure(extras)
        print(found[extras])
    kept = [asdict(found[extras]) for extras in choices() if extras in found]
    RESULT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


def choices() -> list[str]:
    """Return nothing, each extra, and the combination."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return ["", *project["optional-dependencies"], _COMBINED]


def load() -> list[Installation]:
    """Return the last results."""
    return [Installation(**item) for item in json.loads(RESULT.read_text(encoding="utf-8"))]


def measure(extras: str) -> Installation:
    """Install into a new environment, and count."""
    with tempfile.TemporaryDirectory(prefix="treaty-installing-") as folder:
        venv.create(folder, with_pip=True)
        target = f"{ROOT}[{extras}]" if extras else str(ROOT)
        command = [str(Path(folder, "bin", "python")), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", target]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        place = Path(folder, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
        installed = [found for found in distributions(path=[str(place)]) if found.name not in ("pip", "setuptools")]
        return Installation(extras, round(_bytes(installed) / 1e6), len(installed))


def _bytes(installed: Iterable[Distribution]) -> int:
    files = {Path(str(found.locate_file(file))).resolve() for found in installed for file in found.files or ()}
    return sum(path.stat().st_size for path in files if path.is_file())
