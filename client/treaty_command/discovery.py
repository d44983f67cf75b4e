"""`treaty discover` finds agents and their protocols; `treaty call` calls a method of an agent or a tool of an MCP server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich.markup import escape
from rich.table import Column, Table

from treaty_agent.discovery.client import Discoverer, SkippedDocument
from treaty_anp.discovery.interfaces import RemoteInterface
from treaty_anp.discovery.parsing import DESCRIPTIONS_PATH, AgentDescription
from treaty_consensus.errors import Malformed
from treaty_consensus.printable import short
from treaty_io.codes import RpcCode

from .context import Options, run

if TYPE_CHECKING:
    from treaty_agent.rpc.exchange import RpcExchange
    from treaty_agent.rpc.mcp import McpSession
    from treaty_agent.rpc.methods import RemoteMethod

_FIX = """Write --arguments '{"name": "value"}'."""


def discover(name: str, /, *, options: Options = Options()) -> None:
    """Find the agents of a domain, a DID or a URL, and the protocols that they list. Nothing is verified: use `treaty verify`.

    Parameters
    ----------
    name
        A domain (shop.example), a DID (did:wba:shop.example), or the https URL of an agent description or A2A card.
    """
    discovery = run(Discoverer(options.network).discover(name))
    value = {
        "agents": [dataclasses.asdict(agent) for agent in discovery.agents],
        "problems": [{"url": p.url, "code": p.error.code, "message": p.error.message} for p in discovery.problems],
    }
    lines = [line for agent in discovery.agents for line in _lines(agent)]
    options.output.result(value, *lines, *map(_warning, discovery.problems))


def call(name: str, method: str = "", /, *, arguments: str = "{}", anonymous: bool = False, options: Options = Options()) -> None:
    """Call a method of an agent that it describes by OpenRPC or serves by MCP; without a method, list the methods.

    Parameters
    ----------
    name
        The agent: a domain, a DID, or the https URL of its description, which ends in .json. Or an MCP server: the URL of its
        endpoint, or stdio: and a command, such as 'stdio:python server.py'.
    method
        The name of the method.
    arguments
        A JSON object, such as '{"query": "Tokyo"}'.
    anonymous
        Do not sign the requests with the identity of this home.
    """
    # Here, because they need the libraries of `.[agent]`, and `discover` does not.
    from treaty_agent.authentication.request_signing import RequestSigner
    from treaty_agent.rpc.client import RemoteMethods
    from treaty_agent.rpc.exchange import RpcExchange

    call_arguments = _arguments(arguments)
    signer = None if anonymous or not options.identity_file.exists() else RequestSigner(options.identity()).headers
    exchange = RpcExchange(options.network, sign=signer, loopback=True)  # the user names the address

    async def work() -> tuple[dict[str, Any], list[str]]:
        interfaces = await _interfaces(name, exchange, options)
        async with RemoteMethods(interfaces, exchange) as remote:
            if method:
                result = await remote.call(method, call_arguments)
                return {"result": result}, [escape(json.dumps(result, ensure_ascii=False, indent=2))]
            methods = (await remote.list()).values()
            problems = [SkippedDocument(name, error) for error in remote.problems]
            lines = [f"[bold]{escape(one.name)}[/]  {escape(one.description)}" for one in methods]
            return {"methods": [_described(one) for one in methods]}, [*lines, *map(_warning, problems)]

    value, lines = run(work())
    options.output.result(value, *lines)


async def _interfaces(name: str, exchange: RpcExchange, options: Options) -> Sequence[RemoteInterface | McpSession]:
    """Return the MCP server of a name, or the interfaces that an agent describes."""
    from treaty_agent.rpc.mcp import McpSession
    from treaty_agent.rpc.mcp_endpoint import McpEndpoint
    from treaty_agent.rpc.mcp_eras import McpEras
    from treaty_agent.rpc.mcp_process import SCHEME, McpProcess, parse_command

    if name.startswith(SCHEME):
        return [McpSession(McpProcess(parse_command(name.removeprefix(SCHEME))))]
    if _is_endpoint(name):
        return [McpSession(McpEndpoint(name, exchange), McpEras(options.home / "mcp-eras.json"))]
    return (await Discoverer(options.network).discover(name)).agents[0].interfaces


def _is_endpoint(name: str) -> bool:
    """Return whether a name is a URL, and none of a description."""
    parts = urlsplit(name)
    is_description = parts.path.endswith(".json") or parts.path in ("", "/", DESCRIPTIONS_PATH)
    return parts.scheme in ("http", "https") and not is_description


def _described(method: RemoteMethod) -> dict[str, object]:
    schemas = {"parameters": method.parameters, "result": method.result}
    return {"name": method.name, "description": method.description, "url": method.url, **schemas}


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(RpcCode.ARGUMENTS, "The arguments are not JSON.", fix=_FIX) from error
    if not isinstance(value, dict):
        raise Malformed(RpcCode.ARGUMENTS, "The arguments are no JSON object.", fix=_FIX)
    return value


def _lines(agent: AgentDescription) -> list[object]:
    table = Table(Column("protocol", overflow="fold"), "version", "role", "digest", box=None, padding=(0, 2))
    for protocol in agent.protocols:
        digest = short(protocol.digest) if protocol.digest else "–"
        table.add_row(escape(protocol.uri), escape(protocol.version or "–"), protocol.role or "–", digest)
    where = ", ".join(map(escape, agent.addresses)) or "no address at which Hellos are answered"
    head = f"[bold]{escape(agent.name)}[/]  [dim]{escape(agent.did or 'no DID')}[/]"
    remote = [f"  {interface.kind} interface at {escape(interface.url)}" for interface in agent.interfaces]
    about = [f"  {escape(agent.description)}"] if agent.description else []
    return [head, *about, f"  {where}", *remote, table if agent.protocols else "  no protocols"]


def _warning(problem: SkippedDocument) -> str:
    return f"[yellow]![/] {escape(problem.url)}: {escape(problem.error.message)}  [dim]{problem.error.code}[/]"
