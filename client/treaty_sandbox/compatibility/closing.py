"""Close the schema of a writer: members that it does not declare are not sent.

    {"type": "object", "properties": {"name": {"type": "string"}}}

allows each other member of any type. But a program sends the members that it knows. Without this rule each optional member that a
reader adds would break it, since an open writer could have sent a member of that name and another type. An author declares a map
with `additionalProperties` or `patternProperties`; such an object stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .subschemas import Place, Schema, children, members, prefixes

_OPEN = ("patternProperties", "additionalProperties")


def closed(schema: Schema) -> dict[str, Any]:
    """Return the schema of the values that a writer with this schema sends."""
    # Beside the schema, not inside: a branch of `allOf` would refuse the members of the others.
    whole: dict[str, Any] = {"allOf": [{name: value for name, value in schema.items() if name != "$defs"}]}
    if "$defs" in schema:
        whole["$defs"] = schema["$defs"]
    if closing := _closing([Place.of(schema)]):
        whole["allOf"].append(closing)
    return whole


def _closing(schemas: Sequence[Place]) -> dict[str, Any]:
    """Return the rule that leaves the undeclared members of a value out, and those of all values in it."""
    places = [each for place in schemas for each in place.judging()]
    if not places:
        return {}
    named = members(places)
    closing: dict[str, Any] = {}
    inner = {name: rule for name, declared in named.items() if (rule := _closing(declared))}
    if _is_closed(places):
        closing["propertyNames"] = {"enum": sorted(named)} if named else False
    elif rest := _closing(children(places, "additionalProperties")):
        # Not for the declared ones, which this keyword of their author does not judge either.
        closing["additionalProperties"] = rest
        inner = {name: inner.get(name, {}) for name in named}
    if inner:
        closing["properties"] = inner
    columns = [_closing(column) for column in prefixes(places)]
    if any(columns):
        closing["prefixItems"] = columns
    if rule := _closing(children(places, "items")):
        # `items` begins after the prefix of its own schema.
        closing |= {"prefixItems": columns, "items": rule} if columns else {"items": rule}
    return closing


def _is_closed(places: Sequence[Place]) -> bool:
    """Tell whether these schemas declare all members. A schema that does not say that it is for objects declares nothing."""
    if any(place.schema.get(keyword, False) is not False for place in places for keyword in _OPEN):
        return False
    return any("properties" in place.schema or place.schema.get("type") == "object" for place in places)
