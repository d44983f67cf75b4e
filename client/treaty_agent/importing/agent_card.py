"""Read an A2A agent card: a skill is an operation if it has schemas.

    {"name": TEXT, "version": TEXT,
     "skills": [{"id": "route", "name": TEXT, "description": TEXT, "inputSchema": {…}, "outputSchema": {…}}]}

A2A itself describes a skill in words: its input is a message that the agent understands. Such a skill has nothing that a manifest
could check, and is listed with this reason. Some agents add schemas under the names that MCP uses.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from treaty_consensus.errors import Malformed
from treaty_io.codes import RpcCode

from .decoding import decode_description
from .description import ImportedDescription, Inexpressible
from .found_operations import FoundOperations
from .mcp import tool_operation
from .schema_import import one_line


class AgentCardReader:
    """Reads bytes. Does no input or output."""

    def read(self, data: bytes, name: str, only: Collection[str] = ()) -> ImportedDescription:
        """Return the operations. `name`: of the source. `only`: the names or places of those to take; all if it is empty.

        Raises `Malformed` (`rpc.answer`, `system.usage`) and `TooLarge` (`rpc.answer`).
        """
        card = decode_description(data, name)
        skills = card.get("skills")
        if not isinstance(card.get("name"), str) or not isinstance(skills, list):
            raise Malformed(RpcCode.ANSWER, f"{name} is no A2A agent card with skills.", fix="Name another file.")
        operations = FoundOperations(only)
        for place, skill in operations.named("skill", skills, "id"):
            with operations.reading(place):
                operations.add(*tool_operation(_as_tool(skill), name, place, operations.budget))
        operations.check_wishes()
        return ImportedDescription(
            kind=f"A2A {one_line(str(card.get('protocolVersion') or ''), 20)}".strip(),
            title=card["name"],
            version=str(card.get("version") or ""),
            about=str(card.get("description") or ""),
            licence="",
            operations=tuple(operations.operations),
            omissions=tuple(operations.omissions),
        )


def _as_tool(skill: Any) -> dict[str, Any]:
    match skill:
        case {"id": str(own_name), "inputSchema": dict(), "outputSchema": dict()}:
            return {**skill, "name": own_name}
        case {"id": str()}:
            raise Inexpressible("it has no schemas, only words, so a manifest could check nothing")
    raise Inexpressible("it has no id")
