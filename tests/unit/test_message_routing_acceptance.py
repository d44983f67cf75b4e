"""The feedback loop of four members, for three and four rounds: in one process, in sessions, and across processes."""

from __future__ import annotations

import asyncio
from typing import Any

import feedback_script as script
import pytest
from routing_process import in_processes
from routing_runs import Run, in_sessions, in_team

RUNS = [
    pytest.param((in_team, 3), id="in_team-3"),
    pytest.param((in_sessions, 3), id="in_sessions-3"),
    pytest.param((in_processes, 3), id="in_processes-3"),
    pytest.param((in_team, 4), id="in_team-4"),
    pytest.param((in_sessions, 4), id="in_sessions-4", marks=pytest.mark.deep),
    pytest.param((in_processes, 4), id="in_processes-4", marks=pytest.mark.deep),
]
"""Where the members are, and how often a task passes through the three."""


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    """A whole run."""
    begin, rounds = request.param
    finished: Run = asyncio.run(begin(rounds))
    return finished


def proper(run: Run) -> list[dict[str, Any]]:
    """The history without the dummies."""
    return [message for message in run.history if message["content"] != script.DUMMY]


@pytest.mark.sample(1)
def test_005_11_the_three_are_called_ten_times_a_round(run: Run) -> None:
    assert run.members["Alice"].calls == {"UserRequirement": 1}
    for name in ("Bob", "Carol", "Dave"):
        assert run.members[name].calls.total() == 10 * run.rounds


@pytest.mark.sample(1)
def test_005_12_bob_gets_ten_messages_of_feedback_a_round(run: Run) -> None:
    assert run.members["Bob"].calls == {"Split": 10, "Review": 10 * (run.rounds - 1)}


def test_005_13_the_history_grows_by_thirty_a_round(run: Run) -> None:
    assert len(proper(run)) == 11 + 30 * run.rounds
    assert len(run.history) > len(proper(run))


def test_005_14_work_compilation_and_review_alternate(run: Run) -> None:
    for task in range(script.TASKS):
        causes = [m["cause_by"] for m in proper(run) if m["instruct_content"] and m["instruct_content"]["task"] == task]
        assert causes == ["Split", *["Work", "Compile", "Review"] * run.rounds]


def test_005_15_a_dummy_reaches_nobody(run: Run) -> None:
    assert run.seen
    assert not [message for message in run.seen if "<none>" in message["send_to"]]


def test_005_16_in_the_end_the_environment_is_idle(run: Run) -> None:
    assert run.is_idle
