"""The example of message routing: an environment and four members, each in a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "protocols/message-routing/example")
ORDER = " → ".join(["Split", *["Work", "Compile", "Review"] * 3])


def run(*arguments: str) -> str:
    """Run the example from the root of the repository; its output."""
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.deep
def test_four_members_pass_ten_tasks_round_three_times(tmp_path: Path) -> None:
    assert json.loads(run("--json", "--keep", str(tmp_path / "kept"))) == {
        "rounds": 10,
        "idle": True,
        "worked_on": {
            "Alice": {"UserRequirement": 1},
            "Bob": {"Split": 10, "Review": 20},
            "Carol": {"Work": 30},
            "Dave": {"Compile": 30},
        },
        "history": 101,
        "by_cause": {"UserRequirement": 1, "Split": 10, "Work": 30, "Compile": 30, "Review": 30},
        "orders": {ORDER: 10},
    }
    homes = {path.name for path in (tmp_path / "kept").iterdir()}
    assert homes == {"environment", "Alice", "Bob", "Carol", "Dave"}


@pytest.mark.deep
def test_a_person_reads_the_history_of_the_messages() -> None:
    lines = [" ".join(line.split()) for line in run().splitlines()]
    assert "Bob Worker Split, Review 10 × Split, 20 × Review" in lines
    assert "101 messages in 10 rounds: 1 × UserRequirement, 10 × Split, 30 × Work, 30 × Compile, 30 × Review." in " ".join(lines)
    assert f"10 tasks: {ORDER}." in " ".join(lines)
    assert lines[-1] == "The environment is idle."
