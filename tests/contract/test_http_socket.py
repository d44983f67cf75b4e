"""The registry over a real socket: what the server in front of the application adds, or could spoil."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
from http_api import post, problem, publish, serving, unchanged
from ports import free_port
from registries import ballot, publication
from signers import Signer

from treaty_registry.registry import Registry

RECORD = "/protocols/alice.example/product-info/1.0"


@dataclass(frozen=True)
class Wire:
    """A served registry: its port, and an HTTP client that goes there."""

    port: int
    api: httpx.AsyncClient

    async def send(self, request: bytes) -> bytes:
        """Send bytes, read until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer


@pytest.fixture
async def wire(registry: Registry) -> AsyncIterator[Wire]:
    """The registry on a free port."""
    port = free_port()
    async with serving(registry, port) as base_url, httpx.AsyncClient(base_url=base_url) as api:
        yield Wire(port, api)


async def test_publish_and_read_over_a_socket(wire: Wire, registry: Registry, alice: Signer) -> None:
    statement = publication(alice)
    await publish(wire.api, alice, statement)
    for _ in range(2):
        document = await wire.api.get(f"{RECORD}.md")
        assert document.content == statement.document and document.headers["content-type"] == "text/markdown; charset=utf-8"
        head = await wire.api.head(f"{RECORD}.md")
        assert head.content == b"" and head.headers["content-length"] == str(len(statement.document))
        same = await wire.api.get(RECORD, headers={"If-None-Match": (await wire.api.get(RECORD)).headers["etag"]})
        assert same.status_code == 304 and same.content == b""
    answer = await wire.send(f"HEAD {RECORD}.md HTTP/1.1\r\nHost: registry.example\r\nConnection: close\r\n\r\n".encode())
    head_of_answer, _, body = answer.partition(b"\r\n\r\n")
    assert head_of_answer.startswith(b"HTTP/1.1 200") and body == b""


async def test_requests_on_one_connection_are_answered_in_order(wire: Wire, alice: Signer) -> None:
    await publish(wire.api, alice, publication(alice))
    get = "GET {} HTTP/1.1\r\nHost: registry.example\r\nConnection: {}\r\n\r\n"
    paths = ["/checkpoint", RECORD, "/nothing", "/topics", "/health/live"]
    text = "".join(get.format(path, "close" if path == paths[-1] else "keep-alive") for path in paths)
    answer = await wire.send(text.encode())
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 200, 404, 200, 200]
    assert answer.endswith(b'{"status":"live"}')


async def test_what_is_not_http_changes_nothing(wire: Wire, registry: Registry, alice: Signer) -> None:
    leaf = alice.statement(ballot(registry, 0)).leaf
    head = b"POST /statements HTTP/1.1\r\nHost: registry.example\r\nContent-Type: application/json\r\nConnection: close\r\n"
    async with unchanged(registry):
        for request, status in (
            (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
            (b"GET /%ff%00 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
            (head + b"Content-Length: 99999999999999999999\r\n\r\n" + leaf, 400),
            (head + b"Content-Length: 9999999999\r\n\r\n" + leaf, 413),
            (head + b"Transfer-Encoding: chunked\r\n\r\n" + b"20000\r\n" + b" " * 0x20000 + b"\r\n0\r\n\r\n", 413),
            (b"GET /checkpoint HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431),
            (b"GET /checkpoint?" + b"a" * 4_000 + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 414),
        ):
            answer = await wire.send(request)
            assert answer.startswith(b"HTTP/1.1 %d" % status), (request[:60], answer[:200])
        _, writer = await asyncio.open_connection("127.0.0.1", wire.port)
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(leaf) + leaf[:-1])  # and goes away
        await writer.drain()
        writer.close()
        problem(await wire.api.get("/nothing"), 404, "http.not-found")
    assert (await post(wire.api, alice.statement(ballot(registry, 0)))).status_code == 201
