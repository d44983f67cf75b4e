"""The agent with Treaty: treaty_server.py PORT HOME PROTOCOL-URI."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from product import PRODUCTS

from treaty_agent import Agent, OperationError


async def main(port: str, home: str, protocol: str) -> None:
    async with Agent.from_home(Path(home)) as agent:

        @agent.provides(protocol)
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:
            if productId not in PRODUCTS:
                raise OperationError(404)
            return PRODUCTS[productId]

        await agent.serve("127.0.0.1", int(port))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
