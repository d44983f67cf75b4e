"""The guide about testing agents: its tests pass, and its agent without a registry answers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "testing.md"


@pytest.fixture(scope="module")
def guide() -> dict[str, Any]:
    """The names that the guide's Python defines."""
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)), names)  # our own page
    return names


@pytest.mark.parametrize(
    "name",
    ["test_everybody_is_greeted", "test_a_refused_guest_is_shown", "test_of_an_answer_that_never_comes_the_outcome_is_unknown"],
)
def test_the_tests_of_the_guide_pass(guide: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    guide[name]()


def test_an_agent_of_files_answers(guide: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    host, guest = (guide["agent_of_files"](tmp_path / name) for name in ("host", "guest"))

    async def main() -> str:
        async with (
            host,
            guest,
            host.listen("127.0.0.1", 0) as port,
            guest.connect(f"ws://127.0.0.1:{port}", topic="social/greeting") as session,
        ):
            return str(await session.call("greet", name="Ada"))

    assert asyncio.run(main()) == "Hello, Ada!"
    assert not (tmp_path / "host" / "registries.json").exists()
