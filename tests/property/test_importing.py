"""Descriptions of strangers become a manifest that parses, with calls that fit it, or are refused."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_agent.importing.description import Inexpressible
from treaty_agent.importing.imported_project import ImportedProject
from treaty_agent.importing.operation_names import OperationNames
from treaty_agent.importing.pattern_sample import sample
from treaty_agent.importing.schema_example import example_of
from treaty_agent.importing.schema_import import SchemaBudget, SchemaImport, compile_schema
from treaty_agent.importing.source import READERS
from treaty_client.authoring.new_project import NewProtocol
from treaty_consensus.errors import TreatyError
from treaty_io.codes import OperationCode

WORDS = st.sampled_from(
    [
        *("type", "properties", "items", "required", "enum", "const", "pattern", "format", "nullable", "allOf", "oneOf", "$ref"),
        *("minimum", "exclusiveMinimum", "multipleOf", "minLength", "minItems", "uniqueItems", "additionalProperties", "default"),
        *(
            "example",
            "examples",
            "description",
            "$defs",
            "A",
            "#/$defs/A",
            "object",
            "array",
            "string",
            "integer",
            "null",
            "date",
        ),
        *(
            "get",
            "post",
            "/a",
            "/a/{b}",
            "parameters",
            "name",
            "in",
            "query",
            "path",
            "schema",
            "requestBody",
            "content",
            "value",
        ),
        *("application/json", "responses", "200", "404", "4XX", "default", "operationId", "[a-z]+", "params", "result", "errors"),
        *("code", "message", "inputSchema", "outputSchema", "annotations", "id", "security", "callbacks", "true"),
    ]
)
VALUES: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 99), st.floats(allow_nan=False), WORDS, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=20,
)
SCHEMAS = st.dictionaries(WORDS, VALUES, max_size=6)
OPERATIONS = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {
            "responses": st.dictionaries(
                WORDS, st.fixed_dictionaries({"content": st.dictionaries(WORDS, VALUES, max_size=2)}), max_size=2
            )
        },
        optional={"parameters": st.lists(st.fixed_dictionaries({"name": WORDS, "in": WORDS, "schema": SCHEMAS}), max_size=2)},
    ),
)
METHODS = st.fixed_dictionaries({"name": WORDS, "inputSchema": SCHEMAS, "id": WORDS, "outputSchema": SCHEMAS, "params": VALUES})
DESCRIPTIONS = st.one_of(
    st.tuples(st.just("openapi"), st.fixed_dictionaries({"openapi": st.just("3.1.0"), "paths": st.dictionaries(
        WORDS, st.dictionaries(WORDS, OPERATIONS, max_size=3), max_size=2)}, optional={"components": VALUES, "info": VALUES})),
    st.tuples(st.just("openrpc"), st.fixed_dictionaries({"openrpc": st.just("1"), "methods": st.lists(METHODS, max_size=3)})),
    st.tuples(st.just("mcp"), st.fixed_dictionaries({"tools": st.lists(METHODS, max_size=3)})),
    st.tuples(st.just("a2a"), st.fixed_dictionaries({"name": WORDS, "skills": st.lists(METHODS, max_size=3)})),
)  # fmt: skip


@settings(max_examples=50)  # each compiles its schemas
@given(DESCRIPTIONS)
def test_a_description_becomes_a_manifest_or_is_refused(description: Any) -> None:
    kind, value = description
    data = json.dumps(value).encode()
    try:
        imported = ImportedProject(READERS[kind]().read(data, "it"), data, NewProtocol("it", "test/it"))
    except TreatyError:
        return
    assert imported.operations
    assert all(str(omission).isprintable() for omission in imported.omissions)


@given(SCHEMAS)
def test_an_example_fits_the_schema_or_there_is_none(source: Any) -> None:
    try:
        schema = SchemaImport({"$defs": {"A": source}}, SchemaBudget()).schema(source)
        value = example_of(schema, compile_schema(schema))
    except Inexpressible:
        return
    compile_schema(schema).check(value, OperationCode.ARGUMENTS, "it")


@given(st.text("ab[]^$(){}|?+*\\d-9,.", max_size=20), st.integers(0, 50))
def test_a_pattern_has_a_sample_or_is_too_hard(pattern: str, least: int) -> None:
    try:
        assert len(sample(pattern, least)) <= 1_000
    except ValueError:
        return


@given(st.lists(st.text(max_size=70), max_size=8))
def test_names_are_distinct_identifiers(wishes: list[str]) -> None:
    names = OperationNames()
    identifiers = [names.new(wish) for wish in wishes]
    assert len({name.lower() for name in identifiers}) == len(wishes)
    assert all(name.isascii() and name.isidentifier() and len(name) <= 64 for name in identifiers)
