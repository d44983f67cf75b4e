"""The main job, end to end: the demo's own story with real processes, and the epoch of each transition."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Continuous integration plays the demo itself, before the tests.
pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    """Every step that the demo told."""
    command = [sys.executable, "demo", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    steps_told: list[dict[str, Any]] = json.loads(done.stdout)["steps"]
    return steps_told


def test_every_act_is_played_in_order(steps: list[dict[str, Any]]) -> None:
    acts = list(dict.fromkeys(step["act"] for step in steps))
    assert [act.partition("  ")[2] or act for act in acts] == [
        "The stage",
        "Publish, once",
        "Two strangers meet",
        "Tell",
        "Agree",
        "Anyone checks",
        "Meet again",
        "Three attacks",
    ]


def test_each_transition_has_its_epoch(steps: list[dict[str, Any]]) -> None:
    """The demo compares the registry's proved answer with each of these before it tells it."""
    closes = [step["step"] for step in steps if step["step"].startswith("Epoch")]
    assert closes == [
        "Epoch 0 closes: 1.1 becomes candidate",
        "Epoch 1 closes: 1.1 becomes provisional",
        "Epoch 2 closes: 1.1 becomes consensus",
    ]


def test_strangers_agree_first_with_and_then_without_a_round(steps: list[dict[str, Any]]) -> None:
    first = next(step for step in steps if "connects by topic" in step["step"])
    sandboxed = next(step for step in steps if "in a sandbox" in step["step"])
    again = next(step for step in steps if "0-RTT" in step["step"])
    assert any("product-info/1.1, with no language model" in detail for detail in first["details"])
    assert any("404" in detail for detail in first["details"])
    assert "verified" in first["details"][-1]
    assert "haggling/1.0" in sandboxed["details"][0] and "verified" in sandboxed["details"][-1]
    assert "verified" not in again["details"][-1]  # nothing was fetched


def test_each_attack_is_refused_at_its_step(steps: list[dict[str, Any]]) -> None:
    attacks = [(step["step"], step["details"][0].partition(":")[0]) for step in steps if step["act"].endswith("attacks")]
    assert [title.rpartition(" ")[2] for title, _ in attacks] == ["7", "3", "2"]
    assert [code for _, code in attacks][:2] == ["wheel.digest", "log.inclusion"]
