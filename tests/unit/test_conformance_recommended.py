"""What the source recommends, and what it asks of texts: sandboxes, tests of each other, Markdown, predefined messages first."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, Party, Tap, meeting, party
from model_negotiators import destination, opened, script, source, written
from scripted_model import ScriptedModel, changed, code, load_scripts, scripted_model
from scripted_negotiators import CHANGED, TEST_CASES, WANTED, WRONG_PRICE, Script, ScriptedNegotiators

from treaty_agent.negotiators.negotiator import Proposal, Rejection
from treaty_agent.sessions.session import Session
from treaty_agent.testing.virtual_time import run
from treaty_anp.hello_profile.hello import NATURAL_LANGUAGE_NEGOTIATION
from treaty_consensus.errors import TreatyError

SUMMARY = "## Changes\n\n- **Purpose**: says for whom it is\n- `productId` stays\n"
COVERED = {
    "Purpose": "what it is for",
    "Flow": "one request message of the caller and one response message of the server",
    "Data format": "the exact bytes of each message",
    "Errors": "the codes by which an operation fails",
}
"""What a document is asked to cover: the part, and words of its description."""
TEXT = "# Need\n\n- Product: `P12345`\n\n> 多少钱?\n"


@pytest.fixture
def server() -> Iterator[ScriptedModel]:
    with scripted_model() as running:
        yield running


def shop(home: Path, there: Script) -> Party:
    side = party("shop", home, negotiators=ScriptedNegotiators(there))

    @side.agent.offers
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        """Everything about one product."""
        return LAPTOP

    return side


@asynccontextmanager
async def talks(seller: Party, here: Script, home: Path) -> AsyncIterator[tuple[Session, Tap]]:
    buyer = party("buyer", home, negotiators=ScriptedNegotiators(here))
    async with meeting(seller) as tap, buyer.agent.connect_over(tap, requirement=WANTED) as session:
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        yield session, tap


def metas(tap: Tap) -> list[dict[str, Any]]:
    """The meta messages of both sides."""
    # The context of a call shares the frame of its message, behind a line feed.
    return [
        json.loads(message[1:].partition(b"\n")[0]) for _, message in tap.seen if isinstance(message, bytes) and message[0] == 0
    ]


async def test_000_11_generated_code_sees_nothing_of_the_machine(
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
    prompt = server.prompts[1][1]["content"]
    assert "FileNotFoundError" in prompt.partition("BEGIN failure")[2]
    assert "nobody may read" not in prompt


def test_000_12_both_sides_test_each_other_first(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script(bugs=[WRONG_PRICE])
        async with talks(shop(tmp_path, there), Script(tests=TEST_CASES), tmp_path) as (_, tap):
            kinds = [kind.strip("<>") for kind in tap.kinds()]
            assert kinds.index("verification") < kinds.index("application")
            complaints = [message for message in metas(tap) if message["action"] == "fixErrorNegotiation"]
            assert [message["status"] for message in complaints] == ["negotiating", "accepted"]
        assert "judge" in there.names()

    run(main())


def test_000_25_a_summary_arrives_as_it_was_written(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script(verdicts=[Proposal(CHANGED, SUMMARY)])
        async with talks(shop(tmp_path, there), Script(), tmp_path) as (_, tap):
            assert [message["modificationSummary"] for message in metas(tap) if "modificationSummary" in message] == [SUMMARY]

    run(main())


async def test_000_25_the_summary_is_markdown_for_both_models(server: ScriptedModel) -> None:
    """The lines of the summary, and so its heading and its list, are those that the model wrote."""
    server.misbehave("consider", changed(summary=SUMMARY))
    async with opened(server) as negotiators:
        talk = script(server)
        countered = await destination(negotiators, talk).consider(talk.draft, "", last=False)
        assert countered == Proposal(talk.document, SUMMARY.strip())
        buyer = source(negotiators, talk)
        await buyer.draft()
        await buyer.consider(countered.text, countered.summary, last=False)
    first_prompt, last_prompt = server.prompts[0][0]["content"], server.prompts[-1][1]["content"]
    assert re.search(r"`summary`: with `counter`, what you changed\s+and why, in Markdown", first_prompt)
    assert re.search(rf"^BEGIN peer-summary \w+\n{re.escape(SUMMARY.strip())}\nEND peer-summary ", last_prompt, re.MULTILINE)


async def test_000_19_and_20_documents_are_concise_and_complete(
    server: ScriptedModel,
) -> None:
    """The messages that reach the model when it writes a document: for the first proposal and for a counter-proposal."""
    async with opened(server) as negotiators:
        talk = script(server)
        buyer = source(negotiators, talk)
        drafted = await buyer.draft()
        assert isinstance(drafted, Proposal)
        countered = await destination(negotiators, talk).consider(drafted.text, "", last=False)
    assert server.seen == ["draft", "consider"]
    for instructions, _ in server.prompts:
        form = instructions["content"].partition("## What a protocol document is\n\n")[2]
        assert form.startswith("Markdown, concise, at most ")
        parts = dict(re.findall(r"^- `## (.+?)`: (.+)", form, re.MULTILINE))
        for name, meaning in COVERED.items():
            assert meaning in parts[name]
    assert (drafted.text, countered) == (talk.draft, Proposal(talk.document, "Added what was missing."))


@pytest.mark.parametrize("topic", [script.topic for script in load_scripts()])
def test_000_19_and_20_a_document_is_sent_line_for_line(tmp_path: Path, topic: str) -> None:
    written = next(script.document for script in load_scripts() if script.topic == topic)

    async def main() -> None:
        there = Script(verdicts=[Rejection("Not for sale.")])
        with pytest.raises(TreatyError):
            async with talks(shop(tmp_path, there), Script(drafts=[Proposal(written)]), tmp_path):
                pass
        assert there.calls == [("consider", written)]

    run(main())


def test_000_44_predefined_messages_do_the_whole_negotiation(tmp_path: Path) -> None:
    """Natural language is there, on both sides. A counter-proposal, test cases and a fault go by the predefined messages."""

    async def main() -> None:
        there = Script(verdicts=[Proposal(CHANGED, SUMMARY)], bugs=[WRONG_PRICE])
        async with talks(shop(tmp_path, there), Script(tests=TEST_CASES), tmp_path) as (_, tap):
            hellos = [json.loads(actions)["metaProtocol"] for _, actions in tap.seen if isinstance(actions, str)]
            assert all(NATURAL_LANGUAGE_NEGOTIATION in hello["supportedCapabilities"] for hello in hellos)
            actions = [message["action"] for message in metas(tap)]
            talks_of = set(actions) - {"callContext"}  # of the application's calls, and no part of the negotiation
            assert talks_of == {"protocolNegotiation", "codeGeneration", "testCasesNegotiation", "fixErrorNegotiation"}
            assert "natural" not in "".join(tap.kinds())

    run(main())


def test_000_49_natural_language_may_be_markdown(tmp_path: Path) -> None:
    async def main() -> None:
        seller, buyer = party("shop", tmp_path), party("buyer", tmp_path)
        texts = []

        @seller.agent.converses
        async def answer(text: str, peer: str) -> str:
            texts.append(text)
            return text.replace("Need", "Offer")

        async with meeting(seller) as tap, buyer.agent.connect_over(tap, natural=True) as session:
            await session.say(TEXT)
            async for text in session.heard():
                assert text == TEXT.replace("Need", "Offer")
                break
        assert texts == [TEXT]

    run(main())
