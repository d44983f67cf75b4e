"""What a hostile peer tries against AIP's gateways and nodes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from aip_nodes import LOOPBACK, begin, nodes, told
from aip_sessions import Driven, agent, gateway_with, messages, quest, statuses, tool
from hypothesis import given
from hypothesis import strategies as st

from treaty_agent import Identity, OperationError
from treaty_aip import AgentServiceStub, Bounds, GatewayServiceStub, Security, SessionStatus, Tool
from treaty_aip.handler.fields import METHODS
from treaty_aip.handler.frames import Frame, pack
from treaty_aip.stubs import aip_pb2

ROUTE = "RouteAgentCalling"


@pytest.mark.threat(230)
def test_003_69_an_open_session_id_is_refused() -> None:
    gateway = gateway_with(agent("a"), agent("b"), agent("m"))
    ((_, frame),) = gateway.request("a", ROUTE, quest())
    for call, message in (("c", quest(sender="m")), ("c2", quest(sender="m", receiver="a"))):
        sent = gateway.request("m", ROUTE, message, call)
        assert [(to, each.kind, each.code) for to, each in sent] == [("m", "STATUS", "INVALID_ARGUMENT")]
    answer = quest("HOLD_RESPONSE", sender="b", receiver="a")
    assert [to for to, _ in gateway.receive("b", Frame("RESPONSE", "CallAgent", frame.call, answer))] == ["a"]


@pytest.mark.threat(230)
def test_003_69_a_message_cannot_name_another_streams_session() -> None:
    gateway = gateway_with(agent("a"), agent("b"), agent("m"))
    gateway.request("a", ROUTE, quest(session="victim"))
    ((_, own),) = gateway.request("m", ROUTE, quest(session="own", sender="m"))
    sent = gateway.request("m", ROUTE, quest("HOLD_QUEST", session="victim", sender="m"))
    ended = [("b", "CANCEL", own.call), ("m", "RESPONSE", "c"), ("m", "STATUS", "c")]
    assert [(to, each.kind, each.call) for to, each in sent] == ended
    assert statuses(gateway.request("a", ROUTE, quest("HOLD_QUEST", session="victim"))) == []


@pytest.mark.threat(230)
def test_003_69_equal_session_ids_of_two_streams_stay_apart() -> None:
    node = Driven("node")
    node.request("x", "CallAgent", quest())
    assert statuses(node.request("y", "CallAgent", quest())) == ["INVALID_ARGUMENT"]
    assert statuses(node.request("y", "CallAgent", quest("HOLD_QUEST"), "c9")) == ["INVALID_ARGUMENT"]
    assert len(node.invoked) == 1


@pytest.mark.threat(230)
def test_003_69_only_the_receiver_of_a_stream_answers_in_it() -> None:
    gateway = gateway_with(agent("a"), agent("b"), agent("m"), tool("t"))
    ((_, frame),) = gateway.request("a", ROUTE, quest())
    ((_, called),) = gateway.request("a", "RouteToolCalling", {"sender_id": "a", "receiver_id": "t"}, "c2")
    assert gateway.receive("m", Frame("RESPONSE", "CallAgent", frame.call, quest("STOP_RESPONSE"))) == []
    assert gateway.receive("m", Frame("STATUS", "CallAgent", frame.call, code="UNAVAILABLE")) == []
    assert gateway.receive("m", Frame("RESPONSE", "CallTool", called.call, {})) == []
    assert sorted(gateway.call("registered_nodes")[0]) == ["a", "b", "m", "t"]
    node = Driven("node")
    node.call("register", peer={"agent_info": agent("a")}, address="g:1")
    assert node.receive("stranger", Frame("RESPONSE", "RegisterAgent", "x", {"success": True})) == []


@pytest.mark.threat(230)
def test_003_68_a_node_belongs_to_the_peer_that_registered_it() -> None:
    gateway = gateway_with(agent("a"), agent("b"), tool("t"))
    before = gateway.call("registered_nodes")
    for method, message in (
        ("DeregisterNode", {"node_id": "a"}),
        ("Heartbeat", {"sender_id": "a"}),
        ("UpdateNodeInfo", {"sender_id": "a", "peer": {"agent_info": agent("a", "m:1")}}),
        ("SubscribeToUpdates", {"subscriber_id": "a"}),
        ("Unsubscribe", {"subscriber_id": "a"}),
        (ROUTE, quest(sender="a")),
        ("RouteToolCalling", {"sender_id": "a", "receiver_id": "t"}),
    ):
        sent = gateway.request("m", method, message)
        assert [(to, each.code) for to, each in sent] == [("m", "PERMISSION_DENIED")], method
    assert gateway.call("registered_nodes") == before


def secure(folder: Path, name: str, **options: Any) -> Security:
    (folder / name).mkdir()
    return Security(**{"identity": Identity.create(), "require_did": True, "home": folder / name, **options})


@pytest.mark.threat(230)
async def test_003_68_a_strict_gateway_serves_proved_callers_alone(tmp_path: Path) -> None:
    async with nodes() as network:
        identity = Identity.create()
        gateway = await network.gateway(security=secure(tmp_path, "g", identity=identity))
        first = await network.agent("a", gateway, security=secure(tmp_path, "a", gateway=identity.did))
        second = await network.agent("b", gateway, security=secure(tmp_path, "b", gateway=identity.did))
        session = await begin(first, "b")
        assert told(await second.receive_inquiry()) == (SessionStatus.START_QUEST, "hello")
        await second.submit_feedback(session, "a", "hi")
        assert told(await first.receive_feedback(session, "b"))[1] == "hi"
        stranger = await network.agent("m")
        with pytest.raises(OperationError) as error:
            await stranger.register_to_gateway(gateway.address)
        assert error.value.status == 401
        # A stranger does not reach the agents behind it either.
        direct = await begin(stranger, "b", stub=AgentServiceStub, stream_calling="CallAgent", address=second.address)
        ended = told(await stranger.receive_feedback(direct, "b"))[1]
        # gRPC's core loses the status of a server that ends a stream while the client still writes its first message.
        assert any(status in ended for status in ("UNAUTHENTICATED", "Internal error from Core")), ended
        assert sorted(gateway.get_registered_nodes()) == ["a", "b"]


@pytest.mark.threat(230)
async def test_003_68_a_proof_serves_once_for_one_host_and_method(tmp_path: Path) -> None:
    async with nodes() as network:
        gateway = await network.gateway(security=secure(tmp_path, "g"))
        caller = secure(tmp_path, "caller")
        path = "/grpc_service.GatewayService/GetNodes"
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = GatewayServiceStub(channel)
            request = aip_pb2.GetNodesRequest(agent_id="a", domain="default")
            proof = caller.proof(gateway.address, path)
            await stub.GetNodes(request, metadata=proof)
            others = [
                proof,
                caller.proof("elsewhere:1", path),
                caller.proof(gateway.address, path + "s"),
                tuple((name, value.replace("created=", "created=1")) for name, value in caller.proof(gateway.address, path)),
                (),
            ]
            for metadata in others:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stub.GetNodes(request, metadata=metadata)
                assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.threat(230)
async def test_003_68_no_other_did_takes_over_a_node(tmp_path: Path) -> None:
    async with nodes() as network:
        (tmp_path / "g").mkdir()
        gateway = await network.gateway(security=Security(home=tmp_path / "g"))
        await network.agent("a", gateway, security=secure(tmp_path, "a"))
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = GatewayServiceStub(channel)
            other = secure(tmp_path, "other").proof(gateway.address, "/grpc_service.GatewayService/DeregisterNode")
            for metadata in (other, ()):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stub.DeregisterNode(aip_pb2.DeregisterNodeRequest(node_id="a"), metadata=metadata)
                assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert sorted(gateway.get_registered_nodes()) == ["a"]


@pytest.mark.threat(230)
async def test_003_68_tls_protects_all_calls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key = b"".join(each.bytes() for each in issued.cert_chain_pems), issued.private_key_pem.bytes()
    tls = {"certificate": (chain, key), "authority": authority.cert_pem.bytes()}
    async with nodes() as network:
        gateway = await network.gateway(security=secure(tmp_path, "g", **tls))
        agent = await network.agent("a", gateway, security=secure(tmp_path, "a", **tls))
        assert sorted(gateway.get_registered_nodes()) == ["a"]
        await agent.update_peers()
        plain = await network.agent("b", security=Security(identity=Identity.create()))
        with pytest.raises(OperationError) as error:
            await plain.register_to_gateway(gateway.address)
        assert error.value.status == 503
        distrusting = await network.agent("c", security=Security(authority=trustme.CA().cert_pem.bytes()))
        with pytest.raises(OperationError) as error:
            await distrusting.register_to_gateway(gateway.address)
        assert error.value.status == 503


@pytest.mark.threat(231)
def test_003_73_nodes_sessions_and_names_are_bounded() -> None:
    gateway = gateway_with()
    refused = 0
    for number in range(300):
        sent = gateway.request("m", "RegisterAgent", agent(f"n{number}"))
        refused += statuses(sent) == ["RESOURCE_EXHAUSTED"]
    assert refused > 0
    long = {**agent("big"), "description": "x" * 30_000}
    assert statuses(gateway_with().request("m", "RegisterAgent", long)) == ["RESOURCE_EXHAUSTED"]
    assert statuses(gateway.request("m", "RegisterAgent", agent("x" * 257))) == ["INVALID_ARGUMENT"]
    assert statuses(gateway.request("m", "RegisterAgent", agent(""))) == ["INVALID_ARGUMENT"]
    replies = [
        gateway.request("m", ROUTE, quest(session=f"{'s' * 200}{n}", sender="n1", receiver="n2"), f"c{n}") for n in range(150)
    ]
    assert statuses(replies[0]) == []
    assert statuses(replies[-1]) == ["RESOURCE_EXHAUSTED"]
    calls = [
        gateway.request("m", "SubscribeToUpdates", {"subscriber_id": f"n{n}", "node_ids": ["n1"]}, f"u{n}") for n in range(300)
    ]
    assert statuses(calls[-1]) in (["RESOURCE_EXHAUSTED"], ["NOT_FOUND"])


@pytest.mark.threat(231)
def test_003_73_sessions_and_inquiries_of_others_are_bounded() -> None:
    node = Driven("node")
    replies = [node.request("m", "CallAgent", quest(session=f"{'s' * 200}{n}"), f"c{n}") for n in range(200)]
    assert statuses(replies[0]) == []
    assert statuses(replies[-1]) == ["RESOURCE_EXHAUSTED"]
    other = Driven("node")
    sent = other.request("m", "CallAgent", quest())
    for _ in range(300):
        sent = sent or other.request("m", "CallAgent", quest("HOLD_QUEST"))
    assert [each["session_status"] for each in messages(sent)] == ["STOP_RESPONSE"]
    assert len(other.invoked) <= 257  # the last one tells of the end
    requests = [other.request("m", "CallTool", {"receiver_id": "t"}, f"t{n}") for n in range(200)]
    assert statuses(requests[-1]) == ["RESOURCE_EXHAUSTED"]


@pytest.mark.threat(231)
async def test_003_73_large_messages_and_many_calls_are_refused() -> None:
    bounds = Bounds(message=1000, calls=4)  # two of them for one network
    async with nodes() as network:
        gateway = await network.gateway(bounds=bounds)
        first = await network.agent("a", gateway)
        second = await network.agent("b", gateway)
        session = await begin(first, "b", "x" * 2000)
        assert "RESOURCE_EXHAUSTED" in told(await first.receive_feedback(session, "b"))[1]
        assert sorted(gateway.get_registered_nodes()) == ["a", "b"]
        for _ in range(2):
            await begin(first, "b")
            await second.receive_inquiry()
        third = await begin(first, "b")
        assert "RESOURCE_EXHAUSTED" in told(await first.receive_feedback(third, "b"))[1]
        # Calls that are answered at once have places of their own.
        assert sorted((await second.update_peers()).get_nodes()) == ["a", "b"]


@pytest.mark.threat(231)
async def test_003_73_an_agent_without_inquiries_ends_the_session() -> None:
    async with nodes() as network:
        gateway = await network.gateway()
        first = await network.agent("a", gateway)
        second = await network.agent("b", gateway, bounds=Bounds(inbox=5))
        session = await begin(first, "b")
        for _ in range(20):
            try:
                await first.submit_inquiry(session, "b", "more", session_status=SessionStatus.HOLD_QUEST)
            except OperationError:
                break
        async with asyncio.timeout(20):
            assert told(await first.receive_feedback(session, "b"))[0] is SessionStatus.STOP_RESPONSE
        assert [told(await second.receive_inquiry())[1] for _ in range(5)] == ["hello", "more", "more", "more", "more"]


@pytest.mark.threat(231)
async def test_003_72_a_handler_with_an_odd_error_hangs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    # A lone surrogate in a captured line cannot be sent from a process of pytest to the other.
    caplog.set_level(logging.CRITICAL, "treaty_aip")

    class Odd(Exception):
        def __str__(self) -> str:
            return "\ud800" * 3

    def fail(request: Any) -> None:
        raise Odd

    async with nodes() as network:
        gateway = await network.gateway()
        caller = await network.agent("a", gateway)
        made_tool = await network.tool(Tool(LOOPBACK, "t"), gateway)
        made_tool.set_process_request_handler(fail)
        assert (await caller.call_tool("t")).is_error
        made_tool.set_process_request_handler(lambda request: 5)
        assert (await caller.call_tool("t")).is_error
        made_tool.set_process_request_handler(lambda request: "\ud800")
        assert (await caller.call_tool("t")).is_error
        made_tool.set_process_request_handler(lambda request: "still here")
        assert not (await caller.call_tool("t")).is_error


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["REQUEST", "END", "CANCEL", "RESPONSE", "STATUS"]),
            st.sampled_from(sorted(METHODS)),
            st.integers(0, 4),
            st.binary(max_size=30),
        ),
        max_size=12,
    )
)
def test_no_frames_of_a_hostile_peer_raise(frames: list[tuple[str, str, int, bytes]]) -> None:
    for role in ("gateway", "node", "peer"):
        session = Driven(role, peer="m")
        for kind, method, call, content in frames:
            message = content if kind in ("REQUEST", "RESPONSE") else None
            session.raw("m", pack(Frame(kind, method, f"c{call}", message)))
            session.raw("m", content)


@given(st.data())
def test_no_order_of_statuses_raises_or_answers_twice(data: st.DataObject) -> None:
    kinds = st.sampled_from(["START_QUEST", "HOLD_QUEST", "STOP_QUEST", "HOLD_RESPONSE", "STOP_RESPONSE"])
    gateway = gateway_with(agent("a"), agent("b"))
    ended: list[str] = []
    calls: list[str] = []
    for _ in range(data.draw(st.integers(1, 12))):
        call = data.draw(st.sampled_from(["c1", "c2"]))
        status = data.draw(kinds)
        if data.draw(st.booleans()) and calls:
            sent = gateway.receive("b", Frame("RESPONSE", "CallAgent", data.draw(st.sampled_from(calls)), quest(status, call)))
        elif call in ended:
            continue
        else:
            sent = gateway.request("a", ROUTE, quest(status, call), call)
        calls += [frame.call for to, frame in sent if to == "b"]
        ended += [frame.call for to, frame in sent if to == "a" and frame.kind == "STATUS"]
    assert len(ended) == len(set(ended))
