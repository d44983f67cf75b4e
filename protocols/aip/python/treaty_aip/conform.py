"""Check a foreign gateway, agent or tool of AIP, and a foreign node at a gateway of ours: `treaty conform aip`.

The rules are those of protocols/aip/0.0.1/document.md. `AGENT`, `TOOL` and `GATEWAY` are tried by calls of this side. `NODE` are
the items of a node that registers at `Desk`, which is also the agent and the tool that a foreign gateway routes to.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from treaty_io.conformance import Broken, Items, PeerUnderTest
from treaty_io.extras import naming_extras

from .conform_desk import DESK_AGENT, DESK_TOOL, HEARTBEAT, LIE, Desk, line
from .conform_session import SessionChannel
from .stubs import aip_pb2, aip_pb2_grpc

with naming_extras("aip"):
    import grpc

DOCUMENT = "protocols/aip/0.0.1/document.md"
AGENT, TOOL, GATEWAY, NODE = (Items(DOCUMENT) for _ in range(4))
ME = "conform-caller"
_Message = aip_pb2.AgentMessage


def _name() -> str:
    return f"conform-{uuid.uuid4().hex[:12]}"


class Stream:
    """A stream of this side to a receiver. `ids`: of its first message."""

    def __init__(self, peer: Caller, call: Any, session: str) -> None:
        self._peer, self._call = peer, call
        self.ids = {"sender_id": ME, "receiver_id": peer.receiver, "session_id": session}

    async def say(self, status: str, text: str = "hello", **ids: str) -> None:
        """Send a message. `ids`: those that differ from the stream's."""
        content = [aip_pb2.ContentItem(text=text)]
        fields: dict[str, Any] = {**self.ids, **ids, "session_status": status, "message_id": _name()}
        message = _Message(**fields, content=content)
        self._peer.sent += f"{line(message)}\n"
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the peer has ended the call: its code tells why
            await self._call.write(message)

    async def hear(self) -> Any:
        """Return the next answer; None at the end of the stream."""
        try:
            answer = await self._call.read()
        except grpc.aio.AioRpcError:
            return None
        if answer is grpc.aio.EOF:
            return None
        self._peer.came += f"{line(answer)}\n"
        return answer

    async def answer(self) -> Any:
        """Return the next answer. Raises `Broken` at the end of the stream."""
        answer = await self.hear()
        self._peer.expect(answer is not None, "The stream ends without an answer.")
        return answer

    async def end(self, *, half: bool = False) -> tuple[list[Any], str]:
        """Read to the end: the answers and the code. `half`: end the requests before."""
        if half:
            self._peer.sent += "the end of the requests"
            await self._call.done_writing()
        answers: list[Any] = []
        while (answer := await self.hear()) is not None and len(answers) < 100:
            answers.append(answer)
        code = (await self._call.code()).name
        self._peer.came += code if answers or code != "UNAVAILABLE" else ""
        return answers, code

    def cancel(self) -> None:
        """Give the stream up."""
        self._call.cancel()


class Caller(PeerUnderTest):
    """A foreign agent, tool or gateway at `address`, and the id to which this side speaks. `arguments`: of a tool's call."""

    stream_method, tool_method = "/grpc_service.AgentService/CallAgent", "/grpc_service.ToolService/CallTool"

    def __init__(self, channel: Any, receiver: str, arguments: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.channel, self.receiver, self.arguments = channel, receiver, dict(arguments or {})

    async def ask(self, method: str, request: Any, response: Any) -> tuple[str, Any]:
        """Make a call with one answer. Return its code, and the answer or None."""
        self.sent += f"{method.rpartition('/')[2]} {line(request)}\n"
        call = self.channel.unary_unary(method, type(request).SerializeToString, response.FromString)(request)
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            self.came += f"{error.code().name}: {error.details()}\n" if error.code() is not grpc.StatusCode.UNAVAILABLE else ""
            return error.code().name, None
        self.came += f"OK {line(answer)}\n"
        return "OK", answer

    async def tool(self, receiver: str = "", arguments: Mapping[str, str] | None = None) -> tuple[Any, str, Any]:
        """Call a tool: the request, the code and the response."""
        ids = {"sender_id": ME, "receiver_id": receiver or self.receiver, "session_id": _name()}
        request = aip_pb2.ToolRequest(**ids, tool_name=receiver or self.receiver, arguments=arguments or self.arguments)
        return request, *(await self.ask(self.tool_method, request, aip_pb2.ToolResponse))

    def has_id(self) -> None:
        """Leave an item untried in a session, whose one receiver is the peer."""
        self.need(not isinstance(self.channel, SessionChannel), "In a session the peer is the only receiver.")

    async def serves(self, method: str, seconds: float) -> bool:
        """Whether the peer implements a method, or does not answer."""
        call = self.channel.unary_unary(method, lambda data: data, lambda data: data)(b"", timeout=seconds)
        return await call.code() is not grpc.StatusCode.UNIMPLEMENTED

    @asynccontextmanager
    async def stream(self, session: str = "") -> AsyncIterator[Stream]:
        """Open a stream for the block."""
        call = self.channel.stream_stream(self.stream_method, _Message.SerializeToString, _Message.FromString)()
        opened = Stream(self, call, session or _name())
        try:
            yield opened
        finally:
            opened.cancel()


class Router(Caller):
    """A foreign gateway, at which the agent and the tool of `desk` are registered."""

    stream_method = "/grpc_service.GatewayService/RouteAgentCalling"
    tool_method = "/grpc_service.GatewayService/RouteToolCalling"

    def __init__(self, channel: Any, desk: Desk) -> None:
        super().__init__(channel, DESK_AGENT)
        self.desk, self.stub = desk, aip_pb2_grpc.GatewayServiceStub(channel)

    async def request(self, name: str, request: Any, response: Any) -> tuple[str, Any]:
        """Make a call of GatewayService."""
        return await self.ask(f"/grpc_service.GatewayService/{name}", request, response)

    async def register(self, name: str, address: str = "", *, domain: str = "") -> tuple[str, Any]:
        """Register an agent. Without an address it has a free one of this side."""
        info = aip_pb2.AgentInfo(agent_id=name, address=address or self.desk.spare_address, domain=domain)
        return await self.request("RegisterAgent", info, aip_pb2.RegisterAgentResponse)

    async def deregister(self, name: str) -> bool:
        """Deregister a node; whether there was one."""
        request = aip_pb2.DeregisterNodeRequest(node_id=name)
        code, answer = await self.request("DeregisterNode", request, aip_pb2.DeregisterNodeResponse)
        return code == "OK" and bool(answer.success)

    async def nodes(self, domain: str = "") -> set[str]:
        """Return the ids of the nodes of a domain."""
        request = aip_pb2.GetNodesRequest(agent_id=DESK_AGENT, domain=domain)
        code, answer = await self.request("GetNodes", request, aip_pb2.GetNodesResponse)
        self.expect(code == "OK", f"GetNodes ends with {code}.")
        return {peer.agent_info.agent_id or peer.tool_info.tool_id for peer in answer.peers}

    @asynccontextmanager
    async def node(self, **parts: str) -> AsyncIterator[str]:
        """Register an agent for the block; its id."""
        name = _name()
        code, _ = await self.register(name, **parts)
        self.expect(code == "OK", f"RegisterAgent ends with {code}.")
        try:
            yield name
        finally:
            await self.deregister(name)

    async def updates(self, subscriber: str) -> Any:
        """Subscribe to all nodes, and return the stream when the gateway has taken it."""
        call = self.stub.SubscribeToUpdates(aip_pb2.UpdateSubscriptionRequest(subscriber_id=subscriber))
        self.sent += f"SubscribeToUpdates {subscriber}\n"
        await asyncio.sleep(_SETTLED)
        return call


_SETTLED = 0.3
"""Seconds after which a subscription counts as taken: the gateway answers nothing to it."""


_SESSIONS, _NODES, _INVALID = "Sessions between agents", "Nodes", "INVALID_ARGUMENT"
_IDS, _NOBODY = ("session_id", "sender_id", "receiver_id"), ("START_QUEST", {"receiver_id": "conform-nobody"})


@AGENT.rule("ids", f"{_SESSIONS}, 1", "Answer with the session of the inquiry, and with sender and receiver exchanged.")
@GATEWAY.rule("ids", f"{_SESSIONS}, 1", "Forward messages unchanged.")
async def answers_are_of_the_receiver(peer: Caller) -> None:
    """Answers have the session of the stream; they are of its receiver, to its sender, and have the status of a response."""
    async with peer.stream() as stream:
        await stream.say("START_QUEST")
        answer = await stream.answer()
    peer.expect(answer.session_id == stream.ids["session_id"], "The session_id is another one.")
    swapped = (answer.sender_id, answer.receiver_id) == (peer.receiver, ME)
    peer.expect(swapped, f"The answer is of {answer.sender_id!r} to {answer.receiver_id!r}.")
    peer.expect(answer.session_status in (_Message.HOLD_RESPONSE, _Message.STOP_RESPONSE), "The status is none of a response.")


@AGENT.rule("closing", f"{_SESSIONS}, 2", "Answer STOP_QUEST with STOP_RESPONSE, and end the stream with OK.")
@GATEWAY.rule("closing", f"{_SESSIONS}, 2", "End the initiator's stream after the receiver's STOP_RESPONSE.")
async def the_initiator_closes(peer: Caller) -> None:
    """The initiator sends STOP_QUEST, the receiver answers STOP_RESPONSE, and the stream ends."""
    async with peer.stream() as stream:
        await stream.say("START_QUEST")
        first = await stream.answer()
        peer.need(first.session_status != _Message.STOP_RESPONSE, "The receiver closed at once.")
        await stream.say("HOLD_QUEST")
        await stream.say("STOP_QUEST")
        answers, code = await stream.end()
    stops = [number for number, each in enumerate(answers) if each.session_status == _Message.STOP_RESPONSE]
    peer.expect(stops == [len(answers) - 1] and answers, "The last answer is not the one STOP_RESPONSE.")
    peer.expect(code == "OK", f"The stream ends with {code}.")


def _faulty(name: str, rule: str, code: str, messages: list[tuple[str, dict[str, str]]]) -> None:
    """Add an item for agents and gateways: a stream with these messages ends with a code."""

    async def refuses(peer: Caller) -> None:
        if name == "receiver":
            peer.has_id()
        async with peer.stream() as stream:
            for status, ids in messages:
                await stream.say(status, **ids)
            answers, came = await stream.end(half=not messages)
        peer.expect(came == code, f"The stream ends with {came}, and not with {code}.")
        if len(messages) > 1:
            is_told = answers and answers[-1].session_status == _Message.STOP_RESPONSE and answers[-1].content
            peer.expect(is_told, "The initiator gets no STOP_RESPONSE with the reason before the status.")

    refuses.__doc__ = rule
    fix = f"End such a stream with {code}{', after a STOP_RESPONSE with the reason' if len(messages) > 1 else ''}."
    for items in (AGENT, GATEWAY):
        items.rule(name, f"{_SESSIONS}, {'1 and 2' if len(messages) > 1 else '1'}", fix)(refuses)


_FIRST: tuple[tuple[str, str, str, list[tuple[str, dict[str, str]]]], ...] = (
    ("first-status", "The first message of a stream is START_QUEST.", _INVALID, [("HOLD_QUEST", {})]),
    ("first-session", "The first message of a stream names its session.", _INVALID, [("START_QUEST", {"session_id": ""})]),
    ("empty", "A stream that ends before its first message ends with ABORTED.", "ABORTED", []),
    ("receiver", "A receiver that is not registered, or not this node, is NOT_FOUND.", "NOT_FOUND", [_NOBODY]),
)
for _fault in _FIRST:
    _faulty(*_fault)
for _later in (*_IDS, "START_QUEST", "HOLD_RESPONSE"):
    _is_id, _rule = _later in _IDS, "All messages of a stream have the {} of the first one."
    _fault_of = ("HOLD_QUEST", {_later: "conform-other"}) if _is_id else (_later, {})
    _rule = (_rule if _is_id else "After its first message the initiator sends HOLD_QUEST and STOP_QUEST, and not {}.").format(
        _later
    )
    _faulty(f"later-{_later.lower().replace('_', '-')}", _rule, _INVALID, [("START_QUEST", {}), _fault_of])


@AGENT.rule("open-session", f"{_SESSIONS}, 1", "Keep the ids of the open sessions, and refuse a stream with one of them.")
@GATEWAY.rule("open-session", f"{_SESSIONS}, 1", "Keep the ids of the open sessions, and refuse a stream with one of them.")
async def an_open_session_is_not_joined(peer: Caller) -> None:
    """A `session_id` that is open is INVALID_ARGUMENT: no stream joins another one. When it is closed, it is free."""
    session = _name()
    async with peer.stream(session) as first:
        await first.say("START_QUEST")
        answer = await first.answer()
        peer.need(answer.session_status != _Message.STOP_RESPONSE, "The receiver closed at once.")
        async with peer.stream(session) as second:
            await second.say("START_QUEST")
            _, code = await second.end()
        peer.expect(code == _INVALID, f"A second stream of the session ends with {code}.")
        await first.say("STOP_QUEST")
        answers, code = await first.end()
        peer.expect(answers and code == "OK", "The first stream was disturbed.")
    async with peer.stream(session) as third:
        await third.say("START_QUEST")
        await third.answer()


@AGENT.rule("apart", f"{_SESSIONS}, 1", "Keep the state of each stream apart.")
@GATEWAY.rule("apart", f"{_SESSIONS}, 5", "Keep one stream to the receiver for each session.")
async def sessions_at_once_are_apart(peer: Caller) -> None:
    """Sessions at the same time do not mix: each stream gets the answers of its own session."""
    async with peer.stream() as one, peer.stream() as other:
        for stream in (one, other):
            await stream.say("START_QUEST")
        for stream in (other, one):
            answer = await stream.answer()
            peer.expect(answer.session_id == stream.ids["session_id"], "An answer came in the stream of another session.")


@TOOL.rule("answers", "Tools", "Answer each request with one ToolResponse. Give the tool's arguments with --arguments.")
@GATEWAY.rule("routes-tool", "Tools", "Forward the request and the response unchanged, and fill in the ids that are left out.")
async def a_tool_answers(peer: Caller) -> None:
    """A tool answers each request with one response, whose ids are those of the request, sender and receiver exchanged."""
    tool = DESK_TOOL if isinstance(peer, Router) else peer.receiver
    request, code, answer = await peer.tool(tool)
    peer.expect(code == "OK", f"The call ends with {code}.")
    due = {"sender_id": request.receiver_id, "receiver_id": ME, "session_id": request.session_id}
    for name, value in due.items():
        allowed = (value,) if isinstance(peer, Router) else (value, "")  # a receiver fills in ids that are left out
        peer.expect(getattr(answer, name) in allowed, f"The {name} is that of another request.")


@TOOL.rule("receiver", f"{_SESSIONS}, 1", "Compare receiver_id with your own id.")
@GATEWAY.rule("unknown-tool", f"{_SESSIONS}, 1", "Answer NOT_FOUND for a tool that is not registered.")
async def a_request_for_another_tool_is_refused(peer: Caller) -> None:
    """A request for a tool that is not registered, or not this node, ends with NOT_FOUND."""
    peer.has_id()
    _, code, _ = await peer.tool("conform-nobody")
    peer.expect(code == "NOT_FOUND", f"The call ends with {code}.")


@TOOL.rule("failure", "Tools", "Catch the errors of the tool, and answer with is_error and error_message.")
async def a_failure_is_a_response(peer: Caller) -> None:
    """A tool's failure is a response with `is_error` and `error_message`."""
    _, code, answer = await peer.tool(arguments={"conform_unknown": "?"})
    peer.expect(code == "OK", f"The call ends with {code}, and the caller reads no error_message.")
    peer.need(answer.is_error, "The tool does not fail without its arguments.")
    peer.expect(answer.error_message, "The response has no error_message.")


@GATEWAY.rule("registers", _NODES, "Return the registered nodes without the new one.")
async def a_new_agent_gets_the_others(peer: Router) -> None:
    """RegisterAgent returns the other nodes."""
    _, answer = await peer.register(name := _name())
    peer.expect(answer is not None and answer.success, "The registration fails.")
    ids = {each.agent_info.agent_id or each.tool_info.tool_id for each in answer.peers}
    await peer.deregister(name)
    peer.expect({DESK_AGENT, DESK_TOOL} <= ids, "The nodes that are registered are not all in `peers`.")
    peer.expect(name not in ids, "The new node itself is in `peers`.")


@GATEWAY.rule("unique", _NODES, "Refuse the id and the address of another node with ALREADY_EXISTS.")
async def ids_and_addresses_are_unique(peer: Router) -> None:
    """Ids and addresses are unique at a gateway: ALREADY_EXISTS."""
    code, _ = await peer.register(DESK_AGENT)
    peer.expect(code == "ALREADY_EXISTS", f"A second node with an id, at another address: {code}.")
    code, _ = await peer.register(name := _name(), peer.desk.address)
    await peer.deregister(name)
    peer.expect(code == "ALREADY_EXISTS", f"A second node with an address: {code}.")


@GATEWAY.rule("address", _NODES, "Read an address as HOST:PORT, and refuse others with INVALID_ARGUMENT.")
async def an_address_has_a_port(peer: Router) -> None:
    """An address is HOST:PORT."""
    code, _ = await peer.register(name := _name(), "nowhere")
    await peer.deregister(name)
    peer.expect(code == _INVALID, f"The address `nowhere` is answered with {code}.")


@GATEWAY.rule("domains", _NODES, "Read `default` and no domain as all domains.")
async def a_domain_selects_nodes(peer: Router) -> None:
    """GetNodes returns the nodes of a domain. The domain `default`, and none, stands for all domains."""
    async with peer.node(domain="conform") as name:
        peer.expect(await peer.nodes("conform") == {name}, "GetNodes of a domain returns other nodes.")
        for domain in ("", "default"):
            peer.expect({name, DESK_AGENT} <= await peer.nodes(domain), f"GetNodes of {domain!r} does not return all nodes.")


@GATEWAY.rule("heartbeat", _NODES, "Answer a heartbeat with success false, if the node is not registered.")
async def a_heartbeat_tells_whether_the_node_is_known(peer: Router) -> None:
    """A heartbeat of a registered node has `success` true, and one of an unknown node false."""
    for name, is_known in ((DESK_AGENT, True), ("conform-nobody", False)):
        code, answer = await peer.request("Heartbeat", aip_pb2.HeartbeatRequest(sender_id=name), aip_pb2.HeartbeatResponse)
        peer.expect(code == "OK" and answer.success is is_known, f"The heartbeat of {name} has not `success` {is_known}.")


@GATEWAY.rule("deregisters", _NODES, "Forget the node, and answer whether there was one.")
async def a_deregistered_node_is_gone(peer: Router) -> None:
    """A node that is deregistered is not in GetNodes any more, and a second time has `success` false."""
    async with peer.node() as name:
        peer.expect(await peer.deregister(name), "The node cannot be deregistered.")
        peer.expect(name not in await peer.nodes(), "The node is in GetNodes still.")
        peer.expect(not await peer.deregister(name), "The second deregistration has `success` true.")


@GATEWAY.rule("updates", _NODES, "Tell subscribers of ADDED, UPDATED and REMOVED, in this order, with the node.")
async def a_subscriber_is_told(peer: Router) -> None:
    """A subscription without `node_ids` is for all nodes: it tells which are added, updated and removed."""
    updates = await peer.updates(DESK_AGENT)
    async with peer.node() as name:
        info = aip_pb2.AgentInfo(agent_id=name, address=peer.desk.spare_address, version="2")
        update = aip_pb2.UpdateNodeInfoRequest(sender_id=name, peer=aip_pb2.Peer(agent_info=info))
        code, answer = await peer.request("UpdateNodeInfo", update, aip_pb2.UpdateNodeInfoResponse)
        peer.expect(code == "OK" and answer.success, "UpdateNodeInfo of a registered node fails.")
    for kind in ("ADDED", "UPDATED", "REMOVED"):
        change = await updates.read()
        peer.expect(change is not grpc.aio.EOF, "The subscription ends.")
        peer.came += f"{line(change)}\n"
        actual = aip_pb2.NodeUpdate.UpdateType.Name(change.update_type), change.node_id
        peer.expect(actual == (kind, name), f"The update is {actual}, and not {(kind, name)}.")
        peer.expect(kind != "UPDATED" or change.peer.agent_info.version == "2", "The update has the former description.")
    updates.cancel()


@GATEWAY.rule("one-subscription", _NODES, "End the former subscription of a subscriber, and all at Unsubscribe.")
async def a_second_subscription_ends_the_first(peer: Router) -> None:
    """A second subscription of a subscriber ends the first. Unsubscribe without `node_ids` ends it."""
    first = await peer.updates(DESK_AGENT)
    second = await peer.updates(DESK_AGENT)
    peer.expect(await first.read() is grpc.aio.EOF, "The first subscription goes on.")
    request = aip_pb2.UnsubscribeRequest(subscriber_id=DESK_AGENT)
    code, answer = await peer.request("Unsubscribe", request, aip_pb2.UnsubscribeResponse)
    peer.expect(code == "OK" and answer.success, "Unsubscribe fails.")
    peer.expect(await second.read() is grpc.aio.EOF, "The subscription goes on after Unsubscribe.")


@GATEWAY.rule("tool-ids", "Tools", "Compare the ids of a tool's response with those of its request: INTERNAL.")
async def a_tool_that_lies_is_not_believed(peer: Router) -> None:
    """A receiver refuses a response with the ids of another request with INTERNAL."""
    _, code, _ = await peer.tool(DESK_TOOL, {"say": LIE})
    peer.expect(code == "INTERNAL", f"The response of another request is passed on: {code}.")


@GATEWAY.rule("agent-ids", f"{_SESSIONS}, 1 and 2", "Compare the ids of each answer, and end the session with STOP_RESPONSE.")
async def an_agent_that_lies_is_not_believed(peer: Router) -> None:
    """After an error, here an answer of another session, the initiator gets a STOP_RESPONSE whose content is the reason."""
    async with peer.stream() as stream:
        await stream.say("START_QUEST", LIE)
        answers, _ = await stream.end()
    peer.expect(answers and answers[-1].session_status == _Message.STOP_RESPONSE, "The session does not end with STOP_RESPONSE.")
    peer.expect({each.session_id for each in answers} == {stream.ids["session_id"]}, "An answer of another session is passed on.")


@GATEWAY.rule("lost", f"{_SESSIONS}, 2, and {_NODES}", "End the session with STOP_RESPONSE, and deregister a node that is gone.")
async def a_lost_receiver_is_deregistered(peer: Router) -> None:
    """When the receiver is gone, the initiator gets a STOP_RESPONSE with a reason, and the receiver is deregistered."""
    async with AsyncExitStack() as stack, peer.stream() as stream:
        doomed = await stack.enter_async_context(Desk(peer.desk.host).serving(0))
        code, _ = await peer.register(name := _name(), doomed.address)
        peer.expect(code == "OK", f"RegisterAgent ends with {code}.")
        stream.ids["receiver_id"] = name
        await stream.say("START_QUEST")
        await stream.answer()
        await stack.aclose()
        answers, _ = await stream.end()
    stopped = bool(answers) and answers[-1].session_status == _Message.STOP_RESPONSE and bool(answers[-1].content)
    peer.expect(stopped, "The initiator gets no STOP_RESPONSE with a reason.")
    for _ in range(10):  # the end of a connection takes a moment
        if name not in await peer.nodes():
            return
        await asyncio.sleep(_SETTLED)
    await peer.deregister(name)
    raise Broken("The receiver is registered still.")


@asynccontextmanager
async def roles_at(
    address: str, desk: Desk, agent: str, tool: str, arguments: Mapping[str, str], seconds: float, *, uri: str = ""
) -> AsyncIterator[list[tuple[str, Items, Caller]]]:
    """Connect to a foreign peer for the block: the roles that it serves, each with its items. A silent peer serves all.

    At a ws URL it is an agent or a tool that provides the protocol `uri` in the role `peer`.
    """
    if address.startswith(("ws:", "wss:")):
        async with AsyncExitStack() as stack:
            session = SessionChannel(address, uri, stack)
            spoken = (("agent", AGENT, Caller(session, agent)), ("tool", TOOL, Caller(session, tool, arguments)))
            yield [each for each in spoken if each[2].receiver]
        return
    async with grpc.aio.insecure_channel(address) as channel:
        router, roles = Router(channel, desk), list[tuple[str, Items, Caller]]()
        if await router.serves("/grpc_service.GatewayService/GetNodes", seconds):
            await join(router)
            roles.append(("gateway", GATEWAY, router))
        for role, items, peer in (("agent", AGENT, Caller(channel, agent)), ("tool", TOOL, Caller(channel, tool, arguments))):
            if peer.receiver and await peer.serves(peer.stream_method if items is AGENT else peer.tool_method, seconds):
                roles.append((role, items, peer))
        yield roles


async def join(router: Router) -> None:
    """Register the agent and the tool of this side at a foreign gateway."""
    await router.register(DESK_AGENT, router.desk.address)
    tool = aip_pb2.ToolInfo(tool_id=DESK_TOOL, address=router.desk.tool_address)
    await router.request("RegisterTool", tool, aip_pb2.RegisterToolResponse)


@NODE.rule("registers", _NODES, "Call RegisterAgent or RegisterTool with an id and HOST:PORT.")
async def a_node_registers(peer: Desk) -> None:
    """A node registers at its gateway with an id and an address HOST:PORT, each of at most 256 characters."""
    peer.need(peer.registered(), "No node registered at this address.")
    peer.came = f"{peer.registered()}"
    for name, address in peer.registered():
        host, _, port = address.rpartition(":")
        peer.expect(name and len(name) <= 256, "The id is empty or too long.")
        peer.expect(host and port.isascii() and port.isdigit() and len(address) <= 256, f"{address!r} is no HOST:PORT.")


@NODE.rule("begins", f"{_SESSIONS}, 1", "Begin with START_QUEST and a session_id of its own.")
async def a_session_begins_with_start_quest(peer: Desk) -> None:
    """The first message of a stream is START_QUEST with a `session_id`, and later ones are HOLD_QUEST or STOP_QUEST."""
    for stream in _heard(peer):
        statuses = [_Message.SessionStatus.Name(message.session_status) for message in stream]
        peer.expect(statuses[0] == "START_QUEST" and stream[0].session_id, "The first message does not begin a session.")
        peer.expect({*statuses[1:]} <= {"HOLD_QUEST", "STOP_QUEST"}, f"The statuses are {statuses}.")


@NODE.rule("one-session", f"{_SESSIONS}, 1", "Open a stream for each session, and keep its ids.")
async def a_stream_has_one_session(peer: Desk) -> None:
    """All messages of a stream have the session, the sender and the receiver of the first one."""
    for stream in _heard(peer):
        ids = {(message.session_id, message.sender_id, message.receiver_id) for message in stream}
        peer.expect(len(ids) == 1 and all(next(iter(ids))), f"The messages of a stream have the ids {ids}.")


@NODE.rule("closes", f"{_SESSIONS}, 2", "Send STOP_QUEST, and read until STOP_RESPONSE.")
async def the_node_closes_its_sessions(peer: Desk) -> None:
    """The initiator closes its session with STOP_QUEST."""
    for stream in _heard(peer):
        peer.expect(stream[-1].session_status == _Message.STOP_QUEST, "A stream does not end with STOP_QUEST.")


def _heard(peer: Desk) -> list[list[Any]]:
    streams = [stream for stream in peer.streams if stream]
    peer.need(streams, f"The node began no session with {DESK_AGENT}.")
    peer.came = "\n".join(line(message) for stream in streams for message in stream)
    return streams


@NODE.rule("calls-tool", "Tools", "Name sender, receiver, session and arguments in the request.")
async def the_node_calls_a_tool(peer: Desk) -> None:
    """A request to a tool names its sender, its receiver and its arguments."""
    peer.need(peer.requests, f"The node did not call {DESK_TOOL}.")
    peer.came = "\n".join(map(line, peer.requests))
    named = all(each.sender_id and each.receiver_id == DESK_TOOL for each in peer.requests)
    peer.expect(named, "A request does not name its sender, or names another receiver.")


@NODE.rule("heartbeats", _NODES, "Send Heartbeat with the id of the node every 10 seconds.")
async def the_node_sends_heartbeats(peer: Desk) -> None:
    """A node sends Heartbeat every 10 seconds."""
    names = {name for name, _ in peer.registered()}
    peer.need(names, "No node registered at this address.")
    peer.expect(await peer.within(lambda: names <= {*peer.heartbeats}), f"No heartbeat of each node in {HEARTBEAT:g} seconds.")


@NODE.rule("again", _NODES, "Register anew when a heartbeat is answered with success false.")
async def the_node_registers_again(peer: Desk) -> None:
    """A heartbeat of an unknown node has `success` false, and the node registers again."""
    names = {*peer.heartbeats}
    peer.need(names, "The node sent no heartbeat.")
    peer.sent = f"success false for {sorted(names)}"
    again = await peer.within(lambda: all([name for name, _ in peer.registered()].count(each) > 1 for each in names))
    peer.expect(again, "The node did not register a second time.")
