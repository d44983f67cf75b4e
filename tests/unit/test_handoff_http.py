"""Handoff over HTTPS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import trustme
import uvicorn
from handoffs import Inbox, World, until
from ports import free_port

from treaty_client import Identity
from treaty_consensus.errors import Refused, Unauthorized, Unavailable
from treaty_handoff import (
    Handling,
    Kind,
    Outcome,
    Permissions,
    SenderGrant,
)
from treaty_handoff.envelopes import envelope
from treaty_handoff.http import create_app, post
from treaty_handoff.messages import MAX_MESSAGE

TASK, ASK = Kind.TASK_TRANSFER, Kind.REQUEST_INFORMATION


@pytest.fixture
async def server(here: World) -> AsyncIterator[tuple[World, Any, str, ssl.SSLContext, Identity]]:
    """An agent behind HTTPS, with a certificate of a test authority."""
    alice = Identity.create()
    permissions = Permissions({here.name("desk"): SenderGrant(alice.did, frozenset(Kind) - {Kind.APPROVAL_REQUEST})})
    support = await here.agent("support", permissions=permissions)
    authority, port = trustme.CA(), free_port()
    certificate = authority.issue_cert("127.0.0.1")
    config = uvicorn.Config(create_app(support), host="127.0.0.1", port=port, log_level="warning", lifespan="off")
    config.load()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    config.ssl = context
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    await until(lambda: running.started)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    yield here, support, f"https://127.0.0.1:{port}", trusting, alice
    running.should_exit = True
    await task


async def test_004_28_and_38_synchronous_delivery_over_https(server: Any) -> None:
    here, support, url, trusting, alice = server
    inbox = Inbox(support, ASK, TASK, outcome=Outcome(information={"level": "gold"}))
    request = here.message(ASK, "desk", "support")
    async with httpx.AsyncClient(verify=trusting) as client:
        (answer,) = await post(client, url, request, alice)
        assert answer["payload"]["data"]["information"] == {"level": "gold"}
        assert answer["payload"]["data"]["in_reply_to"] == request["metadata"]["message_id"]
        assert await post(client, url, request, alice) == []
        (update,) = await post(client, url, here.message(TASK, "desk", "support"), alice)
        assert update["payload"]["data"]["status"] == "COMPLETED"
    assert len(inbox.messages) == 2
    async with httpx.AsyncClient() as client:
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await post(client, url, request, alice)


async def test_004_38_refusals_have_the_status_codes_of_http(server: Any) -> None:
    here, support, url, trusting, alice = server
    inbox = Inbox(support, TASK, Kind.APPROVAL_REQUEST)
    message = here.message(TASK, "desk", "support", lifetime=timedelta(seconds=60))
    async with httpx.AsyncClient(verify=trusting) as client:
        for body, code in ((b"x", 400), (envelope(message, None), 401), (b" " * (MAX_MESSAGE + 1), 413)):
            assert (await client.post(f"{url}/handoffs", content=body)).status_code == code
        assert (await client.get(f"{url}/handoffs")).status_code == 404
        with pytest.raises(Unauthorized):
            await post(client, url, message, Identity.create())
        with pytest.raises(Refused):
            await post(client, url, here.message(Kind.APPROVAL_REQUEST, "desk", "support"), alice)
        here.shift = timedelta(seconds=61)
        with pytest.raises(Refused, match="expired"):
            await post(client, url, message, alice)
        here.shift = timedelta()

        async def fail(handling: Handling) -> None:
            raise RuntimeError("No.")

        support.handles(TASK)(fail)
        (update,) = await post(client, url, here.message(TASK, "desk", "support"), alice)
        assert update["payload"]["data"]["status"] == "FAILED"
    assert inbox.messages == []
