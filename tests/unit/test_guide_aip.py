"""The guide to agents over gRPC, and the first example of AIP's README, are executed."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from aip_nodes import nodes

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "aip.md").read_text(encoding="utf-8")
README = (ROOT / "protocols" / "aip" / "README.md").read_text(encoding="utf-8")
DOCUMENT = (ROOT / "protocols" / "aip" / "0.0.1" / "document.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a page. Any free ports, as others may use those of the page."""
    matches = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"localhost:\d+", "localhost:0", block) for block in matches]


@pytest.fixture(scope="module")
def guide() -> Any:
    module: Any = types.ModuleType("aip_guide")
    for block in blocks(GUIDE, "python"):
        exec(compile(block, "docs/guides/aip.md", "exec"), module.__dict__)
    return module


async def test_the_agents_of_the_guide_speak_through_a_gateway(guide: Any) -> None:
    assert await guide.main() == ["HELLO", "HOW ARE YOU?"]


async def test_the_conversations_of_the_guide_end_and_are_matched(guide: Any) -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        asker, shouter = await network.agent("asker", gateway), await network.agent("shouter", gateway)
        conversations: dict[str, list[str]] = {}
        answering = asyncio.create_task(guide.answer(shouter, conversations))
        assert await guide.ask_together(asker, "shouter", "a", "b", "c") == {"a": "A", "b": "B", "c": "C"}
        with pytest.raises(guide.ConversationEnded, match="Ask something"):
            await guide.ask(asker, "shouter", "")
        with pytest.raises(guide.ConversationEnded, match="NOT_FOUND"):
            await guide.ask(asker, "unknown", "hello")
        assert await guide.ask(asker, "shouter", "hello") == ["HELLO"]
        async with asyncio.timeout(20):
            while conversations:  # noqa: ASYNC110  # the loop of the guide has no event
                await asyncio.sleep(0.01)
        assert not answering.done()
        answering.cancel()


async def test_003_09_the_guides_tool_names_its_callers_mistakes(guide: Any) -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        (text,) = blocks(GUIDE, "text")
        assert await guide.calculate(gateway, await network.agent("a", gateway)) == text.splitlines()


def test_the_gateway_of_the_guide_has_its_bounds(guide: Any) -> None:
    assert guide.large_gateway().address == "localhost:0"


async def test_the_first_example_of_the_readme_has_ten_lines_and_runs() -> None:
    (example, *_) = blocks(README, "python")
    assert len([line for line in example.splitlines() if line]) <= 10
    command = (sys.executable, "-c", example)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out) == (0, b"You said: Is anyone there?\n"), errors.decode()


def test_the_document_has_the_proto_of_the_stubs() -> None:
    (proto,) = blocks(DOCUMENT, "proto")
    assert proto == (ROOT / "protocols" / "aip" / "python" / "treaty_aip" / "stubs" / "aip.proto").read_text(encoding="utf-8")
