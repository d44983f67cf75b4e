"""A gateway with agents and tools on loopback, for one test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from treaty_aip import Agent, AgentMessage, Gateway, SessionStatus, Tool

LOOPBACK = "127.0.0.1:0"


class Nodes:
    """Nodes that are stopped at the end. `options`: the keyword arguments of each."""

    def __init__(self, stack: AsyncExitStack, **options: Any) -> None:
        self._stack, self._options = stack, options

    async def gateway(self, **options: Any) -> Gateway:
        """A gateway."""
        gateway = await Gateway(LOOPBACK, **options).start()
        self._stack.push_async_callback(gateway.stop)
        return gateway

    async def agent(self, name: str, gateway: Gateway | None = None, address: str = LOOPBACK, **options: Any) -> Agent:
        """An agent, registered if there is a gateway."""
        agent = await Agent(address, name, **{**self._options, **options}).start()
        self._stack.push_async_callback(agent.stop)
        return agent if gateway is None else await agent.register_to_gateway(gateway.address)

    async def tool(self, tool: Tool, gateway: Gateway | None = None) -> Tool:
        """A tool, registered if there is a gateway."""
        await tool.start()
        self._stack.push_async_callback(tool.stop)
        return tool if gateway is None else await tool.register_to_gateway(gateway.address)


@asynccontextmanager
async def nodes(**options: Any) -> AsyncIterator[Nodes]:
    """Nodes, until the end of the block. A test that waits for a message which never comes fails, and does not hang."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        yield Nodes(stack, **options)


async def begin(agent: Agent, receiver: str, text: Any = "hello", **options: Any) -> str:
    """Begin a session; its id."""
    session = await agent.create_agent_client(receiver, **options)
    await agent.submit_inquiry(session, receiver, text)
    return session


async def echo(agent: Agent, count: int) -> None:
    """Answer this many inquiries with their texts."""
    for _ in range(count):
        message = await agent.receive_inquiry()
        await agent.submit_feedback(message.session_id, message.sender_id, message.content[0].text or "")


def told(message: AgentMessage) -> tuple[SessionStatus, str]:
    """The status and the text of a message."""
    return message.session_status, (message.content[0].text or "") if message.content else ""
