"""Make the table of changes of a schema with their verdicts: `tests/vectors/handlers/changes.json`.

Each change is of two schemas whose relation a person wrote down: `<` when the newer one accepts more values, `>` when fewer, `=`
when the same, `#` when each accepts some that the other refuses. It is made at several places of an operation. There the verdicts
follow: the reader must accept each value of the writer. A caller writes arguments, and a provider results.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
LIST: Final[Schema] = {"type": "array", "items": WHOLE}

VALUES: Final[tuple[tuple[str, Schema, Schema, str], ...]] = (
    ("another description", {**TEXT, "description": "A name"}, {**TEXT, "description": "Their name"}, "="),
    ("text to whole number", TEXT, WHOLE, "#"),
    ("whole number to number", WHOLE, NUMBER, "<"),
    ("number to whole number", NUMBER, WHOLE, ">"),
    ("null is added", TEXT, {"type": ["string", "null"]}, "<"),
    ("null is removed", {"type": ["string", "null"]}, TEXT, ">"),
    ("any value to a text", {}, TEXT, ">"),
    ("a text to any value", TEXT, {}, "<"),
    ("a text to a truth value", TEXT, {"type": "boolean"}, "#"),
    ("a longer text", {**TEXT, "maxLength": 100}, {**TEXT, "maxLength": 200}, "<"),
    ("a shorter text", {**TEXT, "maxLength": 100}, {**TEXT, "maxLength": 50}, ">"),
    ("a limit of a text", TEXT, {**TEXT, "maxLength": 50}, ">"),
    ("no limit of a text", {**TEXT, "maxLength": 50}, TEXT, "<"),
    ("an empty text", {**TEXT, "minLength": 1}, TEXT, "<"),
    ("no empty text", TEXT, {**TEXT, "minLength": 1}, ">"),
    ("both limits moved", {**TEXT, "minLength": 1, "maxLength": 9}, {**TEXT, "minLength": 3, "maxLength": 12}, "#"),
    ("a format", TEXT, {**TEXT, "format": "date"}, ">"),
    ("no format", {**TEXT, "format": "date"}, TEXT, "<"),
    ("another format", {**TEXT, "format": "date"}, {**TEXT, "format": "uuid"}, "#"),
    ("a pattern", TEXT, {**TEXT, "pattern": "^[a-z]+$"}, ">"),
    ("no pattern", {**TEXT, "pattern": "^[a-z]+$"}, TEXT, "<"),
    ("a narrower pattern", {**TEXT, "pattern": "^[a-z]+$"}, {**TEXT, "pattern": "^[a-f]+$"}, ">"),
    ("a wider pattern", {**TEXT, "pattern": "^[A-Z]{3}$"}, {**TEXT, "pattern": "^[A-Z]{3,4}$"}, "<"),
    ("another pattern", {**TEXT, "pattern": "^P[0-9]+$"}, {**TEXT, "pattern": "^Q[0-9]+$"}, "#"),
    ("a value of a list is added", {"enum": ["red", "green"]}, {"enum": ["red", "green", "blue"]}, "<"),
    ("a value of a list is removed", {"enum": ["red", "green"]}, {"enum": ["red"]}, ">"),
    ("the order of a list", {"enum": ["red", "green"]}, {"enum": ["green", "red"]}, "="),
    ("another value of a list", {"enum": ["red", "green"]}, {"enum": ["red", "blue"]}, "#"),
    ("a list of values to a text", {"enum": ["red", "green"]}, TEXT, "<"),
    ("another constant", {"const": 1}, {"const": 2}, "#"),
    ("a constant to a list", {"const": "v1"}, {"enum": ["v1", "v2"]}, "<"),
    ("a higher maximum", {**WHOLE, "maximum": 10}, {**WHOLE, "maximum": 11}, "<"),
    ("a lower maximum", {**NUMBER, "maximum": 10}, {**NUMBER, "maximum": 9}, ">"),
    ("a minimum", WHOLE, {**WHOLE, "minimum": 0}, ">"),
    ("the minimum is excluded", {**NUMBER, "minimum": 0}, {**NUMBER, "exclusiveMinimum": 0}, ">"),
    ("the same limit in other words", {**WHOLE, "exclusiveMinimum": 0}, {**WHOLE, "minimum": 1}, "="),
    ("a moved range", {**WHOLE, "minimum": 1, "maximum": 5}, {**WHOLE, "minimum": 3, "maximum": 9}, "#"),
    ("a coarser step", {**WHOLE, "multipleOf": 5}, {**WHOLE, "multipleOf": 10}, ">"),
    ("a finer step", {**NUMBER, "multipleOf": 0.1}, {**NUMBER, "multipleOf": 0.01}, "<"),
    ("more items", {**LIST, "maxItems": 3}, {**LIST, "maxItems": 4}, "<"),
    ("fewer items", {**LIST, "maxItems": 3}, {**LIST, "maxItems": 2}, ">"),
    ("an item at least", LIST, {**LIST, "minItems": 1}, ">"),
    ("different items", LIST, {**LIST, "uniqueItems": True}, ">"),
    ("items of another type", LIST, {**LIST, "items": TEXT}, "#"),
    ("a single value to a list", WHOLE, LIST, "#"),
    ("another alternative", {"anyOf": [TEXT, WHOLE]}, {"anyOf": [TEXT, WHOLE, {"type": "null"}]}, "<"),
    ("an alternative less", {"oneOf": [TEXT, WHOLE]}, {"oneOf": [TEXT]}, ">"),
    ("the same by a reference", {"anyOf": [TEXT, TEXT]}, TEXT, "="),
    ("an excluded value", TEXT, {**TEXT, "not": {"const": "none"}}, ">"),
    ("a value no longer excluded", {**TEXT, "not": {"const": "none"}}, TEXT, "<"),
)


def _object(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


# Of closed writers: a member that is not declared is not sent.
OBJECTS: Final[tuple[tuple[str, Schema, Schema, str], ...]] = (
    ("an optional member is added", _object("a", a=TEXT), _object("a", a=TEXT, b=WHOLE), "= and optional"),
    ("optional members are added", _object("a", a=TEXT), _object("a", a=TEXT, b=WHOLE, c=_object("x", x=LIST)), "= and optional"),
    ("the first optional member", {"type": "object"}, _object(b=TEXT), "= and optional"),
    ("an optional member of an alternative",
     {"type": "object", "anyOf": [_object("a", a=TEXT), _object("b", b=TEXT)]},
     {"type": "object", "anyOf": [_object("a", a=TEXT, c=WHOLE), _object("b", b=TEXT)]}, "= and optional"),
    ("an optional member of one part",
     {"type": "object", "allOf": [_object("a", a=TEXT), _object("b", b=TEXT)]},
     {"type": "object", "allOf": [_object("a", a=TEXT), _object("b", b=TEXT, c=WHOLE)]}, "= and optional"),
    ("an optional member is removed", _object("a", a=TEXT, b=WHOLE), _object("a", a=TEXT), "= and optional"),
    ("an optional member is renamed", _object("a", a=TEXT, b=WHOLE), _object("a", a=TEXT, c=WHOLE), "= and optional"),
    ("a required member is added", _object("a", a=TEXT), _object("a", "b", a=TEXT, b=WHOLE), ">"),
    ("a required member is removed", _object("a", "b", a=TEXT, b=WHOLE), _object("a", a=TEXT), "<"),
    ("a required member is renamed", _object("a", a=TEXT), _object("b", b=TEXT), "#"),
    ("a member is now required", _object("a", a=TEXT, b=WHOLE), _object("a", "b", a=TEXT, b=WHOLE), ">"),
    ("a member is no longer required", _object("a", "b", a=TEXT, b=WHOLE), _object("a", a=TEXT, b=WHOLE), "<"),
    ("the object is closed", _object("a", a=TEXT), {**_object("a", a=TEXT), "additionalProperties": False}, "= and optional"),
    ("a member of a closed object is added",
     {**_object("a", a=TEXT), "additionalProperties": False},
     {**_object("a", a=TEXT, b=WHOLE), "additionalProperties": False}, "<"),
    ("a member of a closed object is removed",
     {**_object("a", a=TEXT, b=WHOLE), "additionalProperties": False},
     {**_object("a", a=TEXT), "additionalProperties": False}, ">"),
    ("a condition", _object(a=TEXT, b=TEXT), {**_object(a=TEXT, b=TEXT), "dependentRequired": {"a": ["b"]}}, ">"),
    ("at least one member", _object(a=TEXT), {**_object(a=TEXT), "minProperties": 1}, ">"),
    ("the values of a map",
     {"type": "object", "additionalProperties": WHOLE}, {"type": "object", "additionalProperties": NUMBER}, "<"),
    ("the names of a map",
     {"type": "object", "additionalProperties": WHOLE},
     {"type": "object", "additionalProperties": WHOLE, "propertyNames": {"maxLength": 3}}, ">"),
)  # fmt: skip
"""The relation `= and optional`: both accept the values of the other, since only declared members are sent."""

PLACES: Final[dict[str, tuple[str, Any]]] = {
    "a required argument": ("arguments", lambda schema: _object("v", v=schema)),
    "an optional argument": ("arguments", lambda schema: _object("id", id=TEXT, v=schema)),
    "a member of a member": ("arguments", lambda schema: _object("o", o=_object("v", v=schema, w=TEXT))),
    "an item": ("arguments", lambda schema: _object("l", l={"type": "array", "items": schema})),
    "a member of the result": ("result", lambda schema: _object("v", v=schema)),
}
_VERDICTS = {"<": (True, False), ">": (False, True), "=": (True, True), "#": (False, False), "= and optional": (True, True)}
# No proof is known for the containment of one pattern in another.
_UNPROVED = {"a narrower pattern", "a wider pattern"}


def changes() -> Iterator[dict[str, Any]]:
    """Yield each change: its name and place, the schemas of the part that it is in, and both verdicts."""
    for name, old, new, relation in (*VALUES, *OBJECTS):
        for place, (part, put) in PLACES.items():
            into, back = _VERDICTS[relation]
            # The newer version reads arguments of the older caller, and the older caller reads its results.
            backward, forward = (into, back) if part == "arguments" else (back, into)
            yes = "undecided" if name in _UNPROVED else "compatible"
            yield {
                "change": name,
                "at": place,
                "part": part,
                "old": put(old),
                "new": put(new),
                "backward": yes if backward else "breaking",
                "forward": yes if forward else "breaking",
            }
