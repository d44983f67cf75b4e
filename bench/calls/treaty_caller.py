"""Call the Treaty agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from treaty_agent import Agent


def open_agent(home: str) -> Agent:
    return Agent.from_home(Path(home))


@asynccontextmanager
async def connect(url: str, agent: Agent, protocol: str) -> AsyncIterator[Any]:
    async with agent.connect(url, protocols=[protocol]) as session:

        async def get_product_info(product_id: str) -> Any:
            return await session.call("getProductInfo", productId=product_id)

        yield get_product_info
