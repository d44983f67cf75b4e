"""Translate JSON Schemas into Python types: text for a module of stubs.

    {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}, "required": ["id"]}

becomes a TypedDict with `id: str` and `n: NotRequired[int]`. A type is never narrower than its schema, which the host checks
anyway: keywords without a type, such as `not` and `if`, are ignored, and `Any` is used where nothing is known.

The schemas are foreign. Their texts reach the module only as literals by `repr`, and as names by `Names`, which makes identifiers
of ASCII letters and digits. So a schema cannot add code, whatever its texts are.
"""

from __future__ import annotations

import builtins
import keyword
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# A union or a Literal of more members helps no editor.
MAX_MEMBERS = 64
MAX_LITERAL = 100
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_RESERVED = frozenset({*dir(builtins), *keyword.kwlist, *keyword.softkwlist, *typing.__all__, "annotations"})


def is_identifier(text: str) -> bool:
    """Return whether a text can be the name of a keyword argument: ASCII, not reserved, not private."""
    # ASCII: Python normalises other identifiers, so two different names of a schema could become one.
    return _IDENTIFIER.fullmatch(text) is not None and not keyword.iskeyword(text)


class Names:
    """Give distinct identifiers for texts."""

    def __init__(self, used: Sequence[str] = ()) -> None:
        """`used`: identifiers that the module uses itself."""
        self._taken = {*_RESERVED, *used}

    def new(self, *parts: str) -> str:
        """Return a new identifier that resembles the parts, in the form of a class name."""
        words = [word for part in parts for word in re.findall(r"[A-Za-z0-9]+", part)]
        stem = "".join(word[0].upper() + word[1:] for word in words)[:80] or "Value"
        stem = stem if stem[0].isalpha() else f"Value{stem}"
        name, number = stem, 2
        while name in self._taken:
            name, number = f"{stem}{number}", number + 1
        self._taken.add(name)
        return name


class SchemaTypes:
    """The definitions that the types of several schemas need, in the order in which Python must see them."""

    def __init__(self, names: Names) -> None:
        self.definitions: list[str] = []
        # The members of each TypedDict, name → type.
        self.dictionaries: dict[str, dict[str, str]] = {}
        self._names = names

    def type_of(self, schema: Mapping[str, Any], name: str) -> tuple[str, bool]:
        """Return the identifier of the type of an accepted schema (`treaty_consensus.handler.schema`), and whether it is a
        TypedDict. `name`: for the definitions that it needs."""
        # By an identifier, because a method could have the name of a type, such as `str`, and hide it in its class.
        expression = _Schema(self, self._names, schema.get("$defs", {}), name).type(dict(schema), name)
        if expression in self.dictionaries:
            return expression, True
        return self.alias(expression, name), False

    def alias(self, expression: str, name: str) -> str:
        """Define a new identifier for a type, and return it."""
        alias = self._names.new(name)
        self.definitions.append(f"{alias}: TypeAlias = {expression}\n")
        return alias


class _Schema:
    """One schema with its own definitions. Accepted schemas have no circle of references, and a bounded number of nodes."""

    def __init__(self, types: SchemaTypes, names: Names, definitions: Mapping[str, Any], name: str) -> None:
        self._types, self._names, self._definitions, self._name = types, names, definitions, name
        self._known: dict[str, str] = {}

    def type(self, schema: Any, name: str) -> str:
        if not isinstance(schema, dict):
            return "Any"
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]).removeprefix("#/$defs/"))
        if "const" in schema:
            return _literal([schema["const"]])
        if isinstance(schema.get("enum"), list):
            return _literal(schema["enum"])
        for choice in ("anyOf", "oneOf"):
            # Beside a type they only narrow it: `{"type": "object", "properties": …, "anyOf": [{"required": …}]}`.
            if isinstance(schema.get(choice), list) and "type" not in schema:
                return _union(self.type(part, f"{name} {number}") for number, part in enumerate(schema[choice], 1))
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _union(self._of_kind(str(kind), schema, name) for kind in kinds)
        return self._of_kind(str(kinds), schema, name)

    def _referred(self, reference: str) -> str:
        if reference not in self._known:
            self._known[reference] = self.type(self._definitions.get(reference), f"{self._name} {reference}")
        return self._known[reference]

    def _of_kind(self, kind: str, schema: Mapping[str, Any], name: str) -> str:
        if kind in _SCALARS:
            return _SCALARS[kind]
        if kind == "array":
            # The items after `prefixItems` have another type than those, so `items` alone does not tell.
            is_typed = "prefixItems" not in schema and "items" in schema
            return f"list[{self.type(schema['items'], f'{name} item') if is_typed else 'Any'}]"
        if kind == "object":
            return self._object(schema, name)
        return "Any"

    def _object(self, schema: Mapping[str, Any], name: str) -> str:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict) or not properties or "" in properties or "patternProperties" in schema:
            return f"dict[str, {self._values(schema, name)}]"
        members = {key: self.type(value, f"{name} {key}") for key, value in properties.items()}
        lines = [f"        {key!r}: {kind if key in required else f'NotRequired[{kind}]'},\n" for key, kind in members.items()]
        identifier = self._names.new(name)
        # By a call, not by a class: a member may have any text as its name.
        self._types.dictionaries[identifier] = members
        self._types.definitions.append(f"{identifier} = TypedDict(\n    {identifier!r},\n    {{\n{''.join(lines)}    }},\n)\n")
        return identifier

    def _values(self, schema: Mapping[str, Any], name: str) -> str:
        if "properties" in schema or "patternProperties" in schema or "additionalProperties" not in schema:
            return "Any"
        return self.type(schema["additionalProperties"], f"{name} value")


def _union(types: Iterator[str]) -> str:
    members = list(dict.fromkeys(types))
    return "Any" if "Any" in members or not 0 < len(members) <= MAX_MEMBERS else " | ".join(members)


def _literal(values: Sequence[Any]) -> str:
    """Return a Literal of values that a Literal may have, or `Any`."""
    fit = all(
        value is None or type(value) in (bool, int) or (type(value) is str and len(value) <= MAX_LITERAL) for value in values
    )
    return f"Literal[{', '.join(map(repr, values))}]" if fit and 0 < len(values) <= MAX_MEMBERS else "Any"
