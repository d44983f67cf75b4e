"""`protocols/aip/peers`: agents and tools of other languages over gRPC, with Treaty's nodes and with the kit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import go_programs
import grpc
import pytest
from aip_nodes import LOOPBACK, begin, echo, nodes, told
from conforming import others, outcomes

import treaty_aip
from treaty_aip import AgentInfo, AgentSkill, Mode, SessionStatus, Tool, ToolInfo
from treaty_aip.conform import AGENT, NODE, TOOL, Caller
from treaty_aip.conform_desk import DESK_AGENT, DESK_TOOL, Desk

PROTO = Path(treaty_aip.__file__).with_name("stubs") / "aip.proto"
Peers = Callable[[str], list[Any]]


def line(peers: Peers, *arguments: str) -> list[Any]:
    """The command line of a peer. Programs in Go have the .proto compiled in."""
    command = peers("aip")
    return [*command, *([PROTO] if command[0] == "node" else []), *arguments]


def language(peers: Peers) -> str:
    return "node" if peers("aip")[0] == "node" else "go"


async def test_a_foreign_agent_and_its_tool_conform(peers: Peers) -> None:
    name = language(peers)
    async with go_programs.serving(*line(peers)) as at:
        async with grpc.aio.insecure_channel(at["agent"]) as channel:
            assert others(await outcomes(AGENT, Caller(channel, f"{name}-agent"))) == {}
        async with grpc.aio.insecure_channel(at["tool"]) as channel:
            assert others(await outcomes(TOOL, Caller(channel, f"{name}-tool", {"text": "x"}))) == {}


@pytest.mark.deep  # heartbeats are due after ten seconds
async def test_a_foreign_node_conforms(peers: Peers) -> None:
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(Desk("127.0.0.1").serving(0))
        command = line(peers, desk.address, DESK_AGENT, DESK_TOOL)
        at = await stack.enter_async_context(go_programs.serving(*command))
        assert at["heard"] == ["HOLD_RESPONSE Heard.", "HOLD_RESPONSE Heard.", "STOP_RESPONSE Heard."]
        assert others(await outcomes(NODE, desk)) == {}


@pytest.mark.deep
async def test_a_foreign_node_registers_calls_and_is_called(peers: Peers) -> None:
    def upper(text: str) -> str:
        return text.upper()

    async with nodes() as network:
        name, gateway = language(peers), await network.gateway()
        agent = await network.agent("python", gateway)
        await network.tool(Tool.create_function_tool(upper, LOOPBACK), gateway)
        served = asyncio.create_task(echo(agent, 3))
        async with go_programs.serving(*line(peers, gateway.address, "python", "upper")) as at:
            assert (at["peers"], at["nodes"], at["answer"]) == (2, 1, "GRÜSS")
            assert at["heard"] == ["HOLD_RESPONSE inquiry 0", "HOLD_RESPONSE inquiry 1", "STOP_RESPONSE inquiry 2"]
            await served
            await agent.update_peers("foreign")
            (info,) = agent.get_nodes().values()
            assert isinstance(info, AgentInfo)
            assert (info.input_mode, info.output_mode) == ([Mode.TEXT, Mode.IMAGE], [Mode.AUDIO])
            assert info.skills == [AgentSkill("echo", "repeats")]
            other = gateway.get_registered_tools()[f"{name}-tool"]
            assert isinstance(other, ToolInfo)
            assert other.arguments == {"text": "str"}
            answer = await agent.call_tool(f"{name}-tool", arguments={"text": "ü"})
            assert answer.content[0].text == "Ü"
            answer = await agent.call_tool(f"{name}-tool", arguments={})
            assert answer.is_error and answer.error_message == "The argument text is missing."
            session = await begin(agent, f"{name}-agent", ["text", b"\x89PNG", b"RIFF"])
            reply = await agent.receive_feedback(session, f"{name}-agent")
            assert next(each.to_value() for each in reply.content) == {"text": "text"}
            assert [each.embedded for each in reply.content][1:] == [b"\x89PNG", b"RIFF"]
            await agent.submit_inquiry(session, f"{name}-agent", "bye", session_status=SessionStatus.STOP_QUEST)
            assert told(await agent.receive_feedback(session, f"{name}-agent")) == (SessionStatus.STOP_RESPONSE, "bye")
