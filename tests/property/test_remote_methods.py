"""OpenRPC documents and schemas of strangers: methods within their caps, or a refusal; and checks that always end."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from treaty_agent.rpc.methods import MAX_METHODS
from treaty_agent.rpc.openrpc import parse_openrpc
from treaty_consensus.errors import TreatyError

URL = "https://hotel.example/interface.json"
WORDS = st.sampled_from(
    [
        *("openrpc", "methods", "servers", "url", "name", "params", "schema", "required", "result", "components", "schemas"),
        *("$ref", "$defs", "definitions", "properties", "items", "type", "pattern", "allOf", "additionalProperties", "order"),
        *("#/components/schemas/A", "#/definitions/A", "#/$defs/A", "A", "object", "string", "by-position", "paramStructure"),
        *("https://hotel.example/rpc", "http://hotel.example/", "rpc"),
    ]
)
VALUES: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False), WORDS, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=20,
)
SCHEMAS = st.one_of(VALUES, st.dictionaries(WORDS, VALUES, max_size=5))
METHODS = st.fixed_dictionaries(
    {"name": WORDS},
    optional={
        "params": st.lists(st.fixed_dictionaries({"name": WORDS}, optional={"schema": SCHEMAS, "required": VALUES}), max_size=3),
        "result": st.one_of(VALUES, st.fixed_dictionaries({"schema": SCHEMAS})),
        "servers": VALUES,
        "description": VALUES,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {"openrpc": st.just("1.3.2"), "methods": st.one_of(VALUES, st.lists(METHODS, max_size=4))},
    optional={
        "servers": st.one_of(VALUES, st.just([{"url": "https://hotel.example/rpc"}])),
        "components": st.one_of(VALUES, st.fixed_dictionaries({"schemas": st.dictionaries(WORDS, SCHEMAS, max_size=3)})),
    },
)


@example({"openrpc": "1.3.0", "methods": [{"name": "a", "result": {"name": "r", "schema": {"$defs": None}}}]}, {}, None)
@example({"openrpc": "1.3.0", "methods": [{"name": "a", "result": {"name": "r", "schema": {"definitions": [1]}}}]}, {}, None)
@given(DOCUMENTS, st.dictionaries(WORDS, VALUES, max_size=3), VALUES)
def test_methods_are_read_and_checked_or_refused(document: Any, arguments: Any, result: Any) -> None:
    try:
        methods = parse_openrpc(document, URL, [{"url": "https://hotel.example/rpc"}])
    except TreatyError:
        return
    assert len(methods) <= MAX_METHODS
    assert len({method.name for method in methods}) == len(methods)
    for method in methods:
        assert method.url.startswith("https://")
        assert method.description.isprintable()
        try:
            method.check_schemas()
            method.check_arguments(arguments)
            method.check_result(result)
        except TreatyError:
            continue
        assert set(arguments) <= set(method.parameters["properties"])
