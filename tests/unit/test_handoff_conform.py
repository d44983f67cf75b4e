"""`treaty conform handoff`: the items hold at an agent of Treaty, and each fails at a peer that breaks its rule."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from conforming import failures, others, outcomes
from handoffs import FOLDER, Inbox, World, world
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from treaty_agent import Agent, Identity, LocalProtocols
from treaty_agent.transport.foreign_session import SOCKET, ForeignSession
from treaty_agent.transport.listener import serving
from treaty_consensus.errors import Unavailable
from treaty_handoff import Kind, Outcome, Permissions, SenderGrant, build
from treaty_handoff.conform import RECEIVER, SENDER, Listener, Receiver, SessionListener, receiver_at
from treaty_handoff.conform_broker import BROKER, Members
from treaty_handoff.envelopes import envelope
from treaty_handoff.http import listen, post
from treaty_handoff.messages import respond
from treaty_io.conformance import PeerUnderTest
from treaty_io.network.hosts import Network


async def test_the_items_hold_at_an_agent_of_treaty(here: World) -> None:
    identity = Identity.create()
    permissions = Permissions({identity.did: SenderGrant(identity.did, frozenset(Kind))})
    support = await here.agent("support", permissions=permissions)
    Inbox(support, Kind.TASK_TRANSFER)
    Inbox(support, Kind.REQUEST_INFORMATION, outcome=Outcome(information={"level": "gold"}))
    async with listen(support, "127.0.0.1", 0) as port, Network().client() as client:
        peer = Receiver(client, f"http://127.0.0.1:{port}", here.name("support"), identity)
        results = await outcomes(RECEIVER, peer)
    assert others(results) == {}


async def test_the_items_hold_at_a_sender_of_treaty() -> None:
    identity, listener = Identity.create(), Listener(Identity.create(), Network())
    data = {"objective": "Say that this message came.", "sub_tasks": []}
    message = build(Kind.TASK_TRANSFER, data, sender=identity.did, recipient="kit", task="t", state="OPEN", now=datetime.now(UTC))
    async with listener.serving("127.0.0.1", 0) as url, httpx.AsyncClient() as client:
        try:
            await post(client, url, message, identity)
        except Unavailable:
            (report,) = await post(client, url, message, identity)
        assert report["payload"]["data"]["status"] == "COMPLETED"
        results = await outcomes(SENDER, listener)
    assert others(results) == {}


def careless(request: dict[str, Any]) -> tuple[int, str, list[Any]]:
    """Take everything, and report with fresh ids in the wrong place."""
    about = request if isinstance(request, dict) else {}
    report = json.loads(REPORT)
    report["metadata"]["message_id"] = str(uuid.uuid4())
    report["metadata"]["recipient_id"] = about.get("handoff", {}).get("metadata", {}).get("sender_id", "nobody")
    return 200, "COMPLETED", [{"handoff": report}]


def stubborn(request: dict[str, Any]) -> tuple[int, str, list[Any]]:
    """Refuse everything."""
    return 500, "FAILED", []


def credulous(request: dict[str, Any]) -> tuple[int, str, list[Any]]:
    """Look for a proof, and never verify it."""
    return (200, "COMPLETED", []) if "proof" in request else (500, "FAILED", [])


REPORT = json.dumps(
    build(
        Kind.STATUS_UPDATE, {"status": "COMPLETED"}, sender="x", recipient="y", task="other", state="DONE", now=datetime.now(UTC)
    )
)


async def test_each_item_fails_at_a_peer_that_breaks_its_rule() -> None:
    failed: set[str] = set()
    for peer in (careless, stubborn, credulous):
        async with canned(peer) as port, Network().client() as client:
            results = await outcomes(RECEIVER, Receiver(client, f"http://127.0.0.1:{port}", "support", Identity.create()))
        failed |= failures(results)
    assert failed == set(RECEIVER.ids)


async def test_each_item_of_a_sender_fails_at_one_that_breaks_its_rule() -> None:
    identity, another = Identity.create(), Identity.create()
    message = json.loads(REPORT)
    stale = {**message, "metadata": {**message["metadata"], "expiration_time": "2020-01-01T00:00:00.000Z"}}
    forged = {**json.loads(envelope(message, identity)), "handoff": stale}
    deliveries = (
        [b"junk"],
        [envelope(stale, identity)] * 3,
        [json.dumps(forged).encode()] * 2,
        [envelope(message, identity), envelope(stale, another)],
    )
    failed: list[set[str]] = []
    for bodies in deliveries:
        listener = Listener(identity, Network())
        async with listener.serving("127.0.0.1", 0) as url, httpx.AsyncClient() as client:
            codes = [(await client.post(f"{url}/handoffs", content=body)).status_code for body in bodies]
            assert codes[0] == 503
            results = await outcomes(SENDER, listener, seconds=2)
        failed.append(failures(results))
    every = set(SENDER.ids)
    assert failed == [every, {"form", "stops"}, every, {"keeps"}]


@asynccontextmanager
async def canned(answer: Callable[[dict[str, Any]], tuple[int, str, list[Any]]]) -> Any:
    """An agent whose answers a function makes; its port."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = {}
        code, status, handoffs = answer(request)
        data = json.dumps({"status": status, "handoffs": handoffs}).encode()
        headers = [(b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async with serving(app, "127.0.0.1", 0, sockets=16) as server:
        yield server.port


@pytest.mark.deep
async def test_the_items_hold_at_a_receiver_of_treaty_in_a_session(tmp_path: Path) -> None:
    protocols = LocalProtocols([FOLDER])
    uri = protocols.uri("handoff")

    async def work(message: dict[str, Any], target: str = "") -> dict[str, Any]:
        return {"status": "COMPLETED"}

    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(Agent(Identity.create(), protocols, home=tmp_path))
        for operation in ("handOff", "escalate", "fallBack"):
            agent.provides(uri, role="receiver", operation=operation)(work)
        port = await stack.enter_async_context(agent.listen("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{port}"
        peer = await stack.enter_async_context(receiver_at(Network(), url, "support", Identity.create(), uri=uri))
        found = await outcomes(RECEIVER, peer)
    assert failures(found) == set(), others(found)
    assert len(found) - len(others(found)) >= 8


@pytest.mark.deep
async def test_the_items_hold_at_a_sender_of_treaty_in_a_session(tmp_path: Path) -> None:
    protocols, listener = LocalProtocols([FOLDER]), SessionListener(Identity.create(), Network())
    uri = protocols.uri("handoff")
    message = json.loads(REPORT) | {"payload": {"handoff_type": "TASK_TRANSFER", "data": {"objective": "Say that it came."}}}
    message["metadata"]["message_id"] = str(uuid.uuid4())

    async def handOff(message: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return {"status": "COMPLETED"}

    async with (
        listener.serving("127.0.0.1", 0) as url,
        Agent(Identity.create(), protocols, home=tmp_path) as agent,
        agent.connect(url, protocols=[uri], role="sender", serving=[handOff]) as session,
    ):
        assert await session.call("handOff", message=message) == {"status": "ACCEPTED"}
        found = await outcomes(SENDER, listener)
    assert failures(found) == set(), others(found)
    assert set(others(found)) == {"signs"}


@pytest.mark.deep
async def test_the_items_hold_at_an_agent_of_treaty_by_its_queue(database: str) -> None:
    identity = Identity.create()
    async with world(database, None) as made:
        support = await made.agent("support")
        Inbox(support, Kind.TASK_TRANSFER)
        Inbox(support, Kind.REQUEST_INFORMATION, outcome=Outcome(information={"level": "gold"}))
        async with support.running(), receiver_at(Network(), database, support.name, identity) as peer:
            found = await outcomes(RECEIVER, peer)
    assert failures(found) == set(), others(found)
    assert len(found) - len(others(found)) >= 12


@pytest.mark.deep
async def test_the_items_hold_at_a_broker_of_treaty(tmp_path: Path) -> None:
    protocols = LocalProtocols([FOLDER])
    uri = protocols.uri("handoff")
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(Agent(Identity.create(), protocols, home=tmp_path))

        @agent.on_session(uri, role="broker")
        async def meet(session: Any) -> None: ...

        port = await stack.enter_async_context(agent.listen("127.0.0.1", 0))
        found = await outcomes(BROKER, Members(f"ws://127.0.0.1:{port}", uri, stack))
    assert others(found) == {}


@asynccontextmanager
async def careless_broker(*, accepts: bool, copies: int) -> Any:
    """A broker that answers each message alike, and gives it to all of its members so often; its port."""
    sessions: list[ForeignSession] = []

    async def take(socket: Any) -> None:
        session = ForeignSession(PeerUnderTest(), socket)
        sessions.append(session)
        with suppress(ConnectionClosed):
            await session.welcome("broker")
            while True:
                message = await session.hear()
                if message["payload"]["handoff_type"] == "STATUS_UPDATE":
                    continue
                status = {"status": "ACCEPTED" if accepts else "REJECTED"}
                now = datetime.now(UTC)
                receipt = respond(message, Kind.STATUS_UPDATE, status, sender="broker", state="S", now=now, key="receipt")
                await session.say(receipt)
                for other in sessions * copies:
                    with suppress(ConnectionClosed):
                        await other.say(message)

    async with serve(take, "127.0.0.1", 0, **SOCKET) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.deep
async def test_each_item_of_a_broker_fails_at_one_that_breaks_its_rule() -> None:
    failed: set[str] = set()
    for accepts, copies in ((True, 2), (False, 0)):
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(careless_broker(accepts=accepts, copies=copies))
            found = await outcomes(BROKER, Members(f"ws://127.0.0.1:{port}", "urn:handoff", stack), seconds=4)
        failed |= failures(found)
    assert failed == set(BROKER.ids)
