"""Find the schemas that judge one value, and those of its members and items.

A `Place` is a schema with the definitions that its references name. Schemas of a manifest have no circle of references
(`treaty_consensus.handler.schema`), and at most 1,000 nodes with the references written out. So each walk here ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

_REFERENCE = "#/$defs/"
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("if", "then", "else")


class Place(NamedTuple):
    """A schema, and the definitions that it refers to."""

    schema: Schema
    definitions: Schema

    @classmethod
    def of(cls, schema: Schema) -> Place:
        """Return the place of a whole schema."""
        return cls(schema, schema.get("$defs", {}))

    def at(self, schema: Schema) -> Place:
        """Return another schema of the same document."""
        return Place(schema, self.definitions)

    @property
    def referred(self) -> Place | None:
        """Return the schema that this one refers to."""
        target = self.definitions.get(str(self.schema.get("$ref")).removeprefix(_REFERENCE))
        return self.at(target) if isinstance(target, Mapping) else None

    def judging(self, *, negated: bool = False) -> Iterator[Place]:
        """Yield this schema and all others that judge the same value. `negated`: also those below `not`."""
        yield self
        schema = self.schema
        if self.referred is not None:
            yield from self.referred.judging(negated=negated)
        for keyword in _LISTS:
            yield from self._below(schema.get(keyword, ()), negated)
        yield from self._below((schema.get(keyword) for keyword in _SINGLE), negated)
        yield from self._below(schema.get("dependentSchemas", {}).values(), negated)
        if negated:
            yield from self._below((schema.get("not"),), negated)

    def _below(self, schemas: Iterable[object], negated: bool) -> Iterator[Place]:
        for schema in schemas:
            if isinstance(schema, Mapping):
                yield from self.at(schema).judging(negated=negated)


def members(places: Iterable[Place]) -> dict[str, list[Place]]:
    """Return name → the schemas of this member, in all of these. A name that is only required has none."""
    named: dict[str, list[Place]] = {}
    for place in places:
        for name, schema in place.schema.get("properties", {}).items():
            named.setdefault(name, []).extend([place.at(schema)] if isinstance(schema, Mapping) else [])
        dependent = place.schema.get("dependentRequired", {})
        for name in (*place.schema.get("required", ()), *dependent, *(each for names in dependent.values() for each in names)):
            named.setdefault(name, [])
    return named


def children(places: Iterable[Place], keyword: str) -> list[Place]:
    """Return the schemas under a keyword that holds one."""
    return [place.at(place.schema[keyword]) for place in places if isinstance(place.schema.get(keyword), Mapping)]


def prefixes(places: Iterable[Place]) -> list[list[Place]]:
    """Return the schemas of each item that has one of its own."""
    columns: list[list[Place]] = []
    for place in places:
        for number, schema in enumerate(place.schema.get("prefixItems", ())):
            if number == len(columns):
                columns.append([])
            columns[number] += [place.at(schema)] if isinstance(schema, Mapping) else []
    return columns


def inner(place: Place) -> Iterator[Place]:
    """Yield each schema below this one, in each keyword, and not those that it refers to."""
    waiting: list[Any] = [place.schema]
    while waiting:
        node = waiting.pop()
        waiting += node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
        if isinstance(node, Mapping):
            yield place.at(node)
