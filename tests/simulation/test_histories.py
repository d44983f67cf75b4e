"""Histories of the write path under faults: no rule is broken, in a sample, or in all of them with TREATY_DEPTH=full.

All of them take hours of a processor, so each processor runs a share of them. The progress is told each thousand histories.
`python -m simulation FIRST END` runs others, or continues.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from depth import FULL
from mutants import ROOT

from simulation.history import run
from simulation.seams import simulated

SAMPLE = 20
ALL = 100_000


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    with simulated():
        yield


def test_a_seed_is_one_history() -> None:
    first, second = run(7), run(7)
    assert [step.split(", root")[0] for step in first.steps] == [step.split(", root")[0] for step in second.steps]
    assert len(first.steps) > 20


def test_a_sample_of_histories_breaks_no_rule() -> None:
    for seed in range(SAMPLE):
        history = run(seed)
        assert not history.findings, str(history)


@pytest.mark.skipif(not FULL, reason="TREATY_DEPTH=full runs all histories")
def test_all_histories_break_no_rule() -> None:
    # One process for each processor, because the histories do nothing but compute.
    count = os.cpu_count() or 1
    ends = [ALL * number // count for number in range(count + 1)]
    path = os.pathsep.join(map(str, [ROOT / "tests", ROOT / "tests" / "support", *sys.path]))
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "simulation", str(ends[number]), str(ends[number + 1])],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=sys.__stderr__,  # the progress, past pytest's capture
            text=True,
        )
        for number in range(count)
    ]
    outputs = [process.communicate()[0] for process in runs]
    assert [process.returncode for process in runs] == [0] * count, "\n".join(output[-20_000:] for output in outputs)
