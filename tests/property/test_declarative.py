"""Two declarative sides on a network that reorders, loses, cancels and lies: every call ends once, and nothing raises."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any

from declared import EVERY, LEFT, RIGHT, Network, declared, session
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_handler import Call, Cancel, Received, Result, Send, decode_json, encode_json
from treaty_handler.declarative.forms import Form, FormIndex
from treaty_handler.declarative.traits import FormTraits

PACKAGE = declared()

scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
members = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), values, max_size=4)


@st.composite
def templates(draw: st.DrawFn, slots: list[str]) -> dict[str, Any]:
    """A form with these slots at any places, beside constants."""
    template: dict[str, Any] = {}
    for slot in slots:
        place, depth = template, draw(st.integers(0, 3))
        for _ in range(depth):
            place = place.setdefault(f"o{draw(st.integers(0, 1))}", {})
        place[f"s{len(json.dumps(template))}"] = slot
    constant = draw(scalars | texts | st.sampled_from(["$", "$id", "$$"]))
    template["kind"] = f"${constant}" if isinstance(constant, str) and constant.startswith("$") else constant
    return template


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_002_08_a_message_that_a_form_writes_it_reads(data: st.DataObject) -> None:
    kind, source = data.draw(
        st.sampled_from([("request", "arguments"), ("response", "result"), ("item", "item"), ("event", "arguments")])
    )
    value = data.draw(members)
    whole = data.draw(st.booleans())
    slots = [f"${source}"] if whole else [f"${source}.{name}" for name in value]
    template = data.draw(templates([*slots, *(["$id"] if kind != "event" else [])]))
    form = Form(kind, "op", template, (), FormTraits())
    message = decode_json(form.write({"id": "an id", source: value}))
    assert FormIndex([form]).match(message) == [form]
    read, faults = form.read(message)
    assert faults == []
    expected = value if whole or value or source == "arguments" else None
    # As texts, because Python takes 1 and true for equal.
    assert json.dumps(read[source], sort_keys=True) == json.dumps(expected, sort_keys=True)
    # Members that the form does not know change nothing.
    assert form.read({**message, "another": value})[0][source] == read[source]


@given(st.integers(0, 2**32))
@settings(max_examples=examples(200), deadline=None)
def test_002_09_and_17_every_call_ends_once(seed: int) -> None:
    asyncio.run(talk(random.Random(seed)))


async def talk(draw: random.Random) -> None:
    network = Network(
        await session(PACKAGE, "left", seed="1" * 32),
        await session(PACKAGE, "right", local=RIGHT, peer=LEFT, seed="2" * 32),
        draw,
    )
    for _ in range(draw.randint(5, 120)):
        side = draw.choice((LEFT, RIGHT))
        open_calls = [
            call
            for at, call in network.calls
            if at == side and (at, call) not in network.ended | dict.fromkeys(network.cancelled)
        ]
        match draw.randint(0, 9):
            case 0 | 1:
                await network.call(side, draw.choice(("ask", "find", "tell")), name="x")
            case 2 | 3 | 4 if network.wire[side]:
                # Mostly in order; some transports of the flow profile give no order.
                await network.deliver(side, at=0 if draw.random() < 0.8 else draw.randrange(len(network.wire[side])))
            case 5 | 6 if network.functions[side]:
                await network.finish(side, draw.choice(sorted(network.functions[side])))
            case 7 if network.timers[side] and draw.random() < 0.3:
                await network.ring(side, draw.choice(sorted(network.timers[side])))
            case 8 if open_calls:
                call = draw.choice(open_calls)
                if network.calls[side, call][0] == "find":
                    await network.want(side, call, draw.randint(1, 8))
                if draw.random() < 0.3:
                    await network.cancel(side, call)
            case 9 if network.wire[side] and draw.random() < 0.2:
                network.wire[side].pop(draw.randrange(len(network.wire[side])))
    await network.lose()
    left_open = network.calls.keys() - network.ended.keys() - network.cancelled
    assert left_open == set()
    assert network.over == {LEFT, RIGHT}
    # Both sides keep the protocol, credits included, however the network treats their messages.
    assert 502 not in {failure.code for failure in network.ended.values() if failure is not None}


RPC = declared(
    {
        "operations": {
            "ask": {
                "arguments": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
                "result": {},
                "errors": {"-32602": "It does not conform."},
                "idempotent": True,
                "timeout": 5,
            }
        },
        "roles": {
            "left": {"peer": "right", "calls": ["ask"], "invokes": ["ask"]},
            "right": {"peer": "left", "calls": ["ask"], "invokes": ["ask"]},
        },
        "messages": {
            "*": {
                "request": {"v": "2", "id": "$id", "method": "$operation", "params": "$arguments"},
                "response": {"v": "2", "id": "$id", "method": "$absent", "error": "$absent", "result": "$result"},
                "error": {"v": "2", "id": "$id", "method": "$absent", "result": "$absent", "error": {"code": "$code"}},
                "cancel": {"v": "2", "method": "cancel", "params": {"id": "$id"}},
            }
        },
        "refusals": {"400": -32602},
    }
)
rpc_messages = st.fixed_dictionaries(
    {},
    optional={
        "v": st.just("2") | values,
        "id": st.sampled_from([1, "1", True, 1.0, 2**53, "x" * 300]),
        "method": st.sampled_from(["ask", "cancel", "none"]) | values,
        "params": values | st.just({"name": "x", "id": 1}),
        "result": values,
        "error": values | st.just({"code": -32602}),
    },
)


@given(rpc_messages)
@settings(max_examples=examples(300), deadline=None)
def test_002_23_no_message_of_json_rpc_has_two_readings(message: dict[str, Any]) -> None:
    manifest = RPC.manifest
    traits = FormTraits.of(manifest.messages, manifest.interface, manifest.refusals)
    forms = [Form(kind, "ask", dict(template), ["name"], traits) for kind, template in manifest.messages["ask"].items()]
    readings = [form for form in forms if FormIndex([form]).match(message) and not form.read(message).faults]
    assert len(readings) <= 1
    assert FormIndex(forms).match(message) == readings or not readings


def test_002_23_forms_are_found_whatever_their_order() -> None:
    # Each lacks a member that the next one has, in a circle: no order of trying them would do.
    written: list[dict[str, Any]] = [
        {"a": "$absent", "b": "$id"},
        {"b": "$absent", "c": "$id"},
        {"c": "$absent", "a": "$id"},
    ]
    traits = FormTraits.of({"op": dict(zip("xyz", written, strict=True))}, 5, {})
    for order in itertools.permutations(written):
        forms = [Form("cancel", "op", template, (), traits) for template in order]
        for form, template in zip(forms, order, strict=True):
            message = decode_json(form.write({"id": "1"}))
            assert len(message) == 1
            assert FormIndex(forms).match(message) == [form], template


async def test_002_24_an_id_may_be_an_integer_and_1_is_another_one() -> None:
    opened = await session(RPC, "right", local=RIGHT, peer=LEFT)

    async def give(message: dict[str, Any]) -> list[Any]:
        return list(await opened.handle(Received(peer=LEFT, data=encode_json(message))))

    request = {"v": "2", "method": "ask", "params": {"name": "x"}}
    no_ids: list[Any] = [True, 1.0, 2**53, None]
    for value in no_ids:
        assert [type(effect).__name__ for effect in await give({**request, "id": value})] == ["Audit"]
    for number in (1, "1"):
        assert [type(effect).__name__ for effect in await give({**request, "id": number})] == ["Invoke"]
    # Neither is answered a second time.
    for number in (1, "1"):
        assert [type(effect).__name__ for effect in await give({**request, "id": number})] == ["Audit"]
    (refused,) = await give({"v": "2", "id": 2, "method": "ask", "params": {}})
    assert decode_json(refused.data) == {"v": "2", "id": 2, "error": {"code": -32602}}
    # The answer has the id of its request, after a restart too.
    opened = await opened.branch()
    for call, number in (("1", 1), ("2", "1")):
        answers: list[Any] = list(await opened.handle(Result(call=call, value="ok")))
        assert [decode_json(answer.data) for answer in answers] == [{"v": "2", "id": number, "result": "ok"}]
    (invoked,) = await give({**request, "id": 3})
    assert await give({"v": "2", "method": "cancel", "params": {"id": 3}}) == [Cancel(call=invoked.call)]


hostile = st.one_of(
    values,
    st.fixed_dictionaries(
        {"type": st.sampled_from([form["type"] for form in EVERY.values()])},
        optional={
            "id": texts | st.just("OPEN") | scalars,
            "operation": st.sampled_from(["ask", "find", "tell", "none"]) | values,
            "arguments": values | st.just({"name": "x"}),
            "result": values,
            "item": values,
            "code": values,
            "message": values,
            "count": values,
        },
    ),
)


@given(st.lists(hostile | st.binary(max_size=40), max_size=20), st.sampled_from(["ask", "find"]))
@settings(max_examples=examples(300), deadline=None)
def test_002_10_no_message_of_a_hostile_peer_raises(messages: list[Any], operation: str) -> None:
    async def attack() -> None:
        network = Network(
            await session(PACKAGE, "left"), await session(PACKAGE, "right", local=RIGHT, peer=LEFT), random.Random(0)
        )
        for _ in range(3):
            await network.call(LEFT, operation, name="x")
        numbers = [decode_json(data)["id"] for data in network.wire[RIGHT]]
        for count, message in enumerate(messages):
            data = message if isinstance(message, bytes) else encode_json(message)
            await network.give(LEFT, Received(peer=RIGHT, data=data.replace(b"OPEN", numbers[count % 3].encode())))
        await network.lose()
        assert network.calls.keys() == network.ended.keys()

    asyncio.run(attack())


@given(st.lists(st.sampled_from(["ask", "find"]), max_size=12), st.integers(0, 2**32))
@settings(max_examples=examples(100), deadline=None)
def test_a_snapshot_at_any_time_changes_nothing(operations: list[str], seed: int) -> None:
    async def effects(*, moving: bool) -> list[Any]:
        draw = random.Random(seed)
        left = await session(PACKAGE, "left")
        network = Network(left, await session(PACKAGE, "right", local=RIGHT, peer=LEFT), draw)
        seen: list[Any] = []
        for operation in operations:
            await network.call(LEFT, operation, name="x")
            for side in (RIGHT, LEFT):
                while network.wire[side]:
                    seen.append(network.wire[side][0])
                    await network.deliver(side)
                for call in sorted(network.functions[side]):
                    await network.finish(side, call)
            if moving:
                for opened in network.sides.values():
                    await opened.move(opened)
        return [*seen, network.items, network.ended]

    async def both() -> None:
        assert await effects(moving=True) == await effects(moving=False)

    asyncio.run(both())


async def test_an_operation_is_called_by_its_form() -> None:
    opened = await session(PACKAGE, "left")
    _, send = await opened.handle(Call(call="1", operation="ask", arguments={"name": "x"}))
    assert isinstance(send, Send)
    assert decode_json(send.data) == {"id": "ce4b620fa96723c3", "type": "request", "operation": "ask", "arguments": {"name": "x"}}
