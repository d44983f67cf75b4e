"""A gateway, an agent and a tool for foreign peers under test; `conform` has the items."""

# ruff: noqa: N802 - the methods of a service have its names
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from google.protobuf.text_format import MessageToString

from treaty_io.conformance import PeerUnderTest
from treaty_io.extras import naming_extras

from .stubs import aip_pb2, aip_pb2_grpc

with naming_extras("aip"):
    import grpc

DESK_AGENT, DESK_TOOL = "conform-agent", "conform-tool"
LIE = "Answer with the id of another session."
HEARTBEAT = 12.0
"""Seconds in which a node has to send a heartbeat: it is due after 10."""


def line(message: Any) -> str:
    """Return a message as text, for the evidence."""
    return str(MessageToString(message, as_one_line=True))


class Desk(
    PeerUnderTest, aip_pb2_grpc.GatewayServiceServicer, aip_pb2_grpc.AgentServiceServicer, aip_pb2_grpc.ToolServiceServicer
):
    """The servers of this side: a gateway at which a foreign node registers, and an agent and a tool that others call."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.address = self.tool_address = self.spare_address = ""
        self.agents: list[Any] = []
        self.tools: list[Any] = []
        self.heartbeats: list[str] = []
        self.streams: list[list[Any]] = []
        self.requests: list[Any] = []
        self.news = asyncio.Event()

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[Desk]:
        """Serve during the block. `port` 0 chooses a free one, in `address`."""
        server = grpc.aio.server(maximum_concurrent_rpcs=64)
        for add in (
            aip_pb2_grpc.add_GatewayServiceServicer_to_server,
            aip_pb2_grpc.add_AgentServiceServicer_to_server,
            aip_pb2_grpc.add_ToolServiceServicer_to_server,
        ):
            add(self, server)  # type: ignore[no-untyped-call]
        self.address = f"{self.host}:{server.add_insecure_port(f'{self.host}:{port}')}"
        self.tool_address, self.spare_address = (f"{self.host}:{server.add_insecure_port(f'{self.host}:0')}" for _ in range(2))
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the foreign node has done something."""
        while not condition():
            self.news.clear()
            await self.news.wait()

    async def within(self, condition: Callable[[], object]) -> bool:
        """Whether the foreign node does something before its next heartbeat is late."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT):
                await self.until(condition)
        self.came = f"registered {self.registered()}, heartbeats of {sorted({*self.heartbeats})}"
        return bool(condition())

    def _note(self, notes: list[Any], item: Any) -> None:
        if len(notes) < 100:  # a node that never stops fills nothing
            notes.append(item)
        self.news.set()

    async def CallAgent(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        messages: list[Any] = []
        self._note(self.streams, messages)
        async for message in requests:
            self._note(messages, message)
            is_lie = any(item.text == LIE for item in message.content)
            ids = {"sender_id": message.receiver_id, "receiver_id": message.sender_id}
            status = "STOP_RESPONSE" if message.session_status == aip_pb2.AgentMessage.STOP_QUEST else "HOLD_RESPONSE"
            session = "conform-other" if is_lie else message.session_id
            content = [aip_pb2.ContentItem(text="Heard.")]
            yield aip_pb2.AgentMessage(
                **ids, session_id=session, session_status=status, reply_to_message_id=message.message_id, content=content
            )
            if status == "STOP_RESPONSE":
                return

    RouteAgentCalling = CallAgent

    async def CallTool(self, request: Any, context: Any) -> Any:
        self._note(self.requests, request)
        session = "conform-other" if request.arguments.get("say") == LIE else ""
        return aip_pb2.ToolResponse(session_id=session, content=[aip_pb2.ContentItem(text="Done.")])

    async def RouteToolCalling(self, request: Any, context: Any) -> Any:
        answer = await self.CallTool(request, context)
        answer.sender_id, answer.receiver_id, answer.session_id = request.receiver_id, request.sender_id, request.session_id
        return answer

    async def RegisterAgent(self, request: Any, context: Any) -> Any:
        self._note(self.agents, request)
        return aip_pb2.RegisterAgentResponse(success=True, peers=self._peers())

    async def RegisterTool(self, request: Any, context: Any) -> Any:
        self._note(self.tools, request)
        return aip_pb2.RegisterToolResponse(success=True)

    async def DeregisterNode(self, request: Any, context: Any) -> Any:
        return aip_pb2.DeregisterNodeResponse(success=True)

    async def GetNodes(self, request: Any, context: Any) -> Any:
        return aip_pb2.GetNodesResponse(peers=self._peers())

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        """Answer the first heartbeat of each node with `success` false: the node registers again."""
        is_known = request.sender_id in self.heartbeats
        self._note(self.heartbeats, request.sender_id)
        return aip_pb2.HeartbeatResponse(success=is_known)

    def _peers(self) -> list[Any]:
        agent = aip_pb2.AgentInfo(agent_id=DESK_AGENT, address=self.address)
        tool = aip_pb2.ToolInfo(tool_id=DESK_TOOL, address=self.address, arguments={"text": "str"})
        return [aip_pb2.Peer(agent_info=agent), aip_pb2.Peer(tool_info=tool)]

    def registered(self) -> list[tuple[str, str]]:
        """Return the id and the address of each node that registered."""
        return [(each.agent_id, each.address) for each in self.agents] + [(each.tool_id, each.address) for each in self.tools]
