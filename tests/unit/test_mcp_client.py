"""The client of MCP: which era a server is of, the headers of its requests, and servers in processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from treaty_agent.rpc.client import RemoteMethods
from treaty_agent.rpc.exchange import RpcAnswer, RpcExchange, is_loopback
from treaty_agent.rpc.mcp import HANDSHAKE, STATELESS, McpSession
from treaty_agent.rpc.mcp_endpoint import McpEndpoint
from treaty_agent.rpc.mcp_eras import MAX_ORIGINS, McpEras
from treaty_agent.rpc.mcp_headers import header_value, parameter_headers, routing_headers, wanted_headers, without_headers
from treaty_agent.rpc.mcp_process import McpProcess, parse_command
from treaty_consensus.errors import NotFound, Refused, TooLarge, TreatyError, Unavailable
from treaty_io.codes import RpcCode
from treaty_io.network.hosts import Network

URL = "https://tools.example/mcp"
REGION = {"type": "string", "x-mcp-header": "Region"}
BAD = {"name": "bad", "inputSchema": {"properties": {"x": {"type": "number", "x-mcp-header": "X"}}}}
TOOL = {"name": "find", "inputSchema": {"type": "object", "properties": {"region": REGION}}}
Answers = Mapping[str, Any]


class Scripted(RpcExchange):
    """Answers each method with the next of its answers: a result, an `RpcAnswer`, or an error to raise."""

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__(Network())
        self.answers = {name.replace("_", "/"): list(given) for name, given in answers.items()}
        self.sent: list[tuple[str, Any, Mapping[str, str]]] = []

    async def ask(self, url: str, method: str, params: Any, headers: Mapping[str, str]) -> RpcAnswer:
        self.sent.append((method, params, headers))
        given = self.answers.get(method, [])
        answer = given.pop(0) if len(given) > 1 else given[0] if given else Unavailable(RpcCode.UNREACHABLE, "status 400")
        if isinstance(answer, TreatyError):
            raise answer
        return answer if isinstance(answer, RpcAnswer) else RpcAnswer(answer)

    async def notify(self, url: str, method: str, headers: Mapping[str, str]) -> None:
        self.sent.append((method, {}, headers))

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.sent]


def failed(code: int, **data: Any) -> RpcAnswer:
    return RpcAnswer(None, {"code": code, "message": "no", **({"data": data} if data else {})})


def session(exchange: RpcExchange, eras: McpEras | None = None) -> McpSession:
    return McpSession(McpEndpoint(URL, exchange), eras)


BEGUN = {"protocolVersion": "2025-06-18", "capabilities": {}}
LISTED = {"tools": [TOOL]}


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ({"supportedVersions": [STATELESS], "capabilities": {}}, STATELESS),
        (failed(-32022, supported=[STATELESS, "2027-01-01"], requested="x"), STATELESS),
        (failed(-32021, requiredCapabilities={}), STATELESS),
        ({"supportedVersions": ["2025-11-25"]}, "2025-06-18"),
        (failed(-32022, supported=["2025-11-25"]), "2025-06-18"),
        (failed(-32601), "2025-06-18"),
        (failed(-32602), "2025-06-18"),
        (failed(7), "2025-06-18"),
        ({}, "2025-06-18"),
        ([], "2025-06-18"),
        (Unavailable(RpcCode.UNREACHABLE, "status 405"), "2025-06-18"),
    ],
)
async def test_the_era_follows_from_the_first_answer(answer: Any, version: str) -> None:
    exchange = Scripted(server_discover=[answer], initialize=[BEGUN], tools_list=[LISTED])
    spoken = session(exchange)
    assert [tool.name for tool in await spoken.tools()] == ["find"]
    assert spoken.version == version
    listed = exchange.sent[-1]
    assert listed[2]["MCP-Protocol-Version"] == version
    if version == STATELESS:
        meta = listed[1]["_meta"]
        assert {name.removeprefix("io.modelcontextprotocol/") for name in meta} == {
            "clientCapabilities",
            "clientInfo",
            "protocolVersion",
        }
        assert exchange.methods == ["server/discover", "tools/list"]
    else:
        assert "_meta" not in listed[1]
        assert exchange.methods == ["server/discover", "initialize", "notifications/initialized", "tools/list"]
        assert exchange.sent[1][1]["protocolVersion"] == HANDSHAKE
        assert "MCP-Protocol-Version" not in exchange.sent[1][2]


async def test_an_outage_is_no_era(tmp_path: Path) -> None:
    eras = McpEras(tmp_path / "eras.json")
    with pytest.raises(Unavailable):
        await session(Scripted(), eras).tools()
    assert not (tmp_path / "eras.json").exists()


async def test_the_era_of_an_origin_is_remembered_and_found_again_when_it_changed(tmp_path: Path) -> None:
    discovered = {"supportedVersions": [STATELESS]}
    await session(Scripted(server_discover=[discovered], tools_list=[LISTED]), McpEras(tmp_path / "eras.json")).tools()
    second = Scripted(tools_list=[LISTED])
    await session(second, McpEras(tmp_path / "eras.json")).tools()
    assert second.methods == ["tools/list"], "no probe"
    older = Scripted(tools_list=[Unavailable(RpcCode.UNREACHABLE, "status 400"), LISTED], initialize=[BEGUN])
    await session(older, McpEras(tmp_path / "eras.json")).tools()
    assert older.methods == ["tools/list", "server/discover", "initialize", "notifications/initialized", "tools/list"]
    again = Scripted(tools_list=[LISTED], initialize=[BEGUN])
    await session(again, McpEras(tmp_path / "eras.json")).tools()
    assert again.methods == ["initialize", "notifications/initialized", "tools/list"]
    newer = Scripted(tools_list=[LISTED], initialize=[failed(-32601)], server_discover=[discovered])
    await session(newer, McpEras(tmp_path / "eras.json")).tools()
    assert newer.methods == ["initialize", "server/discover", "tools/list"]


def test_as_many_origins_are_remembered_as_the_file_may_hold(tmp_path: Path) -> None:
    eras = McpEras(tmp_path / "eras.json")
    for number in range(MAX_ORIGINS + 2):
        eras.keep(f"https://{number}.example", STATELESS)
    assert eras.get("https://0.example") == "" and eras.get("https://5.example") == STATELESS
    assert len(json.loads((tmp_path / "eras.json").read_text())["versions"]) == MAX_ORIGINS
    eras.keep("", STATELESS)
    assert eras.get("") == "", "a command has no origin"


async def test_a_call_has_the_headers_that_its_tool_wants() -> None:
    exchange = Scripted(
        server_discover=[{"supportedVersions": [STATELESS]}],
        tools_list=[
            {"tools": [TOOL, {"name": "bad", "inputSchema": {"properties": {"x": {"type": "number", "x-mcp-header": "X"}}}}]}
        ],
        tools_call=[{"resultType": "complete", "structuredContent": {"ok": True}}],
    )
    remote = RemoteMethods([session(exchange)], exchange)
    assert list(await remote.list()) == ["find"], "a tool with a header that is not valid is left out"
    assert await remote.call("find", {"region": "日本"}) == {"ok": True}
    headers = exchange.sent[-1][2]
    assert (headers["Mcp-Method"], headers["Mcp-Name"]) == ("tools/call", "find")
    assert headers["Mcp-Param-Region"] == "=?base64?5pel5pys?="
    await remote.call("find", {})
    assert "Mcp-Param-Region" not in exchange.sent[-1][2]


async def test_a_state_of_the_server_goes_back_as_it_came_and_an_input_is_not_given() -> None:
    needed = {"resultType": "input_required", "requestState": "s3"}
    without = {"resultType": "input_required"}
    done = {"resultType": "complete", "content": []}
    begun: dict[str, Any] = {"server_discover": [{"supportedVersions": [STATELESS]}], "tools_list": [LISTED]}
    exchange = Scripted(**begun, tools_call=[needed, without, done])
    remote = RemoteMethods([session(exchange)], exchange)
    assert await remote.call("find", {}) == []
    calls = [params for method, params, _ in exchange.sent if method == "tools/call"]
    assert ["requestState" in params for params in calls] == [False, True, False]
    form = {**needed, "inputRequests": {"a": {"method": "elicitation/create"}}}
    exchange = Scripted(**begun, tools_call=[form, done])
    await RemoteMethods([session(exchange)], exchange).call("find", {})
    assert exchange.sent[-1][1]["inputResponses"] == {"a": {"action": "decline"}}
    sampling = {**needed, "inputRequests": {"a": {"method": "sampling/createMessage"}}}
    for answer in (sampling, {**form, "inputRequests": [7]}, form, needed, {"resultType": "other"}):
        exchange = Scripted(**begun, tools_call=[answer])
        with pytest.raises(Refused) as refusal:
            await RemoteMethods([session(exchange)], exchange).call("find", {})
        assert refusal.value.code == "rpc.error"
        assert len(exchange.methods) < 8


@pytest.mark.parametrize(
    "schema",
    [
        {"x-mcp-header": "X"},
        {"properties": {"a": {"type": "string", "x-mcp-header": ""}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "a b"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": 7}}},
        {"properties": {"a": {"type": "number", "x-mcp-header": "X"}}},
        {"properties": {"a": {"type": ["string"], "x-mcp-header": "X"}}},
        {"properties": {"a": {"type": "object", "x-mcp-header": "X"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "X"}, "b": {"type": "string", "x-mcp-header": "x"}}},
        {"anyOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "X"}}}]},
        {"properties": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "X"}}}},
        {"$defs": {"A": {"type": "string", "x-mcp-header": "X"}}},
    ],
)
def test_a_header_that_no_argument_can_have_is_not_valid(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="header"):
        wanted_headers(schema)


def test_headers_are_those_of_the_specification() -> None:
    schema = {
        "properties": {
            "region": REGION,
            "deep": {
                "properties": {"n": {"type": "integer", "x-mcp-header": "N"}, "b": {"type": "boolean", "x-mcp-header": "B"}}
            },
            "x-mcp-header": {"type": "string"},
        },
        "default": {"x-mcp-header": 7},
    }
    wanted = wanted_headers(schema)
    assert wanted == {("region",): "Region", ("deep", "n"): "N", ("deep", "b"): "B"}
    assert parameter_headers(wanted, {"region": "eu", "deep": {"n": 7, "b": True}}) == {
        "Mcp-Param-Region": "eu",
        "Mcp-Param-N": "7",
        "Mcp-Param-B": "true",
    }
    assert parameter_headers(wanted, {"region": None, "deep": 7}) == {}
    kept = without_headers(schema)
    assert kept["properties"]["region"] == {"type": "string"}
    assert kept["properties"]["x-mcp-header"] == {"type": "string"} and kept["default"] == schema["default"]
    for plain in ("eu-west", "", "a b"):
        assert header_value(plain) == plain
    for other in (" a", "é", "a\r\nb", "=?base64?YQ==?="):
        assert header_value(other).startswith("=?base64?")
    assert routing_headers("resources/read", {"uri": "a:b"}, "v")["Mcp-Name"] == "a:b"
    assert "Mcp-Name" not in routing_headers("tools/list", {"name": "a"}, "v")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8080/mcp", True),
        ("http://[::1]/", True),
        ("https://localhost/", True),
        ("http://u@localhost/", False),
        ("http://localhost.example/", False),
        ("ftp://localhost/", False),
        ("http://127.0.0.1.example/", False),
        ("http://[", False),
    ],
)
def test_only_this_machine_is_loopback(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        print("a line of a log", flush=True)
        print(json.dumps({"jsonrpc": "2.0", "id": "s", "method": "roots/list"}), flush=True)
        answer = json.loads(sys.stdin.readline())
        assert answer["error"]["code"] == -32601, answer
        result = {"protocolVersion": "2025-06-18"}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        arguments = message["params"]["arguments"]
        if arguments.get("end"):
            break
        result = {"structuredContent": arguments if not arguments.get("long") else "x" * 2_000_000}
    elif "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


async def test_a_server_in_a_process_is_bounded_and_ends_with_its_session() -> None:
    exchange = RpcExchange(Network())
    process = McpProcess([sys.executable, "-c", SERVER])
    async with RemoteMethods([McpSession(process)], exchange) as remote:
        assert list(await remote.list()) == ["echo"]
        assert await remote.call("echo", {"a": 1}) == {"a": 1}
        with pytest.raises(TooLarge):
            await remote.call("echo", {"long": True})
    async with RemoteMethods([McpSession(McpProcess([sys.executable, "-c", SERVER]))], exchange) as remote:
        with pytest.raises(Unavailable) as ended:
            await remote.call("echo", {"end": True})
        assert ended.value.code == "rpc.unreachable"
    with pytest.raises(NotFound):
        await RemoteMethods([McpSession(McpProcess(["/nowhere/command"]))], exchange).list()
    assert parse_command("python 'a b'.py") == ["python", "a b.py"]
    for wrong in ("", "'"):
        with pytest.raises(NotFound):
            parse_command(wrong)
