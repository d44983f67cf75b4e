"""What differs between the operations of two versions, in sentences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from treaty_consensus.handler.comparison import OperationView, operation_changes

TEXT = {"type": "string", "minLength": 1, "maxLength": 100}
OLD = OperationView(
    name="find",
    kind="request",
    arguments={"type": "object", "properties": {"name": TEXT, "limit": {"type": "integer"}}, "required": ["name"]},
    result={"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]},
    errors=[(404, "Absent.")],
    is_idempotent=True,
    timeout=10,
    window=0,
    callers=["buyer"],
    providers=["shop"],
    forms='{"request": {"id": "$id", "type": "find", "name": "$arguments.name"}}',
)


def schema(*required: str, **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(required)}


LIMIT = {"type": "integer"}


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"kind": "stream"}, "kind: request → stream"),
        ({"is_idempotent": False}, "may no longer be repeated"),
        ({"timeout": 20}, "timeout: 10 s → 20 s"),
        ({"providers": ["bank"]}, "roles: buyer calls shop → buyer calls bank"),
        ({"callers": ["buyer", "agent"]}, "roles: buyer calls shop → buyer, agent calls shop"),
        ({"errors": [(404, "Absent."), (409, "Taken.")]}, "new error 409: Taken."),
        ({"errors": []}, "error 404 removed"),
        ({"arguments": schema("name", name=TEXT)}, "arguments: member limit removed"),
        ({"arguments": schema("name", name=TEXT, limit=LIMIT, day=TEXT)}, "arguments: new member day (string)"),
        ({"arguments": schema("name", "day", name=TEXT, limit=LIMIT, day=TEXT)}, "arguments: new required member day"),
        ({"arguments": schema("name", "limit", name=TEXT, limit=LIMIT)}, "arguments: limit: now required"),
        ({"arguments": schema(name=TEXT, limit=LIMIT)}, "arguments: name: no longer required"),
        ({"arguments": schema("name", name={**TEXT, "maxLength": 200}, limit=LIMIT)}, "arguments: name: at least 1"),
        ({"arguments": schema("name", name={**TEXT, "maxLength": 50}, limit=LIMIT)}, "arguments: name: at least 1"),
        ({"arguments": schema("name", name={**TEXT, "pattern": "a"}, limit=LIMIT)}, "arguments: name: at least 1"),
        ({"arguments": schema("name", name=LIMIT, limit=LIMIT)}, "arguments: name: string → integer"),
        ({"result": schema("a", a=TEXT)}, "result: member b removed"),
        ({"result": schema("a", "c", a=TEXT, b=TEXT, c=TEXT)}, "result: new required member c (string)"),
        ({"result": schema(a=TEXT, b=TEXT)}, "result: a: no longer required"),
        ({"result": schema("a", a={**TEXT, "maxLength": 200}, b=TEXT)}, "result: a: at least 1"),
        ({"result": schema("a", a={**TEXT, "minLength": 9}, b=TEXT)}, "result: a: at least 1"),
        ({"result": {**schema("a", a=TEXT, b=TEXT), "if": {}}}, "result: the schema differs"),
        ({"forms": OLD.forms.replace('name"}', 'name", "day": "$arguments.day"}')}, "its messages have another form"),
        ({"forms": OLD.forms.replace("find", "search")}, "its messages have another form"),
        ({"forms": OLD.forms.replace('"name":', '"v": 2, "name":')}, "its messages have another form"),
        ({"forms": ""}, "its messages have another form"),
    ],
)  # fmt: skip
def test_a_change_of_an_operation(change: dict[str, Any], fact: str) -> None:
    [difference] = operation_changes([OLD], [msgspec.structs.replace(OLD, **change)])
    assert difference.change == "changed" and [each for each in difference.facts if each.startswith(fact)]


def test_operations_are_removed_and_added() -> None:
    other = msgspec.structs.replace(OLD, name="ask")
    assert operation_changes([OLD], [OLD]) == []
    assert [(change.name, change.change) for change in operation_changes([OLD], [other])] == [
        ("ask", "added"),
        ("find", "removed"),
    ]
