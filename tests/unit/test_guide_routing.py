"""The guide to routing is executed: its roles in one process, its cut history, and its roles at agents."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "routing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def block(guide: Any, number: int) -> None:
    """Run a block of the guide. Only its definitions where a loop runs already."""
    exec(compile(BLOCKS[number], "docs/guides/routing.md", "exec"), guide.__dict__)


def test_the_guides_roles_work_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    guide: Any = types.ModuleType("routing_guide")
    block(guide, 0)
    assert capsys.readouterr().out == "\nuser: rain\nassistant: Verses about rain\nuser: Verses about rain: good.\n"
    block(guide, 1)
    (output,) = re.findall(r"print\(asyncio\.run\(forget\(\)\)\)  # (.*)", GUIDE)
    assert capsys.readouterr().out == f"{output}\n"


def test_the_roles_of_the_guide_work_at_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TREATY_HOME", str(tmp_path))
    guide: Any = types.ModuleType("routing_guide")
    block(guide, 0)
    block(guide, 2)
    assert guide.asyncio.run(guide.lead()) == ["rain", "Verses about rain", "Verses about rain: good."]
