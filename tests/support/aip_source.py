"""A peer of AIP that knows only the text of the source: its printed lines, as they stand there, over the generated stubs.

`aip_printed.txt` has each printed signature, field and example. An example is run as it is printed, with the
classes of the peer; a field's example is the value in the parentheses. Nothing of Treaty is used but the generated stubs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from treaty_aip.stubs import aip_pb2, aip_pb2_grpc

PRINTED = Path(__file__).with_name("aip_printed.txt").read_text(encoding="utf-8")
_SECTIONS = {block.partition("\n")[0]: block.partition("\n")[2].splitlines() for block in PRINTED.split("\n\n")}
Status = aip_pb2.AgentMessage.SessionStatus


def signatures() -> dict[str, dict[str, str]]:
    """Class → method → the printed parameters."""
    by_class: dict[str, dict[str, str]] = {}
    for head, lines in _SECTIONS.items():
        if head.startswith("class "):
            methods = [re.match(r"• (\w+)\((.*?)\)(?: -> .*?)?:", line) for line in lines]
            by_class[head.removeprefix("class ")] = {match[1]: match[2] for match in methods if match}
    return by_class


def members(enum: str) -> dict[str, int]:
    """Name → number of an enumeration."""
    printed = [re.match(r"• (\w+) \((\d)\)", line) for line in _SECTIONS[f"{enum} (Enum)"]]
    return {match[1]: int(match[2]) for match in printed if match}


def examples() -> dict[str, list[str]]:
    """Section → the statements of its example. The page joined some in one line."""
    by_name = {}
    for head, lines in _SECTIONS.items():
        code = [line for line in lines if not line.startswith("•")]
        if code:
            by_name[head.removesuffix(" (Enum)")] = re.split(r"(?<=\)) (?=\w)", code[0].partition(" #")[0])
    return by_name


def values(message: str) -> dict[str, str]:
    """Field → the value that the source prints for it, as code; without those that are shortened."""
    printed = [re.match(r'• (\w+) ?\(.*?如 ("[^"]*"|\[.*\]|\{.*\})', line) for line in _SECTIONS[message]]
    return {match[1]: match[2] for match in printed if match and "..." not in match[2]}


class ContentItem:
    """The four printed constructors."""

    write_text = staticmethod(lambda text: aip_pb2.ContentItem(text=text))
    write_image = staticmethod(lambda data: aip_pb2.ContentItem(image=data))
    write_audio = staticmethod(lambda data: aip_pb2.ContentItem(audio=data))
    write_embedded = staticmethod(lambda data: aip_pb2.ContentItem(embedded=data))


class Written:
    """A message whose members are set and added to as the source prints it."""

    message: Any

    def __init__(self, message: Any) -> None:
        object.__setattr__(self, "message", message)

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self.message, name).CopyFrom(value)

    def add_content(self, item: Any) -> None:
        self.message.content.append(item)


NAMES: dict[str, Any] = {
    **{name: getattr(aip_pb2, name) for name in aip_pb2.DESCRIPTOR.message_types_by_name},
    "AgentMessage": lambda **fields: Written(aip_pb2.AgentMessage(**fields)),
    "AgentSkill": aip_pb2.AgentInfo.AgentSkill,
    "ContentItem": ContentItem,
    "Mode": aip_pb2.Mode,
    "Peer": lambda **fields: Written(aip_pb2.Peer(**fields)),
    "SessionStatus": Status,
    "TaskStatus": aip_pb2.TaskInfo.TaskStatus,
    "peer1": aip_pb2.Peer(agent_info=aip_pb2.AgentInfo(agent_id="agent_001")),
    "peer2": aip_pb2.Peer(tool_info=aip_pb2.ToolInfo(tool_id="tool_001")),
    "text_item": ContentItem.write_text("Hello, World!"),
}


def run(statements: list[str], names: dict[str, Any]) -> dict[str, Any]:
    """Run printed statements; the names that they bound."""
    bound = dict(names)
    for statement in statements:
        exec(statement, bound)
    return {name: value for name, value in bound.items() if names.get(name) is not value and name != "__builtins__"}


def example(section: str) -> Any:
    """The message of a printed example."""
    (value, *_) = run(examples()[section], NAMES).values()
    return value.message if isinstance(value, Written) else value


def filled(message: str, **other: Any) -> Any:
    """A message with all values that the source prints for its fields; `other` replaces some."""
    code = {name: eval(text, dict(NAMES)) for name, text in values(message).items() if name not in other}
    return getattr(aip_pb2, message)(**code, **other)


class SourceNode(aip_pb2_grpc.AgentServiceServicer, aip_pb2_grpc.ToolServiceServicer, aip_pb2_grpc.GatewayServiceServicer):
    """An agent, a tool and a gateway in one server. `fails`: an error that it raises, or a code with which it aborts."""

    def __init__(self) -> None:
        self.address = ""
        self.fails: Exception | grpc.StatusCode | None = None
        self.received: list[Any] = []

    async def CallAgent(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802  # the names of the service
        async for message in request_iterator:
            self.received.append(message)
            await self._fail(context)
            ids = {"sender_id": message.receiver_id, "receiver_id": message.sender_id, "session_id": message.session_id}
            stops = message.session_status == Status.STOP_QUEST
            answer = aip_pb2.AgentMessage(**ids, session_status=Status.STOP_RESPONSE if stops else Status.HOLD_RESPONSE)
            answer.content.append(example("AgentMessage").content[0])
            answer.reply_to_message_id = message.message_id
            yield answer
            if stops:
                return

    async def CallTool(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.received.append(request)
        await self._fail(context)
        return example("ToolResponse")

    async def RegisterAgent(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.received.append(request)
        return example("RegisterAgentResponse")

    async def RegisterTool(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.received.append(request)
        return example("RegisterToolResponse")

    async def DeregisterNode(self, request: Any, context: Any) -> Any:  # noqa: N802
        return example("DeregisterNodeResponse")

    async def GetNodes(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.received.append(request)
        return example("GetNodesResponse")

    async def Heartbeat(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.received.append(request)
        return example("HeartbeatResponse")

    async def _fail(self, context: Any) -> None:
        if isinstance(self.fails, grpc.StatusCode):
            await context.abort(self.fails, "The application says so.")
        if self.fails is not None:
            raise self.fails


@asynccontextmanager
async def serving(address: str = "127.0.0.1:0") -> AsyncIterator[SourceNode]:
    """The peer at an address, as the source prints one: `http://HOST:PORT`."""
    node, server = SourceNode(), grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    aip_pb2_grpc.add_AgentServiceServicer_to_server(node, server)
    aip_pb2_grpc.add_ToolServiceServicer_to_server(node, server)
    aip_pb2_grpc.add_GatewayServiceServicer_to_server(node, server)
    node.address = f"http://{address.rpartition(':')[0]}:{server.add_insecure_port(address)}"
    await server.start()
    try:
        yield node
    finally:
        await server.stop(None)
