"""`treaty conform aip`: the items hold at nodes of Treaty, and each fails at a peer that breaks its rule."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import pytest
from aip_nodes import LOOPBACK, nodes
from conforming import others, outcomes

from treaty_agent import OperationError
from treaty_aip import Agent, SessionStatus, Tool
from treaty_aip.conform import AGENT, DESK_AGENT, DESK_TOOL, GATEWAY, NODE, TOOL, Caller, Desk, Router, join


async def talking(agent: Agent) -> None:
    """Answer every inquiry."""
    while True:
        message = await agent.receive_inquiry()
        with suppress(OperationError):  # the session has ended meanwhile
            await agent.submit_feedback(message.session_id, message.sender_id, "Heard.")


async def test_the_items_hold_at_an_agent_and_a_tool_of_treaty() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    async with nodes() as made:
        agent, tool = await made.agent("a"), await made.tool(Tool.create_function_tool(add, LOOPBACK))
        answering = asyncio.create_task(talking(agent))
        async with grpc.aio.insecure_channel(agent.address) as channel:
            assert others(await outcomes(AGENT, Caller(channel, "a"))) == {}
        async with grpc.aio.insecure_channel(tool.address) as channel:
            assert others(await outcomes(TOOL, Caller(channel, "add", {"a": "1", "b": "2"}))) == {}
        answering.cancel()


async def test_the_items_hold_at_a_gateway_of_treaty() -> None:
    async with nodes() as made, Desk("127.0.0.1").serving(0) as desk:
        gateway = await made.gateway()
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            router = Router(channel, desk)
            await join(router)
            assert others(await outcomes(GATEWAY, router)) == {}


@pytest.mark.deep  # a heartbeat is due after ten seconds
async def test_the_items_hold_at_a_node_of_treaty() -> None:
    async with nodes() as made, Desk("127.0.0.1").serving(0) as desk:
        agent = await made.agent("a")
        await agent.register_to_gateway(desk.address)
        session = await agent.create_agent_client(DESK_AGENT)
        for text, status in (("one", None), ("two", None), ("bye", SessionStatus.STOP_QUEST)):
            await agent.submit_inquiry(session, DESK_AGENT, text, session_status=status)
            await agent.receive_feedback(session, DESK_AGENT)
        await agent.call_tool(DESK_TOOL, arguments={"text": "x"})
        assert others(await outcomes(NODE, desk)) == {}
