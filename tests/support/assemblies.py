"""A room of the example `assembly`, and its members, in one process and in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from connections import ConnectionWrapper

from treaty_agent import Agent, AgentConfig, CallContext, OperationError, Policy, Session
from treaty_agent.testing import Simulation, run
from treaty_agent.transport import memory

ASSEMBLY = Path(__file__).parents[2] / "examples" / "assembly"


class Deaf(ConnectionWrapper):
    """A connection whose end reads nothing from a moment on."""

    may_read = True

    def receive(self) -> str | bytes | None:
        return super().receive() if self.may_read else None


class Member:
    """A member and what it hears."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.heard, self.connection = agent, list[str](), Deaf(memory.pair()[0])
        self.hears = asyncio.Event()

    async def said(self, number: int, speaker: str, text: str) -> None:
        self.heard.append(text)
        self.hears.set()

    async def has_heard(self, *texts: str) -> None:
        while self.heard[-len(texts) :] != list(texts):
            self.hears.clear()
            await self.hears.wait()


class Meeting:
    """A room and its members, with connections between them that prove the member's DID or do not."""

    def __init__(self, simulation: Simulation, **config: Any) -> None:
        self.simulation, self.uri = simulation, simulation.uri("assembly")
        self.room = simulation.agent("room.example", AgentConfig(**config))
        self.callers, self.serving = list[CallContext](), set[asyncio.Task[None]]()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

        @self.room.provides(self.uri, role="room")
        async def accept(text: str, context: CallContext) -> str:
            self.callers.append(context)
            if text.startswith("slow"):
                await self.may_answer.wait()
            if text.isupper():
                raise OperationError(403, "Not so loud.")
            return text

    @property
    def members(self) -> list[str]:
        return [member.peer.did for member in self.room.shared(self.uri).members]

    async def until(self, count: int) -> None:
        """Wait until the room has so many members."""
        while len(self.members) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def join(
        self, domain: str, *, proved: bool = True, policy: Policy | None = None
    ) -> AsyncIterator[tuple[Member, Session]]:
        member = Member(self.simulation.agent(domain, policy))
        near, far = memory.pair(source=member.agent.did if proved else "")
        member.connection = Deaf(near)
        task = asyncio.create_task(self.room.accept(far))
        self.serving.add(task)
        try:
            over = member.agent.connect_over(
                member.connection, protocols=[self.uri], did=self.room.did, role="member", serving=[member.said]
            )
            async with over as session:
                yield member, session
        finally:
            await near.close()

    async def joined(self, stack: AsyncExitStack, domain: str, **options: Any) -> tuple[Member, Session]:
        return await stack.enter_async_context(self.join(domain, **options))


def meet(test: Callable[[Meeting, AsyncExitStack], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        async with Simulation([ASSEMBLY]) as simulation, AsyncExitStack() as stack:
            meeting = Meeting(simulation, **config)
            await meeting.room.prepare()
            await test(meeting, stack)

    run(main())
