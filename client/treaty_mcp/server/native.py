"""The operations of a protocol at one agent, each as a tool with the schemas of the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from treaty_agent.sessions.peer import Peer
from treaty_agent.sessions.session import Session
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TooLarge
from treaty_consensus.handler import Operation, OperationKind
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri
from treaty_io.codes import RpcCode

from ..tools.quoting import line
from ..tools.tool import Tool, ToolResult

MAX_NAME = 128
"""Characters of the name of a tool (MCP, "Tool Names"). A protocol and an operation have at most 64 each."""
MAX_ITEMS = 256
"""Items of a stream in one result."""
MAX_VALUE = 1024 * 1024
"""Bytes of them together. The peer chooses their sizes."""


class NativeTool(Tool):
    """An operation at one agent."""

    def __init__(self, protocol: str, operation: Operation, peer: Peer, proof: Mapping[str, Any]) -> None:
        """`protocol`: the URI of a verified protocol, and `proof` its place in a log. `peer`: the agent; the caller closes it."""
        uri = parse_protocol_uri(protocol)
        self.name = tool_name(uri, operation)
        about = operation.arguments.get("description")
        said = f' Its publisher says: "{line(about)}"' if isinstance(about, str) else ""
        self.description = f"The operation {operation.name} of {uri.label}.{said}"
        self.arguments = {"type": "object", **operation.arguments}
        self.result = result_schema(operation)
        self.is_read_only, self.is_idempotent = False, operation.idempotent
        self._operation, self._peer, self._proof = operation, peer, proof

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the operation. Raises as `Peer.call`."""
        value = await value_of(self._peer, self._operation, arguments)
        return ToolResult(wrapped(self._operation, value), proof=self._proof)


def tool_name(uri: ProtocolUri, operation: Operation, *, is_alone: bool = True) -> str:
    """Return the name of an operation as a tool: PROTOCOL.OPERATION, of at most 128 characters, as MCP allows.

    `is_alone`: whether no other protocol has this name. Else, and where it is too long, a part of it stands before a part of a
    hash of the URI."""
    name = f"{uri.name}.{operation.name}"
    if is_alone and len(name) <= MAX_NAME:
        return name
    return f"{uri.name[:54]}-{hex_digest(str(uri).encode())[:8]}.{operation.name}"


async def value_of(callee: Session | Peer, operation: Operation, arguments: Mapping[str, Any]) -> Any:
    """Return the value of a call, or the items of a stream. Raises as `Session.call`, and `TooLarge` (`rpc.answer`)."""
    if operation.kind is not OperationKind.STREAM:
        return await callee.call(operation.name, arguments)
    items: list[Any] = []
    size = 0
    async with aclosing(callee.stream(operation.name, arguments)) as stream:
        async for item in stream:
            if len(items) == MAX_ITEMS:
                raise TooLarge(RpcCode.ANSWER, f"The stream has more than {MAX_ITEMS} items.")
            size += len(msgspec.json.encode(item))
            if size > MAX_VALUE:
                raise TooLarge(RpcCode.ANSWER, f"The items of the stream have more than {MAX_VALUE} bytes.")
            items.append(item)
    return items


def result_schema(operation: Operation) -> dict[str, Any]:
    """Return the schema of a result: that of the manifest if it is of an object, and else an object that has the value."""
    schema = dict(operation.result or {})
    if _is_exact(operation):
        return schema
    if operation.result is None:
        return {"type": "object", "properties": {}}
    definitions = schema.pop("$defs", None)
    name, value = ("items", {"type": "array", "items": schema}) if operation.kind is OperationKind.STREAM else ("value", schema)
    whole = {"type": "object", "properties": {name: value}, "required": [name]}
    return whole if definitions is None else {**whole, "$defs": definitions}


def wrapped(operation: Operation, value: Any) -> Any:
    """Return a value by `result_schema`."""
    if _is_exact(operation):
        return value
    if operation.result is None:
        return {}
    return {"items" if operation.kind is OperationKind.STREAM else "value": value}


def _is_exact(operation: Operation) -> bool:
    return operation.kind is OperationKind.REQUEST and (operation.result or {}).get("type") == "object"
