"""The example of message routing: an environment and four members, each in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "message_routing.py"


def test_four_members_pass_ten_tasks_round_three_times(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *(f"{name}: Joined." for name in ("Alice", "Bob", "Carol", "Dave")),
        "101 messages in 10 rounds: 1 × UserRequirement, 10 × Split, 30 × Work, 30 × Compile, 30 × Review.",
        "The environment is idle.",
    ]
