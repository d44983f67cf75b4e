"""The simulation finds planted bugs: each breaks one line of a copy of the registry, and some seed of the sample finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from mutants import ROOT, Mutant

from simulation.test_histories import SAMPLE

PLANTED = msgspec.convert(tomllib.loads((Path(__file__).parent / "planted.toml").read_text())["mutant"], list[Mutant])


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.rule)
def test_a_planted_bug_is_found(bug: Mutant, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "registry", tmp_path / "registry", ignore=shutil.ignore_patterns("*.zip", "__pycache__"))
    broken = tmp_path / bug.file
    broken.write_text(bug.applied_to(broken.read_text()))
    path = [tmp_path / "registry", ROOT / "tests", ROOT / "tests" / "support", *sys.path]
    command = [sys.executable, "-m", "simulation", "0", str(SAMPLE)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 1, f"{bug.breaks} {ran.stdout[-500:]}"
    assert "found after" in ran.stdout, ran.stderr
