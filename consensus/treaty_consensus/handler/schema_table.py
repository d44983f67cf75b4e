"""Show a JSON Schema as a table: a row for each member, with its type, whether it is required, its meaning and its limits.

The schemas come from a manifest that passed `treaty_consensus.handler.schema`, so they have no circle of references. Each table
is cut after `MAX_ROWS` rows or `MAX_TABLE` characters, and each text after `MAX_TEXT` characters. A reference repeats its
definition in every row that has it: without the bound of a table, a small manifest would become a page of many megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_ROWS = 60
MAX_DEPTH = 6
MAX_TEXT = 400
MAX_TABLE = 12_000
"""Characters of a table. A usual one has less than a tenth of them."""
MAX_VALUES = 12
_WHOLE = "(the whole)"
_LIMITS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "exclusiveMinimum": "> {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "multiple of {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} members",
    "maxProperties": "at most {} members",
    "pattern": "matches {}",
    "format": "format {}",
    "const": "exactly {}",
    "default": "{} without it",
}
_NO_MEMBERS = "no other members"


@dataclass(frozen=True)
class SchemaRow:
    """A member. `path`: as `address.street` and `items[]`. `required`: None where the question does not arise."""

    path: str
    type: str
    required: bool | None
    meaning: str
    limits: tuple[str, ...]

    @property
    def size(self) -> int:
        """The characters of the row."""
        return len(self.path) + len(self.type) + len(self.meaning) + sum(map(len, self.limits))


@dataclass(frozen=True)
class SchemaTable:
    """The rows of a schema. `is_cut`: there are more."""

    rows: tuple[SchemaRow, ...]
    is_cut: bool

    @property
    def size(self) -> int:
        """The characters of all rows."""
        return sum(row.size for row in self.rows)


def schema_table(schema: Mapping[str, Any], most: int = MAX_TABLE) -> SchemaTable:
    """Return the table of a schema, of at most `most` characters. Never raises."""
    definitions = schema.get("$defs")
    walk = _Walk(definitions if isinstance(definitions, dict) else {})
    rows: list[SchemaRow] = []
    left = min(most, MAX_TABLE)
    for row in walk.rows(schema, "", None, 0):
        left -= row.size
        if len(rows) == MAX_ROWS or left < 0:
            return SchemaTable(tuple(rows), is_cut=True)
        rows.append(row)
    # An object with members and nothing else to say needs no row of its own.
    first = rows[0]
    if (
        len(rows) > 1
        and first.path == _WHOLE
        and first.type == "object"
        and not first.meaning
        and first.limits in ((), (_NO_MEMBERS,))
    ):
        rows = rows[1:]
    return SchemaTable(tuple(rows), is_cut=False)


class _Walk:
    """Yields the rows of one schema, lazily, so that a cut table costs no more than it shows."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def rows(self, schema: Any, path: str, required: bool | None, depth: int) -> Iterator[SchemaRow]:
        """Yield the row of a value, and those of its members."""
        node = self._resolved(schema)
        yield SchemaRow(
            path or _WHOLE, _type(node), required, _text(node.get("description", node.get("title", ""))), _limits(node)
        )
        if depth >= MAX_DEPTH:
            return
        yield from self._members(node, path, depth)
        items = node.get("items")
        if isinstance(items, dict):
            yield from self.rows(items, f"{path}[]", None, depth + 1)
        for number, part in enumerate(_list(node.get("prefixItems"))):
            yield from self.rows(part, f"{path}[{number}]", None, depth + 1)
        for keyword, words in (("anyOf", "any of"), ("oneOf", "one of"), ("allOf", "all of")):
            for number, part in enumerate(_list(node.get(keyword)), 1):
                # A part that only requires members is a limit of the whole, and not a form of its own.
                if not _only_requires(part):
                    yield from self.rows(part, f"{path or _WHOLE}, {words} #{number}", None, depth + 1)

    def _members(self, node: Mapping[str, Any], path: str, depth: int) -> Iterator[SchemaRow]:
        required = _list(node.get("required"))
        prefix = f"{path}." if path else ""
        for name, part in _object(node.get("properties")).items():
            yield from self.rows(part, f"{prefix}{name[:MAX_TEXT]}", name in required, depth + 1)
        for pattern, part in _object(node.get("patternProperties")).items():
            yield from self.rows(part, f"{prefix}/{pattern[:MAX_TEXT]}/", False, depth + 1)
        others = node.get("additionalProperties")
        if isinstance(others, dict) and others:
            yield from self.rows(others, f"{prefix}*", False, depth + 1)

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        """Return a schema with its reference followed. Its own members come before those of the definition."""
        node = _object(schema)
        for _ in range(MAX_DEPTH):
            reference = node.get("$ref")
            if not isinstance(reference, str):
                break
            own = {name: value for name, value in node.items() if name != "$ref"}
            node = {**_object(self._definitions.get(reference.removeprefix("#/$defs/"))), **own}
        return node


def _type(node: Mapping[str, Any]) -> str:
    type_name = node.get("type")
    if isinstance(type_name, list):
        return " or ".join(str(kind)[:20] for kind in type_name[:MAX_VALUES])
    if isinstance(type_name, str):
        return type_name[:20]
    if "enum" in node or "const" in node:
        return "constant"
    return "object" if "properties" in node else "any value"


def _limits(node: Mapping[str, Any]) -> tuple[str, ...]:
    limits = [_limit(form, node[keyword]) for keyword, form in _LIMITS.items() if keyword in node]
    if values := _list(node.get("enum")):
        more = f" and {len(values) - MAX_VALUES} more" if len(values) > MAX_VALUES else ""
        limits.append("one of " + ", ".join(map(_value, values[:MAX_VALUES])) + more)
    if node.get("uniqueItems") is True:
        limits.append("no item twice")
    if node.get("additionalProperties") is False:
        limits.append(_NO_MEMBERS)
    for keyword, words in (("anyOf", "at least one of"), ("oneOf", "exactly one of")):
        parts = _list(node.get(keyword))
        if parts and all(map(_only_requires, parts)):
            named = (" and ".join(str(name) for name in _list(part["required"])) for part in parts[:MAX_VALUES])
            limits.append(_text(f"{words}: {', '.join(named)}"))
    return tuple(limits)


def _limit(form: str, value: Any) -> str:
    text = form.format(_value(value))
    return text.removesuffix("s") if value == 1 and form.startswith("at ") else text


def _only_requires(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {"required"}


def _value(value: Any) -> str:
    return _text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
