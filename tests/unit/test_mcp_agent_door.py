"""The official client of MCP uses operations that an agent serves, in both eras; strangers are bounded."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, types
from ports import free_port

from treaty_agent import Agent, AgentConfig, Capacity, Identity, LocalProtocols, Policy, current_call
from treaty_agent.discovery.documents import AgentFacts, agent_card, agent_description
from treaty_consensus.errors import Refused
from treaty_consensus.handler import Operation
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.identity import ClaimedPeer
from treaty_mcp import MCP
from treaty_mcp.door import MAX_MESSAGE
from treaty_mcp.server import native

EXAMPLES = Path(__file__).parents[2] / "examples"
PROTOCOLS = LocalProtocols([EXAMPLES / "greeting", EXAMPLES / "appointment"])
GREETING, APPOINTMENT = PROTOCOLS.uri("greeting"), PROTOCOLS.uri("appointment")

ENDLESS = "2030-05-03"
"""A day whose stream has no end."""


class McpOffice:
    """An agent behind MCP, and what its functions saw. `open`: its calls that run."""

    def __init__(self, home: Path) -> None:
        self.peers, self.open, self.url = list[object](), 0, ""
        config = AgentConfig(Policy(), home=home, capacity=Capacity(sessions=8))
        self.agent = Agent(Identity.create(), PROTOCOLS, config)
        self.agent.provides(GREETING)(self.greet)
        for function in (self.find, self.book, self.cancel):
            self.agent.provides(APPOINTMENT)(function)

    async def greet(self, name: str) -> str:
        call = current_call()
        assert call is not None
        self.peers.append(call.peer)
        return f"Hello, {name}!"

    async def find(self, day: str) -> AsyncIterator[dict[str, Any]]:
        self.open += 1
        try:
            for hour in range(9, 17):
                yield {"start": f"{day}T{hour:02}:00", "minutes": 30}
            while day == ENDLESS:  # within the time of an item
                await asyncio.sleep(1)
                yield {"start": f"{day}T17:00", "minutes": 30}
        finally:
            self.open -= 1

    async def book(self, start: str, name: str) -> str:
        return f"{name} at {start}"

    async def cancel(self, **booking: Any) -> None: ...

    async def opened(self, count: int) -> None:
        """Wait until so many calls run."""
        async with asyncio.timeout(20):
            while self.open != count:  # noqa: ASYNC110  # the office has no event for a test
                await asyncio.sleep(0.01)


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[McpOffice]:
    made = McpOffice(tmp_path)
    async with made.agent, made.agent.listen("127.0.0.1", 0, doors=[MCP(made.agent)]) as port:
        made.url = f"http://127.0.0.1:{port}/mcp"
        yield made


def call(name: str = "greeting.greet", **arguments: str) -> dict[str, Any]:
    """A request and its headers for a tool, by default the one that greets."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": name, "arguments": arguments or {"name": "Ada"}, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return {"json": message, "headers": {"Mcp-Name": name}}


async def greet_by(uri: str, name: str) -> str:
    return f"{uri}: {name}"


HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
}


def test_the_description_names_the_door(tmp_path: Path) -> None:
    facts = AgentFacts("did:wba:shop.example", ("wss://shop.example/",), doors=(MCP(McpOffice(tmp_path).agent),))
    description: dict[str, Any] = agent_description(facts)
    card: dict[str, Any] = agent_card(facts)
    (door,) = [one for one in description["interfaces"] if one.get("protocol") == "MCP"]
    assert (door["type"], door["url"]) == ("StructuredInterface", "https://shop.example/mcp")
    assert [one["url"] for one in card["supportedInterfaces"]] == ["wss://shop.example/"], "which is of A2A"


@pytest.mark.parametrize(("name", "operation"), [("a" * 64, "b" * 64), ("a" * 64, "b" * 63), ("greeting", "greet")])
def test_the_name_of_a_tool_has_the_length_that_mcp_allows(name: str, operation: str) -> None:
    uri = parse_protocol_uri(f"https://registry.example/protocols/acme.example/{name}/1.0")
    made = Operation(operation, {}, None, {}, idempotent=True, timeout=5)
    assert len(native.tool_name(uri, made)) <= 128
    assert len(native.tool_name(uri, made, is_alone=False)) <= 128


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_calls_what_the_agent_serves(office: McpOffice, mode: str) -> None:
    async with Client(office.url, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        operations = ["appointment.book", "appointment.cancel", "appointment.find", "greeting.greet"]
        assert sorted(tools) == [*operations, "read"]
        assert tools["greeting.greet"].input_schema["properties"]["name"]["maxLength"] == 100
        greeted = await client.call_tool("greeting.greet", {"name": "Ada"})
        assert greeted.structured_content == {"value": "Hello, Ada!"}
        slots = (await client.call_tool("appointment.find", {"day": "2030-05-02"})).structured_content["items"]
        assert [slot["start"] for slot in slots] == [f"2030-05-02T{hour:02}:00" for hour in range(9, 17)]
        wrong = await client.call_tool("greeting.greet", {"name": ""})
        assert wrong.is_error and len(office.peers) == 1, "arguments that break the schema reach no function"
        assert isinstance(office.peers[0], ClaimedPeer), "MCP proves nobody"
        extensions = client.server_capabilities.extensions
        if mode == "legacy":
            assert extensions is None, "they are younger"
        else:
            digest = (await PROTOCOLS.fetch(GREETING)).hash
            assert extensions and extensions["invalid.local/greeting"] == {GREETING: {"digest": digest, "role": "host"}}
        read = await client.call_tool("read", {"uri": GREETING})
        assert isinstance(read.content[0], types.TextContent)
        assert "\n> # Greeting\n" in read.content[0].text
        assert (await client.call_tool("read", {"uri": f"{GREETING[:-3]}9.9"})).is_error


async def test_two_protocols_of_one_name_have_tools_of_their_own(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "greeting", tmp_path / "later")
    settings = tmp_path / "later" / "protocol.toml"
    settings.write_text(settings.read_text().replace('version = "1.0"', 'version = "1.1"'))
    protocols = LocalProtocols([EXAMPLES / "greeting", tmp_path / "later"])
    later = GREETING.replace("1.0", "1.1")
    async with Agent(Identity.create(), protocols, Policy(), home=tmp_path / "home") as agent:
        for uri in (GREETING, later):
            agent.provides(uri, operation="greet")(partial(greet_by, uri))
        async with agent.listen("127.0.0.1", 0, doors=[MCP(agent)]) as port, Client(f"http://127.0.0.1:{port}/mcp") as client:
            tools = [tool for tool in (await client.list_tools()).tools if tool.name != "read"]
            said = [(await client.call_tool(tool.name, {"name": "Ada"})).structured_content for tool in tools]
            assert [tool.name[:9] for tool in tools] == ["greeting-"] * 2 and len({tool.name for tool in tools}) == 2
            assert said == [{"value": f"{uri}: Ada"} for uri in (GREETING, later)]
            extensions = client.server_capabilities.extensions
            assert extensions and extensions["invalid.local/greeting"].keys() == {GREETING, later}


async def test_the_guide_serves_an_agent(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "guides" / "mcp.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    guide: dict[str, Any] = {"asyncio": asyncio}
    exec(compile(block, "docs/guides/mcp.md", "exec"), guide)
    office, port = McpOffice(tmp_path), free_port()
    async with office.agent, asyncio.timeout(30):
        serving = asyncio.create_task(guide["serve"](office.agent, port))
        while socket.socket().connect_ex(("127.0.0.1", port)):  # noqa: ASYNC110  # the guide has no event for a test
            await asyncio.sleep(0.02)
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            assert (await client.call_tool("greeting.greet", {"name": "Ada"})).structured_content == {"value": "Hello, Ada!"}
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.threat(408)
async def test_web_pages_large_bodies_and_other_methods_reach_no_tool(office: McpOffice) -> None:
    async with httpx.AsyncClient(headers=HEADERS) as client:
        for more, content, status in (
            ({"Origin": "https://evil.example"}, None, 403),
            ({}, b"[" * (MAX_MESSAGE + 1), 413),
            ({}, b"[" * MAX_MESSAGE, 400),
            ({"Mcp-Name": "read"}, None, 400),
        ):
            sent: dict[str, Any] = {"content": content, "headers": {"Content-Type": "application/json"}} if content else call()
            request = {**sent, "headers": sent["headers"] | more}
            assert (await client.post(office.url, **request)).status_code == status
        for method in ("GET", "DELETE"):
            assert (await client.request(method, office.url)).status_code == 405
        assert office.peers == []
        answer = await client.post(office.url, **call())
        assert answer.json()["result"]["structuredContent"] == {"value": "Hello, Ada!"}
        assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")


@pytest.mark.threat(408)
async def test_an_agent_that_wants_proofs_serves_no_mcp(tmp_path: Path) -> None:
    async with Agent(Identity.create(), PROTOCOLS, Policy(encryption="required"), home=tmp_path) as agent:
        with pytest.raises(Refused) as refused:
            MCP(agent)
        assert refused.value.code == "agent.settings"


@pytest.mark.threat(409)
async def test_calls_are_sessions_of_their_network_and_end_with_their_callers(office: McpOffice) -> None:
    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as client:
        waiting = [asyncio.create_task(client.post(office.url, **call("appointment.find", day=ENDLESS))) for _ in range(8)]
        await office.opened(8)
        refused = await client.post(office.url, **call())
        assert (refused.status_code, refused.json()["code"]) == (503, "connection.busy")
        for task in waiting:
            task.cancel()
        await office.opened(0)
        assert (await client.post(office.url, **call())).status_code == 200


@pytest.mark.threat(409)
async def test_a_stream_without_an_end_is_bounded(office: McpOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MAX_VALUE", 100)
    async with Client(office.url) as client:
        result = await client.call_tool("appointment.find", {"day": "2030-05-02"})
        assert result.is_error and isinstance(result.content[0], types.TextContent)
        assert result.content[0].text.startswith("rpc.answer: The items")
