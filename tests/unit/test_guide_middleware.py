"""The guide about contexts and middleware is executed: each example around real calls between simulated agents."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import types
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import Agent, CallContext, ClaimedPeer, OperationError, Policy, ProvedPeer, Session
from treaty_agent.testing import PeerDouble, Simulation, run

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "middleware.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("middleware_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in BLOCKS:
        exec(compile(block, "docs/guides/middleware.md", "exec"), module.__dict__)
    return module


def meet(prepare: Callable[[Agent, Agent, str], None], visit: Callable[[Session], Awaitable[None]], **options: Any) -> None:
    """Prepare a host and a guest, and let the guest visit."""

    async def main() -> None:
        async with Simulation([ROOT / "examples" / "greeting"]) as simulation:
            # Encrypted, because the examples are for guests that prove their DIDs.
            policy = Policy(encryption="required")
            host, guest = simulation.agent("host.example", policy, **options), simulation.agent("guest.example", policy)
            uri = simulation.uri("greeting")
            prepare(host, guest, uri)
            if uri not in host.context.served.services:
                PeerDouble(host, uri, {"greet": "Hello!"})
            async with simulation.serving(host), guest.connect("wss://host.example", protocols=[uri]) as session:
                await visit(session)

    run(main())


async def status_of(session: Session, name: str = "Ada") -> int:
    try:
        await session.call("greet", name=name)
    except OperationError as error:
        return error.status
    return 200


def test_a_function_decides_by_its_context(guide: Any) -> None:
    async def visit(session: Session) -> None:
        assert await session.call("greet", name="Ada") == "Hello, Ada!"
        assert await status_of(session, "Bob") == 403

    meet(lambda host, guest, uri: guide.provide(host, uri), visit)


def test_a_claim_is_not_the_guest(guide: Any) -> None:
    (guest,) = guide.GUESTS
    assert guest == ProvedPeer("did:wba:guest.example")
    assert ClaimedPeer(guest.did) not in {*guide.GUESTS, *guide.FRIENDS}


def test_the_table_names_every_field() -> None:
    fields = set(CallContext.__dataclass_fields__) - {"deadline", "clock"}
    table = GUIDE[GUIDE.index("| field |") : GUIDE.index("`current_call()`")]
    assert {name for name in fields if f"`{name}`" not in table} == set()


def test_only_friends_are_served(guide: Any) -> None:
    async def visit(session: Session) -> None:
        assert await status_of(session) == 200
        guide.FRIENDS.clear()
        assert await status_of(session) == 403

    meet(lambda host, guest, uri: host.middleware(guide.only_friends), visit)


def test_calls_are_logged(guide: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def visit(session: Session) -> None:
        await status_of(session)

    def prepare(host: Agent, guest: Agent, uri: str) -> None:
        host.middleware(guide.log_calls)
        guest.middleware(guide.log_calls)

    with caplog.at_level(logging.INFO, "calls"):
        meet(prepare, visit)
    lines = [record.getMessage().split() for record in caplog.records if record.name == "calls"]
    assert [(line[0], line[1], line[-1]) for line in lines] == [("in", "greet", "done"), ("out", "greet", "done")]
    assert lines[0][3] == lines[1][3]


def test_calls_are_metered(guide: Any) -> None:
    async def visit(session: Session) -> None:
        for _ in range(3):
            await status_of(session)

    meet(lambda host, guest, uri: None, visit, on_event=guide.meter)
    assert guide.counts == {("call in", "greet", "ok"): 3}
    assert set(guide.seconds) == {("call in", "greet")}


def test_calls_are_limited(guide: Any) -> None:
    async def visit(session: Session) -> None:
        statuses = [await status_of(session) for _ in range(3)]
        await asyncio.sleep(60)
        # The manifest of the greeting lists no 429.
        assert [*statuses, await status_of(session)] == [200, 200, 500, 200]

    meet(lambda host, guest, uri: host.middleware(guide.limited(2, 60)), visit)
