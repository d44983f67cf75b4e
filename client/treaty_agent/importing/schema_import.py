"""Translate a schema of a description into the dialect of manifests: JSON Schema 2020-12 with bounds
(`treaty_consensus.handler.schema`).

    {"type": "string", "nullable": true, "format": "int64", "xml": {}}     becomes     {"type": ["string", "null"]}

References are followed in the description alone; the definitions that a schema needs become its `$defs`. Annotations that
constrain nothing are left out. A constraint that the dialect lacks is left out and noted, so the translation is never narrower. A
schema that refers to itself, or is too large, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler.schema import MAX_DIVISOR, MAX_NODES, MAX_PATTERN_WEIGHT, MIN_DIVISOR, check_schema, pattern_weight
from treaty_consensus.printable import escaped, printable
from treaty_sandbox.schemas import CompiledSchema, Schemas

from .description import Inexpressible

MAX_TEXT = 200
MAX_EXAMPLE = 200
"""Characters of an example or a default in a schema, as JSON."""
_PLAIN = frozenset(
    {
        *("type", "enum", "const", "required", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
        *("minProperties", "maxProperties", "uniqueItems", "minContains", "maxContains", "dependentRequired"),
    }
)
_ONE = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
_REFUSED = frozenset({"$dynamicRef", "$recursiveRef"})
_LACKING = frozenset({"unevaluatedProperties", "unevaluatedItems", "dependencies"})
# Others, such as int64, constrain nothing.
_FORMATS = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    }
)


class SchemaBudget:
    """The schemas of all operations of a description together. A description of 4 MiB could otherwise use a definition in each of
    hundreds of operations, and take minutes."""

    def __init__(self) -> None:
        self._nodes, self._weight = 100_000, 50_000

    def take(self, nodes: int, weight: int = 0) -> None:
        """Take nodes, and the weight of a pattern (`pattern_weight`). Raises `Inexpressible`."""
        self._nodes, self._weight = self._nodes - nodes, self._weight - weight
        if min(self._nodes, self._weight) < 0:
            raise Inexpressible("the schemas before it have used up the budget; choose operations by --only")


class SchemaImport:
    """The schemas of one operation. `left_out`: constraints that the dialect lacks, each in a phrase."""

    def __init__(self, root: Mapping[str, Any], budget: SchemaBudget) -> None:
        """`root`: the document in which references are followed. `budget`: of all its operations."""
        self.left_out: dict[str, None] = {}
        self._root, self._budget = root, budget
        # The neighbours of a reference count since 3.1 only.
        self._is_alone = str(root.get("openapi")).startswith("3.0")
        # Of the nodes that the whole operation may have before its references are written out: a bomb ends here.
        self._left = 2 * MAX_NODES
        self._names: dict[str, str] = {}
        self._pending: list[str] = []

    def schema(self, source: Any) -> dict[str, Any]:
        """Return the translation, with its `$defs`. Raises `Inexpressible`."""
        self._names, self._pending = {}, []
        translated, definitions = self._translated(source), dict[str, Any]()
        while self._pending:
            pointer = self._pending.pop()
            definitions[self._names[pointer]] = self._translated(self.target(pointer))
        translated = {} if translated is True else {"not": {}} if translated is False else translated
        whole = {**translated, "$defs": definitions} if definitions else translated
        compile_schema(whole)
        return whole

    def target(self, pointer: str) -> Any:
        """Return the value at a JSON pointer (RFC 6901) such as `#/components/schemas/Pet`. Raises `Inexpressible`."""
        value: Any = self._root
        if not pointer.startswith("#/"):
            raise Inexpressible(f"it refers to another document or by an anchor: {printable(pointer, 80)}")
        for token in pointer[2:].split("/"):
            name = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and name.isascii() and name.isdecimal() and len(name) < 7 and int(name) < len(value):
                value = value[int(name)]
            elif isinstance(value, dict) and name in value:
                value = value[name]
            else:
                raise Inexpressible(f"it refers to {printable(pointer, 80)}, which does not exist")
        return value

    def resolved(self, value: Any) -> dict[str, Any]:
        """Return a part of the description that is an object, maybe by a chain of references. Raises `Inexpressible`."""
        for _ in range(8):
            if not isinstance(value, dict):
                break
            if not isinstance(value.get("$ref"), str):
                return value
            value = self.target(value["$ref"])
        raise Inexpressible("a part of it is no object, or a long chain of references")

    def _translated(self, source: Any) -> Any:
        self._budget.take(1)
        self._left -= 1
        if self._left < 0:
            raise Inexpressible(f"its schemas have more than {2 * MAX_NODES} parts")
        if isinstance(source, bool):
            return source
        if not isinstance(source, dict):
            raise Inexpressible("a schema of it is no object")
        if self._is_alone and "$ref" in source:
            source = {"$ref": source["$ref"]}
        schema: dict[str, Any] = {}
        for keyword, value in source.items():
            self._keyword(schema, keyword, value)
        return _nullable(schema) if source.get("nullable") is True else schema

    def _keyword(self, schema: dict[str, Any], keyword: str, value: Any) -> None:
        match keyword:
            case "$ref":
                schema["$ref"] = f"#/$defs/{self._definition(value)}"
            case "items" | "additionalItems" if isinstance(value, list) or keyword == "additionalItems":
                # The tuples of draft 7.
                key = "prefixItems" if keyword == "items" else "items"
                schema[key] = [self._translated(part) for part in value] if keyword == "items" else self._translated(value)
            case _ if keyword in _PLAIN:
                schema[keyword] = value
            case _ if keyword in _ONE:
                schema[keyword] = self._translated(value)
            case _ if keyword in _LISTS and isinstance(value, list):
                schema[keyword] = [self._translated(part) for part in value]
            case _ if keyword in _NAMED and isinstance(value, dict):
                schema[keyword] = {name: self._translated(part) for name, part in value.items()}
            case _ if keyword in _LISTS or keyword in _NAMED or keyword in _REFUSED:
                raise Inexpressible(f"its schema uses {keyword} in a way that manifests lack")
            case _:
                self._constraint(schema, keyword, value)

    def _constraint(self, schema: dict[str, Any], keyword: str, value: Any) -> None:
        match keyword:
            case "exclusiveMinimum" | "exclusiveMaximum":
                self._exclusive(schema, keyword, value)
            case "pattern":
                self._pattern(schema, value)
            case "multipleOf" if not isinstance(value, int | float) or not MIN_DIVISOR <= value <= MAX_DIVISOR:
                self._leave_out(f"the multipleOf {printable(str(value), 30)}")
            case "multipleOf":
                schema[keyword] = value
            case "format" if isinstance(value, str) and value in _FORMATS:
                schema[keyword] = value
            case "description" if isinstance(value, str):
                schema[keyword] = one_line(value, MAX_TEXT)
            case "default" if _is_short(value):
                schema[keyword] = value
            case "example" if _is_short(value):
                schema.setdefault("examples", [value])
            case "examples" if isinstance(value, list) and value and _is_short(value[0]):
                schema[keyword] = value[:1]
            case _ if keyword in _LACKING:
                self._leave_out(f"the keyword {keyword}")

    def _exclusive(self, schema: dict[str, Any], keyword: str, value: Any) -> None:
        # A sign of its own in draft 4 and OpenAPI 3.0: `minimum` has the number there, before or after it.
        if isinstance(value, bool):
            if value:
                self._leave_out(f"{keyword}: true, so the bound itself is allowed")
        else:
            schema[keyword] = value

    def _pattern(self, schema: dict[str, Any], value: Any) -> None:
        try:
            weight = pattern_weight(value) if isinstance(value, str) else MAX_PATTERN_WEIGHT
        except TreatyError:
            self._leave_out(f"the pattern {printable(value, 60)}")
            return
        self._budget.take(0, weight)
        try:
            compile_schema({"pattern": value})
            schema["pattern"] = value
        except Inexpressible:
            self._leave_out(f"the pattern {printable(str(value), 60)}")

    def _definition(self, pointer: Any) -> str:
        if not isinstance(pointer, str):
            raise Inexpressible("a $ref of it is no text")
        if pointer not in self._names:
            stem = re.sub(r"[^A-Za-z0-9_.-]", "_", pointer.rpartition("/")[2])[:60] or "Schema"
            name, number = stem, 2
            while name in self._names.values():
                name, number = f"{stem}-{number}", number + 1
            self._names[pointer] = name
            self._pending.append(pointer)
        return self._names[pointer]

    def _leave_out(self, part: str) -> None:
        self.left_out[part] = None


def compile_schema(schema: Mapping[str, Any]) -> CompiledSchema:
    """Compile a schema of the dialect. Raises `Inexpressible` if it follows a rule not."""
    try:
        return Schemas().compile(check_schema(dict(schema), "its schema"), "it")
    except TreatyError as error:
        raise Inexpressible(f"{error.message[0].lower()}{error.message[1:].rstrip('.')}") from error


def one_line(text: str, limit: int) -> str:
    """Return a foreign text on one line, without characters that are not printable."""
    # Cut first, so that a long text costs no more than a short one.
    line = " ".join(text[: 4 * limit].split())
    return escaped(line if len(line) <= limit else f"{line[: limit - 1]}…")[:limit]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    match schema.get("type"):
        case str(name) if "enum" not in schema and "const" not in schema:
            return {**schema, "type": [name, "null"]}
        case _:
            return {"anyOf": [schema, {"type": "null"}]}


def _is_short(value: Any) -> bool:
    return len(json.dumps(value, ensure_ascii=False)) <= MAX_EXAMPLE
