"""Say in plain sentences why a value breaks its schema.

The check itself is the host's. These sentences cover the common faults; for others the host's own sentence is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from ..values import Value

# A schema may require a thousand members. A person reads the first sentences.
_MAX_SENTENCES = 8
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "a string"),
    "number": ((int, float), "a number"),
    "integer": ((int, float), "an integer"),
    "boolean": ((bool,), "true or false"),
    "object": ((dict,), "an object"),
    "array": ((list,), "a list"),
    "null": ((type(None),), "null"),
}


def sentences(schema: Value, value: Value, name: str, place_of: Callable[[str], str]) -> list[str]:
    """Return the faults that can be said plainly; empty if there are only others.

    `name`: names the value. `place_of`: names its members.
    """
    return list(islice(_sentences(schema, value, name, place_of), _MAX_SENTENCES))


def _sentences(schema: Value, value: Value, name: str, place_of: Callable[[str], str]) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    if wrong := _wrong_type(schema, value):
        yield f"{name} is not {wrong}."
        return
    if not isinstance(value, dict):
        return
    for member in _texts(schema.get("required")):
        if member not in value:
            yield f"{place_of(member)} is missing."
    if (choice := _choice(schema.get("anyOf"))) and not value.keys() & set(choice):
        yield f"Neither {' nor '.join(map(place_of, choice))} is given."
    properties = schema.get("properties")
    declared = properties if isinstance(properties, dict) else {}
    for member, rule in declared.items():
        if member in value and isinstance(rule, dict) and (wrong := _wrong_type(rule, value[member])):
            yield f"{place_of(member)} is not {wrong}."


def _wrong_type(schema: Mapping[str, Value], value: Value) -> str:
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        return ""
    types, words = _TYPES[kind]
    fits = isinstance(value, types) and (kind == "boolean" or not isinstance(value, bool))
    if kind == "integer" and isinstance(value, float) and not value.is_integer():
        fits = False
    return "" if fits else words


def _choice(alternatives: Value) -> list[str]:
    """Return the names of members of which a schema requires one, or nothing if it says something else."""
    if not isinstance(alternatives, list):
        return []
    members = []
    for alternative in alternatives:
        names = _texts(alternative.get("required")) if isinstance(alternative, dict) and len(alternative) == 1 else []
        if len(names) != 1:
            return []
        members += names
    return members


def _texts(value: Value) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
