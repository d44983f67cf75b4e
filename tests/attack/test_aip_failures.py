"""What a stranger tries in order to have a live node of AIP deregistered, taken over, left in the dark or drowned in its log."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aip_nodes import LOOPBACK, begin, nodes, told
from aip_source import serving

from treaty_agent import Identity, OperationError
from treaty_aip import Agent, Bounds, Gateway, GatewayServiceStub, Security, SessionStatus, Tool
from treaty_aip.stubs import aip_pb2

STOP = SessionStatus.STOP_RESPONSE
NODE = Path(__file__).parents[1] / "support" / "aip_process.py"


async def asks(gateway: Gateway, receiver: str, text: str = "?", session: str = "s") -> list[Any]:
    """A stranger that is registered nowhere asks an agent one question: all messages that come back."""
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stream = GatewayServiceStub(channel).RouteAgentCalling()
        content = [aip_pb2.ContentItem(text=text)]
        await stream.write(aip_pb2.AgentMessage(session_id=session, sender_id="m", receiver_id=receiver, content=content))
        return [answer async for answer in stream]


MISTAKES: list[dict[str, Any]] = [{"session_id": ""}, {"session_status": 3}, {"receiver_id": "none"}, {}]
FAILURES = [RuntimeError("an uncaught exception"), *(code for code in grpc.StatusCode if code is not grpc.StatusCode.OK)]


@pytest.mark.threat(291)
async def test_003_05_a_failed_answer_keeps_the_node_registered() -> None:
    async with nodes() as network, serving() as node:
        gateway = await network.gateway()
        honest = await network.agent("a", gateway)
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = GatewayServiceStub(channel)
            await stub.RegisterAgent(aip_pb2.AgentInfo(agent_id="x", address=node.address))
            before = gateway.get_registered_nodes()
            session = await begin(honest, "x")
            assert told(await honest.receive_feedback(session, "x"))[1] == "Hello!"
            for number, failure in enumerate(FAILURES):
                node.fails = failure
                (answer,) = await asks(gateway, "x", session=f"s{number}")
                assert answer.session_status == STOP, failure
                node.fails = None
                assert gateway.get_registered_nodes() == before, failure
                assert (await stub.Heartbeat(aip_pb2.HeartbeatRequest(sender_id="x"))).success, failure
            await honest.submit_inquiry(session, "x", "still here?")
            assert told(await honest.receive_feedback(session, "x")) == (SessionStatus.HOLD_RESPONSE, "Hello!")


@pytest.mark.threat(291)
async def test_003_05_no_answer_of_a_tool_deregisters_it() -> None:
    async with nodes() as network, serving() as node:
        gateway = await network.gateway()
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = GatewayServiceStub(channel)
            await stub.RegisterTool(aip_pb2.ToolInfo(tool_id="t", address=node.address))
            for failure in FAILURES:
                node.fails = failure
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.RouteToolCalling(aip_pb2.ToolRequest(sender_id="m", receiver_id="t"))
                assert sorted(gateway.get_registered_nodes()) == ["t"], failure
            node.fails = None
            assert (await stub.RouteToolCalling(aip_pb2.ToolRequest(receiver_id="t"))).content[0].text == "Hello, World!"


@asynccontextmanager
async def process(address: str, gateway: Gateway) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A node in a process of its own; its registration, as it tells it."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(NODE), address, gateway.address, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        yield (await child.stdout.readline()).decode().strip(), child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def refused(gateway: Gateway, **info: str) -> None:
    before = gateway.get_registered_nodes()
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = GatewayServiceStub(channel)
        for call in (
            stub.RegisterAgent(aip_pb2.AgentInfo(agent_id=info["id"], address=info["address"], description="mine")),
            stub.RegisterTool(aip_pb2.ToolInfo(tool_id=info["id"], address=info["address"], description="mine")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert gateway.get_registered_nodes() == before


@pytest.mark.threat(292)
async def test_003_06_only_a_dead_node_is_replaced() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        asker = await network.agent("a", gateway)
        async with process(LOOPBACK, gateway) as (address, child):
            for spelling in (address, f"http://{address}", address.replace("127.0.0.1", "localhost"), "127.0.0.1:9"):
                await refused(gateway, id="x", address=spelling)
                await refused(gateway, id="m", address=spelling) if spelling == address else None
            session = await begin(asker, "x", "wait")
            child.kill()
            await child.wait()
            # The same id from another address is another caller's: no one takes it while it is registered.
            async with process(address, gateway) as (again, _):
                assert again == address
                assert told(await asker.receive_feedback(session, "x"))[0] is STOP
                assert sorted(gateway.get_registered_nodes()) == ["a", "x"]
                session = await begin(asker, "x", "echo")
                assert told(await asker.receive_feedback(session, "x"))[1] == "echo"
                await refused(gateway, id="x", address=address)


@pytest.mark.threat(292)
async def test_003_06_a_dead_node_is_replaced_by_its_own_address_alone() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = GatewayServiceStub(channel)
            # No connection was ever taken here, so nothing tells that it is lost.
            await stub.RegisterAgent(aip_pb2.AgentInfo(agent_id="x", address="127.0.0.1:1"))
            await asyncio.sleep(0.2)
            await refused(gateway, id="x", address="127.0.0.1:2")
            await stub.RegisterAgent(aip_pb2.AgentInfo(agent_id="x", address="127.0.0.1:1", description="anew"))
        assert gateway.get_registered_agents()["x"].description == "anew"


@pytest.mark.threat(292)
async def test_003_06_only_its_did_replaces_a_dead_node(tmp_path: Path) -> None:
    victim, other = Security(identity=Identity.create()), Security(identity=Identity.create())
    info = aip_pb2.AgentInfo(agent_id="x", address="127.0.0.1:1")
    async with nodes() as network:
        gateway = await network.gateway(security=Security(home=tmp_path))
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub, path = GatewayServiceStub(channel), "/grpc_service.GatewayService/RegisterAgent"
            await stub.RegisterAgent(info, metadata=victim.proof(gateway.address, path))
            await asyncio.sleep(0.2)  # the gateway's connection is refused
            for caller in (other, Security()):
                for name in ("x", "y"):
                    proof = caller.proof(gateway.address, path)
                    with pytest.raises(grpc.aio.AioRpcError) as error:
                        await stub.RegisterAgent(aip_pb2.AgentInfo(agent_id=name, address=info.address), metadata=proof)
                    assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
            assert sorted(gateway.get_registered_nodes()) == ["x"]
            assert (await stub.RegisterAgent(info, metadata=victim.proof(gateway.address, path))).success


@pytest.mark.deep
@pytest.mark.threat(291)
async def test_003_05_a_node_that_is_gone_is_deregistered_at_once() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        async with process(LOOPBACK, gateway) as (_, child):
            asker = await network.agent("a", gateway)
            session = await begin(asker, "x", "echo")
            assert told(await asker.receive_feedback(session, "x"))[1] == "echo"  # so the gateway is connected
            assert sorted(gateway.get_registered_nodes()) == ["a", "x"]
            await asker.close_agent_client(session, "x")
            child.kill()
            await child.wait()
        async with asyncio.timeout(20):  # its heartbeats would be missed after 30 seconds
            while "x" in gateway.get_registered_nodes():  # noqa: ASYNC110  # a gateway has no event to wait for
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["close", "cancel", "stop", "gateway"])
async def test_003_02_an_agent_learns_that_a_conversation_ended(how: str) -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first: Agent = await network.agent("a", gateway)
        second = await network.agent("b", gateway)
        session = await begin(first, "b")
        assert told(await second.receive_inquiry())[1] == "hello"
        match how:
            case "close":
                await first.close_agent_client(session, "b")
            case "stop":
                await first.stop()
            case "gateway":
                await gateway.stop()
            case _:
                async with grpc.aio.insecure_channel(gateway.address) as channel:
                    stream = GatewayServiceStub(channel).RouteAgentCalling()
                    await stream.write(aip_pb2.AgentMessage(session_id="s", sender_id="m", receiver_id="b", message_id="1"))
                    session = (await second.receive_inquiry()).session_id
                    stream.cancel()
        end = await second.receive_inquiry()
        assert (end.session_id, end.session_status, end.message_id) == (session, SessionStatus.STOP_QUEST, "")
        assert end.content[0].text
        # An application that answers each inquiry does not fail.
        await second.submit_feedback(end.session_id, end.sender_id, "bye")
        with pytest.raises(OperationError):
            await second.submit_feedback(end.session_id, end.sender_id, "bye")


async def test_003_02_a_full_inbox_still_gets_the_end() -> None:
    async with nodes() as network:
        second = await network.agent("b", bounds=Bounds(inbox=1))
        first = await network.agent("a")
        sessions = [await begin(first, "b", address=second.address) for _ in range(2)]
        hearing = {asyncio.create_task(first.receive_feedback(each, "b")): each for each in sessions}
        (heard,), (waiting,) = await asyncio.wait(hearing, return_when=asyncio.FIRST_COMPLETED)
        assert told(await heard)[0] is STOP  # whichever came second
        waiting.cancel()
        await first.close_agent_client(session := hearing[waiting], "b")
        await asyncio.sleep(0.2)  # the end arrives while the inquiry still waits
        inquiries = [await second.receive_inquiry() for _ in range(2)]
        assert [(each.session_id, each.session_status) for each in inquiries] == [
            (session, SessionStatus.START_QUEST),
            (session, SessionStatus.STOP_QUEST),
        ]


@pytest.mark.threat(293)
async def test_a_refused_stream_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        await network.agent("b", gateway)
        with caplog.at_level(logging.INFO):
            async with grpc.aio.insecure_channel(gateway.address) as channel:
                for number, fields in enumerate(MISTAKES):
                    stream = GatewayServiceStub(channel).RouteAgentCalling()
                    ids = {"session_id": f"s{number}", "sender_id": "m", "receiver_id": "b"}
                    message: dict[str, Any] = ids | fields
                    await stream.write(aip_pb2.AgentMessage(**message))
                    if not fields:
                        await stream.write(aip_pb2.AgentMessage(**{**message, "session_id": "other"}))
                    with pytest.raises(grpc.aio.AioRpcError):
                        async for _ in stream:
                            pass
            await asyncio.sleep(0.2)
    lines = [each for each in caplog.records if each.name.startswith(("treaty", "grpc", "asyncio"))]
    assert [each.getMessage().partition(":")[0] for each in lines] == [
        "A call of RouteAgentCalling ended with INVALID_ARGUMENT",
        "A call of RouteAgentCalling ended with INVALID_ARGUMENT",
        "A call of RouteAgentCalling ended with NOT_FOUND",
        "A call of RouteAgentCalling ended with INVALID_ARGUMENT",
    ]
    assert not any(each.exc_info for each in lines)


@pytest.mark.threat(239)
async def test_003_09_a_request_for_another_tool_is_refused() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    async with nodes() as network:
        gateway = await network.gateway()
        await network.tool(Tool.creat_function_tool(add, LOOPBACK, "sum", name="add"), gateway)
        caller = await network.agent("a", gateway)
        for name, text in ((None, "3"), ("add", "3"), ("sum", "3"), ("subtract", "This tool is add, not subtract.")):
            answer = await caller.call_tool("sum", tool_name=name, arguments={"a": 1, "b": 2})
            assert (answer.error_message or answer.content[0].text) == text
