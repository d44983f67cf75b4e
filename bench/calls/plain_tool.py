"""The agent as a tool of MCP over pipes, with the SDK's low-level server: what `treaty mcp` is compared with."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from product import PRODUCTS

TOOL = types.Tool(
    name="getProductInfo",
    description="Look up a product.",
    input_schema={"type": "object", "properties": {"productId": {"type": "string"}}, "required": ["productId"]},
    output_schema={"type": "object"},
)


async def list_tools(context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[TOOL])


async def call_tool(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
    product = PRODUCTS[(params.arguments or {})["productId"]]
    return types.CallToolResult(content=[types.TextContent(type="text", text=str(product))], structured_content=product)


async def main() -> None:
    server: Server[Any] = Server("plain", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
