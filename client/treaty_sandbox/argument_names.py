"""Say which arguments of a call are unknown and which are missing.

book has no argument guestt, and lacks guest. Its arguments: guest, nights.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from treaty_consensus.errors import Malformed
from treaty_consensus.handler import Operation
from treaty_consensus.printable import printable
from treaty_handler import Value

from .schemas import ValueTooLarge

MAX_NAMES = 12
"""Arguments of each kind that an error names."""


def name_fault(operation: Operation, value: Value, error: Malformed) -> Malformed:
    """Return the error for arguments that break the schema of their operation: one that names the wrong names, else `error`."""
    if not isinstance(value, dict) or isinstance(error, ValueTooLarge):
        return error
    # JSON Schema names one fault. A misspelt argument is two: it is unknown, and the right one is missing.
    schema: Any = operation.arguments
    properties = schema.get("properties", {})
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    unknown = _listed(name for name in value if name not in properties) if is_closed else ""
    missing = _listed(name for name in schema.get("required", ()) if name not in value)
    faults = (f"has no argument {unknown}" if unknown else "", f"lacks {missing}" if missing else "")
    if not any(faults):
        return error
    message = f"{operation.name} {', and '.join(filter(None, faults))}."
    return Malformed(error.code, message, fix=f"Its arguments: {_listed(properties) or 'none'}.")


def _listed(names: Iterable[str]) -> str:
    """Return names in a row, at most `MAX_NAMES`: a caller may send thousands."""
    shown = [printable(name, 40) for name in islice(names, MAX_NAMES + 1)]
    return ", ".join((*shown[:MAX_NAMES], "…") if len(shown) > MAX_NAMES else shown)
