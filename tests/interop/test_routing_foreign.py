"""`protocols/message-routing/peers`: members and an environment of other languages, with Treaty's agents and with the kit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conforming import others, outcomes
from routing import FOLDER

from treaty_agent import Agent, Identity, LocalProtocols
from treaty_routing.conform import ENVIRONMENT, MEMBER, Host, Members

PROTOCOLS = LocalProtocols([FOLDER])
URI = PROTOCOLS.uri("message-routing")
Peers = Callable[[str], list[Any]]


@asynccontextmanager
async def running(command: list[Any], *arguments: str) -> AsyncIterator[tuple[dict[str, Any], asyncio.subprocess.Process]]:
    """A program: what it says when it is ready, and its process."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*map(str, (*command, *arguments)), stdin=pipe, stdout=pipe)
    assert process.stdin and process.stdout
    try:
        yield json.loads(await process.stdout.readline()), process
    finally:
        process.stdin.close()
        await process.wait()


async def worked(process: asyncio.subprocess.Process) -> Any:
    """End a member: the contents that it worked on."""
    assert process.stdin and process.stdout
    process.stdin.close()
    return json.loads(await process.stdout.read())


async def test_a_foreign_member_conforms(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_agent.transport.foreign_session.QUIET", 0.1)
    host = Host()
    async with host.serving("127.0.0.1", 0) as port:
        command = ("member", f"ws://127.0.0.1:{port}", URI, "Bob", "Worker", "Work")
        async with running(peers("message-routing"), *command):
            assert others(await outcomes(MEMBER, host)) == {}


@pytest.mark.deep
async def test_a_foreign_environment_conforms(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_agent.transport.foreign_session.QUIET", 0.1)
    async with running(peers("message-routing"), "environment", URI) as (at, _), AsyncExitStack() as stack:
        assert others(await outcomes(ENVIRONMENT, Members(at["url"], URI, stack))) == {}


@pytest.mark.deep
async def test_foreign_members_work_in_an_environment_of_treaty(peers: Peers, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, Agent(Identity.create(), PROTOCOLS, home=tmp_path) as environment:
        environment.on_session(URI, role="environment")(lambda session: asyncio.sleep(0))
        url = f"ws://127.0.0.1:{await stack.enter_async_context(environment.listen('127.0.0.1', 0))}"
        members = [
            (await stack.enter_async_context(running(peers("message-routing"), "member", url, URI, *each)))[1]
            for each in (("Alice", "Planner", "Split"), ("Bob", "Worker", "Work", "Split"))
        ]
        session = environment.shared(URI)
        await session.call("publish", content="rain", send_to=["Planner"])
        assert await session.call("run", rounds=10) == {"idle": True, "rounds": 3, "failures": []}
        history = (await session.call("readHistory", start=0))["messages"]
        assert [message["content"] for message in history] == ["rain", "Split of rain", "Work of Split of rain"]
        assert [await worked(each) for each in members] == [["rain"], ["Split of rain"]]
