"""Make a value that fits a schema of the dialect of manifests: from its examples, defaults and enumerations, else by its type.

    example_of({"type": "object", "properties": {"id": {"type": "integer", "minimum": 5}}, "required": ["id"]})     {"id": 5}

A value is a guess, which the schema itself judges. A pattern is sampled as far as it consists of characters, classes and counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treaty_consensus.errors import TreatyError
from treaty_handler import Value
from treaty_io.codes import OperationCode
from treaty_sandbox.schemas import CompiledSchema

from .description import Inexpressible
from .pattern_sample import sample

MAX_VALUES = 1_000
MAX_LENGTH = 1_000
_MAX_DEPTH = 24
_CHOICES = 3
"""Members of a union that are tried."""
_OF_FORMAT = {
    "date-time": "2027-01-02T10:00:00Z",
    "date": "2027-01-02",
    "time": "10:00:00Z",
    "duration": "P1D",
    "email": "ada@shop.example",
    "idn-email": "ada@shop.example",
    "hostname": "shop.example",
    "idn-hostname": "shop.example",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "5b9bd8a5-2d30-4f3a-8d0e-0b2f7c1e9a44",
    "uri": "https://shop.example/1",
    "uri-reference": "/1",
    "iri": "https://shop.example/1",
    "iri-reference": "/1",
    "uri-template": "/{id}",
    "json-pointer": "/a",
    "relative-json-pointer": "0",
}


def example_of(schema: Mapping[str, Any], compiled: CompiledSchema, described: Sequence[Value] = ()) -> Value:
    """Return a value that fits. `described`: from the description, the best one first. Raises `Inexpressible`."""
    for value in (*described, *_guesses(schema, described)):
        try:
            compiled.check(value, OperationCode.ARGUMENTS, "the example")
        except TreatyError:
            continue
        return value
    raise Inexpressible("it has no example that fits its schemas, and none can be guessed")


def _guesses(schema: Mapping[str, Any], described: Sequence[Value]) -> Iterator[Value]:
    for is_full in (True, False):
        for choice in range(_CHOICES):
            try:
                value = _Guess(schema.get("$defs", {}), choice, is_full=is_full).value(schema, 0)
            # Counts may be floats, and their quotients infinite.
            except (_NoGuessError, TypeError, ArithmeticError):
                continue
            for part in described:
                if isinstance(part, dict) and isinstance(value, dict):
                    yield {**value, **part}
            yield value


class _NoGuessError(Exception):
    """No value can be guessed within the bounds."""


class _Guess:
    """One guess. `choice`: the member that unions take. `is_full`: with the members of objects that are not required."""

    def __init__(self, definitions: Mapping[str, Any], choice: int, *, is_full: bool) -> None:
        self._definitions, self._choice, self._is_full = definitions, choice, is_full
        self._left = MAX_VALUES

    def value(self, schema: Any, depth: int) -> Value:
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise _NoGuessError
        flat = self._flat(schema, 0)
        if "const" in flat:
            return flat["const"]
        for listed in (flat.get("examples"), flat.get("enum")):
            if isinstance(listed, list) and listed:
                return listed[0]
        if "default" in flat:
            return flat["default"]
        return self._typed(flat, depth)

    def _flat(self, schema: Any, depth: int) -> dict[str, Any]:
        """Return a schema with its references, `allOf` and one member of its unions written out."""
        if not isinstance(schema, dict):
            return {}
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise _NoGuessError
        parts = [self._definitions.get(schema["$ref"].removeprefix("#/$defs/"))] if "$ref" in schema else []
        parts += schema.get("allOf", [])
        parts += [union[self._choice % len(union)] for name in ("anyOf", "oneOf") if (union := schema.get(name))]
        flat = {name: value for name, value in schema.items() if name not in ("$ref", "allOf", "anyOf", "oneOf")}
        for part in parts:
            for name, value in self._flat(part, depth + 1).items():
                if name == "properties":
                    flat[name] = {**value, **flat.get(name, {})}
                elif name == "required":
                    flat[name] = [*flat.get(name, []), *value]
                else:
                    flat.setdefault(name, value)
        return flat

    def _typed(self, flat: Mapping[str, Any], depth: int) -> Value:
        kinds = flat.get("type", "object" if "properties" in flat else "array" if "items" in flat else "string")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        match next((kind for kind in kinds if kind != "null"), "null"):
            case "object":
                return self._object(flat, depth)
            case "array":
                return self._list(flat, depth)
            case "string":
                return _text(flat)
            case "integer" | "number":
                return _number(flat)
            case "boolean":
                return True
            case _:
                return None

    def _object(self, flat: Mapping[str, Any], depth: int) -> Value:
        properties, required = flat.get("properties", {}), flat.get("required", [])
        names = [*properties, *required] if self._is_full else required
        value = {name: self.value(properties.get(name, {}), depth + 1) for name in dict.fromkeys(names)}
        more = flat.get("additionalProperties")
        for number in range(len(value), min(flat.get("minProperties", 0), MAX_VALUES)):
            value[f"name{number}"] = self.value(more, depth + 1)
        return value

    def _list(self, flat: Mapping[str, Any], depth: int) -> Value:
        first = [self.value(part, depth + 1) for part in flat.get("prefixItems", [])]
        count = max(flat.get("minItems", 0), min(1, flat.get("maxItems", 1)) if self._is_full else 0)
        if count > MAX_VALUES:
            raise _NoGuessError
        rest = [self.value(flat.get("items", {}), depth + 1) for _ in range(len(first), count)]
        if flat.get("uniqueItems") is True:
            rest = [item + number if type(item) is int else f"{item}{number}" if isinstance(item, str) and number else item
                    for number, item in enumerate(rest)]  # fmt: skip
        return [*first, *rest]


def _text(flat: Mapping[str, Any]) -> str:
    least, most = flat.get("minLength", 0), flat.get("maxLength", MAX_LENGTH)
    if least > MAX_LENGTH:
        raise _NoGuessError
    if "pattern" in flat:
        try:
            return sample(flat["pattern"], least)
        except ValueError as error:
            raise _NoGuessError from error
    text = _OF_FORMAT.get(flat.get("format", ""), "text")
    return text.ljust(least, "x")[: max(most, 0)]


def _number(flat: Mapping[str, Any]) -> int | float:
    low, high = flat.get("minimum"), flat.get("maximum")
    above, below = flat.get("exclusiveMinimum"), flat.get("exclusiveMaximum")
    step = flat.get("multipleOf", 1)
    if low is None and above is not None:
        low = math.floor(above / step) * step + step
    if high is None and below is not None:
        high = math.ceil(below / step) * step - step
    value = 1 if low is None else low
    value = high if high is not None and value > high else value
    number = value if isinstance(value, float) and step == 1 and "multipleOf" not in flat else math.ceil(value / step) * step
    return int(number) if isinstance(number, float) and number.is_integer() else number
