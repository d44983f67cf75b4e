"""`protocols/handoff/peers`: agents of other languages, written from the document, with Treaty's agents and with the kit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import go_programs
import pytest
from conforming import failures, others, outcomes
from handoffs import FOLDER, Inbox, World

from treaty_agent import Identity
from treaty_handoff import Kind
from treaty_handoff.conform import RECEIVER, SENDER, Listener, Receiver, receiver_at
from treaty_handoff.http import listen
from treaty_io.network.hosts import Network

DOCUMENT = FOLDER / "document.md"


async def test_a_foreign_receiver_conforms(peers: Callable[[str], list[Any]]) -> None:
    async with go_programs.serving(*peers("handoff"), "receive", "desk", DOCUMENT) as requests, Network().client() as client:
        results = await outcomes(RECEIVER, Receiver(client, requests["url"], "desk", Identity.create()))
    assert others(results) == {}


@pytest.mark.deep
async def test_a_foreign_sender_conforms(peers: Callable[[str], list[Any]]) -> None:
    identity = Identity.create()
    listener = Listener(identity, Network())
    async with listener.serving("127.0.0.1", 0) as url:
        sent = go_programs.result(*peers("handoff"), "send", url, "desk", DOCUMENT)
        results, result = await asyncio.gather(outcomes_when_sent(listener), sent)
    assert others(results) == {}
    assert (result["code"], result["report"]["status"], result["signed"], result["valid"]) == (
        200,
        "COMPLETED",
        identity.did,
        True,
    )


async def outcomes_when_sent(listener: Listener) -> Any:
    await listener.delivery(0)
    return await outcomes(SENDER, listener)


@pytest.mark.deep
async def test_a_foreign_sender_hands_over_to_an_agent_of_treaty(peers: Callable[[str], list[Any]], here: World) -> None:
    support, identity = await here.agent("support"), Identity.create()
    inbox = Inbox(support, Kind.TASK_TRANSFER)
    async with listen(support, "127.0.0.1", 0, identity=identity) as port:
        url = f"http://127.0.0.1:{port}"
        result = await go_programs.result(*peers("handoff"), "send", url, here.name("support"), DOCUMENT)
    assert (result["code"], result["report"]["status"], result["signed"], result["valid"]) == (
        200,
        "COMPLETED",
        identity.did,
        True,
    )
    assert [message["payload"]["data"]["objective"] for message in inbox.messages] == ["Say that this came: grüß."]


@pytest.mark.deep
async def test_a_foreign_receiver_in_a_session_conforms(peers: Callable[[str], list[Any]]) -> None:
    async with AsyncExitStack() as stack:
        serving = go_programs.serving(*peers("handoff"), "session", "desk", DOCUMENT, "urn:handoff")
        url = (await stack.enter_async_context(serving))["url"]
        peer = await stack.enter_async_context(receiver_at(Network(), url, "desk", Identity.create(), uri="urn:handoff"))
        results = await outcomes(RECEIVER, peer)
    assert failures(results) == set(), others(results)
    assert len(results) - len(others(results)) >= 12
