"""The guide to negotiating is executed: its Python, in order, against a model that knows its part by heart."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meetings import REGISTRY
from scripted_model import KEY, ScriptedModel, scripted_model

from treaty_consensus.errors import Refused

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "negotiation.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    """The endpoint that the environment names."""
    with scripted_model() as server:
        for name, value in (("URL", server.url), ("KEY", KEY)):
            monkeypatch.setenv(f"TREATY_MODEL_{name}", value)
        monkeypatch.setenv("TREATY_MODEL", "scripted")
        yield server


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """All Python blocks of the guide, as one module."""
    module = types.ModuleType("negotiation_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/guides/negotiation.md", "exec"), module.__dict__)
    return module


async def test_000_11_and_31_two_agents_run_what_a_model_wrote(tmp_path: Path, guide: Any, model: ScriptedModel) -> None:
    first, second = await guide.first_meeting(REGISTRY, tmp_path)
    assert first == second
    assert first["productName"] == "Laptop"


@pytest.mark.deep
async def test_the_lines_of_the_readme_negotiate(tmp_path: Path, guide: Any, model: ScriptedModel) -> None:
    (text,) = re.findall(r"^```python\n(wanted = .*?)^```$", README, re.MULTILINE | re.DOTALL)
    async with (
        guide.shop(REGISTRY, tmp_path / "shop", negotiators=guide.negotiators()) as seller,
        guide.Agent(guide.Identity.create(), REGISTRY, home=tmp_path / "buyer", negotiators=guide.negotiators()) as agent,
        seller.listen("127.0.0.1", 0) as port,
    ):
        lines = text.replace("https://shop.example", f"ws://127.0.0.1:{port}").splitlines()
        body = "\n".join(f"    {line}" for line in [*lines, "return info"])
        space: dict[str, Any] = {"agent": agent, "Requirement": guide.Requirement}
        exec(compile(f"async def main():\n{body}\n", "README.md", "exec"), space)
        assert (await space["main"]())["productName"] == "Laptop"


@pytest.mark.deep
async def test_a_person_goes_on_where_a_cautious_agent_would_not(tmp_path: Path, guide: Any, model: ScriptedModel) -> None:
    model.scripts = [replace(script, draft=script.document) for script in model.scripts]  # a draft as good as it gets
    product = await guide.with_a_person(REGISTRY, tmp_path)
    assert product["price"] == 1299.99


async def test_the_guide_limits_the_cost_and_reports_it(tmp_path: Path, guide: Any, model: ScriptedModel) -> None:
    async with guide.shop(REGISTRY, tmp_path, negotiators=guide.Cautious(guide.frugal())) as seller:
        assert guide.report(seller) == "0 of 1,000 requests; 0 of 500 by strangers"


async def test_two_agents_talk(tmp_path: Path, guide: Any) -> None:
    assert await guide.small_talk(REGISTRY, tmp_path) == "You said: Good morning!"


async def test_the_policy_of_the_guide_publishes(guide: Any) -> None:
    assert (guide.policy.publish, guide.policy.report) == (True, True)


async def test_without_a_model_the_first_meeting_says_so(tmp_path: Path, guide: Any) -> None:
    async with guide.Agent(guide.Identity.create(), REGISTRY, home=tmp_path) as buyer:
        with pytest.raises(Refused) as refusal:
            await guide.buy(buyer, "ws://127.0.0.1:1")
    assert refusal.value.code == "agent.settings"
