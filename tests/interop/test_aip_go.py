"""AIP with a peer in Go that is generated from the same .proto: it registers, calls and is called."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import go_programs
import pytest
from aip_nodes import LOOPBACK, begin, echo, nodes, told
from go_programs import needs_go

from treaty_aip import AgentInfo, AgentSkill, Mode, SessionStatus, Tool, ToolInfo

pytestmark = needs_go("AIP's peer in Go")


@pytest.fixture(scope="session")
def peer(request: pytest.FixtureRequest) -> Path:
    return go_programs.build("aip", request.config.cache.mkdir("go")) / "aip"


async def answering(agent: Any) -> None:
    """Answer three inquiries, and the last with STOP_RESPONSE."""
    await echo(agent, 3)


@pytest.mark.deep
async def test_a_peer_in_go_registers_calls_and_is_called(peer: Path) -> None:
    def upper(text: str) -> str:
        return text.upper()

    async with nodes() as made:
        gateway = await made.gateway()
        agent = await made.agent("python", gateway)
        await made.tool(Tool.creat_function_tool(upper, LOOPBACK), gateway)
        served = asyncio.create_task(answering(agent))
        async with go_programs.serving(peer, gateway.address) as found:
            assert found == {
                "peers": 2,
                "nodes": 1,
                "alive": True,
                "tool": "GRÜSS",
                "heard": ["HOLD_RESPONSE inquiry 0", "HOLD_RESPONSE inquiry 1", "STOP_RESPONSE inquiry 2"],
            }
            await served
            await agent.update_peers("go")
            (info,) = agent.get_nodes().values()
            assert isinstance(info, AgentInfo)
            assert (info.input_mode, info.output_mode) == ([Mode.TEXT, Mode.IMAGE], [Mode.AUDIO])
            assert info.skills == [AgentSkill("echo", "repeats")]
            other = gateway.get_registered_tools()["go-tool"]
            assert isinstance(other, ToolInfo)
            assert other.arguments == {"x": "any"}
            answer = await agent.call_tool("go-tool", arguments={"x": "ü", "y": 2})
            assert answer.content[0].text == '{"x":"ü","y":"2"}'
            session = await begin(agent, "go-agent", ["text", b"\x89PNG", b"RIFF"])
            reply = await agent.receive_feedback(session, "go-agent")
            assert next(each.to_value() for each in reply.content) == {"text": "text"}
            assert [each.embedded for each in reply.content][1:] == [b"\x89PNG", b"RIFF"]
            await agent.submit_inquiry(session, "go-agent", "bye", session_status=SessionStatus.STOP_QUEST)
            assert told(await agent.receive_feedback(session, "go-agent")) == (SessionStatus.STOP_RESPONSE, "bye")
