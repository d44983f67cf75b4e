"""The public names of the Python packages, with their signatures and their docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from enum import Enum
from types import ModuleType
from typing import Any, ForwardRef

import treaty_agent
import treaty_client
import treaty_handler
from treaty_registry import app, registry, settings

from . import ROOT, SITE

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_WIDTH = 100
_SENTENCE = re.compile(r".+?(?:\.(?= [A-Z`])|$)")


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
    members = (_member(*member) for member in sorted(vars(found).items()) if not member[0].startswith("_"))
    parts.append("\n".join(member for member in members if member))
    return "\n\n".join(part for part in parts if part)


def _member(name: str, member: Any) -> str:
    """A line for a property or a method: its arguments, and the first sentence of its docstring."""
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if isinstance(member, property):
        shown = name
    elif inspect.isfunction(function) and inspect.getdoc(function) and function.__module__.startswith("treaty"):
        shown = _line(name, function, typed=False)
    else:
        return ""
    prose = _SENTENCE.match(" ".join(_prose(member).partition("\n\n")[0].split()))
    return f"- `{shown}`: {prose[0]}" if prose else ""


def _code(name: str, found: Any) -> str:
    """The signature as code, one argument a line where it is long."""
    line = _line(name, found)
    if len(line) > _WIDTH:
        arguments, result = _signature(found)
        line = line.partition("(")[0] + "(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){result}"
    return f"```python\n{line}\n```" if line else ""


def _line(name: str, found: Any, typed: bool = True) -> str:
    """The signature in one line, or nothing for a class of C, which has none."""
    try:
        arguments, result = _signature(found, typed)
    except ValueError:
        return ""
    return f"{'async ' if inspect.iscoroutinefunction(found) else ''}{name}({', '.join(arguments)}){result}"


def _signature(found: Any, typed: bool = True) -> tuple[list[str], str]:
    """The arguments, and the result with its arrow. `typed`: with the types of the arguments."""
    signature = inspect.signature(found)
    arguments = [_argument(argument, typed) for name, argument in signature.parameters.items() if name not in ("self", "cls")]
    is_shown = signature.return_annotation is not inspect.Signature.empty and not inspect.isclass(found)
    return arguments, f" -> {_type(signature.return_annotation)}" if is_shown else ""


def _argument(argument: inspect.Parameter, typed: bool) -> str:
    empty = inspect.Parameter.empty
    name = str(argument.replace(annotation=empty, default=empty))
    annotated = name if argument.annotation is empty or not typed else f"{name}: {_type(argument.annotation)}"
    if argument.default is empty:
        return annotated
    # A factory, a function and a view have no literal.
    default = "…" if re.match("<|mappingproxy", repr(argument.default)) else _plain(repr(argument.default))
    return f"{annotated}{'=' if annotated == name else ' = '}{default}"


def _type(annotation: Any) -> str:
    """A type as it is written in the source."""
    if isinstance(annotation, str | ForwardRef):
        return (annotation if isinstance(annotation, str) else annotation.__forward_arg__).replace("'", '"')
    return _plain(inspect.formatannotation(annotation))


def _plain(text: str) -> str:
    """A type or default without the parts that differ between runs and machines."""
    return _ADDRESS.sub("", text).replace("'", '"').replace(f'PosixPath("{ROOT}/', 'Path("')


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
