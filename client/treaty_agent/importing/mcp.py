"""Read the tools of an MCP server: the saved answer to `tools/list`, with or without the frame of JSON-RPC.

    {"tools": [{"name": "echo", "description": TEXT, "inputSchema": {…}, "outputSchema": {…}, "annotations": {…}}]}

A tool without a schema of its output answers with a list of contents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from treaty_consensus.errors import Malformed, TreatyError
from treaty_io.codes import RpcCode

from ..rpc.mcp import STATELESS, read_tool
from .decoding import decode_description
from .description import ImportedDescription, ImportedOperation, Inexpressible, Omission
from .found_operations import FoundOperations
from .schema_import import SchemaBudget, SchemaImport

CONTENTS: Mapping[str, Any] = {
    "type": "array",
    "items": {"type": "object", "properties": {"type": {"type": "string"}, "text": {"type": "string"}}, "required": ["type"]},
}


class McpReader:
    """Reads bytes. Does no input or output."""

    def read(self, data: bytes, name: str, only: Collection[str] = ()) -> ImportedDescription:
        """Return the operations. `name`: of the source. `only`: the names or places of those to take; all if it is empty.

        Raises `Malformed` (`rpc.answer`, `system.usage`) and `TooLarge` (`rpc.answer`).
        """
        root = decode_description(data, name)
        page = root["result"] if isinstance(root.get("result"), dict) else root
        tools = page.get("tools")
        if not isinstance(tools, list):
            fix = "Save the answer of the server to tools/list, or name its https URL."
            raise Malformed(RpcCode.ANSWER, f"{name} is no list of MCP tools.", fix=fix)
        operations = FoundOperations(only)
        for place, tool in operations.named("tool", tools):
            with operations.reading(place):
                operations.add(*tool_operation(tool, name, place, operations.budget))
        operations.check_wishes()
        if page.get("nextCursor"):
            operations.omissions.append(Omission("the next page", "only one page was read"))
        return ImportedDescription(f"MCP {STATELESS}", "", "", "", "", tuple(operations.operations), tuple(operations.omissions))


def tool_operation(tool: Any, name: str, place: str, budget: SchemaBudget) -> tuple[ImportedOperation, list[str]]:
    """Return a tool as an operation, and its parts that are left out. Raises `Inexpressible`."""
    try:
        method = read_tool(tool, name)
    except TreatyError as error:
        raise Inexpressible(error.message.rpartition(": ")[2].rstrip(".")) from error
    arguments, result = SchemaImport(method.parameters, budget), SchemaImport(method.result or {}, budget)
    hints = tool["annotations"] if isinstance(tool.get("annotations"), dict) else {}
    operation = ImportedOperation(
        place=place,
        wish=method.name,
        text=str(tool.get("description") or ""),
        parameters=arguments.schema({"type": "object", **method.parameters}),
        result=result.schema(CONTENTS if method.result is None else method.result),
        is_idempotent=hints.get("idempotentHint") is True or hints.get("readOnlyHint") is True,
        answer=([{"type": "text", "text": "text"}],) if method.result is None else (),
    )
    return operation, [*arguments.left_out, *result.left_out]
