"""The example `handoff_desk`: a customer's escalation between agents of different temper, as separate processes, and a person."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("answer", "told"), [("yes", "YOUR LINE WORKS AGAIN"), ("no", "YOUR REPAIR IS DELAYED")], ids=["approved", "denied"]
)
def test_004_27_an_escalation_ends_with_a_person(answer: str, told: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])}
    command = [sys.executable, "-m", "handoff_desk"]
    done = subprocess.run(command, input=f"{answer}\n", env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    story, flow = done.stdout.split("\nThe flow:\n")
    lines = story.splitlines()
    assert f"customer_service_agent_001: tells the customer: {told}" in lines
    # The thorough technician reads each step of the history; the expert finds one more, of the escalation.
    assert "technical_support_agent_001: reads DIAGNOSTIC_ATTEMPT" in lines
    assert "level3_network_expert_001: takes over after 3 steps" in lines
    kinds = ["ESCALATION", "REQUEST_INFORMATION", "PROVIDE_INFORMATION", "APPROVAL_REQUEST", "STATUS_UPDATE", "NOTIFICATION"]
    assert all(f'"handoff_type": "{kind}"' in flow for kind in kinds)
    assert "John" not in flow and "555" not in flow
