"""Handlers that a language model writes: tried in the real sandbox, mended when they fail, and given up in the end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_negotiators import DESTINATION, SOURCE, opened, script, written
from sandboxes import descendants, gone
from scripted_model import Fault, ScriptedModel, changed, code, scripted_model

from treaty_agent.negotiators.model_negotiator import ModelNegotiators
from treaty_agent.negotiators.negotiator import Capability, FaultAdmitted, Implementation, NegotiationContext, Requirement
from treaty_agent.negotiators.test_cases import format_test_cases, parse_test_cases
from treaty_consensus.errors import TreatyError


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests at this time have theirs in the common one
    processes = descendants()
    with scripted_model() as running:
        yield running
    assert not list(tmp_path.glob("treaty-negotiated-*")), "nothing stays"
    assert gone(descendants() - processes)


@pytest.fixture
async def negotiators(server: ScriptedModel) -> AsyncIterator[ModelNegotiators]:
    async with opened(server) as opening:
        yield opening


def fails_its_tests(source: str) -> str:
    """Answers a booking with another word."""
    return source.replace('f"OK {self', 'f"Okay {self')


def does_not_import(source: str) -> str:
    """Asks for a library that the sandbox does not have."""
    return source.replace("SECONDS = 20", "import httpx")


def never_returns(source: str) -> str:
    """Loops as soon as it is asked for anything."""
    return source.replace("        match event:", "        while True:\n            pass\n        match event:")


def is_no_python(source: str) -> str:
    """A sentence."""
    return "This handler speaks the protocol."


BAD_CODE: list[tuple[Callable[[str], str], str]] = [
    (fails_its_tests, "expected the response OK req001"),
    (does_not_import, "No module named 'httpx'"),
    (never_returns, "took longer than"),
    (is_no_python, "does not compile"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("change", "phrase"), BAD_CODE)
async def test_bad_code_is_mended_when_the_model_is_told_what_failed(
    server: ScriptedModel, negotiators: ModelNegotiators, change: Callable[[str], str], phrase: str
) -> None:
    plan = script(server)
    server.misbehave("handler", code(change))
    _, implementation = await written(negotiators, plan)
    assert server.seen == ["handler", "repair"]
    assert phrase in server.prompts[1][1]["content"]
    assert implementation.files["handler/__init__.py"].decode() == plan.answers["handler"]["files"][0]["content"]


@pytest.mark.parametrize(("change", "phrase"), [BAD_CODE[1], BAD_CODE[3]])
async def test_code_that_stays_bad_ends_in_one_error(server: ScriptedModel, change: Callable[[str], str], phrase: str) -> None:
    server.misbehave("handler", code(change))
    server.misbehave("repair", code(change))
    async with opened(server, fix_rounds=1) as negotiators:
        with pytest.raises(TreatyError) as caught:
            await written(negotiators, script(server))
    assert caught.value.code == "negotiation.handler"
    assert phrase in caught.value.message
    assert server.seen == ["handler", "repair"]


async def test_code_that_tries_the_network_reaches_nobody(server: ScriptedModel) -> None:
    visitors: list[object] = []

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitors.append(writer.get_extra_info("peername"))
        writer.close()

    listener = await asyncio.start_server(visited, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    calls = [
        f'import socket\nsocket.create_connection(("127.0.0.1", {port}))\n',
        f'import urllib.request\nurllib.request.urlopen("http://127.0.0.1:{port}/")\n',
        f'import subprocess\nsubprocess.run(["curl", "http://127.0.0.1:{port}/"])\n',
        f'import ctypes\nctypes.CDLL(None).socket(2, 1, 0)\nimport socket\nsocket.create_connection(("127.0.0.1", {port}))\n',
    ]

    def with_call(call: str) -> Fault:
        return code(lambda source: source.replace("SECONDS = 20\n", f"SECONDS = 20\n{call}"))

    server.misbehave("handler", with_call(calls[0]))
    server.misbehave("repair", *map(with_call, calls[1:]))
    async with opened(server, fix_rounds=3) as negotiators:
        with pytest.raises(TreatyError) as caught:
            await written(negotiators, script(server))
    assert caught.value.code == "negotiation.handler"
    prompts = [messages[1]["content"] for messages in server.prompts[1:]] + [caught.value.message]
    assert len(prompts) == 4
    assert all("SyntaxError" not in text and ("handler.failed" in text or "sandbox.died" in text) for text in prompts)
    assert visitors == []
    listener.close()
    await listener.wait_closed()


BAD_PROJECTS: list[dict[str, Any]] = [
    {"manifest": "{}"},
    {"manifest": "not json"},
    {"files": []},
    {"files": [{"path": "../../../etc/cron.d/x", "content": ""}, {"path": "__init__.py", "content": ""}]},
    {"files": [{"path": "/etc/passwd", "content": ""}, {"path": "__init__.py", "content": ""}]},
    {"files": [{"path": "manifest.json", "content": ""}, {"path": "__init__.py", "content": ""}]},
    {"files": [{"path": "__init__.py", "content": ""}] * 2},
    {"files": [{"path": "__init__.py", "content": "x" * 300_000}]},
    {"summary": "a\u0000b"},
    {"test_cases": "none"},
]


@pytest.mark.parametrize("fields", BAD_PROJECTS)
async def test_projects_that_are_none(server: ScriptedModel, negotiators: ModelNegotiators, fields: dict[str, Any]) -> None:
    server.misbehave("handler", *[changed(**fields)] * 3)
    with pytest.raises(TreatyError) as caught:
        await written(negotiators, script(server))
    assert caught.value.code == "model.answer"
    assert "The answer is not usable: " in server.prompts[1][3]["content"]


async def test_an_operation_that_nobody_offers(server: ScriptedModel, negotiators: ModelNegotiators) -> None:
    plan = script(server)
    manifest = plan.answers["handler"]["manifest"].replace("cancelBooking", "refundBooking")
    server.misbehave("handler", changed(manifest=manifest))
    await written(negotiators, plan)
    assert server.seen == ["handler", "handler"]
    assert "No function serves the operation refundBooking." in server.prompts[1][3]["content"]


async def test_what_a_source_offers_itself_does_not_matter(server: ScriptedModel, negotiators: ModelNegotiators) -> None:
    plan = script(server)
    other = (Capability("paint", "Paints.", {"type": "object"}, {}),)
    side = negotiators.open(
        NegotiationContext("initiator", SOURCE, DESTINATION, Requirement(plan.requirement, topic=plan.topic), other)
    )
    await side.implement(plan.document)
    assert server.seen == ["handler"]
    assert "paint" not in server.prompts[0][1]["content"]


async def test_agreed_cases_find_what_its_own_did_not(server: ScriptedModel, negotiators: ModelNegotiators) -> None:
    plan = script(server)
    all_cases = parse_test_cases(plan.answers["tests"]["test_cases"])
    without_booking = format_test_cases([all_cases[0], all_cases[2]])
    spoilt = code(lambda source: source.replace('int(arguments["seats"])', "1"))
    server.misbehave("handler", lambda answer: spoilt({**answer, "test_cases": without_booking}))
    side, before = await written(negotiators, plan)
    assert server.seen == ["handler"]
    after = await side.test(plan.answers["tests"]["test_cases"])
    assert server.seen == ["handler", "repair"]
    assert isinstance(after, Implementation)
    assert after.package.digest != before.package.digest
    assert b"XK7Q2" in after.files["vectors/railway.json"]
    assert b"BOOK" not in before.files["vectors/railway.json"]
    assert "Test case 2 (A booking)" in server.prompts[1][1]["content"]


async def test_agreed_cases_that_it_never_passes(server: ScriptedModel) -> None:
    plan = script(server)
    wrong = plan.answers["tests"]["test_cases"].replace("OK req001", "YES req001")
    async with opened(server, fix_rounds=1) as negotiators:
        side, before = await written(negotiators, plan)
        outcome = await side.test(wrong)
        assert isinstance(outcome, str)
        assert "role traveller: expected one Return after the response YES req001" in outcome
        assert await side.test(plan.answers["tests"]["test_cases"]) == before  # what it had is what it has


async def test_code_that_the_peer_complains_about_is_written_again(server: ScriptedModel, negotiators: ModelNegotiators) -> None:
    plan = script(server)
    side, first = await written(negotiators, plan)
    server.misbehave("judge", changed(at_fault=True))
    assert await side.judge("Your BOOK lines lack the seats.") == FaultAdmitted()
    server.misbehave("repair", code(lambda source: source.replace("SECONDS = 20", "SECONDS = 19")))
    second = await side.implement(plan.document, error="Your BOOK lines lack the seats.")
    assert server.seen == ["handler", "judge", "repair"]
    assert "The other agent says: Your BOOK lines lack the seats." in server.prompts[2][1]["content"]
    assert second.package.digest != first.package.digest
    assert await side.implement(plan.document) == second  # as it is now
