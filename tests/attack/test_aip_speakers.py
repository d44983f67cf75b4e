"""What an agent of AIP tries in order to speak as another one, where callers have to prove their DIDs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aip_nodes import LOOPBACK, begin, nodes, told
from aip_sessions import Driven, agent, gateway_with, messages, quest, statuses, tool

from treaty_agent import Identity, OperationError
from treaty_aip import AgentServiceStub, Security, SessionStatus, Tool
from treaty_aip.handler.frames import Frame

A, M, GATEWAY = "did:example:a", "did:example:m", "did:example:gateway"
PROVED = {"speakers": {"names": {"a": A}, "gateway": GATEWAY}}


@pytest.mark.threat(233)
def test_003_75_an_id_is_used_by_its_did_alone() -> None:
    for sender in ("a", A, "unnamed", ""):
        node = Driven("node", **PROVED)
        before = node.state()
        assert statuses(node.request(M, "CallAgent", quest(sender=sender))) == ["PERMISSION_DENIED"]
        assert statuses(node.request(M, "CallTool", {"sender_id": sender, "receiver_id": "t"}, "t")) == ["PERMISSION_DENIED"]
        assert (node.invoked, node.timers, node.state()) == ([], {}, before)
    for sender, caller in (("a", A), (A, A), (M, M), ("unnamed", GATEWAY), ("a", GATEWAY), (A, GATEWAY), ("unnamed", "gw")):
        node = Driven("node", **PROVED)
        assert statuses(node.request(caller, "CallAgent", quest(sender=sender))) == []
        assert statuses(node.request(caller, "CallTool", {"sender_id": sender, "receiver_id": "t"}, "t")) == []
        assert len(node.invoked) == 2


@pytest.mark.threat(233)
def test_003_75_the_other_one_of_two_peers_is_no_gateway() -> None:
    peer = Driven("peer", peer=M, speakers={"names": {"a": A}})
    assert statuses(peer.request(M, "CallAgent", quest(sender="a"))) == ["PERMISSION_DENIED"]
    assert statuses(peer.request(M, "CallAgent", quest(sender=M))) == []


@pytest.mark.threat(233)
def test_003_75_the_sender_of_a_stream_does_not_change() -> None:
    node = Driven("node", **PROVED)
    assert statuses(node.request(M, "CallAgent", quest(sender=M))) == []
    for changed in ({"sender": "a"}, {"sender": M, "receiver": "other"}):
        other = Driven("node", **PROVED)
        other.request(M, "CallAgent", quest(sender=M))
        assert statuses(other.request(M, "CallAgent", quest("HOLD_QUEST", **changed))) == ["INVALID_ARGUMENT"]
        told_of = [each.arguments["message"] for each in other.invoked]
        assert [(each["session_status"], each["sender_id"]) for each in told_of] == [("START_QUEST", M), ("STOP_QUEST", M)]
    assert statuses(node.request(M, "CallAgent", quest("HOLD_QUEST", sender=M))) == []


@pytest.mark.threat(233)
def test_003_75_an_answer_is_of_the_receiver() -> None:
    gateway = gateway_with(agent("a"), agent("b"))
    ((_, frame),) = gateway.request("a", "RouteAgentCalling", quest())
    forged = quest("HOLD_RESPONSE", sender="ceo", receiver="a")
    sent = gateway.receive("b", Frame("RESPONSE", "CallAgent", frame.call, forged))
    assert [each["session_status"] for each in messages(sent)] == ["STOP_RESPONSE"]
    node = Driven("peer", peer="b")
    node.call("create_client", session_id="s", receiver_id="b")
    _, ((_, begun),) = node.call("submit_inquiry", message=quest())
    node.receive("b", Frame("RESPONSE", "CallAgent", begun.call, forged))
    (told_of,) = node.invoked
    assert told_of.arguments["message"]["session_status"] == "STOP_RESPONSE"
    assert told_of.arguments["message"]["sender_id"] == "b"


@pytest.mark.threat(233)
def test_003_75_a_gateway_keeps_named_ids_for_their_dids() -> None:
    gateway = gateway_with(agent("b"), tool("t"), **PROVED)
    before = gateway.state()
    for method, message in (
        ("RouteAgentCalling", quest(sender="ceo")),
        ("RouteToolCalling", {"sender_id": "ceo", "receiver_id": "t"}),
        ("RegisterAgent", agent("a")),
        ("RegisterTool", tool("a")),
        ("RegisterAgent", agent(A)),
    ):
        assert statuses(gateway.request(M, method, message)) == ["PERMISSION_DENIED"], method
        assert gateway.state() == before, method
    assert statuses(gateway.request(A, "RegisterAgent", agent("a"))) == ["OK"]
    assert statuses(gateway.request(M, "RegisterAgent", agent("m"))) == ["OK"]
    assert statuses(gateway.request(M, "RouteAgentCalling", quest(sender="m"), "c2")) == []
    assert statuses(gateway.request(M, "RouteAgentCalling", quest(sender="a", session="s2"), "c3")) == ["PERMISSION_DENIED"]


@pytest.mark.threat(233)
def test_003_75_a_gateway_keeps_a_did_for_its_prover() -> None:
    gateway = Driven("gateway", peer="")
    gateway.join(A, is_proved=False)
    before = gateway.state()
    for method, message in (("RegisterAgent", agent(A)), ("RegisterTool", tool(A)), ("RouteAgentCalling", quest(sender=A))):
        assert statuses(gateway.request(A, method, message)) == ["PERMISSION_DENIED"], method
        assert gateway.state() == before, method
    assert statuses(gateway.request(A, "RegisterAgent", agent("free"))) == ["OK"]  # an id that no DID has
    gateway.lose(A)
    gateway.join(A, is_proved=True)
    assert statuses(gateway.request(A, "RegisterAgent", agent(A))) == ["OK"]
    gateway.lose(A)
    gateway.join(A, is_proved=False)  # the owner is away
    assert statuses(gateway.request(A, "RegisterAgent", agent(A))) == ["PERMISSION_DENIED"]


@pytest.mark.threat(233)
def test_003_75_a_peer_keeps_a_did_for_its_prover() -> None:
    for is_proved in (False, True):
        for sender in (A, M):
            peer = Driven("peer", peer=M, is_proved=is_proved)
            before = peer.state()
            allowed = is_proved and sender == M
            sent = peer.request(M, "CallAgent", quest(sender=sender))
            sent += peer.request(M, "CallTool", {"sender_id": sender, "receiver_id": "t"}, "t")
            assert statuses(sent) == ([] if allowed else ["PERMISSION_DENIED"] * 2)
            assert (peer.state() == before, len(peer.invoked)) == (not allowed, 2 if allowed else 0)
            assert statuses(peer.request(M, "CallAgent", quest(session="s2", sender="plain"), "c2")) == []


@pytest.mark.threat(233)
async def test_003_75_a_proved_agent_speaks_for_itself_alone(tmp_path: Path) -> None:
    caller, liar = Identity.create(), Identity.create()

    def security(name: str, identity: Identity, **options: Any) -> Security:
        (tmp_path / name).mkdir()
        return Security(identity=identity, require_did=True, home=tmp_path / name, **options)

    async with nodes() as network, asyncio.timeout(60):
        direct: Any = {"stub": AgentServiceStub, "stream_calling": "CallAgent"}
        names = {"a": caller.did}
        receiver = await network.agent("b", security=security("b", Identity.create(), names=names))
        served = await network.tool(Tool(LOOPBACK, "t", security=security("t", Identity.create(), names=names)))
        served.set_process_request_handler(lambda request: request.sender_id)
        honest = await network.agent("a", security=security("a", caller))
        false = await network.agent("a", security=security("m", liar))
        session = await begin(false, "b", address=receiver.address, **direct)
        status, text = told(await false.receive_feedback(session, "b"))
        assert status is SessionStatus.STOP_RESPONSE
        assert "PERMISSION_DENIED" in text
        with pytest.raises(OperationError) as error:
            await false.call_tool("t", address=served.address)
        assert error.value.status == 403
        session = await begin(honest, "b", address=receiver.address, **direct)
        message = await receiver.receive_inquiry()
        assert (message.sender_id, told(message)[1]) == ("a", "hello")
        assert (await honest.call_tool("t", address=served.address)).content[0].text == "a"
        under_its_did = await network.agent(liar.did, security=security("own", liar))
        await begin(under_its_did, "b", address=receiver.address, **direct)
        assert (await receiver.receive_inquiry()).sender_id == liar.did
