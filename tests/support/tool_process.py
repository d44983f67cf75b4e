"""A server with two tools of our own over HTTP, in a process of its own, for clients of others.

python tests/support/tool_process.py PORT      serves at /mcp of this machine until it is ended
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from treaty_mcp.server.home import serve_http
from treaty_mcp.tools.tool import Arguments, OwnTool, ToolResult
from treaty_mcp.tools.tool_server import ToolServer


class Text(Arguments, frozen=True):
    text: str


class Uri(Arguments, frozen=True):
    uri: str


class Echo(OwnTool[Text]):
    """Return a text."""

    name, arguments_form, result_form = "echo", Text, Text

    async def work(self, arguments: Text) -> ToolResult:
        return ToolResult({"text": arguments.text})


class Change(OwnTool[Text]):
    """Change something, after the user was asked."""

    name, arguments_form, result_form = "change", Text, Text
    is_read_only = False

    def question(self, arguments: Mapping[str, Any]) -> str:
        return f"Change {self.parsed(arguments).text}?"

    async def work(self, arguments: Text) -> ToolResult:
        return ToolResult({"text": arguments.text})


if __name__ == "__main__":
    echo = Echo()
    asyncio.run(serve_http(ToolServer("Echo.", [echo, Change()], reader=echo), int(sys.argv[1])))
