"""Read the bytes of a description: from a file, from standard input, or from an https URL of a stranger.

A URL is fetched by the rules for strangers (`treaty_agent.rpc.exchange`): https, a public address, no redirect, bounded size and
time. The tools of an MCP server are asked for at its URL.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import msgspec

from treaty_consensus.errors import NotFound, TooLarge
from treaty_io.codes import RpcCode
from treaty_io.network.hosts import Network

from ..rpc.exchange import RpcExchange
from ..rpc.mcp import McpSession
from ..rpc.mcp_endpoint import McpEndpoint
from .agent_card import AgentCardReader
from .decoding import MAX_SOURCE
from .description import ImportedDescription
from .mcp import McpReader
from .openapi import OpenApiReader
from .openrpc import OpenRpcReader

Reader = OpenApiReader | OpenRpcReader | McpReader | AgentCardReader
READERS: dict[str, type[Reader]] = {"openapi": OpenApiReader, "openrpc": OpenRpcReader, "mcp": McpReader, "a2a": AgentCardReader}
STANDARD_INPUT = "-"


async def read_source(kind: str, source: str, network: Network, only: Collection[str] = ()) -> tuple[ImportedDescription, bytes]:
    """Return the description at a path, a URL or `-`, and its bytes. `kind`: of `READERS`. `only`: as the readers take it.

    Raises `NotFound` (`rpc.nothing`), the errors of the readers and those of `RpcExchange.send`.
    """
    is_url = source.startswith(("https://", "http://"))
    data = await _fetched(kind, source, network) if is_url else _read(source)
    return READERS[kind]().read(data, "standard input" if source == STANDARD_INPUT else source, only), data


async def _fetched(kind: str, url: str, network: Network) -> bytes:
    exchange = RpcExchange(network)
    if kind != "mcp":
        reply = await exchange.send("GET", url, b"", {"Accept": "application/json, application/yaml, */*"}, limit=MAX_SOURCE)
        return reply.body
    session = McpSession(McpEndpoint(url, exchange))
    try:
        return msgspec.json.encode({"tools": await session.listed()})
    finally:
        await session.aclose()


def _read(source: str) -> bytes:
    # One byte more than the cap shows that there is more.
    if source == STANDARD_INPUT:
        data = sys.stdin.buffer.read(MAX_SOURCE + 1)
    else:
        try:
            with Path(source).open("rb") as file:
                data = file.read(MAX_SOURCE + 1)
        except OSError as error:
            fix = "Name a file, an https URL, or - for standard input."
            raise NotFound(RpcCode.NOTHING, f"{source}: {error.strerror or 'it cannot be read'}.", fix=fix) from error
    if len(data) > MAX_SOURCE:
        raise TooLarge(RpcCode.ANSWER, f"{source} has more than {MAX_SOURCE} bytes.")
    return data
