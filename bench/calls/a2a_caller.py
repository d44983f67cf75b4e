"""Call the A2A agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2a.client import create_client
from a2a.helpers import get_data_parts, new_data_message
from a2a.types import Role, SendMessageRequest


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    async with await create_client(url) as client:

        async def get_product_info(product_id: str) -> Any:
            message = new_data_message({"productId": product_id}, role=Role.ROLE_USER)
            events = [event async for event in client.send_message(SendMessageRequest(message=message))]
            return get_data_parts(events[0].message.parts)[0]

        yield get_product_info
