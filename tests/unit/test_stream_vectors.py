"""Vectors of streams, events and cancelled calls: a handler reproduces them, also when it moves by snapshot after every step."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from streaming import published

from treaty_client.authoring.coverage import cells_of
from treaty_consensus.errors import Malformed
from treaty_handler import (
    Call,
    Cancelled,
    Effect,
    Emit,
    Event,
    Item,
    Opened,
    Received,
    Request,
    Requested,
    Return,
    Send,
    decode_json,
)
from treaty_sandbox import SandboxPool, parse_vector, run_vectors
from treaty_sandbox.vectors import Vector, format_vector

VECTORS = Path(__file__).parents[1] / "vectors" / "streams"


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(size=0) as sandboxes:
        yield sandboxes


def vectors(old: str = "", new: str = "") -> list[Vector]:
    paths = sorted(VECTORS.iterdir())
    return [parse_vector(path.name, path.read_bytes().replace(old.encode(), new.encode())) for path in paths]


async def test_a_handler_reproduces_them_in_the_sandbox(pool: SandboxPool) -> None:
    assert len(vectors()) == 2
    assert await run_vectors(pool, published().package, vectors()) == []


@pytest.mark.parametrize(
    ("old", "new", "phrase"),
    [
        ('"value": "one"', '"value": "two"', "expected"),
        ('"count": 4', '"count": 5', "expected"),
        ('"requested": {', '"item": {"value": 1, ', "has no field count"),
        ('"item": {\n          "call": "1"', '"item": {\n          "call": "never"', "no Invoke 'never' is pending"),
    ],
)
async def test_a_vector_that_differs_is_reported(pool: SandboxPool, old: str, new: str, phrase: str) -> None:
    if "field" in phrase:
        with pytest.raises(Exception, match=phrase):
            vectors(old, new)
        return
    changed = [parse_vector("one", (VECTORS / "feed.json").read_bytes().replace(old.encode(), new.encode(), 1))]
    mismatches = await run_vectors(pool, published().package, changed)
    assert mismatches
    assert all(phrase in str(mismatch) for mismatch in mismatches)


def test_the_new_events_and_effects_are_written_and_read() -> None:
    events: list[Event] = [Opened(), Requested(call="1", count=2), Item(call="2", value={"json": 1}), Cancelled(call="1")]
    effects: list[Effect] = [Emit(call="1", value={"text": "x"}), Request(call="2", count=3)]
    data = format_vector("All", "watcher", [(event, effects) for event in events])
    read = parse_vector("all", data)
    assert [step.event for step in read.steps] == events
    assert json.loads(data)["steps"][1]["effects"] == [
        {"emit": {"call": "1", "value": {"text": "x"}}},
        {"request": {"call": "2", "count": 3}},
    ]


def test_the_handler_of_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "handlers.md").read_text(encoding="utf-8")
    sources = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (source,) = [block for block in sources if "class Finder:" in block]
    space: dict[str, Any] = {}
    exec(compile(source, "docs/guides/handlers.md", "exec"), space)
    finder = space["Finder"]("did:example:peer")
    events: list[Event] = [
        Call(call="1", operation="find", arguments={}),
        Requested(call="1", count=2),
        *(
            Received(peer="did:example:peer", data=data)
            for data in (b'{"type":"item","id":"1","item":5}', b'{"type":"end","id":"1"}')
        ),
        Call(call="2", operation="find", arguments={}),
        Cancelled(call="2"),
        Received(peer="did:example:peer", data=b'{"type":"item","id":"2","item":5}'),
    ]
    effects = [finder.handle(event) for event in events]
    sent = [decode_json(effect.data)["type"] for row in effects for effect in row if isinstance(effect, Send)]
    assert sent == ["find", "more", "find", "cancel"]
    assert [row for row in effects if row and not isinstance(row[0], Send)] == [[Emit(call="1", value=5)], [Return(call="1")]]
    assert effects[-1] == []


async def test_a_vector_of_several_roles_is_replayed_in_each(pool: SandboxPool) -> None:
    shared = json.loads((VECTORS / "feed.json").read_text(encoding="utf-8"))
    role = shared.pop("role")
    other = json.loads((VECTORS / "watcher.json").read_text(encoding="utf-8"))["role"]
    vector = parse_vector("both.json", json.dumps({**shared, "roles": [role, other]}).encode())
    assert vector.roles == (role, other)
    (mismatch,) = await run_vectors(pool, published().package, [vector])
    assert mismatch.role == other
    assert str(mismatch).startswith(f"both.json as {other}, ")


@pytest.mark.parametrize(
    "roles",
    [
        {},
        {"role": "a", "roles": ["a", "b"]},
        {"roles": []},
        {"roles": ["a"]},
        {"roles": ["a", "a"]},
        {"roles": [str(number) for number in range(17)]},
    ],
)
def test_a_vector_names_one_role_or_several(roles: dict[str, Any]) -> None:
    shared = json.loads((VECTORS / "feed.json").read_text(encoding="utf-8"))
    del shared["role"]
    with pytest.raises(Malformed) as refused:
        parse_vector("x.json", json.dumps({**shared, **roles}).encode())
    assert refused.value.code == "vector.form"


def test_a_vector_of_several_roles_counts_in_each() -> None:
    event = {"call": {"call": "1", "operation": "ask", "arguments": {}}}
    step = {"event": event, "effects": [{"return": {"call": "1", "value": 1}}]}
    vector = parse_vector("x.json", json.dumps({"title": "t", "roles": ["a", "b"], "steps": [step]}).encode())
    assert [(cell.role, cell.operation, cell.outcome) for cell in cells_of(vector)] == [
        ("a", "ask", "success"),
        ("b", "ask", "success"),
    ]
