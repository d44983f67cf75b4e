"""The rules of AIP's sessions, by the handler alone. 003: docs/specification/conformance.md."""

from __future__ import annotations

from typing import Any

import pytest
from aip_sessions import Driven, agent, gateway_with, messages, quest, statuses, tool

from treaty_aip.handler.fields import ENUMS
from treaty_aip.handler.frames import Frame, pack
from treaty_handler import Failure

ROUTE = "RouteAgentCalling"


def begun(gateway: Driven, call: str = "c", **ids: str) -> Frame:
    """Begin a session from a to b; the frame that the gateway sends to the receiver."""
    ((to, frame),) = gateway.request("a", ROUTE, quest(**ids), call)
    assert to == "b"
    return frame


def routed() -> tuple[Driven, Frame]:
    gateway = gateway_with(agent("a"), agent("b"))
    return gateway, begun(gateway)


@pytest.mark.parametrize(
    "message",
    [
        quest("HOLD_QUEST"),
        quest("STOP_QUEST"),
        quest("HOLD_RESPONSE"),
        quest("STOP_RESPONSE"),
        quest(session=""),
        quest(session="s" * 257),
    ],
)
def test_003_01_the_first_message_begins_a_session(message: Any) -> None:
    gateway, node = gateway_with(agent("a"), agent("b")), Driven("node")
    before = gateway.call("registered_nodes")
    for session, peer, method in ((gateway, "a", ROUTE), (node, "x", "CallAgent")):
        sent = session.request(peer, method, message)
        assert statuses(sent) == ["INVALID_ARGUMENT"]
        assert len(sent) == 1
        assert not session.invoked
    assert gateway.call("registered_nodes") == before


def test_003_01_an_empty_stream_is_aborted() -> None:
    gateway = gateway_with(agent("a"), agent("b"))
    assert statuses(gateway.receive("a", Frame("END", ROUTE, "c"))) == ["ABORTED"]
    assert statuses(Driven("node").receive("x", Frame("END", "CallAgent", "c"))) == ["ABORTED"]


def test_003_01_an_unknown_receiver_is_not_found() -> None:
    gateway = gateway_with(agent("a"), tool("t"))
    assert statuses(gateway.request("a", ROUTE, quest())) == ["NOT_FOUND"]
    assert statuses(gateway.request("a", ROUTE, quest(receiver="t"))) == ["NOT_FOUND"]
    assert statuses(gateway.request("a", "RouteToolCalling", {"sender_id": "a", "receiver_id": "a"})) == ["NOT_FOUND"]


def test_003_02_a_stop_is_answered_and_ends_the_stream() -> None:
    gateway, frame = routed()
    ((_, stop),) = gateway.request("a", ROUTE, quest("STOP_QUEST"))
    assert stop.message["session_status"] == "STOP_QUEST"
    sent = gateway.receive("b", Frame("RESPONSE", "CallAgent", frame.call, quest("STOP_RESPONSE", sender="b", receiver="a")))
    assert [message["session_status"] for message in messages(sent)] == ["STOP_RESPONSE"]
    assert statuses(sent) == ["OK"]
    begun(gateway, "c2")


def test_003_02_a_silent_session_stops_at_both_ends() -> None:
    gateway, frame = routed()
    sent = gateway.expire(frame.call)
    assert [message["session_status"] for message in messages(sent)] == ["STOP_RESPONSE"]
    assert [(to, each.kind) for to, each in sent] == [("a", "RESPONSE"), ("a", "STATUS"), ("b", "CANCEL")]
    node = Driven("node")
    node.request("x", "CallAgent", quest())
    (timer,) = node.timers
    assert [message["session_status"] for message in messages(node.expire(timer))] == ["STOP_RESPONSE"]


def test_003_02_an_application_error_stops_the_session() -> None:
    node = Driven("node")
    node.request("x", "CallAgent", quest())
    (stopped,) = messages(sent := node.result(error=Failure(code=500, message="It failed.")))
    assert (stopped["session_status"], stopped["content"]) == ("STOP_RESPONSE", [{"text": "It failed."}])
    assert statuses(sent) == ["OK"]


def registered(**parameters: Any) -> Driven:
    node = Driven("node", **parameters)
    _, ((_, frame),) = node.call("register", peer={"agent_info": agent("a")}, address="gateway:1")
    assert (frame.method, frame.address) == ("RegisterAgent", "gateway:1")
    node.receive("gw", Frame("RESPONSE", frame.method, frame.call, {"success": True, "peers": []}))
    node.receive("gw", Frame("STATUS", frame.method, frame.call))
    return node


def client(node: Driven) -> None:
    assert node.call("create_client", session_id="s", receiver_id="b") == (True, [])


def inquiry(node: Driven, status: str | None = None, **ids: str) -> tuple[Any, list[str]]:
    message = {"sender_id": "a", "receiver_id": "b", "session_id": "s"} | ids
    answer, sent = node.call("submit_inquiry", message=message, status=status)
    return answer, [frame.message["session_status"] for _, frame in sent]


def test_003_03_an_inquiry_without_status_begins_or_continues() -> None:
    node = registered()
    client(node)
    assert inquiry(node) == (True, ["START_QUEST"])
    assert inquiry(node) == (True, ["HOLD_QUEST"])
    assert inquiry(node, "STOP_QUEST") == (True, ["STOP_QUEST"])


def test_003_03_an_unfitting_status_sends_nothing() -> None:
    node = registered()
    client(node)
    for status in ("HOLD_QUEST", "STOP_QUEST"):
        assert (failed := inquiry(node, status))[1] == []
        assert failed[0].code == 409
    for status in ("HOLD_RESPONSE", "STOP_RESPONSE"):
        assert (inquiry(node, status)[0].code, inquiry(node, status)[1]) == (400, [])
    assert inquiry(node) == (True, ["START_QUEST"])
    assert inquiry(node, "START_QUEST")[0].code == 409
    assert inquiry(node, "STOP_QUEST") == (True, ["STOP_QUEST"])
    assert inquiry(node)[0].code == 409


def test_003_03_an_inquiry_needs_a_client_or_a_gateway() -> None:
    node = registered()
    client(node)
    assert inquiry(node, session_id="other")[0].code == 404
    assert inquiry(node, receiver_id="other")[0].code == 404
    alone = Driven("node")
    client(alone)
    assert (inquiry(alone)[0].code, inquiry(alone)[1]) == (412, [])


def feedback(node: Driven, status: str | None = None) -> tuple[Any, list[str]]:
    message = {"sender_id": "b", "receiver_id": "a", "session_id": "s"}
    answer, sent = node.call("submit_feedback", message=message, status=status)
    return answer, [message["session_status"] for message in messages(sent)]


def test_003_04_feedback_without_status_answers_the_last() -> None:
    node = Driven("node")
    node.request("x", "CallAgent", quest())
    assert feedback(node) == (True, ["HOLD_RESPONSE"])
    node.request("x", "CallAgent", quest("HOLD_QUEST"))
    assert feedback(node) == (True, ["HOLD_RESPONSE"])
    node.request("x", "CallAgent", quest("STOP_QUEST"))
    assert feedback(node) == (True, ["STOP_RESPONSE"])
    assert feedback(node)[0].code == 404


def test_003_04_feedback_has_the_status_of_a_response() -> None:
    node = Driven("node")
    node.request("x", "CallAgent", quest())
    assert (feedback(node, "HOLD_QUEST")[0].code, feedback(node, "HOLD_QUEST")[1]) == (400, [])
    assert feedback(node, "STOP_RESPONSE") == (True, ["STOP_RESPONSE"])


def ended(node: Driven) -> list[tuple[str, str]]:
    """The statuses and texts of the inquiries that the application got after the first one."""
    messages = [each.arguments["message"] for each in node.invoked[1:]]
    return [(each["session_status"], each["content"][0]["text"]) for each in messages]


@pytest.mark.parametrize("how", ["CANCEL", "END", "lost", "silent", "fault", "BROKEN"])
def test_003_02_a_receiving_application_learns_of_the_end(how: str) -> None:
    node = Driven("node")
    node.request("x", "CallAgent", quest())
    match how:
        case "lost":
            node.lose("x")
        case "silent":
            node.expire(*node.timers)
        case "fault":
            node.request("x", "CallAgent", quest("START_QUEST"))
        case "BROKEN":
            node.raw("x", pack(Frame("REQUEST", "CallAgent", "c", b"\xff")))
        case _:
            node.receive("x", Frame(how, "CallAgent", "c"))
    ((status, text),) = ended(node)
    assert status == "STOP_QUEST"
    assert text
    assert node.timers == {}
    # The answer of an application that answers each inquiry goes nowhere, once.
    assert feedback(node) == (True, [])
    assert feedback(node)[0].code == 404


@pytest.mark.parametrize("how", ["CANCEL", "END", "lost"])
def test_003_02_a_stop_reaches_the_application_once(how: str) -> None:
    node = Driven("node")
    node.request("x", "CallAgent", quest())
    node.request("x", "CallAgent", quest("STOP_QUEST", text="bye"))
    node.lose("x") if how == "lost" else node.receive("x", Frame(how, "CallAgent", "c"))
    assert ended(node) == [("STOP_QUEST", "bye")]
    assert feedback(node) == (True, ["STOP_RESPONSE"] if how == "END" else [])


def test_003_02_unanswered_ends_are_bounded() -> None:
    node = Driven("node")
    for number in range(300):
        node.request("x", "CallAgent", quest(session=f"{'s' * 200}{number}"), f"c{number}")
        node.receive("x", Frame("CANCEL", "CallAgent", f"c{number}"))
        node.result()
        node.result()
    assert len(node.state()) < 8_000


def test_003_73_sessions_abandoned_while_waiting_are_bounded() -> None:
    node = Driven("node")
    for number in range(300):
        sent = node.request("x", "CallAgent", quest(session=f"s{number}"), f"c{number}")
        node.receive("x", Frame("CANCEL", "CallAgent", f"c{number}"))
    assert statuses(sent) == ["RESOURCE_EXHAUSTED"]
    node.result()
    assert statuses(node.request("x", "CallAgent", quest(), "last")) == []


def test_003_04_feedback_names_the_inquiry_that_it_answers() -> None:
    node = Driven("node")
    for number, message_id in enumerate(("m1", "m2", "m" * 65)):
        node.request("x", "CallAgent", {**quest("HOLD_QUEST" if number else "START_QUEST"), "message_id": message_id})
        for own, expected in (({}, message_id if len(message_id) <= 64 else ""), ({"reply_to_message_id": "m0"}, "m0")):
            ids = {"sender_id": "b", "receiver_id": "a", "session_id": "s"}
            _, sent = node.call("submit_feedback", message=ids | own)
            assert [each["reply_to_message_id"] for each in messages(sent)] == [expected]


def test_003_05_a_session_has_one_forward_stream() -> None:
    gateway, first = routed()
    ((_, second),) = gateway.request("a", ROUTE, quest("HOLD_QUEST"))
    assert (first.method, first.call, first.address) == ("CallAgent", second.call, "b:1")
    other = begun(gateway, "c2", session="s2")
    assert other.call != first.call


def test_003_05_a_receiver_without_connection_is_deregistered() -> None:
    gateway, frame = routed()
    begun(gateway, "c2", session="s2")
    assert gateway.lose("elsewhere:1") == []
    # A host that dials its nodes names the address.
    sent = gateway.lose("b:1")
    assert [each["session_status"] for each in messages(sent)] == ["STOP_RESPONSE"] * 2
    assert [(to, each.kind) for to, each in sent if each.kind == "CANCEL"] == [("b", "CANCEL")] * 2
    assert sorted(gateway.call("registered_nodes")[0]) == ["a"]
    assert frame.call not in gateway.timers


def test_003_05_two_peers_need_no_gateway() -> None:
    left, right = Driven("peer", peer="right"), Driven("peer", peer="left")
    client(left)
    _, ((to, frame),) = left.call("submit_inquiry", message={"sender_id": "a", "receiver_id": "b", "session_id": "s"})
    assert (to, frame.method) == ("right", "CallAgent")
    right.receive("left", frame)
    assert right.invoked[0].operation == "inquiry"
    _, ((back, answer),) = right.call("submit_feedback", message={"sender_id": "b", "receiver_id": "a", "session_id": "s"})
    left.receive(back.replace("left", "right"), answer)
    assert left.invoked[0].arguments["message"]["session_status"] == "HOLD_RESPONSE"


def test_003_06_an_id_and_an_address_are_taken_once() -> None:
    gateway = gateway_with(agent("a"), tool("t"))
    before = gateway.call("registered_nodes")
    for method, info in (
        ("RegisterAgent", agent("a", "new:1")),
        ("RegisterAgent", agent("n", "t:1")),
        ("RegisterTool", tool("a", "new:1")),
        ("RegisterTool", tool("n", "a:1")),
    ):
        assert statuses(gateway.request("n", method, info)) == ["ALREADY_EXISTS"]
    assert gateway.call("registered_nodes") == before


def test_003_06_default_is_every_domain() -> None:
    gateway = gateway_with(agent("a", domain="x"), tool("t"))
    (answer,) = messages(gateway.request("b", "RegisterAgent", agent("b", domain="y")))
    assert sorted(next(iter(peer)) for peer in answer["peers"]) == ["agent_info", "tool_info"]

    def listed(domain: str) -> list[str]:
        (found,) = messages(gateway.request("a", "GetNodes", {"agent_id": "a", "domain": domain}))
        return sorted(peer.get("agent_info", peer.get("tool_info"))["address"] for peer in found["peers"])

    assert listed("default") == ["a:1", "b:1", "t:1"]
    assert (listed("x"), listed("y"), listed("z")) == (["a:1"], ["b:1"], [])


def test_003_07_30_silent_seconds_deregister_a_node() -> None:
    gateway = gateway_with(agent("a"), agent("b"))
    gateway.at = 20_500
    assert messages(gateway.request("a", "Heartbeat", {"sender_id": "a"})) == [{"success": True, "message": "Heartbeat received"}]
    gateway.at = 0
    gateway.expire("heartbeats")
    assert (gateway.at, sorted(gateway.call("registered_nodes")[0])) == (30_000, ["a"])
    gateway.expire("heartbeats")
    assert (gateway.at, gateway.call("registered_nodes")[0]) == (50_500, {})


@pytest.mark.parametrize("status", ["START_QUEST", "HOLD_QUEST", "STOP_QUEST"])
def test_003_07_each_routed_message_is_a_sign_of_life(status: str) -> None:
    gateway = gateway_with(agent("a"), agent("b"), tool("t"))
    if status != "START_QUEST":
        begun(gateway)
    gateway.at = 29_000
    gateway.request("a", "RouteAgentCalling", quest(status))
    gateway.request("b", "RouteToolCalling", {"sender_id": "b", "receiver_id": "t"}, "c2")
    gateway.at = 0
    gateway.expire("heartbeats")
    assert sorted(gateway.call("registered_nodes")[0]) == ["a", "b"]


@pytest.mark.parametrize("code", sorted(ENUMS["Code"]))
def test_003_05_a_receivers_failure_ends_its_own_session(code: str) -> None:
    gateway = gateway_with(agent("a"), agent("b"), tool("t"))
    frame, other = begun(gateway), begun(gateway, "c3", session="s2")
    ((_, called),) = gateway.request("a", "RouteToolCalling", {"sender_id": "a", "receiver_id": "t"}, "c2")
    sent = gateway.receive("b", Frame("STATUS", "CallAgent", frame.call, code=code))
    assert [each["session_status"] for each in messages(sent)] == ["STOP_RESPONSE"]
    assert statuses(gateway.receive("t", Frame("STATUS", "CallTool", called.call, code=code))) == [code]
    assert sorted(gateway.call("registered_nodes")[0]) == ["a", "b", "t"]
    answer = quest("HOLD_RESPONSE", session="s2", sender="b", receiver="a")
    assert messages(gateway.receive("b", Frame("RESPONSE", "CallAgent", other.call, answer))) == [
        {**answer, "message_id": "", "reply_to_message_id": ""}
    ]


@pytest.mark.parametrize("at", ["gateway", "receiver"])
def test_003_02_a_fault_of_the_initiator_ends_with_a_reason(at: str) -> None:
    if at == "gateway":
        side, _ = routed()
        sent = side.request("a", ROUTE, quest("START_QUEST"))
    else:
        side = Driven("node")
        side.request("gw", "CallAgent", quest())
        sent = side.request("gw", "CallAgent", quest("START_QUEST"))
    (answer,) = messages(sent)
    assert (answer["session_status"], answer["sender_id"], answer["receiver_id"]) == ("STOP_RESPONSE", "b", "a")
    assert answer["content"] == [{"text": "After the first message the initiator sends HOLD_QUEST and STOP_QUEST."}]
    assert statuses(sent) == ["INVALID_ARGUMENT"]


def test_003_07_a_heartbeat_of_an_unknown_node_has_no_success() -> None:
    (answer,) = messages(gateway_with().request("x", "Heartbeat", {"sender_id": "x"}))
    assert answer["success"] is False


def test_003_07_a_forgotten_node_registers_again() -> None:
    node = registered()
    assert node.timers["heartbeat"] == 10
    ((_, beat),) = node.expire("heartbeat")
    assert (beat.method, beat.message) == ("Heartbeat", {"sender_id": "a"})
    assert node.timers["heartbeat"] == 10
    ((_, again),) = node.receive("gw", Frame("RESPONSE", "Heartbeat", beat.call, {"success": False, "message": ""}))
    assert again.method == "RegisterAgent"


def test_003_07_a_refused_registration_changes_nothing() -> None:
    node = registered()
    _, ((_, frame),) = node.call("register", peer={"agent_info": agent("z")}, address="elsewhere:1")
    node.receive("gw", Frame("STATUS", frame.method, frame.call, code="ALREADY_EXISTS"))
    ((_, beat),) = node.expire("heartbeat")
    assert (beat.message, beat.address) == ({"sender_id": "a"}, "gateway:1")


def test_deregistration_ends_sessions_and_tells_subscribers() -> None:
    gateway, _ = routed()
    gateway.request("a", "SubscribeToUpdates", {"subscriber_id": "a", "node_ids": ["b"]}, "u")
    sent = gateway.request("b", "DeregisterNode", {"node_id": "b"}, "d")
    assert messages(sent)[0] == {"success": True}
    assert [update["update_type"] for update in messages(sent) if "update_type" in update] == ["REMOVED"]
    assert [message["session_status"] for message in messages(sent) if "session_status" in message] == ["STOP_RESPONSE"]
    assert messages(gateway.request("b", "DeregisterNode", {"node_id": "b"}, "d2")) == [{"success": False}]


def test_subscriptions_tell_of_nodes_that_come_change_and_go() -> None:
    gateway = gateway_with(agent("a"), agent("b"))
    gateway.request("a", "SubscribeToUpdates", {"subscriber_id": "a", "node_ids": []}, "u")
    seen = messages(gateway.request("t", "RegisterTool", tool("t")))[1:]
    changed = {"tool_info": {**tool("t"), "description": "new"}}
    seen += messages(gateway.request("t", "UpdateNodeInfo", {"sender_id": "t", "peer": changed}))[1:]
    assert [(update["update_type"], update["node_id"]) for update in seen] == [("ADDED", "t"), ("UPDATED", "t")]
    assert messages(gateway.request("a", "Unsubscribe", {"subscriber_id": "a", "node_ids": ["t"]}, "x"))[0]["success"]
    assert len(messages(gateway.request("t", "DeregisterNode", {"node_id": "t"}))) == 1
    sent = gateway.request("a", "Unsubscribe", {"subscriber_id": "a", "node_ids": []}, "x2")
    assert [(to, frame.call, frame.code) for to, frame in sent if frame.kind == "STATUS"] == [("a", "u", "OK"), ("a", "x2", "OK")]
    assert messages(gateway.request("a", "Unsubscribe", {"subscriber_id": "a"}, "x3"))[0]["success"] is False


def test_a_request_to_a_tool_is_forwarded_and_answered() -> None:
    gateway = gateway_with(agent("a"), tool("t"))
    request = {"sender_id": "a", "receiver_id": "t", "arguments": {"x": "1"}}
    ((to, frame),) = gateway.request("a", "RouteToolCalling", request)
    assert (to, frame.method, frame.address) == ("t", "CallTool", "t:1")
    tool_session = Driven("node", peer="t")
    tool_session.receive("gw", frame)
    assert tool_session.invoked[0].arguments["request"]["arguments"] == {"x": "1"}
    for _, each in tool_session.result({"content": [{"text": "2"}]}):
        sent = gateway.receive("t", each)
        if each.kind == "RESPONSE":
            assert [message["content"] for message in messages(sent)] == [[{"text": "2"}]]
    assert statuses(sent) == ["OK"]


def test_a_failing_tool_answers_with_is_error() -> None:
    session = Driven("node")
    session.request("x", "CallTool", {"sender_id": "a", "receiver_id": "t", "session_id": "s"})
    (answer,) = messages(session.result(error=Failure(code=500, message="broken")))
    assert (answer["is_error"], answer["error_message"], answer["receiver_id"]) == (True, "broken", "a")


def test_a_lost_peer_takes_its_nodes_and_sessions_with_it() -> None:
    gateway, frame = routed()
    assert [(to, each.kind) for to, each in gateway.lose("a")] == [("b", "CANCEL")]
    assert sorted(gateway.call("registered_nodes")[0]) == ["b"]
    assert gateway.receive("b", Frame("RESPONSE", "CallAgent", frame.call, quest("HOLD_RESPONSE"))) == []


def test_an_answer_of_another_method_answers_nothing() -> None:
    node = registered()
    answer, ((_, asked),) = node.call("unsubscribe", node_ids=["b"])
    assert answer is None and asked.method == "Unsubscribe"
    assert node.receive("gw", Frame("RESPONSE", "GetNodes", asked.call, {"peers": []})) == []
    assert "app2" not in node.returned
    node.receive("gw", Frame("RESPONSE", "Unsubscribe", asked.call, {"success": True}))
    assert node.returned["app2"]["success"] is True
