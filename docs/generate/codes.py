"""The page of error codes: each item is a member of an enum of codes."""

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


def every_list() -> str:
    """The codes of each prefix, with their kinds and meanings, under a heading of its own."""
    parts = dict[str, list[str]]()
    for code in all_codes():
        kinds = ", ".join(kind.__name__ for kind in code.kinds)
        item = f"- `{code}` ({kinds}): {code.meaning}" if kinds else f"- `{code}`: {code.meaning}"
        parts.setdefault(code.partition(".")[0], []).append(item)
    return "\n\n".join(f"## `{prefix}`\n\n" + "\n".join(items) for prefix, items in sorted(parts.items()))


GENERATORS["codes"] = every_list
