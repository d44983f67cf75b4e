"""AIP over gRPC, all in this process: a bare echo of grpcio, `treaty_aip` from agent to agent, and through its gateway.

All three exchange the same messages of the same `.proto` one at a time: in one stream, an inquiry and its feedback; or a request
to a tool and its response. The echo uses the generated stubs and does nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc

from treaty_aip import Agent, ContentItem, Gateway, Mode, Tool, ToolRequest, ToolResponse
from treaty_aip.stubs import aip_pb2, aip_pb2_grpc
from treaty_aip.stubs.aip_pb2_grpc import AgentServiceStub, GatewayServiceStub

from .dialogues import IMAGE, TEXT
from .servers import SceneFailed

ANY_PORT = "127.0.0.1:0"
CALLS = ("stream", "tool")
PLACES = ("echo", "direct", "gateway")
Turn = Callable[[], Awaitable[None]]
"""One message there and one back."""


class _EchoAgent(aip_pb2_grpc.AgentServiceServicer):
    async def CallAgent(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for message in request_iterator:
            yield message


class _EchoTool(aip_pb2_grpc.ToolServiceServicer):
    async def CallTool(self, request: Any, context: Any) -> Any:  # noqa: N802
        # An image is an argument as base64, and comes back as a content.
        image = request.arguments.get("image")
        content = aip_pb2.ContentItem(image=base64.b64decode(image)) if image else aip_pb2.ContentItem(text=TEXT)
        return aip_pb2.ToolResponse(sender_id=request.receiver_id, session_id=request.session_id, content=[content])


def _answer(request: ToolRequest) -> ToolResponse:
    image = request.arguments.get("image")
    return ToolResponse(content=[ContentItem.write_image(base64.b64decode(image)) if image else ContentItem.write_text(TEXT)])


@asynccontextmanager
async def calls() -> AsyncIterator[dict[tuple[str, str, str], Turn]]:
    """Start the servers. Yield a turn for each kind of call, place and size."""
    async with AsyncExitStack() as stack:
        turns = await _echo_turns(stack)
        gateway = await Gateway(ANY_PORT).start()
        stack.push_async_callback(gateway.stop)
        for place in ("direct", "gateway"):
            turns |= await _treaty_turns(stack, place, gateway)
        yield turns


async def _echo_turns(stack: AsyncExitStack) -> dict[tuple[str, str, str], Turn]:
    server = grpc.aio.server()
    aip_pb2_grpc.add_AgentServiceServicer_to_server(_EchoAgent(), server)
    aip_pb2_grpc.add_ToolServiceServicer_to_server(_EchoTool(), server)
    port = server.add_insecure_port(ANY_PORT)
    await server.start()
    stack.push_async_callback(server.stop, 0)
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    stream, tool = AgentServiceStub(channel).CallAgent(), aip_pb2_grpc.ToolServiceStub(channel)

    def turns(size: str) -> tuple[Turn, Turn]:
        content = aip_pb2.ContentItem(image=IMAGE) if size == "large" else aip_pb2.ContentItem(text=TEXT)
        ids: Any = {"sender_id": "asker", "receiver_id": "answerer", "session_id": str(uuid.uuid4())}
        arguments = {"image": base64.b64encode(IMAGE).decode()} if size == "large" else {"text": TEXT}

        async def inquire() -> None:
            # Made anew each time, as an application makes it.
            await stream.write(aip_pb2.AgentMessage(**ids, message_id=str(uuid.uuid4()), content=[content]))
            _expect((await stream.read()).content[0].image, size)

        async def ask() -> None:
            answer = await tool.CallTool(aip_pb2.ToolRequest(**ids, arguments=arguments))
            _expect(answer.content[0].image, size)

        return inquire, ask

    return {(call, "echo", size): turn for size in ("text", "large") for call, turn in zip(CALLS, turns(size), strict=True)}


async def _treaty_turns(stack: AsyncExitStack, place: str, gateway: Gateway) -> dict[tuple[str, str, str], Turn]:
    asker, answerer = await Agent(ANY_PORT, f"asker-{place}").start(), await Agent(ANY_PORT, f"answerer-{place}").start()
    tool = await Tool(ANY_PORT, f"tool-{place}").set_process_request_handler(_answer).start()
    for node in (asker, answerer, tool):
        stack.push_async_callback(node.stop)
        if place == "gateway":
            await node.register_to_gateway(gateway.address)
    direct = place == "direct"
    stub, method = (AgentServiceStub, "CallAgent") if direct else (GatewayServiceStub, "RouteAgentCalling")
    address = answerer.address if direct else None
    session = await asker.create_agent_client(answerer.agent_id, stub, method, address=address)

    async def answer() -> None:
        while True:
            inquiry = await answerer.receive_inquiry()
            [item] = inquiry.content
            what: Any = (item.text, Mode.TEXT) if item.image is None else (item.image, Mode.IMAGE)
            await answerer.submit_feedback(inquiry.session_id, inquiry.sender_id, *what)

    answering = asyncio.create_task(answer())
    stack.callback(answering.cancel)

    def turns(size: str) -> tuple[Turn, Turn]:
        what: Any = (IMAGE, Mode.IMAGE) if size == "large" else (TEXT, Mode.TEXT)
        arguments = {"image": base64.b64encode(IMAGE).decode()} if size == "large" else {"text": TEXT}

        async def inquire() -> None:
            await asker.submit_inquiry(session, answerer.agent_id, *what)
            [item] = (await asker.receive_feedback(session, answerer.agent_id)).content
            _expect(item.image or b"", size)

        async def ask() -> None:
            response = await asker.call_tool(f"tool-{place}", arguments=arguments, address=tool.address if direct else None)
            _expect((response.content[0].image or b"") if response.content else b"?", size)

        return inquire, ask

    return {(call, place, size): turn for size in ("text", "large") for call, turn in zip(CALLS, turns(size), strict=True)}


def _expect(image: bytes, size: str) -> None:
    if image != (IMAGE if size == "large" else b""):
        raise SceneFailed(f"an answer has {len(image)} bytes of image")
