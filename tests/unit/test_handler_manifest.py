"""The manifest of a handler: what it declares, and what it must not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from handler_packages import URI

from treaty_consensus.errors import TooLarge, TreatyError
from treaty_consensus.handler import OperationKind, parse_manifest
from treaty_consensus.handler.manifest import EVENT_TIMEOUT, MAX_MANIFEST
from treaty_consensus.handler.schema import MAX_NODES

GOOD: dict[str, Any] = {
    "interface": 1,
    "protocol": {"uri": URI, "sha256": "ab" * 32},
    "operations": {
        "ask": {
            "arguments": {"type": "object", "properties": {"price": {"multipleOf": 0.01}}},
            "result": {"$ref": "#/$defs/answer", "$defs": {"answer": {"type": "string"}}},
            "errors": {"404": "None.", "100001": "Sold out."},
            "idempotent": True,
            "timeout": 15,
        }
    },
    "roles": {
        "client": {"peer": "server", "calls": ["ask"], "invokes": []},
        "server": {"peer": "client", "calls": [], "invokes": ["ask"]},
    },
}
MISSING = object()


def changed(path: str, value: object) -> bytes:
    manifest = copy.deepcopy(GOOD)
    *steps, last = path.split("/")
    inner = manifest
    for step in steps:
        inner = inner[step]
    if value is MISSING:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(manifest).encode()


def code_of(data: bytes) -> str:
    with pytest.raises(TreatyError) as caught:
        parse_manifest(data)
    return caught.value.code


def test_a_good_one() -> None:
    manifest = parse_manifest(json.dumps(GOOD).encode())
    ask = manifest.operations["ask"]
    assert (manifest.protocol_uri, manifest.protocol_hash) == (URI, "ab" * 32)
    assert (ask.idempotent, ask.timeout, ask.errors) == (True, 15, {404: "None.", 100001: "Sold out."})
    assert manifest.roles["client"].calls == {"ask": ask}
    assert manifest.roles["server"].invokes == {"ask": ask}
    assert manifest.roles["server"].peer == "client"
    assert [code for code in (404, 405, 500, 502, 503, 504, 100001) if ask.may_fail_with(code)] == [
        404,
        500,
        502,
        503,
        504,
        100001,
    ]


STREAM: dict[str, Any] = {**GOOD["operations"]["ask"], "kind": "stream"}
EVENT: dict[str, Any] = {"kind": "event", "arguments": {"type": "object"}}


def of_interface_2(operation: object) -> bytes:
    return json.dumps({**GOOD, "interface": 2, "operations": {"ask": operation}}).encode()


@pytest.mark.parametrize("interface", [1, 2, 3, 4, 5, 6])
def test_each_interface(interface: int) -> None:
    manifest = parse_manifest(changed("interface", interface))
    assert (manifest.interface, manifest.operations["ask"].kind, manifest.operations["ask"].window) == (interface, "request", 0)


@pytest.mark.parametrize(("extra", "window"), [({}, 16), ({"window": 1}, 1), ({"window": 1_024}, 1_024)])
def test_a_stream(extra: dict[str, Any], window: int) -> None:
    ask = parse_manifest(of_interface_2({**STREAM, **extra})).operations["ask"]
    assert (ask.kind, ask.window, ask.result, ask.timeout) == (OperationKind.STREAM, window, STREAM["result"], 15)


def test_an_event() -> None:
    ask = parse_manifest(of_interface_2(EVENT)).operations["ask"]
    assert (ask.kind, ask.result, dict(ask.errors), ask.idempotent, ask.timeout) == ("event", None, {}, False, EVENT_TIMEOUT)


@pytest.mark.parametrize(
    "operation",
    [
        {**STREAM, "kind": "Stream"},
        {**STREAM, "kind": None},
        {**STREAM, "kind": ["stream"]},
        {**STREAM, "window": 0},
        {**STREAM, "window": 1_025},
        {**STREAM, "window": 16.0},
        {**STREAM, "window": True},
        {**STREAM, "kind": "request", "window": 16},
        {**GOOD["operations"]["ask"], "window": 16},
        {**EVENT, "timeout": 15},
        {**EVENT, "result": {}},
        {**EVENT, "errors": {}},
        {**EVENT, "idempotent": True},
        {**EVENT, "window": 16},
        {**EVENT, "arguments": {}},
        {**EVENT, "arguments": {"type": "array"}},
        {"kind": "event"},
        {"kind": "stream", "arguments": {"type": "object"}},
        ["kind"],
        "kind",
    ],
)
def test_what_is_no_operation_of_its_kind(operation: object) -> None:
    assert code_of(of_interface_2(operation)) == "handler.manifest"


@pytest.mark.parametrize("operation", [STREAM, EVENT, {**STREAM, "kind": "request"}])
def test_a_kind_needs_interface_2(operation: object) -> None:
    assert code_of(changed("operations/ask", operation)) == "handler.manifest"


def test_what_it_declares_cannot_be_changed() -> None:
    manifest = parse_manifest(json.dumps(GOOD).encode())
    with pytest.raises(TypeError):
        manifest.roles["admin"] = manifest.roles["client"]  # type: ignore[index]
    with pytest.raises(TypeError):
        manifest.operations["ask"].arguments["type"] = "array"  # type: ignore[index]


@pytest.mark.parametrize("interface", [0, 7, True, 1.0, "1", None])
def test_another_interface(interface: object) -> None:
    assert code_of(changed("interface", interface)) == ("registry.newer" if interface == 7 else "handler.mismatch")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("interface", MISSING),
        ("protocol", MISSING),
        ("extra", 1),
        ("protocol/extra", 1),
        ("protocol/uri", "http://registry.example/protocols/example.com/probe/1.0"),
        ("protocol/uri", "https://registry.example/"),
        ("protocol/uri", 7),
        ("protocol/sha256", "AB" * 32),
        ("protocol/sha256", "ab"),
        ("operations", {}),
        ("operations", []),
        ("operations/1ask", GOOD["operations"]["ask"]),
        ("operations/a-b", GOOD["operations"]["ask"]),
        ("operations/ask/timeout", 0),
        ("operations/ask/timeout", 1.5),
        ("operations/ask/timeout", True),
        ("operations/ask/timeout", 86_401),
        ("operations/ask/idempotent", 1),
        ("operations/ask/idempotent", MISSING),
        ("operations/ask/errors", ["404"]),
        ("operations/ask/errors", {"0404": "x"}),
        ("operations/ask/errors", {"-1": "x"}),
        ("operations/ask/errors", {"404": ""}),
        ("operations/ask/errors", {"404": 1}),
        ("operations/ask/errors", {"9999999999": "x"}),
        ("operations/ask/arguments", {"type": "array"}),
        ("operations/ask/arguments", {}),
        ("operations/ask/extra", 1),
        ("roles", {}),
        ("roles/Client", GOOD["roles"]["client"]),
        ("roles/client/peer", "nobody"),
        ("roles/client/peer", ["server"]),
        ("roles/client/calls", ["other"]),
        ("roles/client/calls", ["ask", "ask"]),
        ("roles/client/calls", "ask"),
        ("roles/client/calls", [["ask"]]),
        ("roles/client/extra", 1),
    ],
)
def test_what_is_not_a_manifest(path: str, value: object) -> None:
    assert code_of(changed(path, value)) == "handler.manifest"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": 12345678901234567}',
        b'{"a": 1, "a": 1}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 40 + b"1" + b"}" * 40,
    ],
)
def test_what_does_not_parse(data: bytes) -> None:
    assert code_of(data) == "handler.manifest"


def test_the_cap() -> None:
    with pytest.raises(TooLarge):
        parse_manifest(json.dumps(GOOD).encode() + b" " * MAX_MANIFEST)


@pytest.mark.threat(43)
@pytest.mark.parametrize(
    "schema",
    [
        True,
        [],
        {"$ref": "https://example.com/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#"},
        {"$ref": "#/properties/a"},
        {"$ref": "#/$defs/none"},
        {"$ref": ["#/$defs/a"], "$defs": {"a": {}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        {"$defs": []},
        {"$dynamicRef": "#a"},
        {"properties": {"a": {"$dynamicAnchor": "a"}}},
        {"$id": "https://example.com/"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"enum": list(range(MAX_NODES))},
    ],
)
def test_schemas_that_cost_too_much_or_need_more_than_themselves(schema: object) -> None:
    assert code_of(changed("operations/ask/result", schema)) == "handler.manifest"


def test_references_that_double_are_counted_written_out() -> None:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**doubling, "d20": {"type": "string"}}}
    assert code_of(changed("operations/ask/result", schema)) == "handler.manifest"
    few = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(3)}
    assert parse_manifest(changed("operations/ask/result", {"$ref": "#/$defs/d0", "$defs": {**few, "d3": {"type": "string"}}}))


def test_a_chain_of_references_does_not_exhaust_the_stack() -> None:
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1_500)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d1500": {}}}
    assert code_of(changed("operations/ask/result", schema)) == "handler.manifest"
