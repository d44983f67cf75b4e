"""The registry's HTTP API in tests: agents that publish over it, and what every refusal must look like."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from granian.constants import Interfaces
from granian.server.embed import Server
from registries import Publication, blob, contents, publication
from signers import NOW, ORIGIN, Signer
from simulated_registry import echo_wheel

from treaty_consensus import canonical, kinds
from treaty_consensus.statement import Statement
from treaty_registry.app import create_app
from treaty_registry.pages.documentation import ARCHIVE
from treaty_registry.readable import ReadableLog
from treaty_registry.registry import Registry
from treaty_registry.serving.views import PERIOD

ENTRY_POINT = "treaty_handler_echo:handler"


def path_of(uri: str) -> str:
    """The path below the registry of a protocol's URI."""
    return uri.removeprefix(f"https://{ORIGIN}")


async def post(api: httpx.AsyncClient, statement: Statement) -> httpx.Response:
    """Submit one statement."""
    return await api.post("/statements", content=statement.leaf, headers={"Content-Type": "application/json"})


async def put(api: httpx.AsyncClient, data: bytes, statement: Statement | bytes) -> httpx.Response:
    """Upload a blob that a statement names."""
    leaf = statement if isinstance(statement, bytes) else statement.leaf
    headers = {"Treaty-Statement": canonical.b64encode(leaf), "Content-Type": "application/octet-stream"}
    return await api.put(f"/blobs/sha256/{canonical.hex_digest(data)}", content=data, headers=headers)


async def publish(api: httpx.AsyncClient, agent: Signer, publication: Publication) -> Statement:
    """Upload what a publication names, then log it."""
    signed = agent.statement(publication.body)
    for data in publication.blobs.values():
        assert (await put(api, data, signed)).status_code in (201, 204)
    response = await post(api, signed)
    assert response.status_code == 201, response.text
    return signed


async def attach(api: httpx.AsyncClient, agent: Signer, publication: Publication, release: str = "1") -> Statement:
    """Attach a handler to a publication. Its attestation is no Sigstore bundle: a registry only stores it."""
    filename, wheel = echo_wheel(publication.body.uri, publication.body.document.sha256, release)
    attestation = canonical.dumps({"attested-by": agent.did, "release": release})
    body = kinds.Handler(
        publication.body.uri, publication.body.document.sha256, filename, blob(wheel), ENTRY_POINT, blob(attestation)
    )
    signed = agent.statement(body)
    for data in (wheel, attestation):
        assert (await put(api, data, signed)).status_code in (201, 204)
    response = await post(api, signed)
    assert response.status_code == 201, response.text
    return signed


async def say(api: httpx.AsyncClient, agent: Signer, body: kinds.Body, *, issued: int = NOW) -> Statement:
    """Log a statement that names no blobs."""
    signed = agent.statement(body, issued=issued)
    response = await post(api, signed)
    assert response.status_code == 201, response.text
    return signed


def described(agent: Signer, name: str, *, title: str, summary: str, tags: tuple[str, ...] = (), topic: str) -> Publication:
    """A publication with a card of its own."""
    plain = publication(agent, name, topic=topic)
    card = canonical.dumps(
        {"summary": summary, "tags": list(tags), "title": title} if tags else {"summary": summary, "title": title}
    )
    body = kinds.Publish(plain.body.uri, topic, plain.body.document, blob(card), "negotiated")
    return Publication(body, plain.document, card)


def problem(response: httpx.Response, status: int, expected: str) -> dict[str, Any]:
    """The problem that a response is; checks everything about its form. `expected`: "CODE", or "CODE: PATTERN" of its detail."""
    code, _, pattern = expected.partition(": ")
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    value: dict[str, Any] = json.loads(response.content)
    assert value.keys() - {"fix"} == {"type", "title", "status", "code", "detail"}
    assert (value["status"], value["code"], value["type"]) == (status, code, f"urn:treaty:problem:{code}")
    assert value["title"] and value["detail"] and value.get("fix", "x")
    assert re.search(pattern, value["detail"]), value["detail"]
    return value


@asynccontextmanager
async def unchanged(registry: Registry) -> AsyncIterator[None]:
    """Nothing of the registry's state is different afterwards."""
    before = await contents(registry)
    yield
    assert await contents(registry) == before


@asynccontextmanager
async def serving(registry: ReadableLog, port: int, site: Path = ARCHIVE, period: float = PERIOD) -> AsyncIterator[str]:
    """Serve a registry over a socket, as `treaty-registry serve` does; yields its base URL once it answers.

    `site`, `period`: as for `create_app`.
    """
    server = Server(
        create_app(registry, period=period, site=site), port=port, interface=Interfaces.ASGI, websockets=False, log_enabled=False
    )
    served = asyncio.create_task(server.serve())
    base_url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient() as client:
        for _ in range(200):
            try:
                await client.get(f"{base_url}/health/live")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.02)
    yield base_url
    server.stop()  # type: ignore[no-untyped-call]
    await served
