"""Agents whose descriptions and answers are hostile to those who call their methods."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback
from rejections import rejection

from treaty_agent.rpc.client import RemoteMethods
from treaty_agent.rpc.exchange import MAX_ANSWER, RpcExchange
from treaty_agent.rpc.methods import MAX_METHODS
from treaty_anp.discovery.interfaces import RemoteInterface
from treaty_anp.discovery.parsing import AgentDescription, parse
from treaty_consensus.errors import TreatyError
from treaty_io.network.hosts import Address

HOST = "hotel.example"
URL = f"https://{HOST}/rpc"
TEXT = {"type": "string"}


@dataclass
class Hotel:
    """Answers JSON-RPC over https as a test says. `results`: by method; an entry with "jsonrpc" is the whole answer, bytes are
    the whole response. `asked`: the methods of the requests that arrived."""

    loopback: Loopback
    results: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Hotel]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.loopback.authority.issue_cert(HOST).configure_cert(tls)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r")[0] or 0)
            writer.write(self.answer(await reader.readexactly(length)))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        self.loopback.addresses[HOST] = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()

    def answer(self, body: bytes) -> bytes:
        request = json.loads(body)
        self.asked.append(request["method"])
        result = self.results.get(request["method"], {})
        if isinstance(result, bytes):
            return result
        reply = result if isinstance(result, dict) and "jsonrpc" in result else {"id": request.get("id"), "result": result}
        return response(json.dumps(reply).encode())

    def remote(self, *methods: dict[str, Any], **document: Any) -> RemoteMethods:
        """A caller of an OpenRPC document with these methods."""
        content = {"openrpc": "1.3.2", "servers": [{"url": URL}], "methods": list(methods), **document}
        return self.mcp(RemoteInterface("openrpc", URL, document=content))

    def mcp(self, interface: RemoteInterface | None = None) -> RemoteMethods:
        """A caller of this interface, or of an MCP server here."""
        return RemoteMethods([interface or RemoteInterface("mcp", URL)], RpcExchange(self.loopback.network()))


def response(body: bytes, head: str = "Content-Type: application/json", status: str = "200 OK") -> bytes:
    """An HTTP response."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{head}\r\n\r\n".encode() + body


def method(name: str = "search", schema: Any = None, result: Any = None) -> dict[str, Any]:
    """An OpenRPC method with one parameter."""
    query = {"name": "query", "required": True, "schema": TEXT if schema is None else schema}
    method_entry: dict[str, Any] = {"name": name, "params": [query]}
    return method_entry | ({} if result is None else {"result": {"name": "result", "schema": result}})


@pytest.fixture
async def hotel(tmp_path: Path) -> AsyncIterator[Hotel]:
    async with Hotel(Loopback(tmp_path)).serving() as running:
        yield running


async def refused(remote: RemoteMethods, arguments: dict[str, Any] | None = None, name: str = "search") -> str:
    """The code with which a call fails."""
    with pytest.raises(TreatyError) as failure:
        await remote.call(name, {"query": "Tokyo"} if arguments is None else arguments)
    return failure.value.code


async def test_a_method_is_called_once_by_name_or_by_position(hotel: Hotel) -> None:
    hotel.results["search"] = ["a"]
    assert await hotel.remote(method(result={"type": "array", "items": TEXT})).call("search", {"query": "Tokyo"}) == ["a"]
    assert await hotel.remote(method() | {"paramStructure": "by-position"}).call("search", {"query": "Tokyo"}) == ["a"]
    assert hotel.asked == ["search", "search"]


@pytest.mark.threat(140)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "[ab][ -y]{1,4000}z"},
        {"allOf": [{"uniqueItems": True}] * 480},
        {"$dynamicRef": "#x"},
        {"unevaluatedProperties": False},
        {"$ref": "#/components/schemas/Loop"},
        {"$ref": "https://evil.example/schema.json"},
        {"format": "regex"},
        {"type": 7},
    ],
)
@pytest.mark.parametrize("place", ["arguments", "result"])
async def test_a_schema_that_costs_too_much_is_not_used(hotel: Hotel, schema: Any, place: str) -> None:
    loop = {"schemas": {"Loop": {"$ref": "#/components/schemas/Loop"}}} if "Loop" in str(schema) else {}
    description = method(schema=schema) if place == "arguments" else method(result=schema)
    remote = hotel.remote(description, components=loop)
    assert list(await remote.list()) == ["search"], "it can be listed"
    assert await refused(remote) == "rpc.answer"
    assert hotel.asked == []


@pytest.mark.threat(140)
async def test_arguments_that_break_the_schema_are_not_sent(hotel: Hotel) -> None:
    remote = hotel.remote(method(schema={"type": "string", "maxLength": 5}))
    for wrong in ({}, {"query": 1}, {"query": "Tokyo!"}, {"query": "Tokyo", "x": 1}, {"query": ["a"] * 30_000}):
        assert await refused(remote, wrong) == "rpc.arguments"
    assert await refused(remote, name="other") == "rpc.nothing"
    assert hotel.asked == []


@pytest.mark.threat(140)
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (7, "rpc.answer"),
        ({"jsonrpc": "2.0", "id": 99, "result": "a"}, "rpc.answer"),
        ({"jsonrpc": "2.0", "id": 1}, "rpc.answer"),
        ({"jsonrpc": "2.0", "id": 1, "result": "a", "error": {}}, "rpc.answer"),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "\x1b[31mno\n" * 999}}, "rpc.error"),
        ({"jsonrpc": "2.0", "id": 1, "error": 7}, "rpc.error"),
        (response(b"[" * 100_000), "rpc.answer"),
        (response(b"hello"), "rpc.answer"),
        (response(b"x" * (MAX_ANSWER + 1)), "rpc.answer: more than"),
        (response(b"", "Location: https://evil.example/", "302 Found"), "rpc.unreachable"),
        (response(b"", "X: y", "401 Unauthorized"), "rpc.unauthorized"),
        (response(b"", "X: y", "500 Oops"), "rpc.unreachable"),
        (b"", "rpc.unreachable"),
        (response(b'data: {"id": 1}\n\ndata: [\n\n', "Content-Type: text/event-stream"), "rpc.answer"),
        (response(json.dumps({"id": 1, "result": ["a"] * 30_000}).encode()), "rpc.answer"),
    ],
)
async def test_an_answer_that_is_none_is_refused(hotel: Hotel, answer: Any, code: str) -> None:
    hotel.results["search"] = answer
    remote = hotel.remote(method(result={"type": ["string", "array"]}))
    with pytest.raises(TreatyError) as failure:
        await remote.call("search", {"query": "Tokyo"})
    assert rejection(failure.value, code) == code
    assert failure.value.message.isprintable() and len(failure.value.message) < 600
    assert hotel.asked == ["search"], "nothing is repeated"


@pytest.mark.threat(140)
@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://hotel.example/", "rpc.answer"),
        ("file:///etc", "rpc.answer"),
        ("https://127.0.0.1/rpc", "egress.unreachable"),
        ("https://u:p@hotel.example/", "network.url"),
        ("https://localhost/", "egress.unreachable"),
        ("relative", "egress.unreachable"),
    ],
)
async def test_a_document_leads_to_no_address_of_the_own_network(hotel: Hotel, url: str, code: str) -> None:
    async def inside(host: str) -> list[str]:
        return ["10.0.0.1"]

    content = {"openrpc": "1.3.2", "servers": [{"url": url}], "methods": [method()]}
    interface = RemoteInterface("openrpc", "https://other.example/", document=content)
    remote = RemoteMethods([interface], RpcExchange(hotel.loopback.network(), lookup=inside))
    assert await refused(remote) == code
    assert hotel.asked == []


@pytest.mark.threat(140)
async def test_a_name_in_the_own_network_is_not_connected_to(hotel: Hotel) -> None:
    async def inside(host: str) -> list[str]:
        return ["127.0.0.1", "192.168.1.1"]

    for interface in (RemoteInterface("mcp", "https://inside.example/"), RemoteInterface("openrpc", "https://inside.example/")):
        remote = RemoteMethods([interface], RpcExchange(hotel.loopback.network(), lookup=inside))
        assert await refused(remote) == "egress.unreachable"


@pytest.mark.threat(140)
@pytest.mark.parametrize(
    "document",
    [
        {"methods": {}},
        {"methods": [7]},
        {"methods": [{"name": ""}]},
        {"methods": [{"name": "a", "params": 7}]},
        {"methods": [{"name": "a", "params": [{"schema": TEXT}]}]},
        {"servers": []},
        {"servers": [{"url": 7}]},
        {"methods": [method(f"m{number}") for number in range(MAX_METHODS + 1)]},
        {"methods": [method(schema={"enum": [7] * 30_000})]},
    ],
)
async def test_a_document_of_another_form_is_refused(hotel: Hotel, document: dict[str, Any]) -> None:
    content = {"openrpc": "1.3.2", "servers": [{"url": URL}], "methods": [method()], **document}
    assert await refused(hotel.mcp(RemoteInterface("openrpc", URL, document=content))) == "rpc.answer"
    assert hotel.asked == []


TOOL = {"name": "search", "inputSchema": {"type": "object", "properties": {"query": TEXT}}}
BEGUN = {"protocolVersion": "2025-06-18", "capabilities": {}}


@pytest.mark.sample(4)
@pytest.mark.threat(140)
@pytest.mark.parametrize(
    ("results", "code"),
    [
        ({"initialize": {}}, "rpc.answer"),
        ({"initialize": {"protocolVersion": "2025\r\nX: y"}}, "rpc.answer"),
        ({"tools/list": []}, "rpc.answer"),
        ({"tools/list": {"tools": [7]}}, "rpc.answer"),
        ({"tools/list": {"tools": [TOOL] * (MAX_METHODS + 1)}}, "rpc.answer: more than"),
        ({"tools/list": {"tools": [], "nextCursor": "again"}}, "rpc.answer: more than"),
        ({"tools/list": {"tools": [{**TOOL, "inputSchema": {"allOf": [{"uniqueItems": True}] * 480}}]}}, "rpc.answer: schema"),
        ({"tools/list": {"tools": []}}, "rpc.nothing"),
        ({"tools/call": []}, "rpc.answer"),
        ({"tools/call": {"content": 7}}, "rpc.answer"),
        ({"tools/call": {"content": [{"type": "text", "text": "\x1b[2J" * 999}], "isError": True}}, "rpc.error"),
        ({"tools/call": {"structuredContent": 7}}, "rpc.answer"),
    ],
)
async def test_an_mcp_server_of_another_form_is_refused(hotel: Hotel, results: dict[str, Any], code: str) -> None:
    tool = {**TOOL, "outputSchema": {"type": "object"}}
    hotel.results = {"initialize": BEGUN, "tools/list": {"tools": [tool]}, "tools/call": {"structuredContent": {}}, **results}
    with pytest.raises(TreatyError) as failure:
        await hotel.mcp().call("search", {"query": "Tokyo"})
    assert rejection(failure.value, code) == code
    assert failure.value.message.isprintable() and len(failure.value.message) < 600
    assert len(hotel.asked) < 15


async def test_a_draft_of_json_schema_and_text_content_are_read(hotel: Hotel) -> None:
    """Tools of other languages' SDKs name an older dialect, and older servers answer with text alone."""
    dialect = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"Q": TEXT}}
    schema = {**dialect, "type": "object", "properties": {"query": {"$ref": "#/definitions/Q"}}}
    content = [{"type": "text", "text": "found"}]
    hotel.results = {
        "initialize": BEGUN,
        "tools/list": {"tools": [{"name": "search", "inputSchema": schema}]},
        "tools/call": {"content": content},
    }
    assert await hotel.mcp().call("search", {"query": "Tokyo"}) == content
    assert await refused(hotel.mcp(), {"query": 7}) == "rpc.arguments"


def test_only_the_named_interfaces_are_read() -> None:
    listed = [
        {"type": "StructuredInterface", "protocol": "OpenRPC", "url": "rpc.json", "description": "Rooms.\x07"},
        {"type": "StructuredInterface", "protocol": "openrpc", "content": {"openrpc": "1"}},
        {"type": "StructuredInterface", "protocol": "MCP", "url": URL},
        {"type": "StructuredInterface", "protocol": "MCP", "url": "http://hotel.example/"},
        {"type": "StructuredInterface", "protocol": "openrpc", "url": 7},
        {"type": "StructuredInterface", "protocol": "YAML", "url": URL},
        {"type": "StructuredInterface", "protocol": 7, "url": URL},
        {"type": "NaturalLanguageInterface", "protocol": "openrpc", "url": URL},
        *[{"type": "StructuredInterface", "protocol": "MCP", "url": URL}] * 20,
    ]
    description = parse(json.dumps({"interfaces": listed}).encode(), f"https://{HOST}/a/ad.json")
    assert isinstance(description, AgentDescription)
    assert len(description.interfaces) == 16
    assert description.interfaces[:4] == (
        RemoteInterface("openrpc", f"https://{HOST}/a/rpc.json", "Rooms."),
        RemoteInterface("openrpc", f"https://{HOST}/a/ad.json", document={"openrpc": "1"}),
        RemoteInterface("mcp", URL),
        RemoteInterface("mcp", URL),
    )
    with pytest.raises(TreatyError, match="treaty call"):
        _ = description.address
