"""The example of `handoff`: a customer's escalation between agents of different temper, as separate processes, and a person."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_example(answer: str, *options: str) -> str:
    """Run it from the root of the repository; return what it writes."""
    command = [sys.executable, "protocols/handoff/example", *options]
    # The columns keep the names in the table whole.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "240"}
    done = subprocess.run(
        command, cwd=ROOT, input=f"{answer}\n", env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"  # the story tells which step did not come
    return done.stdout


@pytest.mark.deep
@pytest.mark.parametrize(
    ("answer", "phrase"), [("yes", "YOUR LINE WORKS AGAIN"), ("no", "YOUR REPAIR IS DELAYED")], ids=["approved", "denied"]
)
def test_004_27_an_escalation_ends_with_a_person(answer: str, phrase: str) -> None:
    lines = [json.loads(line) for line in run_example(answer, "--json").splitlines()]
    story = [(line["agent"], line["text"]) for line in lines if "agent" in line]
    flow = [line for line in lines if "from" in line]
    assert ("customer_service_agent_001", f"tells the customer: {phrase}") in story
    # The thorough technician reads each step of the history; the expert finds one more, of the escalation.
    assert ("technical_support_agent_001", "reads DIAGNOSTIC_ATTEMPT") in story
    assert ("level3_network_expert_001", "takes over after 3 steps") in story
    kinds = ["ESCALATION", "REQUEST_INFORMATION", "PROVIDE_INFORMATION", "APPROVAL_REQUEST", "STATUS_UPDATE", "NOTIFICATION"]
    assert {entry["payload"]["handoff_type"] for entry in flow} == set(kinds)
    assert "John" not in json.dumps(flow) and "555" not in json.dumps(flow)


@pytest.mark.deep
def test_the_example_tells_its_story_on_a_terminal() -> None:
    text = run_example("yes")
    assert "customer_service_agent_001 tells the customer: YOUR LINE WORKS AGAIN" in text
    assert "The flow" in text and "APPROVAL_REQUEST" in text and "John" not in text
