"""Compare the tools of a server with the operations of a published protocol, which `treaty import mcp` made from such tools."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from treaty_agent.importing.imported_project import ImportedProject
from treaty_agent.importing.mcp import McpReader
from treaty_client.authoring.new_project import NewProtocol
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import Manifest
from treaty_consensus.handler.comparison import OperationView, operation_changes, operation_views
from treaty_consensus.printable import printable

from .tool_list import MAX_FACTS, MAX_SHOWN, ToolChange, ToolList


class PublishedInterface:
    """The operations of a published protocol."""

    def __init__(self, manifest: Manifest) -> None:
        self._operations = _views(manifest)

    def accepted(self, tools: ToolList, listed: list[Any]) -> tuple[ToolList, list[ToolChange]]:
        """Return the tools that are operations of the protocol, by schemas, summary and repeatability; and the differences
        of the others. `listed`: the same tools as the server lists them."""
        data = json.dumps({"tools": listed}).encode()
        try:
            project = ImportedProject(McpReader().read(data, "the server"), data, NewProtocol("tools", "tools/tools"))
        except TreatyError as error:  # no tool can be an operation
            return ToolList({}, tools.instructions), [ToolChange(name, "new", facts=(error.message,)) for name in tools.texts]
        changes = {change.name: change for change in operation_changes(self._operations, _views(project.manifest))}
        same = {operation.wish for name, operation in project.operations.items() if name not in changes}
        differences = [
            ToolChange(
                project.operations[name].wish if name in project.operations else name,
                "changed",
                facts=tuple(printable(fact, MAX_SHOWN) for fact in change.facts[:MAX_FACTS]) or (f"{change.change} since",),
            )
            for name, change in changes.items()
        ]
        return ToolList({name: text for name, text in tools.texts.items() if name in same}, tools.instructions), differences


def _views(manifest: Manifest) -> list[OperationView]:
    """Return the operations with the parts that a tool has; the author of the protocol chose the others."""
    chosen: dict[str, Any] = {"errors": [], "timeout": 0, "window": 0, "callers": [], "providers": [], "forms": ""}
    return [msgspec.structs.replace(view, **chosen) for view in operation_views(manifest)]
