"""`treaty conform routing`: the items hold at agents of Treaty, and each fails at a peer that breaks its rule."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from conforming import others, outcomes
from routing import FOLDER

from treaty_agent import Agent, Identity, LocalProtocols, OperationError
from treaty_routing.conform import ENVIRONMENT, MEMBER, Host, Members

PROTOCOLS = LocalProtocols([FOLDER])
URI = PROTOCOLS.uri("message-routing")


async def run_rounds(environment: Agent) -> None:
    """Run a round whenever messages wait."""
    while True:
        with suppress(OperationError):
            await environment.shared(URI).call("run", rounds=1)
        await asyncio.sleep(0.05)


async def test_the_items_hold_at_an_environment_of_treaty(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, Agent(Identity.create(), PROTOCOLS, home=tmp_path) as environment:
        environment.on_session(URI, role="environment")(lambda session: asyncio.sleep(0))
        port = await stack.enter_async_context(environment.listen("127.0.0.1", 0))
        rounds = asyncio.create_task(run_rounds(environment))
        found = await outcomes(ENVIRONMENT, Members(f"ws://127.0.0.1:{port}", URI, stack))
        rounds.cancel()
    assert others(found) == {}


async def test_the_items_hold_at_a_member_of_treaty(tmp_path: Path) -> None:
    async def act(action: str, news: list[dict[str, Any]]) -> dict[str, Any]:
        return {"publish": [{"content": f"{action}: {message['content']}"} for message in news]}

    async def think(state: str, choices: list[str], news: list[dict[str, Any]]) -> dict[str, str]:
        return {"state": choices[0]}

    host = Host()
    async with host.serving("127.0.0.1", 0) as port, Agent(Identity.create(), PROTOCOLS, home=tmp_path) as member:
        connection = member.connect(f"ws://127.0.0.1:{port}", protocols=[URI], role="member", serving=[act, think])
        async with connection as session:
            await session.call("join", name="Bob", address="Worker", transitions={"<idle>": ["Work"], "Work": ["<idle>"]})
            found = await outcomes(MEMBER, host)
    assert others(found) == {}
