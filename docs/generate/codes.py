"""The page of error codes: each entry is a member of an enum of codes."""

from __future__ import annotations

import inspect

from treaty_consensus import codes as consensus
from treaty_consensus.codes import Code
from treaty_handoff import codes as handoff
from treaty_io import codes as client
from treaty_registry import codes as registry

from . import GENERATORS, LISTS, SHOWN, listed


def all_codes() -> list[Code]:
    """The codes of all packages, in the order of their texts."""
    modules = (consensus, client, handoff, registry)
    classes = {found for module in modules for _, found in inspect.getmembers(module, inspect.isclass)}
    return sorted(code for found in classes if issubclass(found, Code) for code in found)


def every_code() -> str:
    """The codes of each prefix, under a heading of its own: the code, its kinds and its meaning."""
    parts, before = list[str](), ""
    for code in all_codes():
        prefix = code.partition(".")[0]
        parts += [f"\n## `{prefix}`\n"] if prefix != before else []
        kinds = f" ({', '.join(kind.__name__ for kind in code.kinds)})" if code.kinds else ""
        parts.append(f"- `{code}`{kinds}: {code.meaning}")
        before = prefix
    return "\n".join(parts)


def _listed() -> list[dict[str, object]]:
    return [{"code": code, "kinds": [kind.__name__ for kind in code.kinds], "meaning": code.meaning} for code in all_codes()]


GENERATORS["codes"] = every_code
LISTS["codes"] = _listed
SHOWN["codes"] = lambda: listed("codes", "../lists")
