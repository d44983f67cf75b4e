"""The agent: it speaks to other agents in streams, and calls tools, through a gateway or directly."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from treaty_agent import OperationError

from .calls import Bounds
from .data import AgentInfo, AgentSkill, ContentItem, Mode, Peer, SessionStatus, ToolInfo
from .handler.fields import CONVERSATIONS
from .handlers import invoke_all, public_text
from .host import Function
from .messages import AgentMessage, Content, TaskInfo, ToolRequest, ToolResponse, content_items, written_arguments
from .node import HEARTBEAT_INTERVAL, GatewayNode, described
from .security import Security
from .stubs.aip_pb2_grpc import AgentServiceStub, GatewayServiceStub

MAX_LATEST = 128
"""Sessions whose last inquiry is kept for `invoke_session_handlers`: as many as may be open. The oldest goes."""
MAX_PEERS = 4096
"""Nodes in `get_nodes`: as many as one answer of a gateway has. Updates name further ones without an end."""


class Agent(GatewayNode):
    """An agent. For one event loop."""

    _service = "AgentService"

    def __init__(
        self,
        address: str,
        agent_id: str | None = None,
        name: str | None = None,
        domain: str = "default",
        description: str = "",
        version: str = "1.0.0",
        input_mode: Sequence[Mode] = (Mode.TEXT,),
        output_mode: Sequence[Mode] = (Mode.TEXT,),
        skills: Sequence[AgentSkill] = (),
        *,
        security: Security | None = None,
        bounds: Bounds | None = None,
        heartbeat_interval: float = HEARTBEAT_INTERVAL,
        session_seconds: float = 300.0,
    ) -> None:
        """Start nothing. `agent_id`: new if there is none; also the name, if there is none."""
        super().__init__(address, security, bounds, heartbeat_interval, {"session_seconds": session_seconds})
        self.agent_id = agent_id or str(uuid.uuid4())
        self.name, self.domain, self.description, self.version = name or self.agent_id, domain, description, version
        self.input_mode, self.output_mode, self.skills = list(input_mode), list(output_mode), list(skills)
        self._peers: dict[str, AgentInfo | ToolInfo] = {}
        # Beyond the inquiries of others there is place for as many ends of their sessions.
        self._inquiries: asyncio.Queue[AgentMessage] = asyncio.Queue(2 * self._bounds.inbox)
        self._feedback: dict[tuple[str, str], asyncio.Queue[AgentMessage]] = {}
        self._latest: dict[str, AgentMessage] = {}
        self._tools: dict[str, str] = {}

    @property
    def agent_info(self) -> AgentInfo:
        """The description that a registration sends."""
        return self._create_agent_info()

    def _create_agent_info(self) -> AgentInfo:
        """Return the description of this agent."""
        return AgentInfo(
            self.agent_id,
            self.address,
            self.name,
            self.domain,
            [*self.input_mode],
            [*self.output_mode],
            self.description,
            [*self.skills],
            self.version,
        )

    async def update_peers(self, domain: str = "default") -> Self:
        """Ask the gateway for the nodes of a domain; "default" is all. Raises `OperationError` (412 without a gateway)."""
        response = await self._call("get_nodes", domain=domain)
        self._peers = described(response["peers"])
        return self

    def get_nodes(self) -> dict[str, AgentInfo | Any]:
        """Return the nodes of the last answer of the gateway, by id."""
        return dict(self._peers)

    async def subscribe(self, node_ids: Sequence[str] = ()) -> None:
        """Keep `get_nodes` up to date for these nodes; none are all. Raises `OperationError` (412 without a gateway)."""
        await self._call("subscribe", node_ids=[*node_ids])

    async def unsubscribe(self, node_ids: Sequence[str] = ()) -> bool:
        """Leave nodes out of the subscription; none end it. Return whether there was one."""
        return bool((await self._call("unsubscribe", node_ids=[*node_ids]))["success"])

    def create_task_info(self, parent_task_ids: list[str] | None = None) -> TaskInfo:
        """Return a new task."""
        return TaskInfo(str(uuid.uuid4()), list(parent_task_ids or []))

    def create_content_items(self, content: Content, content_mode: Mode | list[Mode] | None = None) -> list[ContentItem]:
        """Return an item for each content. Raises `OperationError` (400) where modes and contents do not fit."""
        return content_items(content, content_mode)

    def create_agent_message(
        self,
        receiver_id: str,
        content: Content,
        session_id: str | None = None,
        task_info: TaskInfo | None = None,
        content_mode: Mode | list[Mode] | None = None,
        session_status: SessionStatus = SessionStatus.START_QUEST,
        message_id: str | None = None,
        reply_to_message_id: str | None = None,
    ) -> AgentMessage:
        """Return a message of this agent. `session_id`, `message_id`: new if there is none. Raises `OperationError` (400)."""
        return AgentMessage(
            sender_id=self.agent_id,
            receiver_id=receiver_id,
            session_id=session_id or str(uuid.uuid4()),
            session_status=session_status,
            task_info=task_info,
            message_id=message_id or str(uuid.uuid4()),
            reply_to_message_id=reply_to_message_id or "",
            content=content_items(content, content_mode),
        )

    async def create_agent_client(
        self,
        receiver_id: str,
        stub: Any = GatewayServiceStub,
        stream_calling: str = "RouteAgentCalling",
        *,
        address: str | None = None,
    ) -> str:
        """Add a client for a session with another agent; its session_id. The first inquiry begins the session.

        `stub`, `stream_calling`: the class of stubs and the method; `AgentServiceStub` and "CallAgent" without a gateway.
        `address`: of the receiver without a gateway, which needs no stub; default the one in `get_nodes`.
        Raises `OperationError` (400, 404, 429).
        """
        if address is not None and stub is GatewayServiceStub:
            stub, stream_calling = AgentServiceStub, "CallAgent"
        method = method_of(stub, stream_calling)
        peer = self._peers.get(receiver_id)
        if method == "CallAgent" and address is None:
            if peer is None:
                raise OperationError(404, "The address of this agent is not known.")
            address = peer.address
        session_id = str(uuid.uuid4())
        to = {} if address is None else {"address": address}
        await self._call("create_client", session_id=session_id, receiver_id=receiver_id, method=method, **to)
        self._paths(method, path_in(stub, stream_calling))
        self._feedback[session_id, receiver_id] = asyncio.Queue(self._bounds.inbox)
        return session_id

    async def submit_inquiry(
        self,
        session_id: str,
        receiver_id: str,
        content: Content,
        content_mode: Mode | list[Mode] | None = None,
        session_status: SessionStatus | None = None,
        task_info: TaskInfo | None = None,
        *,
        reply_to_message_id: str = "",
    ) -> str:
        """Send an inquiry, and return its message_id. Without a status it begins the session, or goes on with it.

        Raises `OperationError`: 400 for the status of a response, 404 without a client, 409 for START in a session that has begun
        and for HOLD and STOP in one that has not, 412 without a gateway.
        """
        message = self.create_agent_message(
            receiver_id, content, session_id, task_info, content_mode, reply_to_message_id=reply_to_message_id
        )
        return await self._submit("submit_inquiry", message, session_status)

    async def receive_feedback(self, session_id: str, receiver_id: str) -> AgentMessage:
        """Wait for the next answer in a session that this agent began. A session that fails ends with STOP_RESPONSE.

        Raises `OperationError` (404) without a client of this session and receiver.
        """
        if (session_id, receiver_id) not in self._feedback:
            raise OperationError(404, "There is no client of this session and receiver.")
        return await self._feedback[session_id, receiver_id].get()

    async def submit_feedback(
        self,
        session_id: str,
        receiver_id: str,
        content: Content,
        content_mode: Mode | list[Mode] | None = None,
        session_status: SessionStatus | None = None,
        task_info: TaskInfo | None = None,
        *,
        reply_to_message_id: str | None = None,
    ) -> str:
        """Answer in a session that another agent began, and return the answer's message_id.

        Without a status it is STOP_RESPONSE after STOP_QUEST, else HOLD_RESPONSE. `reply_to_message_id`: default the inquiry of
        this session that `receive_inquiry` returned last.
        Raises `OperationError`: 400 for the status of a quest, 404 without such a session.
        """
        latest = self._latest.get(session_id)
        replied = reply_to_message_id if reply_to_message_id is not None or latest is None else latest.message_id
        message = self.create_agent_message(
            receiver_id, content, session_id, task_info, content_mode, reply_to_message_id=replied
        )
        await self._submit("submit_feedback", message, session_status)
        stopping = latest is not None and session_status is None and latest.session_status == SessionStatus.STOP_QUEST
        if session_status == SessionStatus.STOP_RESPONSE or stopping:
            self._latest.pop(session_id, None)
        return message.message_id

    async def receive_inquiry(self) -> AgentMessage:
        """Wait for the next inquiry of any session that another agent began.

        A session that its initiator gave up, that was silent too long or whose initiator is gone ends with a STOP_QUEST without a
        message_id, whose text is the reason. An answer to it goes nowhere.
        """
        message = await self._inquiries.get()
        self._latest.pop(message.session_id, None)
        self._latest[message.session_id] = message
        if len(self._latest) > MAX_LATEST:
            del self._latest[next(iter(self._latest))]
        return message

    async def invoke_session_handlers(self, session_id: str, handlers: list[Callable[..., Any]]) -> list[Any]:
        """Run handlers for the inquiry of a session that was received last; their results, in order.

        A handler that takes a parameter gets the message. If one raises, the session ends with STOP_RESPONSE, and the exception
        is raised here. Raises `OperationError` (404) if no inquiry of this session was received.
        """
        message = self._latest.get(session_id)
        if message is None:
            raise OperationError(404, "No inquiry of this session was received.")
        try:
            return await invoke_all(handlers, message)
        except Exception as error:
            await self._fail(message, error)
            raise

    def create_tool_request(
        self,
        receiver_id: str,
        session_id: str | None = None,
        tool_name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> ToolRequest:
        """Return a request to a tool. An argument that is no text becomes JSON. Raises `OperationError` (400)."""
        session = session_id or str(uuid.uuid4())
        return ToolRequest(self.agent_id, receiver_id, session, tool_name or "", written_arguments(arguments))

    async def call_tool(
        self,
        tool_id: str,
        session_id: str | None = None,
        tool_name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        address: str | None = None,
    ) -> ToolResponse:
        """Call a tool through the gateway, or at its own address. A failure of the tool is a response with `is_error`.

        Raises `OperationError`: 404 without such a tool, 412 without a gateway, 503 and 504 if it does not answer.
        """
        request = self.create_tool_request(tool_id, session_id, tool_name, arguments)
        to = {} if address is None else {"address": address}
        self._tools[tool_id] = address or ""
        return ToolResponse.from_value(await self._call("call_tool", request=request, **to))

    async def close_agent_client(self, session_id: str, receiver_id: str) -> bool:
        """Remove a client, and cancel its session. Return whether there was one."""
        closed = bool(await self._call("close_client", session_id=session_id, receiver_id=receiver_id))
        if closed:
            self._feedback.pop((session_id, receiver_id), None)
        return closed

    async def close_tool_client(self, tool_id: str) -> bool:
        """Close the connection to a tool that was called. Return whether there was one."""
        address = self._tools.pop(tool_id, None)
        if address and self._host is not None:
            await self._host.outgoing.channels.hang_up(address)
        return address is not None

    async def _submit(self, operation: str, message: AgentMessage, status: SessionStatus | None) -> str:
        status_field = {} if status is None else {"status": SessionStatus(status).name}
        await self._call(operation, message=message, **status_field)
        return message.message_id

    async def _fail(self, message: AgentMessage, error: Exception) -> None:
        text = public_text(error)
        try:
            await self.submit_feedback(message.session_id, message.sender_id, text, session_status=SessionStatus.STOP_RESPONSE)
        except OperationError:
            return  # the session is over already

    def _paths(self, method: str, path: str) -> None:
        if self._host is not None:
            self._host.outgoing.paths[method] = path

    def _peer(self) -> Peer:
        return Peer(agent_info=self._create_agent_info())

    def _registered(self, response: Mapping[str, Any]) -> None:
        self._peers |= described(response["peers"])

    def _functions(self) -> Mapping[str, Function]:
        return {"inquiry": self._take_inquiry, "feedback": self._take_feedback, "node_changed": self._take_change}

    async def _take_inquiry(self, arguments: Any) -> None:
        message = AgentMessage.from_value(arguments["message"])
        is_end = message.session_status == SessionStatus.STOP_QUEST and not message.message_id
        _keep(self._inquiries, message, 2 * self._bounds.inbox if is_end else self._bounds.inbox)

    async def _take_feedback(self, arguments: Any) -> None:
        message = AgentMessage.from_value(arguments["message"])
        if (queue := self._feedback.get((message.session_id, message.sender_id))) is not None:
            _keep(queue, message, self._bounds.inbox)

    async def _take_change(self, arguments: Any) -> None:
        update = arguments["update"]
        if update["update_type"] == "REMOVED":
            self._peers.pop(update["node_id"], None)
        elif "peer" in update and len(self._peers) < MAX_PEERS:
            self._peers |= described([update["peer"]])


def _keep(queue: asyncio.Queue[AgentMessage], message: AgentMessage, most: int) -> None:
    if queue.qsize() >= most:
        # A peer chooses how much it sends. The session ends, and the messages that wait are still given out.
        raise OperationError(429, f"{most} messages wait for this agent.")
    queue.put_nowait(message)


class _PathChannel:
    """A channel that gives the path instead of a call."""

    def _path(self, path: str, *_: Any, **__: Any) -> str:
        return path

    unary_unary = unary_stream = stream_unary = stream_stream = _path


def path_in(stub: Any, method: str) -> str:
    """Return the path that a class of stubs uses for a method. Raises `OperationError` (400) if it has none."""
    path = getattr(stub(_PathChannel()), method, None)
    if not isinstance(path, str):
        raise OperationError(400, f"{stub.__name__} has no method {method}.")
    return path


def method_of(stub: Any, method: str) -> str:
    """Return the method's name in the protocol. Raises `OperationError` (400) if it is none between agents."""
    name = path_in(stub, method).rpartition("/")[2]
    if name not in CONVERSATIONS:
        raise OperationError(400, f"{name} is no stream between agents.")
    return name
