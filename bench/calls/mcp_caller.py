"""Call the MCP server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    async with Client(f"{url}/mcp") as client:

        async def get_product_info(product_id: str) -> Any:
            result = await client.call_tool("getProductInfo", {"productId": product_id})
            if result.is_error:
                raise RuntimeError(str(result.content))
            return result.structured_content

        yield get_product_info
