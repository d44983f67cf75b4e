"""The public names of the Python packages: a sentence for each name and method. `help()` has arguments, results and errors."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from types import ModuleType
from typing import Any

import treaty_agent
import treaty_client
import treaty_handler

from . import SITE

_OFFERED = frozenset(getattr(module, name) for module in (treaty_agent, treaty_client, treaty_handler) for name in module.__all__)
_SENTENCE = re.compile(r".+?(?:\.(?= [A-Z`])|$)")


def package(module: ModuleType, *before: ModuleType) -> str:
    """The names that a package offers, in alphabetical order: a line for each, and one for those of the packages `before` it."""
    offered = sorted(name for name in module.__all__ if not name.startswith("_"))
    repeated = [name for name in offered if any(getattr(other, name, None) is getattr(module, name) for other in before)]
    lines = [_entry(name, getattr(module, name)) for name in offered if name not in repeated]
    also = [f"\nAlso, of another page of this reference: {', '.join(f'`{name}`' for name in repeated)}."] if repeated else []
    return "\n".join([*lines, *also])


def _entry(name: str, found: Any) -> str:
    """A line of the name with its arguments and the first sentence of its docstring, and the methods of a class below it."""
    if inspect.isclass(found) and issubclass(found, Enum):
        return f"- `{name}`: {_sentence(found)} {', '.join(f'`{member.name}`' for member in found)}."
    if inspect.isclass(found):
        methods = [method for member in sorted(_members(found).items()) if (method := _method(*member))]
        return "\n".join((f"- `{_call(name, found)}`: {_sentence(found)}", *(f"  - {method}" for method in methods)))
    if callable(found):
        return f"- `{_call(name, found)}`: {_sentence(found)}"
    return f"- `{name}`: {f'`{found!r}`' if isinstance(found, int | str) else 'a type'}."


def _members(found: type) -> dict[str, Any]:
    """The members of a class, and those of its bases that no package offers."""
    bases = (base for base in reversed(found.__mro__[1:]) if base.__module__.startswith("treaty") and base not in _OFFERED)
    return {name: member for part in (*bases, found) for name, member in vars(part).items()}


def _method(name: str, member: Any) -> str:
    """A method with its arguments, and the first sentence of its docstring. A property is in the docstring of its class."""
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if name.startswith("_") or not inspect.isfunction(function) or not function.__module__.startswith("treaty"):
        return ""
    return f"`{_call(name, function)}`: {_sentence(function)}" if inspect.getdoc(function) else ""


def _call(name: str, found: Any) -> str:
    """The name with the names of its arguments, or alone for a class of C, which has no signature."""
    try:
        arguments = [
            argument for argument in inspect.signature(found).parameters.values() if argument.name not in ("self", "cls")
        ]
    except ValueError:
        return name
    shown = ", ".join(str(argument.replace(annotation=argument.empty, default=argument.empty)) for argument in arguments)
    return f"{'async ' if inspect.iscoroutinefunction(found) else ''}{name}({shown})"


def _sentence(found: Any) -> str:
    """The first sentence of a docstring. The text that dataclasses make from a signature is none."""
    text = inspect.getdoc(found) or ""
    if inspect.isclass(found) and (not found.__doc__ or text.startswith(f"{found.__name__}(")):
        return ""
    match = _SENTENCE.match(" ".join(text.partition("\n\n")[0].split()))
    return match[0] if match else ""


SITE.update(
    {
        "python-agent": lambda: package(treaty_agent, treaty_handler),
        "python-client": lambda: package(treaty_client, treaty_agent, treaty_handler),
        "python-handler": lambda: package(treaty_handler),
    }
)
