"""AIP with a peer that knows only the text of the source: its printed examples and values, over gRPC, in each role."""

from __future__ import annotations

import inspect
import re
from typing import Any

import grpc
import pytest
from aip_nodes import LOOPBACK, nodes, told
from aip_source import NAMES, Status, example, examples, filled, members, run, serving, signatures

import treaty_aip as aip
from treaty_agent import OperationError
from treaty_aip.handler import encode
from treaty_aip.stubs import aip_pb2


def test_the_printed_examples_run_and_give_their_messages() -> None:
    own: dict[str, Any] = {name: getattr(aip, name) for name in aip.__all__}
    own |= {"peer1": aip.Peer(aip.AgentInfo("agent_001")), "peer2": aip.Peer(tool_info=aip.ToolInfo("tool_001"))}
    own["text_item"] = aip.ContentItem.write_text("Hello, World!")
    assert len(examples()) == 20
    for section, statements in examples().items():
        value, *_ = run(statements, own).values()
        expected = example(section)
        if isinstance(value, int):
            assert value == expected, section
        else:
            assert type(expected).FromString(encode(type(value).__name__, value.to_value())) == expected, section


@pytest.mark.parametrize("enum", ["Mode", "SessionStatus", "TaskStatus"])
def test_each_printed_enumeration_has_its_numbers(enum: str) -> None:
    assert {each.name: each.value for each in getattr(aip, enum)} == members(enum)


def test_each_printed_signature_is_that_of_the_package() -> None:
    """The printed parameters, in order; printed defaults are those of the package."""
    count = 0
    for owner, methods in signatures().items():
        for name, printed in methods.items():
            function = getattr(getattr(aip, owner), "__init__" if name == "init" else name)
            parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
            expected = [each.partition("=") for each in printed.split(", ") if each not in ("", "...", "self")]
            if "..." not in printed:
                parameters = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
                assert [each.name for each in parameters] == [each for each, _, _ in expected], f"{owner}.{name}"
            for parameter, (each, _, default) in zip(parameters, expected, strict=False):
                assert parameter.name == each
                if default:
                    names = {"SessionStatus": aip.SessionStatus, "GatewayServiceStub": aip.GatewayServiceStub}
                    assert parameter.default == eval(default, names), f"{owner}.{name}({each})"
            count += 1
    assert count == 34  # `update_tool_info` is printed without parentheses


async def test_the_printed_agent_and_tool_register_and_answer() -> None:
    async with serving() as agent, serving() as tool, nodes() as network:
        gateway = await network.gateway()
        asker = await network.agent("agent_002", gateway)
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = aip.GatewayServiceStub(channel)
            info = filled("AgentInfo", address=agent.address, skills=[example("AgentSkill")])
            answer = await stub.RegisterAgent(info)
            assert (answer.success, [each.agent_info.agent_id for each in answer.peers]) == (True, ["agent_002"])
            assert (await stub.RegisterTool(filled("ToolInfo", address=tool.address))).success
            assert await stub.Heartbeat(example("HeartbeatRequest")) == example("HeartbeatResponse")
            (listed,) = (await stub.GetNodes(filled("GetNodesRequest"))).peers
            assert listed.agent_info == info
            node = (await asker.update_peers()).get_nodes()["agent_001"]
            assert (node.name, node.address, node.skills) == (
                "翻译智能体",
                agent.address,
                [aip.AgentSkill("translation", "多语言翻译")],
            )
            session = await asker.create_agent_client("agent_001")
            question = await asker.submit_inquiry(session, "agent_001", "Hello?")
            feedback = await asker.receive_feedback(session, "agent_001")
            assert (told(feedback), feedback.reply_to_message_id) == ((aip.SessionStatus.HOLD_RESPONSE, "Hello!"), question)
            await asker.submit_inquiry(session, "agent_001", "Bye.", session_status=aip.SessionStatus.STOP_QUEST)
            assert told(await asker.receive_feedback(session, "agent_001")) == (aip.SessionStatus.STOP_RESPONSE, "Hello!")
            assert (await asker.call_tool("tool_001", arguments={"lang": "en"})).content[0].text == "Hello, World!"
            assert dict(tool.received[0].arguments) == {"lang": "en"}
            assert (await stub.DeregisterNode(example("DeregisterNodeRequest"))) == example("DeregisterNodeResponse")
        assert sorted(gateway.get_registered_nodes()) == ["agent_002", "tool_001"]


async def test_the_printed_messages_begin_a_session_and_call_a_tool() -> None:
    def translate(text: str) -> str:
        if text != "Hello":
            raise OperationError(400, "Invalid input")
        return "Hello, World!"

    async with nodes() as network:
        gateway = await network.gateway()
        receiver = await network.agent("agent_002", gateway)
        tool = aip.Tool.creat_function_tool(translate, LOOPBACK, "tool_001", name="translator")
        await network.tool(tool, gateway)
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = aip.GatewayServiceStub(channel)
            stream = stub.RouteAgentCalling()
            first = filled("AgentMessage", task_info=example("TaskInfo"), content=list(example("AgentMessage").content))
            await stream.write(first)
            inquiry = await receiver.receive_inquiry()
            assert (inquiry.session_id, inquiry.message_id, told(inquiry)[1]) == ("session_123", "msg_001", "Hello!")
            await receiver.submit_feedback(inquiry.session_id, inquiry.sender_id, "Hello, World!")
            answer = await stream.read()
            assert (answer.reply_to_message_id, answer.session_status) == ("msg_001", Status.HOLD_RESPONSE)
            assert answer.content[0] == run(examples()["ContentItem"], NAMES)["text_item"]
            stream.cancel()
            assert told(await receiver.receive_inquiry())[0] is aip.SessionStatus.STOP_QUEST
            request = filled("ToolRequest")
            response = await stub.RouteToolCalling(request)
            expected = example("ToolResponse")
            expected.MergeFrom(aip_pb2.ToolResponse(sender_id="tool_001", receiver_id="agent_001", session_id="session_123"))
            assert response == expected
            request.arguments["text"] = "?"
            refused = await stub.RouteToolCalling(request)
            assert (refused.is_error, refused.error_message) == (True, filled("ToolResponse").error_message)


async def test_agents_and_tools_register_at_a_gateway_of_the_source() -> None:
    async with serving() as gateway, nodes() as network:
        agent = await network.agent("agent_002", heartbeat_interval=0.05)
        tool = await network.tool(aip.Tool(LOOPBACK, "tool_002"))
        for node in (agent, tool):
            await node.register_to_gateway(gateway.address)
        assert sorted(agent.get_nodes()) == ["agent_001", "tool_001"]
        assert sorted((await agent.update_peers("translation")).get_nodes()) == ["agent_001", "tool_001"]
        kinds = [re.sub(r".*\.", "", type(each).__name__) for each in gateway.received[:3]]
        assert kinds == ["AgentInfo", "ToolInfo", "GetNodesRequest"]
