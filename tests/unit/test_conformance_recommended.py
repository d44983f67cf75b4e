"""What the source recommends, and what it asks of texts: sandboxes, tests of each other, Markdown, predefined messages first."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, Party, Tap, meeting, party
from model_negotiators import opened, script, written
from scripted_model import Script as AnyScript
from scripted_model import ScriptedModel, code, load_scripts, scripted_model
from scripted_negotiators import CHANGED, TEST_CASES, WANTED, WRONG_PRICE, Script, ScriptedNegotiators
from virtual_time import run

from treaty_client.anp.hello_profile.hello import NATURAL_LANGUAGE_NEGOTIATION
from treaty_client.negotiators.negotiator import Proposal
from treaty_client.negotiators.prompts import system
from treaty_client.sessions.session import Session

SUMMARY = "## Changes\n\n- **Purpose**: says for whom it is\n- `productId` stays\n"
TEXT = "# Need\n\n- Product: `P12345`\n\n> 多少钱?\n"


@pytest.fixture
def server() -> Iterator[ScriptedModel]:
    with scripted_model() as running:
        yield running


def shop(home: Path, there: Script) -> Party:
    made = party("shop", home, negotiators=ScriptedNegotiators(there))

    @made.agent.offers
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        """Everything about one product."""
        return LAPTOP

    return made


@asynccontextmanager
async def talks(seller: Party, here: Script, home: Path) -> AsyncIterator[tuple[Session, Tap]]:
    buyer = party("buyer", home, negotiators=ScriptedNegotiators(here))
    async with meeting(seller) as tap, buyer.agent.connect_over(tap, requirement=WANTED) as session:
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        yield session, tap


def metas(tap: Tap) -> list[dict[str, Any]]:
    """The meta messages of both sides."""
    return [json.loads(said[1:]) for _, said in tap.seen if isinstance(said, bytes) and said[0] == 0]


async def test_000_11_generated_code_runs_in_a_sandbox_and_sees_nothing_of_this_machine(
    server: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "identity.json"
    secret.write_text("the seed that nobody may read")
    monkeypatch.setenv("TREATY_MODEL_KEY", "the key that nobody may read")
    looks = (
        f"import os\nseen = [*os.environ.values()]\ntry:\n    seen.append(open({str(secret)!r}).read())\n"
        "except OSError as error:\n    seen.append(type(error).__name__)\nraise ValueError(seen)\n"
    )
    server.misbehave("handler", code(lambda source: source.replace("SECONDS = 20\n", f"SECONDS = 20\n{looks}")))
    async with opened(server) as negotiators:
        await written(negotiators, script(server))
    assert server.seen == ["handler", "repair"]
    told = server.prompts[1][1]["content"]
    assert "FileNotFoundError" in told.partition("BEGIN failure")[2]
    assert "nobody may read" not in told


def test_000_12_both_sides_test_each_other_before_they_speak_and_what_does_not_conform_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script(bugs=[WRONG_PRICE])
        async with talks(shop(tmp_path, there), Script(tests=TEST_CASES), tmp_path) as (_, tap):
            kinds = [kind.strip("<>") for kind in tap.kinds()]
            assert kinds.index("verification") < kinds.index("application")
            complaints = [said for said in metas(tap) if said["action"] == "fixErrorNegotiation"]
            assert [said["status"] for said in complaints] == ["negotiating", "accepted"]
        assert "judge" in there.names()

    run(main())


def test_000_25_a_summary_is_markdown_and_arrives_as_it_was_written(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script(verdicts=[Proposal(CHANGED, SUMMARY)])
        async with talks(shop(tmp_path, there), Script(), tmp_path) as (_, tap):
            assert [said["modificationSummary"] for said in metas(tap) if "modificationSummary" in said] == [SUMMARY]

    run(main())
    assert "in Markdown" in system("consider").partition("`summary`")[2]


def test_000_19_documents_are_asked_for_with_purpose_flow_formats_and_errors() -> None:
    for name in ("draft", "consider"):
        for part in ("Purpose", "Flow", "Data format", "Errors"):
            assert f"- `## {part}`: " in system(name)


@pytest.mark.parametrize("script", load_scripts(), ids=lambda script: script.topic)
def test_000_19_what_is_negotiated_covers_purpose_flow_formats_and_errors(script: AnyScript) -> None:
    headings = [line.removeprefix("## ").lower() for line in script.document.split("\n") if line.startswith("## ")]
    assert {"purpose", "flow", "data format"} <= set(headings)
    assert "error" in script.document.lower()


def test_000_20_documents_are_asked_for_in_markdown_and_concise() -> None:
    for name in ("draft", "consider"):
        assert "Markdown, concise" in system(name)


def test_000_44_predefined_messages_do_the_whole_negotiation(tmp_path: Path) -> None:
    """Natural language is there, on both sides, and nothing needs it."""

    async def main() -> None:
        there = Script(verdicts=[Proposal(CHANGED, SUMMARY)])
        async with talks(shop(tmp_path, there), Script(tests=TEST_CASES), tmp_path) as (_, tap):
            hellos = [json.loads(said)["metaProtocol"] for _, said in tap.seen if isinstance(said, str)]
            assert all(NATURAL_LANGUAGE_NEGOTIATION in hello["supportedCapabilities"] for hello in hellos)
            said = [message["action"] for message in metas(tap)]
            assert set(said) == {"protocolNegotiation", "codeGeneration", "testCasesNegotiation"}
            assert "natural" not in "".join(tap.kinds())

    run(main())


def test_000_49_natural_language_may_be_markdown_and_arrives_as_it_was_written(tmp_path: Path) -> None:
    async def main() -> None:
        seller, buyer = party("shop", tmp_path), party("buyer", tmp_path)
        heard = []

        @seller.agent.converses
        async def answer(text: str, peer: str) -> str:
            heard.append(text)
            return text.replace("Need", "Offer")

        async with meeting(seller) as tap, buyer.agent.connect_over(tap, natural=True) as session:
            await session.say(TEXT)
            async for text in session.heard():
                assert text == TEXT.replace("Need", "Offer")
                break
        assert heard == [TEXT]

    run(main())
