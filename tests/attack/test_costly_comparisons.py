"""Hostile schemas are compared within the limits of a content process: no pair hangs it, and each has a verdict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from handler_packages import metadata

from treaty_consensus.handler import build_wheel
from treaty_consensus.handler.compatibility import Compatibility
from treaty_consensus.handler.schema import check_schema
from treaty_registry.admission.content_process import ContentLimits, ContentProcess
from treaty_registry.admission.content_worker import Read


def member(number: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"const": number}}, "required": [f"p{number}"]}


def condition(number: int, end: str) -> dict[str, Any]:
    test = {"properties": {f"k{number}": {"const": 1}}}
    return {"if": test, "then": {"required": [f"r{number}"]}, "else": {"required": [f"{end}{number}"]}}


def nested(leaf: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        leaf = {"type": "object", "properties": {"a": leaf}}
    return leaf


def doubled(leaf: dict[str, Any]) -> dict[str, Any]:
    definitions = {"d0": leaf}
    for number in range(1, 6):
        below = {"$ref": f"#/$defs/d{number - 1}"}
        definitions[f"d{number}"] = {"type": "object", "properties": {"a": below, "b": below}}
    return {"$defs": definitions, "$ref": "#/$defs/d5"}


TEXT = {"type": "string"}
PAIRS: dict[str, tuple[Any, ...]] = {
    "conditions": tuple({"type": "object", "allOf": [condition(number, end) for number in range(16)]} for end in ("s", "t")),
    "dependencies": tuple(
        {"type": "object", "dependentSchemas": {f"a{number}": member(number + more) for number in range(16)}} for more in (0, 1)
    ),
    "dependent names": tuple(
        {"type": "object", "dependentRequired": {f"a{number}": [f"{end}{number}"] for number in range(12)}} for end in "bc"
    ),
    "alternatives": tuple({"anyOf": [member(n) for n in range(count)]} for count in (120, 119)),
    "alternatives of alternatives": tuple(
        {"allOf": [{"anyOf": [member(3 * n + k) for k in range(count)]} for n in range(30)]} for count in (3, 2)
    ),
    "one of many": tuple({"oneOf": [{"minimum": n, "maximum": 3 * n + more} for n in range(150)]} for more in (0, 1)),
    "many constants": tuple({"enum": [f"value {n}" for n in range(900 + more)]} for more in (0, 1)),
    "deep": (nested(TEXT, 12), nested({"type": "integer"}, 12)),
    "references": (doubled(TEXT), doubled({"type": "integer"})),
    "patterns": ({**TEXT, "pattern": "^(a|aa)+$"}, {**TEXT, "pattern": "^(a|b|ab){0,30}$"}),
    "many counted texts": ({**TEXT, "pattern": "^(a{0,9}b{0,9}){0,9}$"}, {**TEXT, "pattern": "^((((a?){2}){2}){2}){2}$"}),
    "many members": tuple(
        {"type": "object", "properties": {f"m{n}": {**TEXT, "maxLength": n + more} for n in range(300)}} for more in (1, 2)
    ),
    "a long list": tuple({"type": "array", "minItems": 10**9 + more} for more in (0, 1)),
}


def wheel(schema: Any) -> tuple[str, bytes]:
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    arguments = {"type": "object", "properties": {"x": inner}, **definitions}
    part = {"arguments": arguments, "result": {}, "errors": {}, "idempotent": True, "timeout": 1}
    roles = {"a": {"peer": "b", "calls": ["ask"], "invokes": []}, "b": {"peer": "a", "calls": [], "invokes": ["ask"]}}
    return build_wheel({"__init__.py": b"handler = 1\n"}, metadata({"operations": {"ask": part}, "roles": roles}))


@pytest.mark.threat(43)
async def test_hostile_pairs_have_verdicts_within_the_limits() -> None:
    process, verdicts = ContentProcess.start(ContentLimits()), {}
    try:
        for name, (old, new) in PAIRS.items():
            # A manifest with such a schema is accepted, so its handler can be attached.
            assert check_schema(old, "schema") and check_schema(new, "schema")
            (old_name, old_wheel), (new_name, new_wheel) = wheel(old), wheel(new)
            read = await process.read(Read("compatibility", f"{old_name} {new_name}", [old_wheel, new_wheel]))
            backward = msgspec.msgpack.decode(read, type=Compatibility).backward
            verdicts[name] = next((reason.verdict for reason in backward.reasons if reason.part == "arguments"), "compatible")
        assert process.alive
    finally:
        await process.close()
    assert verdicts["conditions"] == verdicts["dependencies"] == "undecided", "a proof would take minutes"
    assert verdicts["many constants"] == verdicts["many members"] == "compatible"
    assert verdicts["deep"] == verdicts["references"] == "breaking"
