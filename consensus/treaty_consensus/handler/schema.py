"""Bound the cost of a manifest's JSON Schemas: which are accepted, and the work of checking one value.

A host compiles schemas of unknown authors and applies them to values of unknown senders. So the schema alone must bound the
work. `docs/specification/handler-packages.md`, "What a schema may cost", lists the rules. `Work` counts the work of a schema:

    >>> work_of({"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}})
    Work(checks=52, text=0, names=0, total=54)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple

from ..codes import HandlerCode
from ..errors import Refused

# The caps bound the slowest check to about 0.1 s an event (tests/attack/test_costly_schemas.py measures it).
MAX_NODES = 1_000
MAX_DEPTH = 32
# Engines without backtracking expand counted repetitions into states, so their memory grows with the weight.
MAX_PATTERN_WEIGHT = 1_000
MAX_NAME_PATTERN_WEIGHT = 100
MAX_PATTERN = 2_048
MAX_WORK = 1_000
# Outside this range the remainder of a division of floats has no meaning.
MIN_DIVISOR, MAX_DIVISOR = 1e-9, 1e15
# Well below the recursion limit of the validator.
MAX_NESTING = 128
MAX_ALL_NODES = 20_000
MAX_ALL_PATTERNS = 10_000

_REFERENCE = re.compile(r"#/\$defs/([A-Za-z0-9_.-]+)")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# These change the meaning of a reference, so that the bound would depend on more than this schema.
_REDIRECTING = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor", "$id", "$vocabulary")
_EXPONENTIAL = ("unevaluatedProperties", "unevaluatedItems")

_ANNOTATIONS = frozenset(
    {"$comment", "$defs", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
_SAME_VALUE = frozenset({"not", "if", "then", "else"})
_SAME_VALUE_LISTS = frozenset({"allOf", "anyOf", "oneOf", "dependentSchemas"})
_ONE_OF_THE_CHILDREN = frozenset({"properties", "prefixItems"})
_EACH_CHILD = frozenset({"items", "contains", "additionalProperties", "propertyNames"})

# Measured: the time of these keywords relative to a comparison of numbers, which takes about 20 ns.
_PATTERN, _MULTIPLE_OF, _UNIQUE_ITEMS = 50, 150, 60
# The same for each 64 bytes of text.
_LENGTH, _FORMAT, _HOST_NAME = 1, 32, 256
_HOST_NAMES = frozenset({"hostname", "idn-hostname", "email", "idn-email"})

# A wide class compiles to many ranges of UTF-8 bytes, a Unicode property to hundreds.
_WIDE, _UNICODE_CLASS = 10, 400
_COUNT = re.compile(r"\{([0-9]{0,6})(,([0-9]{0,6}))?\}")
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|[ux]\{[^}]*\}|.)", re.DOTALL)
_CLASS = re.compile(r"\[(\^?)((?:\\.|[^\]\\])*)\]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?:|\?P?<[A-Za-z][A-Za-z0-9_]*>)?")


class Work(NamedTuple):
    """Count the largest cost of one schema.

    `checks`: the keywords that judge any one value; costly keywords count several times.
    `text`: the same for each 64 bytes of a text.
    `names`: the weight of the patterns that judge one member's name.
    `total`: all keywords that apply anywhere.
    """

    checks: int
    text: int
    names: int
    total: int


def check_schema(value: object, where: str) -> Mapping[str, Any]:
    """Return the schema if it follows the rules.

    `where`: its place, for errors.

    Raises `Refused` (`handler.manifest`).
    """
    if not isinstance(value, dict):
        raise _refused(f"{where} is not a JSON Schema object.")
    definitions = value.get("$defs", {})
    if not isinstance(definitions, dict):
        raise _refused(f"{where}.$defs is not an object.")
    count = _Count(definitions, where)
    for name in definitions:
        count.definition(name, ())
    if count.nodes(value, ()) > MAX_NODES:
        raise count.too_many()
    work = work_of(value)
    if max(work.checks, work.text, work.names) > MAX_WORK:
        raise _refused(
            f"{where} may judge one value more than {MAX_WORK} times.",
            fix="Apply fewer subschemas, patterns and formats to the same value.",
        )
    return MappingProxyType(value)


def check_together(schemas: Iterable[Mapping[str, Any]]) -> None:
    """Check the sum over all accepted schemas of one manifest. Raises `Refused` (`handler.manifest`)."""
    nodes, keywords = 0, set[str]()
    for schema in schemas:
        nodes += _Count(schema.get("$defs", {}), "").nodes(dict(schema), ())
        keywords.update(patterns(dict(schema)))
    if nodes > MAX_ALL_NODES:
        raise _refused(f"The schemas of the manifest have together more than {MAX_ALL_NODES} nodes, references written out.")
    if sum(map(pattern_weight, keywords)) > MAX_ALL_PATTERNS:
        raise _refused(f"The patterns of the manifest weigh together more than {MAX_ALL_PATTERNS}.")


def patterns(schema: object) -> Iterator[str]:
    """Yield all patterns in a schema, including those for names, as often as they occur."""
    for node in _walk(schema):
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            named = node.get("patternProperties")
            if isinstance(named, dict):
                yield from named


def work_of(schema: Mapping[str, Any]) -> Work:
    """Return the work of a schema. Its references must exist and contain no circle."""
    levels = _levels(dict(schema), _References(schema.get("$defs", {})))
    every = reduce(_Level.plus, levels, _Level())
    unique = every.unique * _UNIQUE_ITEMS  # `uniqueItems` compares everything below the list, on each level
    return Work(
        checks=max(level.checks for level in levels) + unique,
        text=max(level.text for level in levels),
        names=max(level.names for level in levels),
        total=every.checks + unique,
    )


def pattern_weight(pattern: str, limit: int = MAX_PATTERN_WEIGHT) -> int:
    """Return the number of atoms of a pattern with counted repetitions written out. Wide classes count several times.

    `[a-f]{64}` weighs 64, and `([a-f]{8}-){4}` weighs 40.

    Raises `Refused` (`handler.manifest`) for a weight beyond the limit, and for groups other than `(…)`, `(?:…)`, `(?<name>…)`.
    """
    if len(pattern) > MAX_PATTERN:
        raise _refused(f"A pattern has at most {MAX_PATTERN} characters.")
    # For each open group: its weight so far, and the weight of the last atom, which a count would repeat.
    sums, last, position = [0], [0], 0
    while position < len(pattern):
        length, weight = 1, 1
        character = pattern[position]
        if character == "\\":
            length, weight = _escape(pattern, position)
        elif character == "[":
            length, weight = _class(pattern, position)
        elif character == "(":
            match = _GROUP.match(pattern, position)
            assert match is not None
            position = match.end()
            if pattern.startswith("?", position):
                raise _refused("A pattern has a group with flags or a look-around. Hosts do not support these.")
            sums.append(0)
            last.append(0)
            continue
        elif character == ")" and len(sums) > 1:
            weight = sums.pop() + 1
            last.pop()
        elif character == "{" and (match := _COUNT.match(pattern, position)):
            times = max(int(match[1] or 0), int(match[3] or 0))
            sums[-1] += last[-1] * max(times - 1, 0)
            last[-1] *= max(times, 1)
            position = match.end()
            _check_weight(pattern, sums[-1], limit)
            continue
        elif character in "*+?|^$":
            weight = 0 if character in "*+?" else 1
        elif character == "." or character > "\x7f":
            weight = _WIDE
        sums[-1] += weight
        last[-1] = weight or last[-1]
        position += length
        _check_weight(pattern, sums[-1], limit)
    return _check_weight(pattern, sum(sums), limit)


def _check_weight(pattern: str, weight: int, limit: int) -> int:
    if weight > limit:
        raise _refused(
            f"The pattern {ascii(pattern)[:80]} weighs more than {limit}.",
            fix="Bound the length by maxLength instead of a counted repetition.",
        )
    return weight


def _escape(pattern: str, position: int) -> tuple[int, int]:
    match = _ESCAPE.match(pattern, position)
    if match is None:
        return 1, 1  # a backslash at the end; the compiler refuses it
    kind = match[0][1]
    return len(match[0]), _UNICODE_CLASS if kind in "pP" else _WIDE if kind in "sSWDuxX" else 1


def _class(pattern: str, position: int) -> tuple[int, int]:
    match = _CLASS.match(pattern, position)
    if match is None:
        return 1, 1
    negated, inside = match[1], match[2]
    unicode_classes = len(re.findall(r"\\[pP]", inside))
    if unicode_classes:
        return len(match[0]), _UNICODE_CLASS * unicode_classes
    wide = negated or not inside.isascii() or re.search(r"\\[sSWDuxX]", inside)
    return len(match[0]), max(_WIDE, len(inside)) if wide else 1


class _Count:
    """Count nodes with references written out. Each definition is counted once, so the time is linear in the schema."""

    def __init__(self, definitions: Mapping[str, object], where: str) -> None:
        self._definitions, self._where = definitions, where
        self._sizes: dict[str, int] = {}

    def definition(self, name: str, path: tuple[str, ...]) -> int:
        """Return the nodes of a definition. `path`: the references that lead to it. Raises `Refused`."""
        if len(path) >= MAX_DEPTH:
            raise _refused(f"{self._where} has a chain of more than {MAX_DEPTH} references.")
        if name in path:
            raise _refused(f"{self._where} refers to itself through {name}.", fix="Bound the nesting by writing it out.")
        if name not in self._definitions:
            raise _refused(f"{self._where} refers to {name}, but $defs has no such definition.")
        if name not in self._sizes:
            self._sizes[name] = self.nodes(self._definitions[name], (*path, name))
            if self._sizes[name] > MAX_NODES:
                raise self.too_many()
        return self._sizes[name]

    def nodes(self, value: object, path: tuple[str, ...]) -> int:
        """Return the nodes of a part of the schema. Raises `Refused`."""
        total = 0
        for node in _walk(value):
            total += 1
            if isinstance(node, dict):
                self._check(node)
                reference = node.get("$ref")
                if reference is not None:
                    match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
                    if match is None:
                        raise _refused(f"{self._where} has a $ref that is not of the form #/$defs/NAME.")
                    total += self.definition(match[1], path)
        return total

    def too_many(self) -> Refused:
        """Return the error for too many nodes."""
        return _refused(f"{self._where} has more than {MAX_NODES} nodes with its references written out.")

    def _check(self, node: Mapping[str, object]) -> None:
        for keyword in _REDIRECTING:
            if keyword in node:
                raise _refused(f"{self._where} uses {keyword}. Handler schemas must not use it.")
        for keyword in _EXPONENTIAL:
            if keyword in node:
                raise _refused(f"{self._where} uses {keyword}. Its cost has no bound.", fix="Use additionalProperties, or items.")
        if node.get("$schema", _DIALECT) != _DIALECT:
            raise _refused(f"{self._where} is not written in {_DIALECT}.")
        if node.get("format") == "regex":
            raise _refused(f'{self._where} uses the format "regex", which compiles the values it judges.')


@dataclass(frozen=True, slots=True)
class _Level:
    """Hold the keywords that apply to one value at a certain depth below the judged value."""

    checks: int = 0
    text: int = 0
    unique: int = 0
    names: int = 0

    def plus(self, other: _Level) -> _Level:
        return _Level(self.checks + other.checks, self.text + other.text, self.unique + other.unique, self.names + other.names)

    def or_(self, other: _Level) -> _Level:
        return _Level(
            max(self.checks, other.checks),
            max(self.text, other.text),
            max(self.unique, other.unique),
            max(self.names, other.names),
        )


_Levels = list[_Level]


class _References:
    """Compute the levels of each definition once."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, _Levels] = {}

    def levels(self, reference: object, nesting: int) -> _Levels:
        """Return the levels of a reference."""
        name = str(reference).removeprefix("#/$defs/")
        if name not in self._known:
            self._known[name] = _levels(self._definitions.get(name), self, nesting)
        return self._known[name]


def _levels(schema: object, references: _References, nesting: int = 0) -> _Levels:
    """Return the keywords that a schema applies to the judged value, to its children, to their children, and so on.

    At most one of `properties` judges a member, so only the costliest of them counts. All other costs add up.
    """
    if nesting > MAX_NESTING:  # this also bounds the recursion of this function
        raise _refused(f"A schema is nested deeper than {MAX_NESTING} levels with its references written out.")
    levels: _Levels = [_Level(checks=1)]
    if not isinstance(schema, dict):
        return levels
    for keyword, value in schema.items():
        levels = _add(levels, _applied(keyword, value, references, nesting + 1))
    return levels


def _applied(keyword: str, value: object, references: _References, nesting: int) -> _Levels:
    """Return the levels of one keyword."""
    if keyword in _ANNOTATIONS:
        return []
    if keyword == "$ref":
        return references.levels(value, nesting)
    if keyword in _SAME_VALUE:
        return _levels(value, references, nesting)
    if keyword in _EACH_CHILD:
        return [_Level(), *_levels(value, references, nesting)]
    if keyword in _SAME_VALUE_LISTS:
        return reduce(_add, (_levels(part, references, nesting) for part in _parts(value)), _nothing())
    if keyword in _ONE_OF_THE_CHILDREN:
        return [_Level(checks=1), *reduce(_merge, (_levels(part, references, nesting) for part in _parts(value)), _nothing())]
    if keyword == "patternProperties":
        named = value.items() if isinstance(value, dict) else ()
        # A name is matched here, and once more for `additionalProperties`.
        own = _Level(names=2 * sum(pattern_weight(pattern, MAX_NAME_PATTERN_WEIGHT) for pattern, _ in named))
        return [own, *reduce(_add, (_levels(part, references, nesting) for _, part in named), _nothing())]
    return [_own(keyword, value)]


def _own(keyword: str, value: object) -> _Level:
    """Return the cost of a keyword without subschemas."""
    match keyword:
        case "pattern":
            pattern_weight(value if isinstance(value, str) else "")
            return _Level(checks=_PATTERN)
        case "multipleOf":
            if not isinstance(value, int | float) or not MIN_DIVISOR <= value <= MAX_DIVISOR:
                raise _refused("A multipleOf is a number from 10^-9 to 10^15.")
            return _Level(checks=_MULTIPLE_OF)
        case "uniqueItems":
            return _Level(checks=1, unique=1)
        case "format":
            return _Level(checks=1, text=_HOST_NAME if value in _HOST_NAMES else _FORMAT)
        case "minLength" | "maxLength":
            return _Level(checks=1, text=_LENGTH)
        case _:
            nodes = sum(1 for _ in _walk(value))
            return _Level(checks=nodes, text=1 + nodes // 4 if keyword in ("const", "enum") else 0)


def _nothing() -> _Levels:
    return []


def _parts(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _add(left: _Levels, right: _Levels) -> _Levels:
    if len(left) < len(right):
        left, right = right, left
    return [level.plus(right[depth]) if depth < len(right) else level for depth, level in enumerate(left)]


def _merge(left: _Levels, right: _Levels) -> _Levels:
    if len(left) < len(right):
        left, right = right, left
    return [level.or_(right[depth]) if depth < len(right) else level for depth, level in enumerate(left)]


def _walk(value: object) -> Iterator[object]:
    pending = [value]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(_parts(node))


def _refused(fault: str, fix: str = "") -> Refused:
    return Refused(HandlerCode.MANIFEST, fault, fix=fix) if fix else Refused(HandlerCode.MANIFEST, fault)
