"""Agora's conversations at an agent: the requests of agora-protocol 0.2.0's sender, and those of others."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from meetings import LAPTOP, MAX_AGE, URI_2, Party, product_info, shop

from treaty_agent.sessions.interfaces import Capacity
from treaty_agent.transport import agora
from treaty_agent.transport.http import MAX_BODY
from treaty_client.policy import Policy

HASH = base64.b64encode(hashlib.sha1(product_info(URI_2).document, usedforsecurity=False).digest()).decode()
ASK = {"messageId": "m1", "type": "REQUEST", "action": "getProductInfo", "productId": "P12345"}


def query(body: Any = ASK, **more: Any) -> dict[str, Any]:
    """The JSON that the sender posts."""
    return {"protocolHash": HASH, "protocolSources": [f"{URI_2}.md"], "body": json.dumps(body), **more}


@asynccontextmanager
async def selling(home: Path, **options: Any) -> AsyncIterator[tuple[Party, httpx.AsyncClient]]:
    seller = shop(home, **options)
    async with (
        seller.agent,
        seller.agent.listen("127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        yield seller, client


async def test_a_sender_asks_once(tmp_path: Path) -> None:
    async with selling(tmp_path) as (_, client):
        reply = await client.post("/", json=query())
        assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
        said = reply.json()
        assert said.keys() == {"status", "body"} and said["status"] == "success"
        assert json.loads(said["body"]) == {
            "messageId": "m1",
            "type": "RESPONSE",
            "status": {"code": 200, "message": "Success"},
            "productInfo": LAPTOP,
        }


async def test_a_conversation_has_rounds_and_an_end(tmp_path: Path) -> None:
    async with selling(tmp_path) as (_, client):
        said = (await client.post("/", json=query(multiround=True))).json()
        path = f"/conversations/{said['conversationId']}"
        for number in range(3):
            again = (await client.post(path, json=query({**ASK, "messageId": f"n{number}", "productId": "none"}))).json()
            assert again.keys() == {"status", "body"}
            assert (json.loads(again["body"])["messageId"], json.loads(again["body"])["status"]["code"]) == (f"n{number}", 404)
        assert (await client.delete(path)).status_code == 200
        for gone in (await client.post(path, json=query()), await client.delete(path)):
            assert (gone.status_code, gone.json()["code"]) == (404, "connection.session")


@pytest.mark.threat(404)
async def test_other_requests_are_refused_and_open_nothing(tmp_path: Path) -> None:
    async with selling(tmp_path) as (seller, client):
        events = len(seller.events)
        for content, status in (
            (b"{", 400),
            (b"[]", 400),
            (json.dumps({"protocolHash": HASH}).encode(), 400),
            (json.dumps({**query(), "body": {"a": 1}}).encode(), 400),
            (b"[" * 100_000, 400),
            (b'{"body": "\xff"}', 400),
            (json.dumps({**query(), "protocolHash": "negotiation"}).encode(), 404),
            (json.dumps({**query(), "protocolHash": None}).encode(), 404),
            (b" " * (MAX_BODY + 1), 413),
        ):
            reply = await client.post("/", content=content, headers={"Content-Type": "application/json"})
            assert reply.status_code == status, content[:40]
        for headers, status in (
            ({"Origin": "https://evil.example", "Content-Type": "application/json"}, 403),
            ({"Content-Type": "text/plain"}, 400),
            ({}, 400),
        ):
            assert (await client.post("/", content=json.dumps(query()), headers=headers)).status_code == status
        assert (await client.get("/conversations/x")).status_code == 405
        assert (await client.post("/conversations/..%2F", json=query())).status_code == 404
        assert len(seller.events) == events


@pytest.mark.threat(404)
async def test_conversations_are_sessions_of_their_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with selling(tmp_path, capacity=Capacity(sessions=65)) as (_, client):
        kept = [(await client.post("/", json=query(multiround=True))).json()["conversationId"] for _ in range(64)]
        refused = await client.post("/", json=query())
        assert (refused.status_code, refused.json()["code"]) == (503, "connection.busy")
        # One that ends makes room, and so does a failed one.
        await client.delete(f"/conversations/{kept[0]}")
        for _ in range(3):
            assert (await client.post("/", json=query())).json()["status"] == "success"
        # One request at a time, because an answer belongs to the request before it. A message of no form has none.
        monkeypatch.setattr(agora, "PATIENCE", 0.5)
        path = f"/conversations/{kept[1]}"
        both = await asyncio.gather(*(client.post(path, json=query({"type": "RESPONSE"})) for _ in range(2)))
        assert sorted(reply.status_code for reply in both) == [200, 409]
        assert (await client.post(path, json=query())).status_code == 404, (
            "a late answer would be taken for that of the next request"
        )


@pytest.mark.threat(404)
async def test_a_silent_agent_and_a_strict_one_answer_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agora, "PATIENCE", 0.2)
    async with selling(tmp_path / "silent") as (_, client):
        # A message that is none of the protocol has no answer.
        said = (await client.post("/", json=query({"type": "RESPONSE"}, multiround=True))).json()
        assert said["status"] == "error" and "conversationId" not in said
    monkeypatch.setattr(agora, "PATIENCE", 30)
    strict = Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption="required")
    async with selling(tmp_path / "strict", policy=strict) as (_, client):
        said = (await client.post("/", json=query())).json()
        assert said["status"] == "error", "a policy that demands more than an unproved key holds here too"
