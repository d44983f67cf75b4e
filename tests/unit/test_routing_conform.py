"""`treaty conform routing`: the items hold at agents of Treaty, and each fails at a peer that breaks its rule."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from conforming import failures, others, outcomes
from routing import FOLDER
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from treaty_agent import Agent, Identity, LocalProtocols, OperationError
from treaty_agent.transport.foreign_session import ForeignSession
from treaty_io.conformance import PeerUnderTest
from treaty_routing.conform import ENVIRONMENT, MEMBER, Host, Members

PROTOCOLS = LocalProtocols([FOLDER])
URI = PROTOCOLS.uri("message-routing")


async def run_rounds(environment: Agent) -> None:
    """Run a round whenever messages wait."""
    while True:
        with suppress(OperationError):
            await environment.shared(URI).call("run", rounds=1)
        await asyncio.sleep(0.05)


@pytest.fixture(autouse=True)
def short_silences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_agent.transport.foreign_session.QUIET", 0.1)


async def test_the_items_hold_at_an_environment_of_treaty(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, Agent(Identity.create(), PROTOCOLS, home=tmp_path) as environment:
        environment.on_session(URI, role="environment")(lambda session: asyncio.sleep(0))
        port = await stack.enter_async_context(environment.listen("127.0.0.1", 0))
        rounds = asyncio.create_task(run_rounds(environment))
        results = await outcomes(ENVIRONMENT, Members(f"ws://127.0.0.1:{port}", URI, stack))
        rounds.cancel()
    assert others(results) == {}


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
            results = await outcomes(MEMBER, host)
    assert others(results) == {}


class Careless:
    """An environment that takes everything. `tells`: gives every message to everybody, of another sender; else it gives none."""

    def __init__(self, *, joins: bool, tells: bool) -> None:
        self.joins, self.tells = joins, tells
        self.links: list[ForeignSession] = []
        self.names: set[str] = set()

    async def serve(self, socket: Any) -> None:
        link = ForeignSession(PeerUnderTest(), socket)
        with suppress(ConnectionClosed):
            await link.welcome("environment")
            self.links.append(link)
            while True:
                request = await link.hear()
                is_double = request.get("name") in self.names and not self.tells
                self.names.add(request.get("name", ""))
                answer = {"type": "accepted"} if self.joins and not is_double else {"type": "refused", "code": 418, "reason": ""}
                await link.say({**answer, "id": request.get("id")})
                if request.get("type") == "publish" and self.tells:
                    for each in self.links:
                        with suppress(ConnectionClosed):
                            await each.say({"type": "message", "message": {**request["message"], "sent_from": "x"}})
                            await each.say({"type": "run", "round": 5})


async def test_each_item_fails_at_an_environment_that_breaks_its_rule() -> None:
    failed: list[set[str]] = []
    for options in ({"joins": False, "tells": False}, {"joins": True, "tells": True}, {"joins": True, "tells": False}):
        async with serve(Careless(**options).serve, "127.0.0.1", 0) as server, AsyncExitStack() as stack:
            url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            results = await outcomes(ENVIRONMENT, Members(url, URI, stack), seconds=3)
        failed.append(failures(results))
    assert set[str]().union(*failed) == set(ENVIRONMENT.ids)
    # One that takes and gives everything fails only where it should have refused, or told fewer.
    assert {"names", "room", "sender"} <= failed[1] and "joins" not in failed[1]


async def careless_member(port: int, *, eager: bool) -> None:
    """Join under no name. Answer every message with one that lacks its fields: at once, or in a round. End at junk."""
    async with connect(f"ws://127.0.0.1:{port}") as socket:
        link = ForeignSession(PeerUnderTest(), socket)
        await link.greet(URI, "member")
        await link.say({"type": "join", "id": "1", "name": "Bob.", "address": "Worker", "shared": False})
        link.is_idle, count = False, 0
        while "type" in (messages := await link.hear()) and isinstance(messages.get("message", {}), dict):
            count += messages["type"] == "message"
            if messages["type"] == ("message" if eager else "run"):
                for _ in range(count):
                    await link.say({"type": "publish", "id": "2", "message": {"content": "No."}})
                count = 0
            if messages["type"] == "run":
                await link.say({"type": "state", "round": messages["round"], "idle": True, "error": ""})


async def test_each_item_fails_at_a_member_that_breaks_its_rule() -> None:
    failed: list[set[str]] = []
    for eager in (True, False):
        host = Host()
        async with host.serving("127.0.0.1", 0) as port:
            member = asyncio.create_task(careless_member(port, eager=eager))
            await host.joined.wait()
            results = await outcomes(MEMBER, host, seconds=2)
        failed.append(failures(results))
        await asyncio.gather(member, return_exceptions=True)
    assert set[str]().union(*failed) == set(MEMBER.ids)
    # One that waits for its rounds works on the same message again.
    assert "once" in failed[1] and "works" not in failed[1]
