"""Callers of AIP over gRPC that hold streams, do not read, or spell an address in another way."""

from __future__ import annotations

import asyncio
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import grpc
import pytest
from aip_nodes import LOOPBACK, nodes

from treaty_agent import OperationError
from treaty_aip import Agent, AgentServiceStub, Bounds, Gateway, GatewayServiceStub, SessionStatus, Tool
from treaty_aip.flow import Ended, Flow, Waiting
from treaty_aip.stubs import aip_pb2


@pytest.mark.threat(238)
async def test_streams_without_a_message_hold_up_no_heartbeat_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_aip.calls.FIRST_MESSAGE_SECONDS", 1.0)
    async with nodes() as network:
        gateway = await network.gateway(bounds=Bounds(calls=8))
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = GatewayServiceStub(channel)
            streams = [stub.RouteAgentCalling() for _ in range(20)]
            reading = [asyncio.create_task(stream.code()) for stream in streams]
            answer = await stub.Heartbeat(aip_pb2.HeartbeatRequest(sender_id="x"))
            assert answer.success is False
            codes = [await task for task in reading]
            # One network has at most half of the places; the others are refused.
            assert codes.count(grpc.StatusCode.DEADLINE_EXCEEDED) == 4
            assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 16
            late = stub.RouteAgentCalling()
            await late.write(aip_pb2.AgentMessage(session_id="s", sender_id="a", receiver_id="none"))
            assert await late.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.threat(238)
async def test_waiting_bytes_of_all_calls_are_bounded() -> None:
    waiting, flows, small = Waiting(), [Flow() for _ in range(6)], Flow()
    for flow in (*flows, small):
        waiting.add(flow)
    small.put(b"small")
    for flow in flows:
        flow.put(bytes(12 * 1024 * 1024))
        waiting.enforce()
    assert sum(flow.size for flow in flows) <= 64 * 1024 * 1024
    items = [await flow.get() for flow in flows]
    assert sum(isinstance(item, Ended) for item in items) == 1
    assert await small.get() == b"small"
    flows[0].put(bytes(9))
    flows[0].close()
    assert flows[0].size == 0


@pytest.mark.deep
@pytest.mark.threat(236)
async def test_large_descriptions_keep_no_other_from_registering() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        for number in range(200):
            try:
                await network.agent(f"e{number}", gateway, description="x" * (3_000_000 if number == 0 else 16_000))
            except OperationError as error:
                assert error.status == 429
            if number and len(gateway.get_registered_nodes()) < number:
                break
        assert "e0" not in gateway.get_registered_nodes()
        honest = await network.agent("honest", gateway)
        assert len(honest.get_nodes()) >= 1


@pytest.mark.threat(232)
@pytest.mark.parametrize("spelling", ["localhost:{}", "127.0.0.1:0{}", "[::ffff:127.0.0.1]:{}"])
async def test_an_address_is_registered_once_however_it_is_spelt(spelling: str) -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first = await network.agent("a", gateway)
        other = aip_pb2.AgentInfo(agent_id="b", address=spelling.format(first.address.rpartition(":")[2]))
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await GatewayServiceStub(channel).RegisterAgent(other)
        assert refused.value.code().name == ("INVALID_ARGUMENT" if ":0" in spelling else "ALREADY_EXISTS")
        assert [*gateway.get_registered_nodes()] == ["a"]


@pytest.mark.threat(239)
async def test_a_failure_of_an_application_shows_no_internals() -> None:
    async def fail(x: int) -> str:
        raise RuntimeError('relation "visits" does not exist')

    async def refuse(x: int) -> str:
        raise OperationError(409, "It is taken.")

    async with nodes() as network:
        caller = await network.agent("a")
        messages = []
        for function, text in ((fail, "1"), (refuse, "1"), (refuse, "one")):
            tool = await network.tool(Tool.create_function_tool(function, LOOPBACK, "t"))
            messages.append((await caller.call_tool("t", arguments={"x": text}, address=tool.address)).error_message)
        tool = await network.tool(Tool(LOOPBACK, "t").set_process_request_handler(lambda request: fail(1)))
        messages.append((await caller.call_tool("t", arguments={}, address=tool.address)).error_message)
    internal = "RuntimeError in the application."
    assert messages == [internal, "It is taken.", "The argument x is not of its type.", internal]


@pytest.mark.threat(239)
async def test_an_argument_cannot_replace_a_fixed_part_of_a_url() -> None:
    paths: list[str] = []

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        async with nodes() as network:
            caller = await network.agent("a")
            url = f"http://127.0.0.1:{server.server_port}/u/{{x}}?tenant=mine"
            tool = await network.tool(Tool.create_api_tool(LOOPBACK, url, tool_id="t"))
            for arguments in ({"x": "1", "tenant": "other"}, {"x": "1", "page": "2"}):
                answer = await caller.call_tool("t", arguments=arguments, address=tool.address)
                assert answer.is_error == ("tenant" in arguments), answer.error_message
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert paths == ["/u/1?tenant=mine&page=2"]


@pytest.mark.threat(238)
async def test_an_inquiry_of_a_session_that_was_stopped_is_not_kept() -> None:
    async with nodes() as network:
        gateway: Gateway = await network.gateway()
        first: Agent = await network.agent("a", gateway)
        second: Agent = await network.agent("b", gateway)
        for stop in (SessionStatus.STOP_RESPONSE, None):
            session = await first.create_agent_client("b")
            await first.submit_inquiry(session, "b", "x")
            await second.receive_inquiry()
            if stop is None:
                await first.submit_inquiry(session, "b", "x", session_status=SessionStatus.STOP_QUEST)
                await second.receive_inquiry()
            assert await second.invoke_session_handlers(session, [lambda: 1]) == [1]
            await second.submit_feedback(session, "a", "bye", session_status=stop)
            with pytest.raises(OperationError) as gone:
                await second.invoke_session_handlers(session, [lambda: 1])
            assert gone.value.status == 404


@pytest.mark.threat(238)
async def test_kept_inquiries_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_aip.agent.MAX_LATEST", 2)
    async with nodes() as network:
        gateway: Gateway = await network.gateway()
        first: Agent = await network.agent("a", gateway)
        second: Agent = await network.agent("b", gateway)
        sessions = [await first.create_agent_client("b") for _ in range(3)]
        for session in sessions:
            await first.submit_inquiry(session, "b", "x")
            await second.receive_inquiry()
        with pytest.raises(OperationError) as gone:
            await second.invoke_session_handlers(sessions[0], [lambda: 1])
        assert gone.value.status == 404
        for session in sessions[1:]:
            assert await second.invoke_session_handlers(session, [lambda: 1]) == [1]


@pytest.mark.threat(237)
async def test_an_agent_takes_no_message_for_another_one() -> None:
    async with nodes() as network:
        agent = await network.agent("b")
        async with grpc.aio.insecure_channel(agent.address) as channel:
            stream = AgentServiceStub(channel).CallAgent()
            await stream.write(aip_pb2.AgentMessage(session_id="s", sender_id="boss", receiver_id="not-b"))
            assert await stream.code() is grpc.StatusCode.NOT_FOUND
