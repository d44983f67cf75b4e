"""The public names of the Python packages, with their signatures and their docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from enum import Enum
from types import ModuleType
from typing import Any

import treaty_agent
import treaty_client
import treaty_handler
from treaty_registry import app, registry, settings

from . import ROOT, SITE

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_WIDTH = 100


def package(module: ModuleType, names: list[str] | None = None) -> str:
    """The names that a package offers, in alphabetical order."""
    offered = names or [name for name in module.__all__ if not name.startswith("_")]
    parts = [_entry(name, getattr(module, name)) for name in sorted(offered)]
    return "\n\n".join(part for part in parts if part)


def _entry(name: str, found: Any) -> str:
    if inspect.isclass(found):
        return _class(name, found)
    if callable(found):
        return f"## `{name}`\n\n{_code(name, found)}\n\n{_prose(found)}"
    if isinstance(found, int | str):
        return f"## `{name}`\n\n`{found!r}`"
    return f"## `{name}`\n\nA type: `{_plain(str(found))}`."


def _class(name: str, found: type) -> str:
    # Of an enumeration each Python tells another signature.
    call = f"```python\n{name}(value)\n```" if issubclass(found, Enum) else _code(name, found)
    parts = [f"## `{name}`", call, _prose(found)]
    if issubclass(found, Enum):
        parts.append(", ".join(f"`{member.name}`" for member in found) + ".")
    for member_name, member in sorted(vars(found).items()):
        if member_name.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(member, property) and _prose(member):
            parts.append(f"### `{name}.{member_name}`\n\n{_prose(member)}")
        elif inspect.isfunction(function) and inspect.getdoc(function) and function.__module__.startswith("treaty"):
            parts.append(f"### `{name}.{member_name}`\n\n{_code(member_name, function)}\n\n{_prose(function)}")
    return "\n\n".join(part for part in parts if part)


def _code(name: str, found: Any) -> str:
    """The signature as code, one argument a line where it is long."""
    try:
        signature = inspect.signature(found)
    except ValueError:  # a class of C has none
        return ""
    arguments = [part for argument in signature.parameters.values() if (part := _plain(str(argument))) not in ("self", "cls")]
    result = (
        "" if signature.return_annotation is inspect.Signature.empty or inspect.isclass(found) else signature.return_annotation
    )
    kind = "async " if inspect.iscoroutinefunction(found) else ""
    end = f" -> {_plain(str(result))}" if result else ""
    line = f"{kind}{name}({', '.join(arguments)}){end}"
    if len(line) > _WIDTH:
        line = f"{kind}{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){end}"
    return f"```python\n{line}\n```"


def _plain(text: str) -> str:
    """A type or default without the parts that differ between runs and machines."""
    text = _ADDRESS.sub("", text).replace("'", '"').replace(f'PosixPath("{ROOT}/', 'Path("')
    return re.sub(r'^(\*{0,2}\w+): "([^"]*)"', r"\1: \2", text)


def _prose(found: Any) -> str:
    """A docstring as Markdown. The text that dataclasses make from a signature is none."""
    text = inspect.getdoc(found) or ""
    if inspect.isclass(found) and (not found.__doc__ or text.startswith(f"{found.__name__}(")):
        return ""
    return textwrap.dedent(text).strip()


SITE.update(
    {
        "python-agent": lambda: package(treaty_agent),
        "python-client": lambda: package(treaty_client),
        "python-handler": lambda: package(treaty_handler),
        "python-registry": lambda: "\n\n".join(
            (
                package(app, ["create_app"]),
                package(registry, ["Registry"]),
                package(settings, ["Quotas", "Rate", "Settings", "Share", "WitnessName"]),
            )
        ),
    }
)
