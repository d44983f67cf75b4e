"""The agent with the A2A SDK, by JSON-RPC: a2a_server.py PORT."""

import sys

import uvicorn
from a2a.helpers import get_data_parts, new_data_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from a2a.utils.errors import InvalidParamsError
from product import PRODUCTS
from starlette.applications import Starlette


class Shop(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        (query,) = get_data_parts(context.message.parts)
        if query["productId"] not in PRODUCTS:
            raise InvalidParamsError("There is no such product.")
        await event_queue.enqueue_event(new_data_message(PRODUCTS[query["productId"]], context_id=context.context_id))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


if __name__ == "__main__":
    port = int(sys.argv[1])
    card = AgentCard(
        name="Shop",
        description="Tells about products.",
        version="1.1",
        capabilities=AgentCapabilities(streaming=False),
        default_input_modes=["application/json"],
        default_output_modes=["application/json"],
        supported_interfaces=[
            AgentInterface(protocol_binding="JSONRPC", protocol_version="1.0", url=f"http://127.0.0.1:{port}/")
        ],
        skills=[AgentSkill(id="getProductInfo", name="Product info", description="Get a product by its id.", tags=["commerce"])],
    )
    handler = DefaultRequestHandler(Shop(), InMemoryTaskStore(), card)
    app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
