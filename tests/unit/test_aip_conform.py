# ruff: noqa: N802 - the methods of a service have its names
"""`treaty conform aip`: the items hold at nodes of Treaty, and each fails at a peer that breaks its rule."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from aip_nodes import LOOPBACK, nodes
from conforming import failures, others, outcomes

from treaty_agent import Agent as TreatyAgent
from treaty_agent import Identity, LocalProtocols, OperationError, Session
from treaty_aip import Agent, SessionStatus, Tool
from treaty_aip.conform import AGENT, GATEWAY, NODE, TOOL, Caller, Router, join, roles_at
from treaty_aip.conform_desk import DESK_AGENT, DESK_TOOL, Desk
from treaty_aip.stubs import aip_pb2, aip_pb2_grpc
from treaty_io.conformance import Items

AIP = Path(__file__).parents[2] / "protocols" / "aip" / "0.0.1"


async def talking(agent: Agent) -> None:
    """Answer every inquiry."""
    while True:
        message = await agent.receive_inquiry()
        with suppress(OperationError):  # the session has ended meanwhile
            await agent.submit_feedback(message.session_id, message.sender_id, "Heard.")


async def test_the_items_hold_at_an_agent_and_a_tool_of_treaty() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    async with nodes() as network:
        agent, tool = await network.agent("a"), await network.tool(Tool.create_function_tool(add, LOOPBACK))
        answering = asyncio.create_task(talking(agent))
        async with grpc.aio.insecure_channel(agent.address) as channel:
            assert others(await outcomes(AGENT, Caller(channel, "a"))) == {}
        async with grpc.aio.insecure_channel(tool.address) as channel:
            assert others(await outcomes(TOOL, Caller(channel, "add", {"a": "1", "b": "2"}))) == {}
        answering.cancel()


@pytest.mark.deep
async def test_the_items_hold_at_a_peer_of_treaty_in_a_session(tmp_path: Path) -> None:
    protocols = LocalProtocols([AIP])
    uri, sessions = protocols.uri("aip"), list[Session]()

    async def inquiry(message: dict[str, Any]) -> None:
        if message.get("message_id"):
            answer = {"session_id": message["session_id"], "sender_id": "a", "receiver_id": message["sender_id"]}
            with suppress(OperationError):  # the session has ended meanwhile
                await sessions[-1].call("submit_feedback", message={**answer, "content": [{"text": "Heard."}]})

    async def feedback(message: dict[str, Any]) -> None: ...

    async def process_request(request: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"text": "Done."}]}

    async with TreatyAgent(Identity.create(), protocols, home=tmp_path) as agent:
        for function in (inquiry, feedback, process_request):
            agent.provides(uri, role="peer")(function)

        @agent.on_session(uri, role="peer")
        async def keep(session: Session) -> None:
            sessions.append(session)
            await session.wait_ended()

        async with agent.listen("127.0.0.1", 0) as port:
            url = f"ws://127.0.0.1:{port}"
            async with Desk("127.0.0.1").serving(0) as desk, roles_at(url, desk, "a", "t", {}, 5, uri=uri) as roles:
                assert [role for role, _, _ in roles] == ["agent", "tool"]
                found = {
                    name: each for _, items, peer in roles for name, each in (await outcomes(items, peer, seconds=5)).items()
                }
    assert failures(found) == set(), others(found)
    assert set(others(found)) == {"receiver", "failure"}


async def test_the_items_hold_at_a_gateway_of_treaty() -> None:
    async with nodes() as network, Desk("127.0.0.1").serving(0) as desk:
        gateway = await network.gateway()
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            router = Router(channel, desk)
            await join(router)
            assert others(await outcomes(GATEWAY, router)) == {}


@pytest.mark.deep  # a heartbeat is due after ten seconds
async def test_the_items_hold_at_a_node_of_treaty() -> None:
    async with nodes() as network, Desk("127.0.0.1").serving(0) as desk:
        agent = await network.agent("a")
        await agent.register_to_gateway(desk.address)
        session = await agent.create_agent_client(DESK_AGENT)
        for text, status in (("one", None), ("two", None), ("bye", SessionStatus.STOP_QUEST)):
            await agent.submit_inquiry(session, DESK_AGENT, text, session_status=status)
            await agent.receive_feedback(session, DESK_AGENT)
        await agent.call_tool(DESK_TOOL, arguments={"text": "x"})
        assert others(await outcomes(NODE, desk)) == {}


class Careless(aip_pb2_grpc.AgentServiceServicer, aip_pb2_grpc.ToolServiceServicer, aip_pb2_grpc.GatewayServiceServicer):
    """Agent, tool and gateway that answer everything, and check nothing. `confused`: with the ids of others."""

    def __init__(self, *, confused: bool) -> None:
        self.confused, self.seen = confused, set[str]()

    async def CallAgent(self, requests: Any, context: Any) -> Any:
        async for message in requests:
            session = "x" if self.confused else message.session_id
            ids = {"sender_id": message.receiver_id, "receiver_id": message.sender_id, "session_id": session}
            yield aip_pb2.AgentMessage(**ids, session_status="HOLD_RESPONSE")
            is_first = (
                message.session_status == 0
                and message.session_id
                and (message.receiver_id, message.content[0].text) == ("a", "hello")
            )
            if not is_first or message.session_id in self.seen:
                return
            self.seen.add(message.session_id)

    RouteAgentCalling = CallAgent

    async def CallTool(self, request: Any, context: Any) -> Any:
        if not request.arguments:
            raise RuntimeError("No.")
        return aip_pb2.ToolResponse(session_id="x", is_error=True)

    RouteToolCalling = CallTool

    async def RegisterAgent(self, request: Any, context: Any) -> Any:
        return aip_pb2.RegisterAgentResponse(success=True)

    async def RegisterTool(self, request: Any, context: Any) -> Any:
        return aip_pb2.RegisterToolResponse(success=True)

    async def DeregisterNode(self, request: Any, context: Any) -> Any:
        return aip_pb2.DeregisterNodeResponse(success=True)

    async def GetNodes(self, request: Any, context: Any) -> Any:
        return aip_pb2.GetNodesResponse()

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        return aip_pb2.HeartbeatResponse(success=True)

    async def SubscribeToUpdates(self, request: Any, context: Any) -> Any:
        updates: list[Any] = []
        for update in updates:
            yield update


async def failing(items: Items, **options: bool) -> set[str]:
    """The items that fail at a careless peer. Each says why, how to mend it, and what was sent."""
    server = grpc.aio.server()
    for add in (
        aip_pb2_grpc.add_AgentServiceServicer_to_server,
        aip_pb2_grpc.add_ToolServiceServicer_to_server,
        aip_pb2_grpc.add_GatewayServiceServicer_to_server,
    ):
        add(Careless(**options), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port(LOOPBACK)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, Desk("127.0.0.1").serving(0) as desk:
        results = await outcomes(items, Router(channel, desk) if items is GATEWAY else Caller(channel, "a"), seconds=2)
    await server.stop(None)
    return failures(results)


@pytest.mark.parametrize("items", [AGENT, TOOL, GATEWAY], ids=["agent", "tool", "gateway"])
async def test_each_item_fails_at_a_peer_that_breaks_its_rule(items: Items) -> None:
    assert await failing(items, confused=False) | await failing(items, confused=True) == set(items.ids)


async def test_each_item_of_a_node_fails_at_one_that_breaks_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_aip.conform_desk.HEARTBEAT", 0.1)
    failed: set[str] = set()
    for heartbeats in ([], ["a"]):
        desk = Desk("127.0.0.1")
        desk.agents, desk.heartbeats = [aip_pb2.AgentInfo(agent_id="a", address="nowhere")], heartbeats
        desk.streams = [[aip_pb2.AgentMessage(session_id=name, session_status="HOLD_QUEST") for name in "xy"]]
        desk.requests = [aip_pb2.ToolRequest(receiver_id=DESK_TOOL)]
        failed |= failures(await outcomes(NODE, desk))
    assert failed == set(NODE.ids)


async def test_a_peer_that_is_not_there_ends_the_run() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        results = await outcomes(AGENT, Caller(channel, "a"), seconds=5)
    assert [result.outcome for result in results.values()] == ["fails"] * 3 + ["not tried"] * (len(AGENT.ids) - 3)
