"""The guide to an open electorate is executed: its file is one, and its commands do what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from treaty_consensus.election.defaults import WEEK
from treaty_registry.cli import main
from treaty_registry.operator.parameters import read_draft

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "electorate.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def parameters(capsys: pytest.CaptureFixture[str], data: Path) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["parameters", "--data", str(data), "--json"])
    assert ended.value.code == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


@pytest.mark.deep
def test_the_commands_open_an_electorate(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("toml")
    (data / "electorate.toml").write_text(example)
    stated = read_draft(data / "electorate.toml").parameters
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", "".join(blocks("sh"))],
        cwd=data,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Epoch 0 closes by itself at " in done.stderr
    begun, changed = parameters(capsys, data / "new"), parameters(capsys, data / "old")
    assert begun["in_force"]["parameters"]["reputation"]["anchors"] == list(
        stated.reputation.anchors if stated.reputation else ()
    )
    assert 0 < begun["closes"] - time.time() <= WEEK
    assert (changed["in_force"]["parameters"]["electorate"], changed["closes"]) == ("development", None)
    assert changed["announced"]["parameters"] == begun["in_force"]["parameters"]
