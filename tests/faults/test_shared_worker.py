"""Fault: the worker of a shared session rests, and its agent restarts. Real sandboxes, sockets and proofs of DIDs."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from treaty_agent import Agent, AgentConfig, Identity, LocalProtocols, Passivation, Policy, Session
from treaty_io.identity import ProvedPeer

PROTOCOLS = LocalProtocols([Path(__file__).parents[2] / "examples" / "assembly"])
ASSEMBLY = PROTOCOLS.uri("assembly")
SECURE = Policy(encryption="required")
"""So that each member proves its DID."""


@asynccontextmanager
async def serving(identity: Identity, config: AgentConfig) -> AsyncIterator[tuple[Agent, str]]:
    """A room that accepts everything, and its address."""
    async with Agent(identity, PROTOCOLS, config) as room:

        @room.provides(ASSEMBLY, role="room")
        async def accept(text: str) -> str:
            return text

        async with room.listen("127.0.0.1", 0) as port:
            yield room, f"ws://127.0.0.1:{port}"


class Member:
    """A member in a session, and what it hears."""

    def __init__(self, home: Path) -> None:
        self.agent = Agent(Identity.create(), PROTOCOLS, AgentConfig(SECURE, home=home))
        self.heard = asyncio.Queue[str]()

    @asynccontextmanager
    async def joined(self, url: str) -> AsyncIterator[Session]:
        async def said(number: int, speaker: str, text: str) -> None:
            self.heard.put_nowait(f"{number} {text}")

        async with self.agent.connect(url, protocols=[ASSEMBLY], role="member", serving=[said]) as session:
            yield session


def session_in(home: Path) -> tuple[str, int]:
    """The seed of the session that is kept in a home, and the texts that its room was asked to accept."""
    [file] = (home / "rooms").rglob("*.room")
    session = json.loads(file.read_bytes().partition(b"\n")[2])["session"]
    return session["seed"], json.loads(b64decode(session["snapshot"]))["asked"]


async def test_a_resting_session_resumes_in_its_homes_next_agent(tmp_path: Path) -> None:
    identity, config = Identity.create(), AgentConfig(SECURE, home=tmp_path / "room", workers=Passivation(idle=0.1))
    async with AsyncExitStack() as stack:
        members = [Member(tmp_path / name) for name in ("ada", "bob")]
        for member in members:
            await stack.enter_async_context(member.agent)
        room, url = await stack.enter_async_context(serving(identity, config))
        says = [await stack.enter_async_context(member.joined(url)) for member in members]
        assert await says[0].call("say", text="Before.") == 1
        while room.metrics().workers.running:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert [type(member.peer) for member in room.shared(ASSEMBLY).members] == [ProvedPeer, ProvedPeer]
        assert await says[1].call("say", text="After.") == 2
        for member in members:
            assert [await member.heard.get() for _ in range(2)] == ["1 Before.", "2 After."]
        assert room.metrics().workers.started >= 2
        await room.aclose()
        before = session_in(tmp_path / "room")
        assert before[1] == 2
        room, url = await stack.enter_async_context(serving(identity, config))
        again = await stack.enter_async_context(members[0].joined(url))
        assert await again.call("say", text="Restarted.") == 3
        assert [await members[0].heard.get() for _ in range(3)] == ["1 Before.", "2 After.", "3 Restarted."]
        assert session_in(tmp_path / "room") == (before[0], 3)
