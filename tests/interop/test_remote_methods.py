"""Methods of a real agent of the ANP SDK, and tools of a real MCP server, are found and called."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from loopback import Loopback, answering
from sdk_servers import foreign_server

from treaty_agent.authentication.request_signing import RequestSigner
from treaty_agent.discovery.client import Discoverer
from treaty_agent.rpc.client import RemoteMethods
from treaty_agent.rpc.exchange import RpcExchange
from treaty_anp.discovery.interfaces import RemoteInterface
from treaty_command.main import main
from treaty_consensus.errors import Malformed, Refused, Unauthorized
from treaty_io.identity import Identity

HOST, HOTEL = "agent.example", "hotel.example"
SCRIPTS = Path(__file__).parent / "sdk"
CALLER = Identity.create("caller.example")
Environment = Callable[[str, str, str], Path]


@asynccontextmanager
async def hotel(loopback: Loopback, sdk_python: Path, caller: Identity | None = CALLER) -> AsyncIterator[RemoteMethods]:
    """The methods of an agent of the SDK, found from its description, for this caller."""
    script = SCRIPTS / "openrpc_server.py"
    async with foreign_server(loopback, sdk_python, script, HOTEL, caller=CALLER.did_document()):
        (agent,) = (await Discoverer(loopback.network()).discover(f"https://{HOTEL}/ad.json")).agents
        assert (agent.name, agent.did, agent.addresses, agent.protocols) == ("Hotel", f"did:wba:{HOTEL}", (), ())
        assert [(one.kind, one.url) for one in agent.interfaces] == [
            ("openrpc", f"https://{HOTEL}/interface.json"),
            ("openrpc", f"https://{HOTEL}/interface/who.json"),
        ]
        sign = RequestSigner(caller).headers if caller else None
        async with RemoteMethods(agent.interfaces, RpcExchange(loopback.network(), sign=sign)) as remote:
            yield remote


async def test_the_methods_of_an_agent_of_the_anp_sdk_are_called(tmp_path: Path, sdk_python: Path) -> None:
    async with hotel(Loopback(tmp_path), sdk_python) as remote:
        methods = await remote.list()
        assert sorted(methods) == ["fail", "search", "who"]
        assert methods["search"].url == f"https://{HOTEL}/rpc"
        assert methods["search"].description == "Find rooms."
        reply = await remote.call("search", {"query": "Tokyo", "limit": 3})
        assert reply == {"query": "Tokyo", "limit": 3, "rooms": ["价格 12.5"]}
        assert await remote.call("search", {"query": "Tokyo"}) == {**reply, "limit": 10}
        assert await remote.call("who", {}) == {"did": CALLER.did}, "the SDK verified who signed"
        with pytest.raises(Refused, match="code -32") as failure:
            await remote.call("fail", {"text": "no"})
        assert failure.value.code == "rpc.error"
        for wrong in ({}, {"query": 7}, {"query": "Tokyo", "other": 1}):
            with pytest.raises(Malformed) as refusal:
                await remote.call("search", wrong)
            assert refusal.value.code == "rpc.arguments"


async def test_an_unsigned_caller_gets_the_sdks_public_methods(tmp_path: Path, sdk_python: Path) -> None:
    """The SDK asks for a signature at `/interface.json`, and not at `/interface/who.json`."""
    async with hotel(Loopback(tmp_path), sdk_python, None) as remote:
        assert list(await remote.list()) == ["who"]
        assert [error.code for error in remote.problems] == ["rpc.unauthorized"]
        with pytest.raises(Unauthorized) as refusal:
            await remote.call("who", {})
        assert refusal.value.code == "rpc.unauthorized"


@pytest.mark.sample(1)
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "events"])
async def test_the_tools_of_a_server_of_the_mcp_sdk_are_called(tmp_path: Path, environment: Environment, as_json: bool) -> None:
    python = environment("mcp", (SCRIPTS.parent / "mcp.lock").read_text(), sys.executable)
    loopback = Loopback(tmp_path)
    description = {"interfaces": [{"type": "StructuredInterface", "protocol": "MCP", "url": f"https://{HOTEL}/mcp"}]}
    async with (
        foreign_server(loopback, python, SCRIPTS / "mcp_server.py", HOTEL, json=as_json),
        loopback.serving(answering(json.dumps(description).encode()), HOST),
    ):
        (agent,) = (await Discoverer(loopback.network()).discover(f"https://{HOST}/ad.json")).agents
        assert agent.interfaces == (RemoteInterface("mcp", f"https://{HOTEL}/mcp"),)
        async with RemoteMethods(agent.interfaces, RpcExchange(loopback.network())) as remote:
            assert sorted(await remote.list()) == ["fail", "search"]
            assert await remote.call("search", {"query": "Tokyo", "limit": 2}) == {"query": "Tokyo", "prices": [12.5, 12.5]}
            with pytest.raises(Refused, match="failed at the agent") as failure:
                await remote.call("fail", {"text": "no"})
            assert failure.value.code == "rpc.error"
            with pytest.raises(Malformed) as refusal:
                await remote.call("search", {"limit": 2})
            assert refusal.value.code == "rpc.arguments"


@pytest.mark.deep
async def test_the_command_lists_and_calls(tmp_path: Path, sdk_python: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loopback, home = Loopback(tmp_path), tmp_path / "home"
    home.mkdir()
    CALLER.save(home / "identity.json")
    async with hotel(loopback, sdk_python):
        ip, port = loopback.addresses[HOTEL]
        options = ["--home", str(home), "--resolve", f"{HOTEL}={ip}:{port}", "--ca", str(tmp_path / "ca.pem"), "--json"]
        await asyncio.to_thread(main, ["call", f"https://{HOTEL}/ad.json", *options])
        assert {one["name"] for one in json.loads(capsys.readouterr().out)["methods"]} == {"search", "fail", "who"}
        await asyncio.to_thread(main, ["call", f"https://{HOTEL}/ad.json", "who", *options])
        assert json.loads(capsys.readouterr().out) == {"result": {"did": CALLER.did}}
        with pytest.raises(SystemExit):
            await asyncio.to_thread(main, ["call", f"https://{HOTEL}/ad.json", "search", "--arguments", "[]", *options])
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "rpc.arguments"
