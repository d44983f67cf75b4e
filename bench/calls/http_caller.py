"""Call the plain HTTP service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    async with httpx.AsyncClient(base_url=url) as client:

        async def get_product_info(product_id: str) -> Any:
            response = await client.post("/getProductInfo", json={"productId": product_id})
            response.raise_for_status()
            return response.json()

        yield get_product_info
