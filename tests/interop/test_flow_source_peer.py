"""A peer that knows the second source document alone, against a live agent on a real socket: both roles, every printed
message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from data_sharing import QUERY, ROWS, offer, published, sharer
from interop.flow_source_peer import (
    EXTENSIONS,
    PARAMETERS,
    SHARING,
    TRANSFER,
    Ended,
    SourcePeer,
    WebSocket,
    connect,
    describe,
    listen,
)
from meetings import Party, identity

from treaty_agent.sessions.flow_context import FlowSettings
from treaty_anp.flow_profile.capabilities import FlowRequest
from treaty_anp.flow_profile.parameters import Choice, Fixed, Range, Rule
from treaty_anp.flow_profile.states import FlowTimeouts
from treaty_consensus.errors import Refused
from treaty_io.identity import ProvedPeer

TERMS: dict[str, Rule] = {
    "maxMessageSize": Range(1000, 1_048_576),
    "compressionFormat": Choice(("gzip", "none")),
    "streamingMode": Fixed("chunked"),
    "chunkSize": Range(1024, 32_768),
    "responseTimeout": Range(45_000, 60_000),
}
EXTRAS: dict[str, Rule] = {"priorityLevels": Fixed(True), "deliveryGuarantee": Fixed("at-least-once")}
VECTORS = Path(__file__).parents[1] / "vectors" / "flow"


def printed(action: str) -> dict[str, Any]:
    """The first message of an action that the document prints."""
    values = [json.loads(path.read_text()) for path in sorted(VECTORS.glob("*.json"))]
    message: dict[str, Any] = next(value for value in values if value["action"] == action)
    return message


@asynccontextmanager
async def shop(home: Path, peer: SourcePeer, *offers: Any, **flow: Any) -> AsyncIterator[tuple[Party, WebSocket]]:
    """A live agent and an open connection of the peer to it. The agent resolves the document's did:anp by the peer's key."""

    async def keys(did: str) -> list[bytes]:
        return [peer.public_key]

    settings = FlowSettings(resolvers={"anp": keys}, **flow)
    party = sharer("shop", home, *(offers or (offer(parameters=TERMS, extensions=EXTRAS),)), flow=settings)
    async with party.agent, party.agent.listen("127.0.0.1", 0) as port:
        socket = await connect(port)
        try:
            yield party, socket
        finally:
            with suppress(OSError):
                await socket.close()


def peer_of(name: str, **fields: Any) -> SourcePeer:
    """A peer of the agent NAME.example."""
    theirs = identity(f"{name}.example")
    return SourcePeer(theirs.did, theirs.public_key, **fields)


@asynccontextmanager
async def serving(peer: SourcePeer) -> AsyncIterator[str]:
    """The address of a peer that answers."""
    server = await listen(peer.serve)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def buyer(home: Path, *offers: Any, **flow: Any) -> Party:
    return sharer("buyer", home, *(offers or (offer(parameters=TERMS, extensions=EXTRAS),)), flow=FlowSettings(**flow))


# The peer begins

CLOCKS: list[Callable[[datetime], str]] = [
    lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    lambda moment: moment.isoformat(),
    lambda moment: moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
]


@pytest.mark.parametrize("clock", CLOCKS, ids=("seconds", "microseconds", "milliseconds"))
async def test_001_07_the_printed_query_of_a_peer_is_answered(tmp_path: Path, clock: Callable[[datetime], str]) -> None:
    peer = peer_of("shop", clock=clock)
    async with shop(tmp_path, peer) as (_, socket):
        session = await peer.full(socket)
        (answer,) = [message["payload"] for _, message in peer.seen if message["action"] == "parameter-response"]
        expected = {name: value for name, value in PARAMETERS.items() if name in TERMS}
        assert answer["acceptedParameters"] == {**expected, "chunkSize": 32768, "responseTimeout": 45000}
        assert answer["extensions"] == EXTENSIONS
        reply = await peer.query(socket, session)
        assert (reply["rows"], reply["queries"], reply["action"]) == (ROWS, 1, "query")
        assert reply["terms"] == answer["acceptedParameters"]  # the handler knows them
        assert (await peer.query(socket, session))["queries"] == 2
    assert peer.actions()[-4:] == [">data-sharing", "<data-sharing"] * 2


async def test_001_01_to_07_the_printed_messages_are_read(tmp_path: Path) -> None:
    """Only what time and keys decide is replaced: time, recipient, signature, and the messages that are answered."""
    peer = peer_of("shop", did="did:anp:123456789abcdefghi")

    async def say(socket: WebSocket, action: str, **payload: Any) -> None:
        message = printed(action)
        if action == "capabilities-exchange":  # the second one is the initiator's
            message = json.loads((VECTORS / "03-capabilities-exchange.json").read_text())
            message["replyTo"] = peer.seen[-1][1]["messageId"]
        message |= {"recipient": peer.their_did, "timestamp": peer.time(), "payload": {**message["payload"], **payload}}
        await peer.send(socket, message)

    async with shop(tmp_path, peer) as (_, socket):
        await say(socket, "initialize")
        await peer.hear(socket, "capabilities-exchange")
        for action in ("capabilities-exchange", "protocol-evaluation", "protocol-proposal"):
            await say(socket, action)
        await peer.hear(socket, "protocol-response")
        await say(socket, "parameter-negotiation")
        accepted = (await peer.hear(socket, "parameter-response"))["payload"]["acceptedParameters"]
        final = printed("protocol-confirmation")["payload"]["finalParameters"]
        assert accepted == {name: value for name, value in final.items() if name != "encryptionLevel"}
        await say(socket, "protocol-confirmation", finalParameters=accepted, expiresAt=peer.time(600))
        ready = await peer.hear(socket, "confirmation-acknowledgment")
        assert ready["payload"]["sessionId"] == "session-xyz-123456789"
        await say(socket, "query")
        answer = await peer.hear(socket)
        assert (answer["type"], answer["action"], answer["payload"]["rows"]) == ("data-sharing", "query", ROWS)


async def test_001_19_20_21_a_peer_of_the_source_may_say_all_at_once(tmp_path: Path) -> None:
    peer = peer_of("shop", parameters={"chunkSize": 32_768})
    async with shop(tmp_path, peer) as (_, socket):
        await peer.initialize(socket, requestCapabilities=False)
        await peer.propose(socket, SHARING)
        session = await asyncio.create_task(_after_proposal(peer, socket))
        assert (await peer.query(socket, session))["rows"] == ROWS
        # Predictive and simplified: the same messages, in two round trips.
        again = peer_of("shop", parameters={"chunkSize": 32_768})
        async with shop(tmp_path / "again", again) as (_, other):
            await again.initialize(other, requestCapabilities=False)
            await again.propose(other, SHARING)
            await again.offer(other, SHARING)
            assert (await again.hear(other))["action"] == "protocol-response"
            answer = await again.hear(other, "parameter-response")
            session = await again.confirm(other, answer["payload"])
            assert (await again.query(other, session))["rows"] == ROWS


async def _after_proposal(peer: SourcePeer, socket: WebSocket) -> str:
    """Cached: parameters and confirmation follow the proposal in one flight."""
    await peer.offer(socket, SHARING)
    final = {
        "protocol": SHARING,
        "finalParameters": dict(peer.parameters),
        "extensions": EXTENSIONS,
        "sessionId": "session-cached-1",
        "expiresAt": peer.time(600),
    }
    await peer.say(socket, "protocol-confirmation", final)
    for action in ("protocol-response", "parameter-response", "confirmation-acknowledgment"):
        await peer.hear(socket, action)
    return "session-cached-1"


async def test_001_22_two_protocols_are_negotiated_at_once(tmp_path: Path) -> None:
    peer = peer_of("shop", protocols=[describe(SHARING), describe(TRANSFER)])
    offers = offer(parameters=TERMS), offer(TRANSFER, capabilities=("query", "stream"))
    async with shop(tmp_path, peer, *offers) as (_, socket):
        first = await peer.full(socket)
        await peer.propose(socket, TRANSFER)
        await peer.hear(socket, "protocol-response")
        second = await peer.agree(socket, TRANSFER)
        assert (await peer.query(socket, first))["rows"] == ROWS
        assert (await peer.query(socket, second, "basic-transfer"))["rows"] == ROWS


async def test_001_11_a_peer_changes_and_renews_its_session(tmp_path: Path) -> None:
    peer = peer_of("shop")
    async with shop(tmp_path, peer) as (_, socket):
        session = await peer.full(socket)
        await peer.query(socket, session)
        peer.parameters = {"chunkSize": 2048}
        assert await peer.agree(socket, SHARING, session, sessionId=session) == session
        reply = await peer.query(socket, session)
        assert (reply["queries"], peer.seen[-5][1]["payload"]["acceptedParameters"]) == (2, {"chunkSize": 2048})
        assert (reply["terms"], reply["changes"]) == ({"chunkSize": 2048}, 1)  # the handler was told
        await peer.agree(socket, SHARING, session, sessionId=session)
        assert (await peer.query(socket, session))["changes"] == 1  # a renewal is no change


@pytest.mark.parametrize("reply", [True, False])
async def test_001_16_a_declined_change_keeps_the_session(tmp_path: Path, reply: bool) -> None:
    peer = peer_of("shop")
    async with shop(tmp_path, peer) as (_, socket):
        session = await peer.full(socket)
        await peer.offer(socket, SHARING, sessionId=session)
        answer = await peer.hear(socket, "parameter-response")
        named = {"replyTo": answer["messageId"]} if reply else {}
        await peer.say(socket, "error", printed("error")["payload"], sessionId=session, **named)
        assert (await peer.query(socket, session))["rows"] == ROWS
        assert await peer.agree(socket, SHARING, session, sessionId=session) == session


# The five errors, told to the peer


async def refusal(peer: SourcePeer, socket: WebSocket, code: str) -> dict[str, Any]:
    """The error that is told before anything else happens."""
    messages = await peer.hear(socket, "error")
    assert messages["payload"]["errorCode"] == code
    assert messages["payload"]["details"]
    payload: dict[str, Any] = messages["payload"]
    return {**payload, "replyTo": messages.get("replyTo")}


@pytest.mark.parametrize(
    ("id", "code"),
    [
        ("anp:protocol:knowledge-graph:1.2", "NO_COMMON_PROTOCOL"),
        ("anp:protocol:data-sharing:2.0", "VERSION_CONFLICT"),
        ("https://r.example/protocols/x", "NO_COMMON_PROTOCOL"),
    ],
)
async def test_001_13_and_15_nothing_in_common_is_told(tmp_path: Path, id: str, code: str) -> None:
    peer = peer_of("shop", protocols=[describe(id)])
    async with shop(tmp_path, peer) as (_, socket):
        await peer.initialize(socket)
        messages = await peer.hear(socket, "capabilities-exchange")
        statement = await peer.say(
            socket, "capabilities-exchange", {"supportedProtocols": peer.protocols}, replyTo=messages["messageId"]
        )
        error = await refusal(peer, socket, code)
        assert (error["replyTo"], error["details"]) == (statement["messageId"], {"supported": [SHARING]})
        with pytest.raises(Ended):
            await peer.hear(socket)


async def test_001_15_unknown_proposals_and_versions_are_reported(tmp_path: Path) -> None:
    peer = peer_of("shop")
    async with shop(tmp_path, peer) as (_, socket):
        await peer.initialize(socket, requestCapabilities=False)
        unknown = {"id": "anp:protocol:data-sharing:2.0", "version": "2.0"}
        statement = await peer.say(socket, "protocol-proposal", {"proposedProtocol": unknown})
        assert (await refusal(peer, socket, "VERSION_CONFLICT"))["replyTo"] == statement["messageId"]
        await peer.propose(socket, SHARING)  # and the negotiation goes on
        await peer.hear(socket, "protocol-response")
    async with shop(tmp_path / "other", peer) as (_, socket):
        statement = await peer.initialize(socket, version="2.0")
        error = await refusal(peer, socket, "VERSION_CONFLICT")
        assert (error["replyTo"], error["details"]["supported"]) == (statement["messageId"], ["1.0"])
        with pytest.raises(Ended, match=r"flow\.version"):
            await peer.hear(socket)


async def test_001_14_an_answer_that_does_not_come_is_told(tmp_path: Path) -> None:
    peer = peer_of("shop")
    async with shop(tmp_path, peer, timeouts=FlowTimeouts(reply=0.5, work=0.4)) as (_, socket):
        message = await peer.initialize(socket)
        await peer.hear(socket, "capabilities-exchange")
        error = await refusal(peer, socket, "NEGOTIATION_TIMEOUT")
        assert (error["replyTo"], error["suggestedAction"]) == (message["messageId"], "retry")


async def test_001_16_an_impossible_encryption_is_refused_as_printed(tmp_path: Path) -> None:
    peer = peer_of("shop")
    rules: dict[str, Rule] = {**TERMS, "encryptionLevel": Choice(("AES-128-GCM", "none"))}
    async with shop(tmp_path, peer, offer(parameters=rules)) as (_, socket):
        await peer.initialize(socket, requestCapabilities=False)
        await peer.propose(socket, SHARING)
        await peer.hear(socket, "protocol-response")
        message = await peer.offer(socket, SHARING)
        error = await refusal(peer, socket, "PARAM_NEGOTIATION_FAILED")
        assert error["details"] == {"parameter": "encryptionLevel", "requested": "AES-256-GCM", "supported": ["none"]}
        assert (error["replyTo"], error["suggestedAction"]) == (message["messageId"], "renegotiate")
        peer.parameters = {"encryptionLevel": "none"}
        assert await peer.query(socket, await peer.agree(socket, SHARING))


@pytest.mark.parametrize("spoil", ["signature", "missing", "time", "recipient", "stranger"])
async def test_001_17_an_unverified_first_message_is_reported(tmp_path: Path, spoil: str) -> None:
    peer = peer_of("shop")
    async with shop(tmp_path, peer) as (party, socket):
        message = peer.message("initialize", {"purpose": "x", "requestCapabilities": True})
        if spoil == "time":
            message["timestamp"] = "2024-03-20T15:05:00Z"
        if spoil == "recipient":
            message["recipient"] = "did:anp:987654321ihgfedcba"
        if spoil == "stranger":
            peer.did = message["sender"] = "did:wba:nobody.invalid"
        sealed = json.loads(peer.sealed(message))
        if spoil == "signature":
            sealed["payload"]["purpose"] = "y"
        if spoil == "missing":
            del sealed["signature"]
        await socket.send(json.dumps(sealed))
        error = await refusal(peer, socket, "VERIFICATION_FAILED")
        assert error["replyTo"] == message["messageId"]
        assert error["details"]["reason"].startswith("flow.")
        with pytest.raises(Ended):
            await peer.hear(socket)
        assert party.runtime.opened == []


# The peer answers


async def test_001_07_a_peer_of_the_source_is_answered_in_its_form(tmp_path: Path) -> None:
    peer, agent = peer_of("buyer"), buyer(tmp_path)
    async with serving(peer) as url, agent.agent, agent.agent.connect(url, protocols=[SHARING], did=peer.did) as session:
        answer = await session.call("query", query=QUERY)
        assert answer == {"rows": [{"category": "AI"}], "format": "json"}
        assert session.parameters["chunkSize"] == 32768
        assert (session.profile, type(session.peer)) == ("flow", ProvedPeer)
    assert [(query["action"], query["payload"]) for query in peer.queries] == [("query", {"query": QUERY})]
    # One id is asked for, so nothing is discovered: two round trips.
    assert peer.actions()[:7] == [
        *("<initialize", "<protocol-proposal", ">protocol-response", "<parameter-negotiation", ">parameter-response"),
        *("<protocol-confirmation", ">confirmation-acknowledgment"),
    ]


async def test_001_01_to_06_an_agent_passes_all_phases(tmp_path: Path) -> None:
    peer, agent = peer_of("buyer"), buyer(tmp_path)
    async with serving(peer) as url, agent.agent:
        for _ in range(2):
            connection = await agent.agent.dial(url)
            session = await agent.agent.flow.negotiate(connection, FlowRequest("data-exchange"), peer=peer.did)
            assert (await session.call("query", query=QUERY))["format"] == "json"
            await session.renegotiate({"chunkSize": 2048})
            await session.close()
    words = [word for word in peer.actions() if word.startswith("<")]
    assert words[:6] == [
        *("<initialize", "<capabilities-exchange", "<protocol-evaluation", "<protocol-proposal", "<parameter-negotiation"),
        "<protocol-confirmation",
    ]
    # The second time is cached: one flight.
    last = len(words) - 1 - words[::-1].index("<initialize")
    assert words[last : last + 4] == ["<initialize", "<protocol-proposal", "<parameter-negotiation", "<protocol-confirmation"]


async def test_001_19_a_peer_that_drops_extensions_is_met_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, agent = peer_of("buyer"), buyer(tmp_path)

    async def meet(url: str) -> list[dict[str, Any]]:
        peer.seen.clear()
        async with agent.agent.connect(url, protocols=[SHARING], did=peer.did) as session:
            await session.call("query", query=QUERY)
        answers = [message["payload"] for _, message in peer.seen if message["action"] == "parameter-response"]
        confirmations = [
            message["payload"] for way, message in peer.seen if (way, message["action"]) == ("<", "protocol-confirmation")
        ]
        assert [answer["extensions"] for answer in answers] == [confirmations[-1]["extensions"]] * len(answers)
        return confirmations

    async with serving(peer) as url, agent.agent:
        for _ in range(3):
            assert [message["extensions"] for message in await meet(url)] == [EXTENSIONS]
        # All are offered each time. The peer was upgraded: once it costs a confirmation, and then it is known.
        monkeypatch.setattr("interop.flow_source_peer.EXTENSIONS", {**EXTENSIONS, "byteForm": True})
        assert [message["extensions"].get("byteForm") for message in await meet(url)] == [None, True]
        assert [message["extensions"].get("byteForm") for message in await meet(url)] == [True]


async def test_001_22_a_batch_is_negotiated_with_a_peer(tmp_path: Path) -> None:
    peer = peer_of("buyer", protocols=[describe(SHARING), describe(TRANSFER)])
    agent = buyer(tmp_path, offer(parameters=TERMS), offer(TRANSFER))
    async with serving(peer) as url, agent.agent:
        connection = await agent.agent.dial(url)
        sessions = await agent.agent.flow.negotiate_batch(connection, FlowRequest("x"), 2, peer=peer.did)
        assert {session.protocol for session in sessions} == {published(id).uri for id in (SHARING, TRANSFER)}
        for session in sessions:
            assert (await session.call("query", query=QUERY))["format"] == "json"
        for session in sessions:
            await session.close()


async def test_001_16_the_printed_error_of_a_change_keeps_the_session(tmp_path: Path) -> None:
    peer, agent = peer_of("buyer"), buyer(tmp_path)
    async with serving(peer) as url, agent.agent, agent.agent.connect(url, protocols=[SHARING], did=peer.did) as session:
        peer.refuses = printed("error")["payload"]
        with pytest.raises(Refused) as failure:
            await session.renegotiate({"chunkSize": 2048})
        assert failure.value.code == "flow.parameters"
        assert (await session.call("query", query=QUERY))["format"] == "json"


async def test_001_16_a_peer_that_drops_the_encryption_gets_no_session(tmp_path: Path) -> None:
    """The connection has no encryption, and the owner requires it: nothing is agreed in the clear."""
    peer = peer_of("buyer")
    agent = buyer(tmp_path, offer(parameters={"encryptionLevel": Choice(("AES-128-GCM",))}))
    async with serving(peer) as url, agent.agent:
        with pytest.raises(Refused) as failure:
            async with agent.agent.connect(url, protocols=[SHARING], did=peer.did):
                raise AssertionError
    assert failure.value.code == "flow.parameters"
    assert peer.queries == []
    assert "<protocol-confirmation" not in peer.actions()


async def test_001_19_a_lost_connection_is_retried_with_new_messages(tmp_path: Path) -> None:
    peer, agent = peer_of("buyer"), buyer(tmp_path)
    met: list[dict[str, Any]] = []

    async def serve(socket: WebSocket) -> None:
        if len(met) < 2:
            met.append(await peer.hear(socket))
            socket.cut()
        else:
            await peer.serve(socket)

    server = await listen(serve)
    async with server, agent.agent:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with agent.agent.connect(url, protocols=[SHARING], did=peer.did) as session:
            assert (await session.call("query", query=QUERY))["format"] == "json"
    first = [message["messageId"] for _, message in peer.seen if message["action"] == "initialize"]
    assert len(first) == len(set(first)) == 3
