"""Evaluate the keywords of JSON Schema 2020-12 that the protocol's schema uses. A sandboxed handler has no library for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from treaty_handler import Value

from .forms import FITTING

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}


def check(schema: Value, value: Value, root: Value, place: str = "") -> Iterator[str]:
    """Yield the faults of a value, a sentence each.

    `root`: the schema that has the `$defs`. `place`: the path of the value, for the sentences.
    """
    if "$ref" in schema:
        yield from check(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root, place)
    if "type" in schema and not _is(value, schema["type"]):
        yield f"{place or 'The message'} is not of type {schema['type']}."
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place} is none of {', '.join(schema['enum'])}."
    if isinstance(value, str):
        yield from _check_text(schema, value, place)
    elif type(value) is int:
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            yield f"{place} is out of bounds."
    elif isinstance(value, list):
        yield from _check_list(schema, value, root, place)
    elif isinstance(value, dict):
        yield from _check_object(schema, value, root, place)
    if "oneOf" in schema and sum(not any(check(choice, value, root, place)) for choice in schema["oneOf"]) != 1:
        yield f"{place} has none of the permitted forms."
    for part in schema.get("allOf", ()):
        if _applies(part["if"], value):
            yield from check(part["then"], value, root, place)


def _is(value: Value, name: str) -> bool:
    """True is an `int` of Python, and no integer of JSON."""
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _applies(condition: Value, value: Value) -> bool:
    (name, form), *_ = condition["properties"].items()
    return isinstance(value, dict) and value.get(name) == form["const"]


def _check_text(schema: Value, value: str, place: str) -> Iterator[str]:
    has_length = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    # The whole text: "$" of Python's patterns would let a line feed follow.
    fits = "pattern" not in schema or re.fullmatch(schema["pattern"].removesuffix("$"), value)
    if not (has_length and fits):
        yield f"{place} is not {FITTING.get(schema.get('pattern', ''), 'of the right length')}."
    elif schema.get("format") == "date-time" and not _is_moment(value):
        yield f"{place} is no time of the calendar."


def _is_moment(value: str) -> bool:
    try:
        # More digits than microseconds are cut: they change nothing in the calendar.
        return datetime.fromisoformat(re.sub(r"(\.[0-9]{1,6})[0-9]*", r"\1", value)).tzinfo is not None
    except ValueError:
        return False


def _check_list(schema: Value, value: list[Value], root: Value, place: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{place} has too few or too many items."
        return
    for number, item in enumerate(value):
        yield from check(schema.get("items", {}), item, root, f"{place}[{number}]")
    if schema.get("uniqueItems") and any(item in value[:number] for number, item in enumerate(value)):
        yield f"{place} has an item twice."


def _check_object(schema: Value, value: dict[str, Value], root: Value, place: str) -> Iterator[str]:
    dot = f"{place}." if place else ""
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{dot}{name} is missing."
    properties = schema.get("properties", {})
    for name, item in value.items():
        if name in properties:
            yield from check(properties[name], item, root, f"{dot}{name}")
        elif schema.get("additionalProperties") is False:
            yield f"{dot}{name[:60]} is not part of the protocol."
