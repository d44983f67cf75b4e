"""Convert between JSON values and the types of a function's hints.

    @agent.provides(URI)
    async def find(since: datetime) -> Product: ...      `since` is a datetime, and the answer may be a dataclass

A function whose hints are JSON's own types, TypedDicts or Literals gets and returns its values as they are, without this.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import inspect as types

from treaty_handler import Value

from .operation_errors import OperationError

_TYPED = (
    types.BytesType,
    types.DataclassType,
    types.DateTimeType,
    types.DateType,
    types.DecimalType,
    types.EnumType,
    types.FrozenSetType,
    types.NamedTupleType,
    types.SetType,
    types.StructType,
    types.TimeDeltaType,
    types.TimeType,
    types.TupleType,
    types.UUIDType,
    types.VarTupleType,
)
"""The types whose values are no JSON values."""
_INVALID = 400


class TypedValues:
    """The conversions of one function."""

    def __init__(self, parameters: Mapping[str, Any], *, is_result_typed: bool) -> None:
        """`parameters`: the hints of those that are converted."""
        self._parameters, self._is_result_typed = parameters, is_result_typed

    @classmethod
    def of(cls, function: Callable[..., Any]) -> TypedValues:
        """Return the conversions of a function. What has no hint that can be read is not converted."""
        try:
            hints = get_type_hints(function, include_extras=True)
        except (TypeError, NameError, ValueError, AttributeError):
            return cls({}, is_result_typed=False)
        result = hints.pop("return", Any)
        if inspect.isasyncgenfunction(function):
            result = next(iter(get_args(result)), Any)
        typed = {name: hint for name, hint in hints.items() if _is_typed(hint)}
        return cls(typed, is_result_typed=_is_typed(result))

    def arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them. Raises `OperationError` (400), such as for a text that is no date."""
        if not self._parameters:
            return arguments
        try:
            return {
                name: msgspec.convert(value, self._parameters[name]) if name in self._parameters else value
                for name, value in arguments.items()
            }
        except msgspec.ValidationError as error:
            raise OperationError(_INVALID, str(error)) from error

    def result(self, value: Any) -> Value:
        """Return what a function returned as a JSON value."""
        plain: Value = msgspec.to_builtins(value) if self._is_result_typed else value
        return plain

    def items(self, items: AsyncGenerator[Any, None]) -> AsyncGenerator[Value, None]:
        """Return what a function yields as JSON values."""
        return self._converted(items) if self._is_result_typed else items

    async def _converted(self, items: AsyncGenerator[Any, None]) -> AsyncGenerator[Value, None]:
        async with aclosing(items):
            async for item in items:
                yield self.result(item)


def _is_typed(hint: Any) -> bool:
    try:
        return _has_typed(types.type_info(hint), set())
    except (TypeError, NameError, ValueError):  # such as the context of the call
        return False


def _has_typed(node: Any, seen: set[int]) -> bool:
    if isinstance(node, _TYPED):
        return True
    if id(node) in seen:  # a TypedDict may have members of its own type
        return False
    seen.add(id(node))
    inner = [getattr(node, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    inner += [*getattr(node, "types", ()), *getattr(node, "item_types", ()), *(one.type for one in getattr(node, "fields", ()))]
    return any(_has_typed(one, seen) for one in inner if isinstance(one, types.Type))
