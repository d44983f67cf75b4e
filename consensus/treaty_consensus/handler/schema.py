"""Which JSON Schemas a manifest may hold, and how much work a check of one value by a schema is at most.

A host compiles schemas that strangers wrote and applies them to values that strangers sent. So the work has a bound that follows
from the schema alone. A schema is refused (`handler.schema`) when it

1. has a `$ref` that is not of the form `#/$defs/NAME`, goes in a circle, or is more than 32 references long;
2. uses a keyword that renames or redirects (`$id`, `$anchor`, `$dynamicRef`, …), or whose cost grows with the power of its depth
   (`unevaluatedProperties`, `unevaluatedItems`), or a `format` that is itself a pattern (`regex`);
3. has more than 1,000 nodes when its references are written out;
4. has a pattern of more than 2,048 characters, or whose weight is more than 1,000. The weight is the number of atoms with all
   counted repetitions written out: `[a-f]{64}` weighs 64, and `([a-f]{8}-){4}` weighs 40. `.`, a negated or non-ASCII class and
   `\\s \\S \\W \\D` weigh 10 each, `\\p{…}` weighs 400. A length is bounded by `maxLength`, which costs nothing, and not by a
   repetition. A pattern of `patternProperties` weighs at most 100;
5. has a `multipleOf` below 10^-9 or above 10^15;
6. checks one value by work of more than 1,000, as `Work` counts it, or is nested deeper than 128 levels with its references
   written out.

The schemas of one manifest have together at most 20,000 nodes, and patterns that weigh at most 10,000.

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

from ..errors import Refused

MAX_NODES = 1_000
MAX_DEPTH = 32
MAX_PATTERN_WEIGHT = 1_000
MAX_NAME_PATTERN_WEIGHT = 100
MAX_PATTERN = 2_048
MAX_WORK = 1_000
MIN_DIVISOR, MAX_DIVISOR = 1e-9, 1e15
MAX_NESTING = 128
MAX_ALL_NODES = 20_000
MAX_ALL_PATTERNS = 10_000

_REFERENCE = re.compile(r"#/\$defs/([A-Za-z0-9_.-]+)")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REDIRECTING = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor", "$id", "$vocabulary")
_EXPONENTIAL = ("unevaluatedProperties", "unevaluatedItems")

_ANNOTATIONS = frozenset(
    {"$comment", "$defs", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
_SAME_VALUE = frozenset({"not", "if", "then", "else"})
_SAME_VALUE_LISTS = frozenset({"allOf", "anyOf", "oneOf", "dependentSchemas"})
_ONE_OF_THE_CHILDREN = frozenset({"properties", "prefixItems"})
_EACH_CHILD = frozenset({"items", "contains", "additionalProperties", "propertyNames"})

# How much longer these keywords take than the comparison of a number, by measurement; a unit is some 20 ns.
_PATTERN, _MULTIPLE_OF, _UNIQUE_ITEMS = 50, 150, 60
# The same for each 64 bytes of text.
_LENGTH, _FORMAT, _HOST_NAME = 1, 32, 256
_HOST_NAMES = frozenset({"hostname", "idn-hostname", "email", "idn-email"})

_WIDE, _UNICODE_CLASS = 10, 400
_COUNT = re.compile(r"\{([0-9]{0,6})(,([0-9]{0,6}))?\}")
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|[ux]\{[^}]*\}|.)", re.DOTALL)
_CLASS = re.compile(r"\[(\^?)((?:\\.|[^\]\\])*)\]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?:|\?P?<[A-Za-z][A-Za-z0-9_]*>)?")


class Work(NamedTuple):
    """What one schema costs at most.

    `checks`: by how many keywords any one value is judged, costly keywords counted several times. `text`: the same for each 64
    bytes of a text. `names`: the weight of the patterns that judge one member's name. `total`: all keywords that apply anywhere.
    """

    checks: int
    text: int
    names: int
    total: int


def check_schema(value: object, where: str) -> Mapping[str, Any]:
    """The schema, if it is within the rules of this module. `where`: its place, for errors. Raises `Refused`
    (`handler.schema`)."""
    if not isinstance(value, dict):
        raise _refused(f"{where} is no JSON Schema object.")
    definitions = value.get("$defs", {})
    if not isinstance(definitions, dict):
        raise _refused(f"{where}.$defs is no object.")
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
    """Check what the accepted schemas of one manifest are together. Raises `Refused` (`handler.schema`)."""
    nodes, found = 0, set[str]()
    for schema in schemas:
        nodes += _Count(schema.get("$defs", {}), "").nodes(dict(schema), ())
        found.update(patterns(dict(schema)))
    if nodes > MAX_ALL_NODES:
        raise _refused(f"The schemas of the manifest have together more than {MAX_ALL_NODES} nodes, references written out.")
    if sum(map(pattern_weight, found)) > MAX_ALL_PATTERNS:
        raise _refused(f"The patterns of the manifest weigh together more than {MAX_ALL_PATTERNS}.")


def patterns(schema: object) -> Iterator[str]:
    """All patterns in a schema, those for names included; each as often as it is written."""
    for node in _walk(schema):
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            named = node.get("patternProperties")
            if isinstance(named, dict):
                yield from named


def work_of(schema: Mapping[str, Any]) -> Work:
    """The work of a schema whose references are known to be there and to end."""
    levels = _levels(dict(schema), _References(schema.get("$defs", {})))
    every = reduce(_Level.plus, levels, _Level())
    unique = every.unique * _UNIQUE_ITEMS  # it looks at all that is below the list, on each level
    return Work(
        checks=max(level.checks for level in levels) + unique,
        text=max(level.text for level in levels),
        names=max(level.names for level in levels),
        total=every.checks + unique,
    )


def pattern_weight(pattern: str, limit: int = MAX_PATTERN_WEIGHT) -> int:
    """How many atoms a pattern has with its counted repetitions written out, wide classes counted several times.

    Raises `Refused` (`handler.schema`) for a pattern beyond the limit, or with other groups than `(…)`, `(?:…)`, `(?<name>…)`.
    """
    if len(pattern) > MAX_PATTERN:
        raise _refused(f"A pattern has at most {MAX_PATTERN} characters.")
    sums, last, position = [0], [0], 0  # of each open group: the weight so far, and of the atom that a count would repeat
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
                raise _refused("A pattern has a group with flags or a look-around, which hosts do not match.")
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
    """Counts nodes with references written out. Each definition is counted once, so this is linear in the schema."""

    def __init__(self, definitions: Mapping[str, object], where: str) -> None:
        self._definitions, self._where = definitions, where
        self._sizes: dict[str, int] = {}

    def definition(self, name: str, path: tuple[str, ...]) -> int:
        """The nodes of a definition that was reached by this path of references. Raises `Refused`."""
        if len(path) >= MAX_DEPTH:
            raise _refused(f"{self._where} has a chain of more than {MAX_DEPTH} references.")
        if name in path:
            raise _refused(f"{self._where} refers to itself through {name}.", fix="Bound the nesting by writing it out.")
        if name not in self._definitions:
            raise _refused(f"{self._where} refers to {name}, which its $defs lack.")
        if name not in self._sizes:
            self._sizes[name] = self.nodes(self._definitions[name], (*path, name))
            if self._sizes[name] > MAX_NODES:
                raise self.too_many()
        return self._sizes[name]

    def nodes(self, value: object, path: tuple[str, ...]) -> int:
        """The nodes of a part of the schema. Raises `Refused`."""
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
        """The error for too many nodes."""
        return _refused(f"{self._where} has more than {MAX_NODES} nodes with its references written out.")

    def _check(self, node: Mapping[str, object]) -> None:
        for keyword in _REDIRECTING:
            if keyword in node:
                raise _refused(f"{self._where} uses {keyword}, which handler schemas do not.")
        for keyword in _EXPONENTIAL:
            if keyword in node:
                raise _refused(
                    f"{self._where} uses {keyword}, whose cost has no bound.", fix="Use additionalProperties, or items."
                )
        if node.get("$schema", _DIALECT) != _DIALECT:
            raise _refused(f"{self._where} is not written in {_DIALECT}.")
        if node.get("format") == "regex":
            raise _refused(f'{self._where} uses the format "regex", which compiles the values it judges.')


@dataclass(frozen=True, slots=True)
class _Level:
    """What applies to one value so many levels below the value that a schema judges."""

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
    """The levels of each definition, computed once."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, _Levels] = {}

    def levels(self, reference: object, nesting: int) -> _Levels:
        """What a reference applies."""
        name = str(reference).removeprefix("#/$defs/")
        if name not in self._known:
            self._known[name] = _levels(self._definitions.get(name), self, nesting)
        return self._known[name]


def _levels(schema: object, references: _References, nesting: int = 0) -> _Levels:
    """What a schema applies to the value it judges, to its children, to theirs, and so on.

    A member is judged by one of `properties` at most, so of these only the costliest counts; all else adds up.
    """
    if nesting > MAX_NESTING:  # also what keeps this function from the end of the stack
        raise _refused(f"A schema is nested deeper than {MAX_NESTING} levels with its references written out.")
    found: _Levels = [_Level(checks=1)]
    if not isinstance(schema, dict):
        return found
    for keyword, value in schema.items():
        found = _add(found, _applied(keyword, value, references, nesting + 1))
    return found


def _applied(keyword: str, value: object, references: _References, nesting: int) -> _Levels:
    """What one keyword applies."""
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
    """What a keyword without subschemas costs."""
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


def _refused(what: str, fix: str = "") -> Refused:
    return Refused("handler.schema", what, fix=fix) if fix else Refused("handler.schema", what)
