"""A caller of AIP's gateways and nodes that is known uses its share of a bound, and answers in its own name."""

from __future__ import annotations

from typing import Any

import pytest
from aip_sessions import Driven, agent, gateway_with, messages, quest, statuses, tool

from treaty_aip.handler.frames import Frame

PROVED: dict[str, Any] = {"speakers": {"names": {}, "gateway": ""}}
SHARED: dict[str, Any] = {"peer": ""}
ROUTE = "RouteAgentCalling"
LARGE = 3 * 1024 * 1024
each_way = pytest.mark.parametrize("parameters", [PROVED, SHARED], ids=["proved", "shared"])


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.threat(236)
@each_way
def test_one_caller_leaves_places_for_nodes_to_others(parameters: dict[str, Any]) -> None:
    gateway = gateway_with(**parameters, max_state=LARGE)
    for number in range(256):
        gateway.request("m", "RegisterAgent", agent(f"n{number}"))
    assert 100 <= len(gateway.call("registered_nodes")[0]) <= 128
    assert statuses(gateway.request("a", "RegisterAgent", agent("a"))) == ["OK"]


@pytest.mark.threat(236)
@each_way
def test_003_73_one_caller_leaves_bytes_for_nodes_to_others(parameters: dict[str, Any]) -> None:
    gateway = gateway_with(**parameters)
    sent = [gateway.request("m", "RegisterAgent", {**agent(f"n{number}"), "description": "x" * 1000}) for number in range(100)]
    assert [statuses(sent[0]), statuses(sent[-1])] == [["OK"], ["RESOURCE_EXHAUSTED"]]
    assert statuses(gateway.request("a", "RegisterAgent", {**agent("a"), "description": "x" * 1000})) == ["OK"]


@pytest.mark.sample(1)
@pytest.mark.threat(236)
@each_way
@pytest.mark.parametrize("name", ["s", "s" * 250], ids=["many", "long"])
def test_one_caller_leaves_routes_to_others(parameters: dict[str, Any], name: str) -> None:
    gateway = gateway_with(agent("b"), agent("m"), agent("a"), tool("t"), **parameters)
    for number in range(200):
        gateway.request("m", ROUTE, quest(session=f"{name}{number}", sender="m"), f"c{number}")
        gateway.request("m", "RouteToolCalling", {"sender_id": "m", "receiver_id": "t", "session_id": name}, f"t{number}")
    assert statuses(gateway.request("m", ROUTE, quest(session=f"{name}last", sender="m"), "x")) == ["RESOURCE_EXHAUSTED"]
    assert statuses(gateway.request("a", ROUTE, quest())) == []
    assert statuses(gateway.request("a", "RouteToolCalling", {"sender_id": "a", "receiver_id": "t"}, "c2")) == []


@pytest.mark.sample(1)
@pytest.mark.threat(236)
@pytest.mark.parametrize("name", ["s", "s" * 250], ids=["many", "long"])
def test_one_caller_leaves_sessions_of_a_node_to_others(name: str) -> None:
    node = Driven("node", peer="gateway", **PROVED)
    for number in range(200):
        message = quest(session=f"{name}{number}", sender="did:key:m")
        node.request("did:key:m", "CallAgent", message, f"c{number}")
        node.request("did:key:m", "CallTool", {"sender_id": "did:key:m", "session_id": name}, f"t{number}")
    honest = "did:key:a"
    assert statuses(node.request(honest, "CallAgent", quest(sender=honest), "c")) == []
    assert statuses(node.request(honest, "CallTool", {"sender_id": honest}, "t")) == []
    assert statuses(node.request("gateway", "CallAgent", quest(session="g"), "g")) == []


@pytest.mark.threat(236)
def test_a_description_over_its_bound_changes_nothing() -> None:
    gateway = gateway_with(agent("a"), max_state=LARGE)
    gateway.request("a", "SubscribeToUpdates", {"subscriber_id": "a"}, "u")
    before = gateway.state()
    large = {**agent("b"), "description": "x" * 20_000}
    assert statuses(gateway.request("b", "RegisterAgent", large)) == ["RESOURCE_EXHAUSTED"]
    peer = {"agent_info": {**large, "agent_id": "a", "address": "a:1"}}
    sent = gateway.request("a", "UpdateNodeInfo", {"sender_id": "a", "peer": peer})
    assert (statuses(sent), messages(sent)) == (["RESOURCE_EXHAUSTED"], [])
    assert gateway.state() == before


@pytest.mark.threat(237)
def test_003_75_a_message_for_another_receiver_is_not_delivered() -> None:
    named = Driven("node", node_id="b")
    registered = Driven("node")
    _, ((_, asked),) = registered.call("register", peer={"agent_info": agent("b")}, address="g:1")
    registered.receive("gw", Frame("RESPONSE", "RegisterAgent", asked.call, {"success": True}))
    for node in (named, registered):
        before = node.state()
        assert statuses(node.request("x", "CallAgent", quest(receiver="not-b"))) == ["NOT_FOUND"]
        assert statuses(node.request("x", "CallTool", {"sender_id": "a", "receiver_id": ""})) == ["NOT_FOUND"]
        assert (node.state(), node.invoked) == (before, [])
        assert statuses(node.request("x", "CallAgent", quest())) == []


@pytest.mark.threat(237)
@pytest.mark.parametrize("changed", [{"receiver": "c"}, {"sender": "bank"}, {"session": "other"}], ids=str)
def test_an_answer_names_its_receiver_its_sender_and_its_session(changed: dict[str, str]) -> None:
    answer = quest("HOLD_RESPONSE", **{"sender": "b", "receiver": "a", **changed})
    gateway = gateway_with(agent("a"), agent("b"))
    ((_, frame),) = gateway.request("a", ROUTE, quest())
    sent = gateway.receive("b", Frame("RESPONSE", "CallAgent", frame.call, answer))
    assert [each["session_status"] for each in messages(sent)] == ["STOP_RESPONSE"]
    node = Driven("peer", peer="b")
    node.call("create_client", session_id="s", receiver_id="b")
    _, ((_, begun),) = node.call("submit_inquiry", message=quest())
    node.receive("b", Frame("RESPONSE", "CallAgent", begun.call, answer))
    (invocation,) = node.invoked
    assert invocation.arguments["message"]["session_status"] == "STOP_RESPONSE"


@pytest.mark.threat(237)
@pytest.mark.parametrize("name", ["sender_id", "receiver_id", "session_id"])
def test_an_answer_of_a_tool_is_of_its_request(name: str) -> None:
    request = {"sender_id": "a", "receiver_id": "t", "session_id": "s"}
    right = {"sender_id": "t", "receiver_id": "a", "session_id": "s"}
    gateway, node = gateway_with(agent("a"), tool("t")), Driven("peer", peer="t")
    for answer, code in (({**right, name: "bank"}, "INTERNAL"), (right, "OK"), ({}, "OK")):
        ((_, called),) = gateway.request("a", "RouteToolCalling", request, "c")
        sent = gateway.receive("t", Frame("RESPONSE", "CallTool", called.call, answer))
        sent += gateway.receive("t", Frame("STATUS", "CallTool", called.call)) if code == "OK" else []
        assert statuses(sent) == [code]
        assert [{key: each[key] for key in right} for each in messages(sent)] == ([right] if code == "OK" else [])
        _, ((_, asked),) = node.call("call_tool", request=request)
        node.receive("t", Frame("RESPONSE", "CallTool", asked.call, answer))
        returned = node.returned.popitem()[1]
        assert getattr(returned, "code", None) == (502 if code == "INTERNAL" else None)
        assert code == "INTERNAL" or {key: returned[key] for key in right} == right
