"""Which changes of an operation break an agent of the older version."""

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
    ("change", "is_breaking", "fact"),
    [
        ({"kind": "stream"}, True, "kind: request → stream"),
        ({"is_idempotent": False}, True, "may no longer be repeated"),
        ({"timeout": 20}, False, "timeout: 10 s → 20 s"),
        ({"providers": ["bank"]}, True, "roles: buyer calls shop → buyer calls bank"),
        ({"callers": ["buyer", "agent"]}, False, "roles: buyer calls shop → buyer, agent calls shop"),
        ({"errors": [(404, "Absent."), (409, "Taken.")]}, False, "new error 409: Taken."),
        ({"errors": []}, True, "error 404 removed"),
        ({"arguments": schema("name", name=TEXT)}, True, "arguments: member limit removed"),
        ({"arguments": schema("name", name=TEXT, limit=LIMIT, day=TEXT)}, False, "arguments: new member day (string)"),
        ({"arguments": schema("name", "day", name=TEXT, limit=LIMIT, day=TEXT)}, True, "arguments: new required member day"),
        ({"arguments": schema("name", "limit", name=TEXT, limit=LIMIT)}, True, "arguments: limit: now required"),
        ({"arguments": schema(name=TEXT, limit=LIMIT)}, False, "arguments: name: no longer required"),
        ({"arguments": schema("name", name={**TEXT, "maxLength": 200}, limit=LIMIT)}, False, "arguments: name: at least 1"),
        ({"arguments": schema("name", name={**TEXT, "maxLength": 50}, limit=LIMIT)}, True, "arguments: name: at least 1"),
        ({"arguments": schema("name", name={**TEXT, "pattern": "a"}, limit=LIMIT)}, True, "arguments: name: at least 1"),
        ({"arguments": schema("name", name=LIMIT, limit=LIMIT)}, True, "arguments: name: string → integer"),
        ({"result": schema("a", a=TEXT)}, True, "result: member b removed"),
        ({"result": schema("a", "c", a=TEXT, b=TEXT, c=TEXT)}, False, "result: new required member c (string)"),
        ({"result": schema(a=TEXT, b=TEXT)}, True, "result: a: no longer required"),
        ({"result": schema("a", a={**TEXT, "maxLength": 200}, b=TEXT)}, True, "result: a: at least 1"),
        ({"result": schema("a", a={**TEXT, "minLength": 9}, b=TEXT)}, False, "result: a: at least 1"),
        ({"result": {**schema("a", a=TEXT, b=TEXT), "if": {}}}, True, "result: the schema differs"),
        ({"forms": OLD.forms.replace('name"}', 'name", "day": "$arguments.day"}')}, False, "its messages have another form"),
        ({"forms": OLD.forms.replace("find", "search")}, True, "its messages have another form"),
        ({"forms": OLD.forms.replace('"name":', '"v": 2, "name":')}, True, "its messages have another form"),
        ({"forms": ""}, True, "its messages have another form"),
    ],
)  # fmt: skip
def test_a_change_of_an_operation(change: dict[str, Any], is_breaking: bool, fact: str) -> None:
    [difference] = operation_changes([OLD], [msgspec.structs.replace(OLD, **change)])
    assert difference.change == "changed" and difference.is_breaking == is_breaking
    assert [str(each) for each in difference.facts if str(each).startswith(fact)]


def test_a_removed_operation_breaks_and_an_added_one_does_not() -> None:
    other = msgspec.structs.replace(OLD, name="ask")
    assert operation_changes([OLD], [OLD]) == []
    assert [(change.name, change.is_breaking) for change in operation_changes([OLD], [other])] == [("ask", False), ("find", True)]
