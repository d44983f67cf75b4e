"""Make values near the limits of schemas, as counterexamples to try.

    {"type": "string", "maxLength": 3}      "", "a", "aaa", "aaaa"

Two versions of a schema differ at few places. So one value that both accept is changed at one place at a time: to the constants
that stand there, to one more and one less of each limit, to another type. No value is random: each registry and mirror finds the
same counterexample. Each value is a guess; a validator decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from .pattern_texts import texts
from .subschemas import Place, Schema, children, members, prefixes

MAX_VALUES = 64
"""Values of each place."""
MAX_CONSTANTS = 16
MAX_LENGTH = 4_096
"""Characters, items or members of a value that only its number makes wrong."""
MAX_VARIATIONS = 256
"""Values of all members of an object, each in a value of its own."""
MAX_MADE = 32_000
"""Values of one search, of all places."""
MAX_WHOLE = 2_000
"""Values that are tried."""
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T10:00:00Z",
    "time": "10:00:00Z",
    "duration": "P1D",
    "email": "a@example.com",
    "idn-email": "a@example.com",
    "hostname": "example.com",
    "idn-hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/a",
    "uri-reference": "/a",
    "iri": "https://example.com/a",
    "iri-reference": "/a",
    "uri-template": "/a/{b}",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "json-pointer": "/a",
    "relative-json-pointer": "1/a",
    "regex": "a",
}
_OF_TYPE: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "boolean": (True, False),
    "integer": (0, 1, -1, 7, 2**31),
    "number": (0.5, 0, -1.5),
    "string": ("a", "", "A", "0", "a b", "é", "☃", "no format"),
    "array": ([],),
    "object": ({},),
}
_TYPE_OF = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": (*_BOUNDS, "multipleOf"),
    "array": ("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
}


class NearValues:
    """The values near the limits of some schemas together. `is_usual`: whether a writer may send a value by a schema."""

    def __init__(self, is_usual: Callable[[Schema, Schema, Any], bool]) -> None:
        self._is_usual = is_usual
        self._left = MAX_MADE

    def of(self, schemas: Sequence[Place], most: int = MAX_VALUES) -> list[Any]:
        """Return at most `most` values: one that all schemas accept, those that only some of them accept, and the others."""
        places = [each for place in schemas for each in place.judging(negated=True)]
        made = _distinct(self._all(schemas, places), min(most, max(self._left, 1)))
        self._left -= len(made)
        counts = [sum(self._is_usual(*place, value) for place in schemas) for value in made]
        usual = [value for value, count in zip(made, counts, strict=True) if count == len(schemas)]
        disputed = [value for value, count in zip(made, counts, strict=True) if 0 < count < len(schemas)]
        refused = [value for value, count in zip(made, counts, strict=True) if not count]
        return [*usual[:1], *disputed, *usual[1:], *refused]

    def _all(self, schemas: Sequence[Place], places: Sequence[Place]) -> Iterator[Any]:
        yield from _constants(schemas)
        types = _types(places)
        for name in types:
            match name:
                case "string":
                    yield from _strings(places)
                case "integer" | "number":
                    yield from _numbers(places)
                case "array":
                    yield from self._arrays(places)
                case "object":
                    yield from self._objects(places)
            yield from _OF_TYPE[name][:2]
        # One of each other type: a reader may be for more types, or for fewer.
        for name in types:
            yield from _OF_TYPE[name]
        yield from (kinds[0] for name, kinds in _OF_TYPE.items() if name not in types)

    def _arrays(self, places: Sequence[Place]) -> Iterator[list[Any]]:
        items = [*children(places, "items"), *children(places, "contains")]
        single = self.of(items) if items else [0, "a", None]
        columns = [self.of(column) if column else [0] for column in prefixes(places)]
        begin = [column[0] for column in columns]
        yield begin
        lengths = [length for length in _lengths(places, "Items", "Contains") if length >= len(begin)]
        for length in lengths:
            yield [*begin, *(single[0] for _ in range(length - len(begin)))]
            yield [*begin, *islice(single, length - len(begin))]
        for number, column in enumerate(columns):
            yield from ([*begin[:number], value, *begin[number + 1 :]] for value in column[1:])
        least = max((place.schema.get("minItems", 0) for place in places), default=0)
        for value in single:
            rest = min(max(least - len(begin) - 1, 0), MAX_LENGTH)
            yield [*begin, value, *islice((other for other in single if other != value), rest)]
            yield [*begin, value, *[value] * rest]

    def _objects(self, places: Sequence[Place]) -> Iterator[dict[str, Any]]:
        extra = [*children(places, "additionalProperties")]
        named = {name: self.of(declared) if declared else [0] for name, declared in members(places).items()}
        whole = {name: single[0] for name, single in named.items()}
        required = {name for place in places for name in place.schema.get("required", ())}
        least = {name: value for name, value in whole.items() if name in required}
        # Few of each member in a wide object, so that all of them have a turn.
        share = max(2, MAX_VARIATIONS // (len(named) or 1))
        yield from (whole, least)
        yield from ({**whole, name: value} for name, single in named.items() for value in single[1:share])
        for name, single in named.items():
            yield {each: value for each, value in whole.items() if each != name}
            yield {**least, name: single[0]}
        yield from ({**least, name: value} for name, single in named.items() for value in single[1:share])
        values = self.of(extra) if extra else [0, "a", None]
        names = [text for place in places for pattern in place.schema.get("patternProperties", ()) for text in texts(pattern)[:4]]
        judged = children(places, "propertyNames")
        names += [name for name in (self.of(judged)[:8] if judged else []) if isinstance(name, str)]
        for place in places:
            for pattern, schema in place.schema.get("patternProperties", {}).items():
                for value in self.of([place.at(schema)]) if isinstance(schema, dict) else [0]:
                    yield from ({**least, name: value} for name in texts(pattern)[:2])
        yield from ({**least, name: values[0]} for name in (*names, "other"))
        yield from ({**least, "other": value} for value in values[1:])
        for length in _lengths(places, "Properties"):
            yield {**least, **{f"m{number}": values[0] for number in range(length - len(least))}}


def _constants(schemas: Sequence[Place]) -> Iterator[Any]:
    """Yield constants: first those that not all schemas name."""
    named = [{json.dumps(value, sort_keys=True): value for value in _named(schema)} for schema in schemas]
    every = {text: value for values in named for text, value in values.items()}
    partly = [value for text, value in every.items() if not all(text in values for values in named)]
    yield from partly[:MAX_CONSTANTS]
    yield from islice(every.values(), MAX_CONSTANTS)


def _named(schema: Place) -> Iterator[Any]:
    for place in schema.judging(negated=True):
        for keyword in ("const", "default"):
            yield from [place.schema[keyword]] if keyword in place.schema else []
        for keyword in ("enum", "examples"):
            yield from place.schema.get(keyword, ())


def _strings(places: Sequence[Place]) -> Iterator[str]:
    for place in places:
        yield from [_FORMATS[name]] if (name := place.schema.get("format")) in _FORMATS else []
        yield from texts(place.schema["pattern"]) if isinstance(place.schema.get("pattern"), str) else []
    for length in _lengths(places, "Length"):
        yield "a" * length


def _numbers(places: Sequence[Place]) -> Iterator[float]:
    for place in places:
        step = place.schema.get("multipleOf")
        bounds = [place.schema[keyword] for keyword in _BOUNDS if keyword in place.schema]
        for bound in bounds:
            yield from (bound, bound - 1, bound + 1, bound - 0.5, bound + 0.5)
        if step:
            yield from (step, 2 * step, step / 2)
            # The multiples nearest to each bound.
            yield from (bound // step * step + offset for bound in bounds for offset in (0, step, -step))
    for place in places:
        # A bound of one schema, where another one has a step.
        yield from [place.schema["multipleOf"] * 3] if place.schema.get("multipleOf") else []


def _lengths(places: Sequence[Place], *subjects: str) -> list[int]:
    limits = [
        limit
        for place in places
        for keyword in _LENGTHS
        if keyword.endswith(subjects) and isinstance(limit := place.schema.get(keyword), int)
    ]
    lengths = dict.fromkeys(length for limit in limits for length in (limit, limit + 1, limit - 1))
    return [length for length in (1, 2, *lengths) if 0 <= length <= MAX_LENGTH]


def _types(places: Sequence[Place]) -> list[str]:
    """Return the types that schemas name or have keywords for."""
    types: dict[str, None] = {}
    for place in places:
        named = place.schema.get("type", ())
        types |= dict.fromkeys([named] if isinstance(named, str) else named)
        types |= {name: None for name, keywords in _TYPE_OF.items() if any(keyword in place.schema for keyword in keywords)}
    return [name for name in types if name in _OF_TYPE] or ["string", "integer", "object"]


def _distinct(values: Iterable[Any], most: int) -> list[Any]:
    """Return the first different values. 1, 1.0 and true are different here."""
    made: dict[str, Any] = {}
    for value in values:
        made.setdefault(json.dumps(value, sort_keys=True), value)
        if len(made) == most:
            break
    return list(made.values())
