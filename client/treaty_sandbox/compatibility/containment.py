"""Tell whether a reader accepts each value that a writer sends.

    1 equal     both have the same schema
    2 try       a value near the limits of both that the writer may send and the reader refuses is a counterexample
    3 prove     `jsonschema-rs` compares the reader's schema with the closed one of the writer (`closing`)
    4 try       again, with the schema of their difference

A counterexample is checked with the validator of agents (`treaty_sandbox.schemas`), so it is one on each machine. A pair without
a proof and without a counterexample is undecided.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jsonschema_rs
from jsonschema_rs import canonical

from treaty_consensus.errors import Malformed
from treaty_io.codes import OperationCode

from ..schemas import CompiledSchema, Schemas
from .closing import closed
from .near_values import NearValues
from .subschemas import Place, Schema

State: TypeAlias = Literal["compatible", "breaking", "undecided"]

_ANNOTATIONS = frozenset({"$comment", "default", "deprecated", "description", "examples", "title"})
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
    try:
        readers, writers = (_canonical(schema) for schema in (reader, sent))
        if readers.covers(writers) == canonical.Containment.YES:
            return Containment("compatible")
        difference = writers.subtract(readers).to_json_schema()
    except _UNSUPPORTED:
        return Containment("undecided")
    if isinstance(difference, dict) and (found := pair.counterexample([Place.of(difference), *places])):
        return found
    return Containment("undecided")


class _Pair:
    """A closed writer and its reader, compiled as agents compile them."""

    def __init__(self, sent: Schema, reader: Schema, what: str) -> None:
        self._sent, self._reader = Schemas().compile(sent, what), Schemas().compile(reader, what)
        self._what = what

    def counterexample(self, places: Sequence[Place]) -> Containment | None:
        """Return the first value near the limits of schemas that is sent and refused."""
        for value in NearValues(_Usual()).of(places):
            if not self._fault(self._sent, value) and (message := self._fault(self._reader, value)):
                return Containment("breaking", value, message)
        return None

    def _fault(self, schema: CompiledSchema, value: Any) -> str:
        """Return why an agent refuses a value, or an empty text."""
        try:
            schema.check(value, OperationCode.ARGUMENTS, self._what)
        except Malformed as error:
            return error.message
        return ""


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

