"""Whether a reader accepts each value of a writer: a table of changes, counterexamples, and values at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_changes import OBJECTS

from treaty_consensus.handler.schema import check_schema
from treaty_sandbox.compatibility.closing import closed
from treaty_sandbox.compatibility.containment import Containment, containment
from treaty_sandbox.compatibility.pattern_texts import texts

CHANGES = json.loads((Path(__file__).parents[1] / "vectors" / "handlers" / "changes.json").read_text())
OPTIONAL = {name for name, _, _, relation in OBJECTS if relation == "= and optional"}
TEXT = {"type": "string"}


def verdict(change: dict[str, Any], direction: str) -> tuple[dict[str, Any], dict[str, Any], Containment]:
    """The closed writer, the reader, and the verdict."""
    is_old_writer = (direction == "backward") == (change["part"] == "arguments")
    writer, reader = (change["old"], change["new"]) if is_old_writer else (change["new"], change["old"])
    return closed(writer), reader, containment(writer, reader, "The value")


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    """By another implementation than the product's."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return bool(jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value))


def test_each_made_change_has_its_verdict() -> None:
    assert len(CHANGES) >= 300
    wrong, undecided = [], 0
    optional: list[str] = []
    for change in CHANGES:
        for direction in ("backward", "forward"):
            writer, reader, found = verdict(change, direction)
            undecided += found.state == "undecided"
            optional += [found.state] if change["change"] in OPTIONAL else []
            if found.state != change[direction]:
                wrong.append((change["change"], change["at"], direction, found))
            if found.state == "breaking":
                assert is_valid(writer, found.value) and not is_valid(reader, found.value), (change, found.value)
                assert found.message.startswith("The value break")
    assert wrong == [] and undecided == 10, "one pattern in another, at five places"
    assert len(optional) >= 80 and {*optional} == {"compatible"}, "an added optional member never breaks"


@pytest.mark.parametrize(
    "schema", [CHANGES[0]["old"], {"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["b"]}]}]
)
def test_a_closed_writer_sends_declared_members_alone(schema: dict[str, Any]) -> None:
    declared = {"v": "x"} if "properties" in schema else {"a": 1, "b": 2}
    assert is_valid(closed(schema), declared) and not is_valid(closed(schema), {**declared, "other": 1})
    map_of_numbers = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert is_valid(closed(map_of_numbers), {"any": 1}) and is_valid(closed({}), {"any": 1})


@pytest.mark.parametrize("pattern", ["^[a-c]{2,3}$", "^(cat|dog)s?$", r"^\d+-\w*$", "^[^x]+$", "^a.c$", "(?P<n>a|b)+?z"])
def test_a_pattern_has_texts(pattern: str) -> None:
    made = texts(pattern)
    assert made and any(is_valid({"pattern": pattern}, text) for text in made)
    for broken in ("(", "[", "(?=a)", "a{1,2}{3", "\\"):
        assert isinstance(texts(broken + pattern), list)


SMALL = st.integers(0, 3)
LEAVES = st.one_of(
    st.builds(lambda least, more: {"type": "integer", "minimum": least, "maximum": least + more}, st.integers(-3, 3), SMALL),
    st.builds(lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more}, SMALL, SMALL),
    st.lists(st.sampled_from([1, "a", None, True, "bb", 2.5]), min_size=1, max_size=4, unique_by=repr).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from([{}, TEXT, {"type": ["integer", "null"]}, {"type": "boolean"}, {"type": "string", "pattern": "^[ab]+$"}]),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda properties, required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & properties.keys()),
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.sets(st.sampled_from("abc")),
        ),
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"allOf": parts}),
        inner.map(lambda schema: {"not": schema}),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, -3, 2.5, "", "a", "bb", "aab", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(writer=SCHEMAS, reader=SCHEMAS, values=st.lists(VALUES, min_size=20, max_size=40))
def test_no_value_contradicts_a_verdict(writer: dict[str, Any], reader: dict[str, Any], values: list[Any]) -> None:
    check_schema(writer, "writer")
    found = containment(writer, reader, "The value")
    sent = closed(writer)
    if found.state == "breaking":
        assert is_valid(sent, found.value) and not is_valid(reader, found.value)
    if found.state == "compatible":
        assert all(is_valid(reader, value) for value in values if is_valid(sent, value))
    assert containment(writer, reader, "The value") == found, "each registry and mirror finds the same"
