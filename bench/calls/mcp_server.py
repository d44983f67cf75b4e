"""The agent as an MCP server over streamable HTTP: mcp_server.py PORT."""

import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from product import PRODUCTS
from pydantic import BaseModel

shop = MCPServer("Shop", log_level="WARNING")


class Product(BaseModel):
    productId: str
    productName: str
    productDescription: str
    price: float
    currency: str


@shop.tool()
async def getProductInfo(productId: str) -> Product:
    """Get a product by its id."""
    if productId not in PRODUCTS:
        raise ToolError("There is no such product.")
    return Product(**PRODUCTS[productId])


if __name__ == "__main__":
    shop.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
