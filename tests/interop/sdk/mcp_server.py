"""Runs inside the environment of the official MCP SDK: a server with its framework, over streamable HTTP and https.

In, one line: the path of a PEM file with certificate and key, and whether it answers in JSON or as a stream of events. Out: the
port. It ends with its input.
"""

from __future__ import annotations

import json
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel

sys.path.insert(0, __file__.rpartition("/")[0])
from serving import serve

hotel = MCPServer("Hotel")


class Rooms(BaseModel):
    """What a search finds."""

    query: str
    prices: list[float]


@hotel.tool()
def search(query: str, limit: int = 10) -> Rooms:
    """Find rooms."""
    return Rooms(query=query, prices=[12.5] * limit)


@hotel.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


def main() -> None:
    """Serve until the input ends."""
    out, sys.stdout = sys.stdout, sys.stderr
    order = json.loads(sys.stdin.readline())
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = hotel.streamable_http_app(json_response=order["json"], transport_security=security)
    serve(app, order["certificate"], out)


if __name__ == "__main__":
    main()
