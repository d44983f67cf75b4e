"""AIP over gRPC on loopback: gateway, agents and tools as an application uses them."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

import grpc
import pytest
from aip_nodes import LOOPBACK, begin, echo, nodes, told

from treaty_agent import OperationError
from treaty_aip import (
    Agent,
    AgentInfo,
    AgentMessage,
    AgentServiceStub,
    AgentSkill,
    Bounds,
    ContentItem,
    Gateway,
    GatewayServiceStub,
    Mode,
    SessionStatus,
    Tool,
    ToolRequest,
    ToolResponse,
    ToolServiceStub,
)
from treaty_aip.stubs import aip_pb2

STOPPED = SessionStatus.STOP_RESPONSE


def status_of(error: pytest.ExceptionInfo[OperationError]) -> int:
    return error.value.status


async def eventually(holds: Any) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # a gateway has no event to wait for
            await asyncio.sleep(0.01)


async def test_003_10_to_14_a_gateway_lists_its_nodes_by_kind() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        assert gateway.get_registered_nodes() == {}
        agent = await network.agent("a", gateway, skills=[AgentSkill("s", "c")], output_mode=[Mode.AUDIO])
        tool = await network.tool(Tool(LOOPBACK, "t", description="d"), gateway)
        assert gateway.get_registered_agents() == {"a": agent.agent_info}
        assert gateway.get_registered_tools() == {"t": tool.tool_info}
        assert gateway.get_registered_nodes() == {"a": agent.agent_info, "t": tool.tool_info}
        with pytest.raises(OperationError) as error:
            await gateway.start()
        assert status_of(error) == 409
        with pytest.raises(OperationError) as error:
            await Gateway(gateway.address).start()
        assert status_of(error) == 503
    assert gateway.get_registered_nodes() == {}


async def test_003_15_to_20_a_started_agent_knows_other_nodes() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first = await network.agent("a", gateway, domain="x", skills=[AgentSkill("s", "c")], version="2")
        assert first.agent_info == AgentInfo(
            "a", first.address, "a", "x", [Mode.TEXT], [Mode.TEXT], "", [AgentSkill("s", "c")], "2"
        )
        with pytest.raises(OperationError) as error:
            await first.start()
        assert status_of(error) == 409
        second = await network.agent("b", gateway, domain="y")
        assert second.get_nodes() == {"a": first.agent_info}
        assert first.get_nodes() == {}
        assert (await first.update_peers()) is first
        assert sorted(first.get_nodes()) == ["a", "b"]
        assert sorted((await first.update_peers("y")).get_nodes()) == ["b"]
        await second.stop()
        assert sorted(gateway.get_registered_nodes()) == ["a"]
        with pytest.raises(OperationError) as error:
            await second.update_peers()
        assert status_of(error) == 412


async def test_003_06_and_18_a_taken_id_or_address_changes_nothing() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first = await network.agent("a", gateway)
        other = await network.agent("a")
        with pytest.raises(OperationError) as error:
            await other.register_to_gateway(gateway.address)
        assert status_of(error) == 409
        assert gateway.get_registered_agents() == {"a": first.agent_info}


async def test_003_21_to_23_messages_are_made_with_new_ids() -> None:
    agent = Agent(LOOPBACK, "a")
    task = agent.create_task_info(["p"])
    assert (task.parent_task_ids, task.task_id != agent.create_task_info().task_id) == (["p"], True)
    items = agent.create_content_items(["t", b"i", b"s", b"e"], [Mode.TEXT, Mode.IMAGE, Mode.AUDIO, Mode.EMBEDDED])
    assert [each.to_value() for each in items] == [{"text": "t"}, {"image": "aQ=="}, {"audio": "cw=="}, {"embedded": "ZQ=="}]
    assert agent.create_content_items(b"x", Mode.IMAGE) == [ContentItem.write_image(b"x")]
    for content, mode in (("t", Mode.IMAGE), (b"b", Mode.TEXT), (["a", "b"], [Mode.TEXT])):
        with pytest.raises(OperationError):
            agent.create_content_items(content, mode)
    message = agent.create_agent_message("b", "hi", "s", task, reply_to_message_id="r")
    assert (message.sender_id, message.receiver_id, message.session_id, message.task_info) == ("a", "b", "s", task)
    assert message.session_status is SessionStatus.START_QUEST
    assert message.message_id
    assert message.message_id != agent.create_agent_message("b", "hi").message_id


@pytest.mark.parametrize("direct", [False, True])
async def test_003_05_and_24_to_28_agents_speak_by_gateway_or_directly(direct: bool) -> None:
    async with nodes() as network:
        gateway = None if direct else await network.gateway()
        first, second = await network.agent("a", gateway), await network.agent("b", gateway)
        options: dict[str, Any] = {"stub": AgentServiceStub, "stream_calling": "CallAgent", "address": second.address}
        session = await begin(first, "b", "one", **(options if direct else {}))
        inquiry = await second.receive_inquiry()
        assert (inquiry.session_status, inquiry.sender_id, inquiry.session_id) == (SessionStatus.START_QUEST, "a", session)
        # Both sides send when they like.
        await second.submit_feedback(session, "a", ["two", b"\x89PNG"], [Mode.TEXT, Mode.IMAGE])
        await second.submit_feedback(session, "a", "three")
        await first.submit_inquiry(session, "b", b"RIFF", Mode.AUDIO, task_info=first.create_task_info())
        answer = await first.receive_feedback(session, "b")
        assert [each.to_value() for each in answer.content] == [{"text": "two"}, {"image": "iVBORw=="}]
        assert told(await first.receive_feedback(session, "b")) == (SessionStatus.HOLD_RESPONSE, "three")
        inquiry = await second.receive_inquiry()
        assert (inquiry.session_status, inquiry.content[0].audio) == (SessionStatus.HOLD_QUEST, b"RIFF")
        assert inquiry.task_info is not None
        await first.submit_inquiry(session, "b", "stop", session_status=SessionStatus.STOP_QUEST)
        assert (await second.receive_inquiry()).session_status is SessionStatus.STOP_QUEST
        await second.submit_feedback(session, "a", "bye")
        assert told(await first.receive_feedback(session, "b")) == (STOPPED, "bye")
        # The client may begin another session.
        await first.submit_inquiry(session, "b", "again")
        assert told(await second.receive_inquiry()) == (SessionStatus.START_QUEST, "again")


async def test_003_28_inquiries_are_received_in_their_order() -> None:
    async with nodes() as network:
        receiver, sender = await network.agent("b"), await network.agent("a")
        session = await begin(sender, "b", "one", stub=AgentServiceStub, stream_calling="CallAgent", address=receiver.address)
        await sender.submit_inquiry(session, "b", "two")
        await sender.submit_inquiry(session, "b", "three", session_status=SessionStatus.STOP_QUEST)
        inquiries = [told(await receiver.receive_inquiry()) for _ in range(3)]
        quests = (SessionStatus.START_QUEST, SessionStatus.HOLD_QUEST, SessionStatus.STOP_QUEST)
        assert inquiries == [*zip(quests, ("one", "two", "three"), strict=True)]


async def test_003_11_a_stopped_gateway_may_start_again() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        agent = await network.agent("a", gateway)
        await gateway.stop()
        with pytest.raises(OperationError) as error:
            await agent.update_peers()
        assert status_of(error) == 503
        await gateway.start()
        assert gateway.get_registered_nodes() == {}
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            # The connections of a process to one address share their pause after a failure.
            answer = await GatewayServiceStub(channel).GetNodes(aip_pb2.GetNodesRequest(), wait_for_ready=True)
        assert [*answer.peers] == []


async def test_003_03_25_and_26_errors_are_raised_where_submitted() -> None:
    async with nodes() as network:
        alone = await network.agent("a")
        session = await alone.create_agent_client("b")
        with pytest.raises(OperationError) as error:
            await alone.submit_inquiry(session, "b", "hi")
        assert status_of(error) == 412
        with pytest.raises(OperationError) as error:
            await alone.submit_inquiry("none", "b", "hi")
        assert status_of(error) == 404
        with pytest.raises(OperationError) as error:
            await alone.receive_feedback("none", "b")
        assert status_of(error) == 404
        with pytest.raises(OperationError) as error:
            await alone.receive_feedback(session, "other")
        assert status_of(error) == 404
        with pytest.raises(OperationError) as error:
            await alone.create_agent_client("b", AgentServiceStub, "CallAgent")
        assert status_of(error) == 404
        for stub, name in ((ToolServiceStub, "CallTool"), (AgentServiceStub, "RouteAgentCalling")):
            with pytest.raises(OperationError) as error:
                await alone.create_agent_client("b", stub, name)
            assert status_of(error) == 400


async def test_003_26_a_session_that_fails_ends_with_stop_response() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        agent = await network.agent("a", gateway)
        session = await begin(agent, "nobody")
        status, text = told(await agent.receive_feedback(session, "nobody"))
        assert status is STOPPED
        assert text.startswith("NOT_FOUND")


async def test_003_05_and_26_a_dead_receiver_is_deregistered() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        agent = await network.agent("a", gateway)
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            await GatewayServiceStub(channel).RegisterAgent(aip_pb2.AgentInfo(agent_id="dead", address="127.0.0.1:1"))
        session = await begin(agent, "dead")
        assert told(await agent.receive_feedback(session, "dead"))[0] is STOPPED
        assert sorted(gateway.get_registered_nodes()) == ["a"]


async def test_003_28_29_and_72_an_exception_ends_the_session() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first, second = await network.agent("a", gateway), await network.agent("b", gateway)
        session = await begin(first, "b", "3")
        await second.receive_inquiry()

        async def later(message: AgentMessage) -> str:
            return "later " + (message.content[0].text or "")

        handlers: list[Any] = [
            lambda message: int(message.content[0].text) + 1,
            later,
            partial(str.upper, "bound"),
            lambda: "none",
        ]
        # A bound method of a builtin still takes no message.
        assert await second.invoke_session_handlers(session, handlers[:2] + handlers[3:]) == [4, "later 3", "none"]

        def fail(message: AgentMessage) -> None:
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await second.invoke_session_handlers(session, [later, fail])
        assert told(await first.receive_feedback(session, "b")) == (STOPPED, "RuntimeError in the application.")
        with pytest.raises(OperationError):
            await second.invoke_session_handlers("other", [later])


async def test_003_30_to_33_and_36_to_39_a_python_function_is_called() -> None:
    def add(a: int, b: float, note="-") -> float:  # type: ignore[no-untyped-def]  # an argument without an annotation
        """Add two numbers."""
        return a + b

    async with nodes() as network:
        gateway = await network.gateway()
        tool = await network.tool(Tool.creat_function_tool(add, LOOPBACK), gateway)
        info = tool.tool_info
        assert (info.tool_id, info.name, info.description) == ("add", "add", "Add two numbers.")
        assert info.arguments == {"a": "int", "b": "float", "note": "any"}
        agent = await network.agent("a", gateway)
        request = agent.create_tool_request("add", arguments={"a": 1, "b": "2.5", "c": [1]})
        assert request.arguments == {"a": "1", "b": "2.5", "c": "[1]"}
        answer = await agent.call_tool("add", "s", arguments={"a": 1, "b": 2.5})
        assert (answer.is_error, answer.sender_id, answer.receiver_id, answer.session_id) == (False, "add", "a", "s")
        assert answer.content == [ContentItem.write_text("3.5")]
        direct = await agent.call_tool("add", arguments={"a": 1, "b": 1}, address=tool.address)
        assert direct.content == [ContentItem.write_text("2.0")]
        assert await agent.close_tool_client("add")
        assert not await agent.close_tool_client("add")
        for arguments in ({"a": "x", "b": 1}, {"a": 1}, {"a": 1, "b": 1, "d": 1}):
            failed = await agent.call_tool("add", arguments=arguments)
            assert (failed.is_error, failed.content) == (True, [])
            assert failed.error_message
        with pytest.raises(OperationError) as error:
            await agent.call_tool("none")
        assert status_of(error) == 404
        await tool.stop()
        assert sorted(gateway.get_registered_nodes()) == ["a"]
        with pytest.raises(OperationError) as error:
            await agent.call_tool("add", address=tool.address)
        assert status_of(error) == 503


async def test_003_74_the_addresses_that_the_source_prints_are_read() -> None:
    async with Gateway("http://127.0.0.1:0") as gateway, nodes() as network:
        assert gateway.address.startswith("127.0.0.1:")
        first = await network.agent("a", address="http://127.0.0.1:0")
        second = await network.agent("b")
        for agent in (first, second):
            await agent.register_to_gateway(f"http://{gateway.address}/")
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            printed = aip_pb2.AgentInfo(agent_id="a", address=f"http://{first.address}")
            update = aip_pb2.UpdateNodeInfoRequest(sender_id="a", peer=aip_pb2.Peer(agent_info=printed))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                # One address has one spelling at a time.
                await GatewayServiceStub(channel).UpdateNodeInfo(update)
            assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
        answering = asyncio.create_task(echo(first, 2))
        for options in ({}, {"address": f"http://{first.address}"}):
            session = await begin(second, "a", **options)
            assert told(await second.receive_feedback(session, "a"))[1] == "hello"
        await answering
        with pytest.raises(OperationError, match="TLS"):
            await Agent("https://127.0.0.1:0").start()
        session = await begin(second, "a", address=f"https://{first.address}")
        assert "TLS" in told(await second.receive_feedback(session, "a"))[1]


async def test_003_04_and_27_an_answer_names_its_inquiry() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first, second = await network.agent("a", gateway), await network.agent("b", gateway)
        session = await first.create_agent_client("b")
        ids = [await first.submit_inquiry(session, "b", text) for text in ("one", "two")]
        inquiries = [await second.receive_inquiry() for _ in ids]
        assert [each.message_id for each in inquiries] == ids
        sent = await second.submit_feedback(session, "a", "last")
        await second.submit_feedback(session, "a", "first", reply_to_message_id=inquiries[0].message_id)
        await second.submit_feedback(session, "a", "none", reply_to_message_id="")
        feedback = [await first.receive_feedback(session, "b") for _ in range(3)]
        assert [each.reply_to_message_id for each in feedback] == [ids[1], ids[0], ""]
        assert feedback[0].message_id == sent
        await first.submit_inquiry(session, "b", "more", reply_to_message_id=sent)
        assert (await second.receive_inquiry()).reply_to_message_id == sent
        with pytest.raises(ValueError, match="no"):
            await second.invoke_session_handlers(session, [lambda: int("no")])
        inquiry_id = (await first.receive_feedback(session, "b")).reply_to_message_id
        assert inquiry_id not in (*ids, "")


async def test_003_73_an_owner_sets_the_bounds_of_a_gateway() -> None:
    async with nodes() as network:
        large, small = await network.gateway(bounds=Bounds(calls=400)), await network.gateway(bounds=Bounds(calls=20, nodes=2))
        bounds = Bounds(calls=400)
        for gateway, places in ((large, 200), (small, 10)):  # one network has half of the places
            first, second = await network.agent("a", gateway, bounds=bounds), await network.agent("b", gateway, bounds=bounds)
            sessions = [await begin(first, "b") for _ in range(places)]
            assert {(await second.receive_inquiry()).session_id for _ in range(places)} == set(sessions)
            one_more = await begin(first, "b")
            assert told(await first.receive_feedback(one_more, "b"))[1].startswith("RESOURCE_EXHAUSTED")
        third = await network.agent("c")
        with pytest.raises(OperationError) as error:
            await third.register_to_gateway(small.address)
        assert status_of(error) == 429
        assert sorted(small.get_registered_nodes()) == ["a", "b"]


async def test_003_73_too_many_calls_at_once_are_told_of_a_limit() -> None:
    """Of more than 1,000 calls that no loop has taken yet, gRPC drops some without a reason."""
    async with nodes() as made:
        flooded = await made.agent("a", bounds=Bounds(calls=8))
        async with grpc.aio.insecure_channel(flooded.address) as channel:
            call_agent = channel.stream_stream("/grpc_service.AgentService/CallAgent")
            calls = [call_agent() for _ in range(1_500)]
            # Some have a place, and wait for their first message.
            told_of = [(await code).name for code in itertools.islice(asyncio.as_completed(map(_code, calls)), 1_490)]
            assert {*told_of} <= {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}
            for call in calls:
                call.cancel()


async def _code(call: Any) -> Any:
    return await call.code()


async def test_003_72_a_stream_dropped_during_a_write_blames_no_peer() -> None:
    nothing_waits = [(f"grpc.server.max_pending_requests{name}", 0) for name in ("", "_hard_limit")]
    server = grpc.aio.server(options=nothing_waits)
    address = f"127.0.0.1:{server.add_insecure_port(LOOPBACK)}"
    await server.start()
    try:
        async with nodes() as made:
            agent = await made.agent("a")
            sessions = [await begin(agent, "b", address=address) for _ in range(50)]
            reasons = {told(await agent.receive_feedback(session, "b"))[1].partition(":")[0] for session in sessions}
            # A call that the server takes up has no method there.
            assert reasons <= {"UNAVAILABLE", "CANCELLED", "UNIMPLEMENTED"}
    finally:
        await server.stop(None)


async def test_003_09_a_dict_is_a_text_of_json() -> None:
    def described(x: str) -> dict[str, Any]:
        return {"x": [x, None, 1.5], "ü": True}

    text = '{"x": ["1", null, 1.5], "ü": true}'
    async with nodes() as network:
        gateway = await network.gateway()
        agent, other = await network.agent("a", gateway), await network.agent("b", gateway)
        await network.tool(Tool.creat_function_tool(described, LOOPBACK, "f"), gateway)
        await network.tool(Tool(LOOPBACK, "h").set_process_request_handler(lambda request: described("1")), gateway)
        many = Tool(LOOPBACK, "m").set_process_request_handler(lambda request: [described("1"), "text", b"\x00"])
        await network.tool(many, gateway)
        for name in ("f", "h"):
            answer = await agent.call_tool(name, arguments={"x": "1"})
            assert answer.content == [ContentItem.write_text(text)], name
        content = (await agent.call_tool("m")).content
        assert [each.to_value() for each in content] == [{"text": text}, {"text": "text"}, {"embedded": "AA=="}]
        await begin(agent, "b", {"ask": 1})
        assert told(await other.receive_inquiry())[1] == '{"ask": 1}'
        with pytest.raises(OperationError):
            agent.create_content_items({"no": object()})


async def test_003_32_a_closed_client_cancels_its_session() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first, second = await network.agent("a", gateway), await network.agent("b", gateway)
        session = await begin(first, "b")
        await second.receive_inquiry()
        assert not await first.close_agent_client(session, "other")
        assert await first.close_agent_client(session, "b")
        assert not await first.close_agent_client(session, "b")
        with pytest.raises(OperationError):
            await first.submit_inquiry(session, "b", "more")

        async def gone() -> None:
            while True:
                await second.submit_feedback(session, "a", "?")
                await asyncio.sleep(0.01)

        with pytest.raises(OperationError) as error:
            await asyncio.wait_for(gone(), 20)
        assert status_of(error) == 404


async def test_003_34_and_35_a_tool_changes_its_handler() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        tool = await network.tool(Tool(LOOPBACK, "t"), gateway)
        assert (await tool.update_tool_info("new", output_mode=[Mode.IMAGE], arguments={"x": "int"})) is tool
        assert gateway.get_registered_tools()["t"] == tool.tool_info
        info = tool.tool_info
        assert (info.name, info.output_mode, info.arguments, info.version) == ("new", [Mode.IMAGE], {"x": "int"}, "1.0.0")
        agent = await network.agent("a", gateway)
        assert (await agent.call_tool("t")).is_error

        async def draw(request: ToolRequest) -> ToolResponse:
            return ToolResponse(content=[ContentItem.write_image(request.arguments["x"].encode())])

        assert tool.set_process_request_handler(draw) is tool
        assert (await agent.call_tool("t", arguments={"x": "7"})).content == [ContentItem.write_image(b"7")]
        tool.set_process_request_handler(lambda request: 1 / 0)
        failed = await agent.call_tool("t")
        assert (failed.is_error, "ZeroDivisionError" in failed.error_message) == (True, True)


async def test_003_07_heartbeats_keep_a_node_registered() -> None:
    async with nodes() as network:
        gateway = await network.gateway(heartbeat_timeout=0.6)
        await network.agent("alive", gateway, heartbeat_interval=0.1)
        await network.agent("silent", gateway, heartbeat_interval=3600.0)
        await eventually(lambda: sorted(gateway.get_registered_nodes()) == ["alive"])


async def test_a_node_registers_again_at_a_restarted_gateway() -> None:
    async with nodes() as network:
        old = await Gateway(LOOPBACK).start()
        agent = await network.agent("a", old, heartbeat_interval=0.05)
        await old.stop()
        new = await Gateway(old.address).start()
        try:
            await eventually(lambda: sorted(new.get_registered_nodes()) == ["a"])
            assert new.get_registered_agents()["a"] == agent.agent_info
        finally:
            await new.stop()


async def test_a_subscription_keeps_the_nodes_up_to_date() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        agent = await network.agent("a", gateway)
        await agent.subscribe()
        await agent.update_peers()
        tool = await network.tool(Tool(LOOPBACK, "t"), gateway)
        await eventually(lambda: "t" in agent.get_nodes())
        await tool.update_tool_info(description="new")
        await eventually(lambda: agent.get_nodes()["t"].description == "new")
        await tool.stop()
        await eventually(lambda: "t" not in agent.get_nodes())
        assert await agent.unsubscribe()
        assert not await agent.unsubscribe()


async def test_many_sessions_at_once_keep_their_order() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first, second = await network.agent("a", gateway), await network.agent("b", gateway)
        answering = asyncio.create_task(echo(second, 20 * 10))

        async def one(number: int) -> list[str]:
            session = await first.create_agent_client("b")
            texts = [f"{number}-{step}" for step in range(10)]
            for text in texts:
                await first.submit_inquiry(session, "b", text)
            return [told(await first.receive_feedback(session, "b"))[1] for _ in texts]

        orders = await asyncio.gather(*(one(number) for number in range(20)))
        assert orders == [[f"{number}-{step}" for step in range(10)] for number in range(20)]
        await answering


async def test_the_generated_stubs_of_any_client_are_served() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        agent = await network.agent("b", gateway)
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = GatewayServiceStub(channel)
            answer = await stub.RegisterAgent(aip_pb2.AgentInfo(agent_id="raw", address="127.0.0.1:2"))
            assert [each.agent_info.agent_id for each in answer.peers] == ["b"]
            assert (await stub.Heartbeat(aip_pb2.HeartbeatRequest(sender_id="raw"))).success
            call = stub.RouteAgentCalling()
            start = aip_pb2.AgentMessage(
                sender_id="raw", receiver_id="b", session_id="s", content=[aip_pb2.ContentItem(text="x")]
            )
            await call.write(start)
            await echo(agent, 1)
            assert (await call.read()).content[0].text == "x"
            call.cancel()
            empty = stub.RouteAgentCalling()
            await empty.done_writing()
            assert await empty.code() is grpc.StatusCode.ABORTED
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.RegisterAgent(aip_pb2.AgentInfo(agent_id="raw", address="127.0.0.1:3"))
            assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert AgentInfo.from_value({"agent_id": "x"}).agent_id == "x"
