"""What an agent offers before there is a protocol for it: plain functions, described well enough for a negotiator.

    @agent.offers
    async def getProductInfo(productId: str) -> Product:
        "Everything we know of one product."

A function's name is the operation's, its docstring says what it is for, its type hints say what goes in and out: whatever msgspec
can describe, which is JSON's own types, dataclasses, TypedDicts, Structs, `Literal`, `Annotated`. What has no hint may be any
JSON value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from treaty_consensus.errors import Malformed

from ..negotiation.negotiator import Capability
from .operations import Function, Functions

_REFERENCE = "#/$defs/{name}"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Offers:
    """The functions of `@agent.offers`, for all protocols that are negotiated for them."""

    def __init__(self) -> None:
        self.functions = Functions()
        self._capabilities: list[Capability] = []

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """What they can do, in the order in which they were registered."""
        return tuple(self._capabilities)

    def add(self, function: Function) -> None:
        """Register a function under its name. Raises `Malformed` (`agent.function`)."""
        described = capability_of(function)
        self.functions.add(function)
        self._capabilities.append(described)


def capability_of(function: Callable[..., Any]) -> Capability:
    """What a function's name, docstring and signature say of it. Raises `Malformed` (`agent.function`) when it takes arguments
    that have no name, or its hints cannot be described in JSON Schema."""
    name = getattr(function, "__name__", repr(function))
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        types = [hints.get(parameter.name, Any) for parameter in parameters]
        schemas, definitions = msgspec.json.schema_components([*types, hints.get("return", Any)], ref_template=_REFERENCE)
    except (TypeError, NameError, ValueError) as error:
        raise _malformed(name, f"its signature cannot be described: {error}") from error
    if any(parameter.kind not in _NAMED for parameter in parameters):
        raise _malformed(name, "each of its arguments needs a name")
    arguments: dict[str, object] = {
        "type": "object",
        "properties": {parameter.name: schema for parameter, schema in zip(parameters, schemas, strict=False)},
        "required": [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty],
        "additionalProperties": False,
    }
    described = {"$defs": definitions} if definitions else {}
    description = inspect.getdoc(function) or ""
    return Capability(name, description, arguments | described, {**schemas[-1], **described})


def _malformed(name: str, what: str) -> Malformed:
    return Malformed("agent.function", f"{name} cannot be offered: {what}.")
