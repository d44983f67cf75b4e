"""Tell whether a reader accepts each value that a writer sends.

    1 equal     both have the same schema
    2 try       a value near the limits of both that the writer may send and the reader refuses is a counterexample
    3 prove     `jsonschema-rs` tells whether the reader's schema covers the closed one of the writer (`closing`)

A counterexample is checked with the validator of agents (`treaty_sandbox.schemas`), so it is one on each machine. A pair without
a proof and without a counterexample is undecided.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

import jsonschema_rs
from jsonschema_rs import canonical

from treaty_consensus.errors import Malformed
from treaty_io.codes import OperationCode

from ..schemas import Schemas
from .closing import closed
from .near_values import MAX_WHOLE, NearValues
from .subschemas import Place, Schema, inner

State: TypeAlias = Literal["compatible", "breaking", "undecided"]

MAX_REFUSED = 32
"""Counterexamples of which the shortest is shown."""
MAX_CASES = 128
"""Alternatives of one value for which a proof is tried: at most half a second for the worst that was found."""
_ANNOTATIONS = frozenset({"$comment", "default", "deprecated", "description", "examples", "title"})
_NONE = object()
_DRAFT = jsonschema_rs.Draft202012
_UNSUPPORTED = (ValueError, jsonschema_rs.ReferencingError, canonical.IncompatibleOperands)


class Containment(NamedTuple):
    """Whether a reader accepts each value of a writer. `value`: one that it refuses. `message`: its reason, in the words of the
    validator."""

    state: State
    value: Any = None
    message: str = ""


def containment(writer: Schema, reader: Schema, what: str) -> Containment:
    """Compare the schemas of a writer and of a reader. Messages begin with the noun `what`. Takes processor time alone.

    Raises `Refused` (`handler.manifest`) for a schema that is none.
    """
    if _plain(writer) == _plain(reader):
        return Containment("compatible")
    sent = closed(writer)
    pair = _Pair(sent, reader, what)
    places = [Place.of(sent), Place.of(reader)]
    if found := pair.counterexample(places):
        return found
    # The library writes alternatives out, each with each.
    if max(map(_cases, places)) > MAX_CASES:
        return Containment("undecided")
    try:
        readers, writers = (_canonical(schema) for schema in (reader, sent))
        is_covered = readers.covers(writers) == canonical.Containment.YES
    except _UNSUPPORTED:
        is_covered = False
    return Containment("compatible" if is_covered else "undecided")


class _Pair:
    """A closed writer and its reader, compiled as agents compile them."""

    def __init__(self, sent: Schema, reader: Schema, what: str) -> None:
        self._sent, self._reader = Schemas().compile(sent, what), Schemas().compile(reader, what)
        self._what = what

    def counterexample(self, places: Sequence[Place]) -> Containment | None:
        """Return the shortest of the first values near the limits of schemas that are sent and refused."""
        values = NearValues(_Usual()).of(places, MAX_WHOLE)
        refused = (value for value in values if self._sent.accepts(value) and not self._reader.accepts(value))
        shortest = min(islice(refused, MAX_REFUSED), key=lambda value: len(json.dumps(value)), default=_NONE)
        return None if shortest is _NONE else Containment("breaking", shortest, self._fault(shortest))

    def _fault(self, value: Any) -> str:
        """Return why the reader refuses a value."""
        try:
            self._reader.check(value, OperationCode.ARGUMENTS, self._what)
        except Malformed as error:
            return error.message
        raise AssertionError("a validator has one answer")


class _Usual:
    """Tell whether values fit a part of a schema. Each part is compiled once."""

    def __init__(self) -> None:
        self._validators: dict[int, Any] = {}

    def __call__(self, schema: Schema, definitions: Schema, value: Any) -> bool:
        if id(schema) not in self._validators:
            try:
                self._validators[id(schema)] = jsonschema_rs.Draft202012Validator({**schema, "$defs": definitions})
            except _UNSUPPORTED:
                self._validators[id(schema)] = None
        validator = self._validators[id(schema)]
        return validator is not None and bool(validator.is_valid(value))


def _cases(whole: Place) -> int:
    """Return a bound of the alternatives of any one value, combined with each other."""
    # A member that is named like a keyword may be taken for one. Then the bound is only larger.
    return max(map(_own_cases, inner(whole)))


def _own_cases(place: Place) -> int:
    schema, cases = place.schema, 1
    of = [_own_cases(place.at(each)) for each in schema.get("allOf", ()) if isinstance(each, dict)]
    of += [_own_cases(place.referred)] if place.referred else []
    for keyword in ("anyOf", "oneOf"):
        branches = [_own_cases(place.at(each)) for each in schema.get(keyword, ()) if isinstance(each, dict)]
        # Of `oneOf` each branch excludes each other one.
        of += [sum(branches) * (len(branches) if keyword == "oneOf" else 1)] if branches else []
    of += [_own_cases(place.at(schema["not"]))] if isinstance(schema.get("not"), dict) else []
    of += [3] if "if" in schema else []
    of += [2] * (len(schema.get("dependentSchemas", ())) + len(schema.get("dependentRequired", ())))
    for each in of:
        cases = min(cases * max(each, 1), MAX_CASES + 1)
    return cases


def _canonical(schema: Schema) -> jsonschema_rs.CanonicalSchema:
    return jsonschema_rs.canonicalize(dict(schema), draft=_DRAFT, validate_formats=True, offline=True)


def _plain(schema: object) -> str:
    """Return a schema as text without its annotations."""
    return json.dumps(_without_annotations(schema), sort_keys=True)


def _without_annotations(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_annotations(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {}
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword in ("const", "enum"):  # values, which may have members of these names
            plain[keyword] = value
        elif keyword in ("properties", "patternProperties", "dependentSchemas", "$defs") and isinstance(value, dict):
            plain[keyword] = {name: _without_annotations(each) for name, each in value.items()}
        else:
            plain[keyword] = _without_annotations(value)
    return plain
