"""The page of error codes: each row is a member of an enum of codes."""

from __future__ import annotations

import inspect

from treaty_consensus import codes as consensus
from treaty_consensus.codes import Code
from treaty_handoff import codes as handoff
from treaty_io import codes as client
from treaty_registry import codes as registry

from . import GENERATORS


def all_codes() -> list[Code]:
    """The codes of all packages, in the order of their texts."""
    modules = (consensus, client, handoff, registry)
    classes = {found for module in modules for _, found in inspect.getmembers(module, inspect.isclass)}
    return sorted(code for found in classes if issubclass(found, Code) for code in found)


def table(prefix: str) -> str:
    """The table of the codes with this prefix."""
    lines = ["| code | kind | meaning |", "|---|---|---|"]
    for code in all_codes():
        if code.partition(".")[0] == prefix:
            kinds = ", ".join(kind.__name__ for kind in code.kinds) or "–"
            lines.append(f"| `{code}` | {kinds} | {code.meaning} |")
    return "\n".join(lines)


def every_table() -> str:
    """The codes of each prefix, under a heading of its own."""
    prefixes = sorted({code.partition(".")[0] for code in all_codes()})
    return "\n\n".join(f"## `{prefix}`\n\n{table(prefix)}" for prefix in prefixes)


GENERATORS["codes"] = every_table
