"""The simulation finds planted bugs: each breaks one line of a copy of the registry, and a seed finds it.

Some of the bugs were real: they are planted again, so that their seeds are kept. By default the first bugs of the list are
planted, and the seed that is known to find each is run. With TREATY_DEPTH=full all are, and the search begins at 0, so that a
change of the simulation which finds less is seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from depth import FULL
from mutants import ROOT, Mutant

from simulation.history import run
from simulation.seams import simulated

BOUND = 2_000
"""Histories in which every planted bug is found."""
SAMPLE = 3
"""How many bugs are planted by default."""


class Planted(Mutant, frozen=True):
    """A planted bug. `seed`: the first history that finds it."""

    seed: int


PLANTED = msgspec.convert(tomllib.loads((Path(__file__).parent / "planted.toml").read_text())["mutant"], list[Planted])


@pytest.mark.parametrize("bug", PLANTED if FULL else PLANTED[:SAMPLE], ids=lambda bug: bug.rule)
def test_a_planted_bug_is_found(bug: Planted, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "registry", tmp_path / "registry", ignore=shutil.ignore_patterns("*.zip", "__pycache__"))
    broken = tmp_path / bug.file
    broken.write_text(bug.applied_to(broken.read_text()))
    path = [tmp_path / "registry", ROOT / "tests", ROOT / "tests" / "support", *sys.path]
    first, end = (0, BOUND) if FULL else (bug.seed, bug.seed + 1)
    ran = subprocess.run(
        [sys.executable, "-m", "simulation", str(first), str(end)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 1, f"{bug.breaks} No seed from {first} to {end} finds it. {ran.stdout[-500:]}"
    assert "found after" in ran.stdout, ran.stderr


def test_the_seeds_of_the_planted_bugs_find_nothing_without_them() -> None:
    registry = {bug.file: (ROOT / bug.file).read_text() for bug in PLANTED}
    with simulated():
        for bug in PLANTED:
            assert bug.applied_to(registry[bug.file]) != registry[bug.file]
            assert bug.seed < BOUND
            history = run(bug.seed)
            assert not history.findings, str(history)
