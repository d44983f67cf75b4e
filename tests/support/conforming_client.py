"""The client of MCP as MCP's conformance suite runs it: list the tools of a server and call them.

python tests/support/conforming_client.py URL      the suite names the scenario in the environment
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from treaty_agent.rpc.client import RemoteMethods
from treaty_agent.rpc.exchange import RpcExchange
from treaty_agent.rpc.mcp import McpSession
from treaty_agent.rpc.mcp_endpoint import McpEndpoint
from treaty_consensus.errors import TreatyError
from treaty_io.network.hosts import Network

VALUES: dict[str, Any] = {"string": "a", "integer": 1, "number": 1, "boolean": True, "object": {}, "array": []}


def arguments_of(schema: Any) -> dict[str, Any]:
    """Arguments with a value for each required property."""
    properties = schema.get("properties", {})
    return {name: VALUES[properties.get(name, {}).get("type", "string")] for name in schema.get("required", [])}


async def main(url: str) -> None:
    """Call each tool: as the suite says, or once with arguments that fit."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    exchange = RpcExchange(Network(), loopback=True)
    async with RemoteMethods([McpSession(McpEndpoint(url, exchange))], exchange) as remote:
        methods = await remote.list()
        # An argument that is null is left out, because no schema of the suite takes null.
        listed = [(one["name"], one.get("arguments", {})) for one in context.get("toolCalls", [])]
        calls = [(name, {key: value for key, value in given.items() if value is not None}) for name, given in listed]
        for name, arguments in calls or [(name, arguments_of(method.parameters)) for name, method in methods.items()]:
            try:
                print(name, await remote.call(name, arguments))
            except TreatyError as error:
                print(name, error, file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
