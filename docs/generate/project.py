"""The table of the fields of protocol.toml."""

from __future__ import annotations

from treaty_client.protocols.project_file import FIELDS

from . import GENERATORS
from .limits import table


def fields() -> str:
    """Each field with its legal values and an example."""
    return table(
        ("field", "required", "legal values", "example"),
        ((f"`{field.name}`", "yes" if field.required else "no", field.allowed, f"`{field.line}`") for field in FIELDS),
    )


GENERATORS["project-fields"] = fields
