"""The interpreter of message forms: what its sides send and do in good order. `product-info` has its own tests."""

from __future__ import annotations

import random
from typing import Any

import pytest
from declared import LEFT, RIGHT, Network, declared, session

from treaty_handler import (
    Audit,
    Call,
    Cancelled,
    Failure,
    Invoke,
    Item,
    Opened,
    Received,
    Requested,
    Result,
    Return,
    Send,
    SetTimer,
    decode_json,
    encode_json,
)
from treaty_handler.values import MAX_VALUES
from treaty_sandbox import SandboxPool

PACKAGE = declared()


async def network() -> Network:
    return Network(await session(PACKAGE, "left"), await session(PACKAGE, "right", local=RIGHT, peer=LEFT), random.Random(0))


def on_the_wire(wire: list[bytes]) -> list[dict[str, Any]]:
    return [{name: value for name, value in decode_json(data).items() if name != "id"} for data in wire]


async def test_a_request_and_its_response() -> None:
    two = await network()
    call = await two.call(LEFT, "ask", name="x", size=3)
    assert on_the_wire(two.wire[RIGHT]) == [{"type": "request", "operation": "ask", "arguments": {"name": "x", "size": 3}}]
    await two.deliver(RIGHT)
    await two.give(RIGHT, Result(call="1", value="y"))
    assert on_the_wire(two.wire[LEFT]) == [{"type": "response", "result": "y"}]
    await two.deliver(LEFT)
    assert two.ended == {(LEFT, call): None}
    assert two.timers == {LEFT: set(), RIGHT: set()}


async def test_a_stream_from_its_request_to_its_end() -> None:
    two = await network()
    call = await two.call(LEFT, "find", name="x")
    await two.deliver(RIGHT)
    assert two.functions[RIGHT] == {"1": ("find", 4)}
    for value in range(4):
        await two.give(RIGHT, Item(call="1", value=value))
        await two.deliver(LEFT)
    assert two.timers[LEFT] == set()  # the provider owes nothing
    await two.want(LEFT, call, 2)
    assert on_the_wire(two.wire[RIGHT]) == [{"type": "more", "count": 2}]
    assert len(two.timers[LEFT]) == 1
    await two.deliver(RIGHT)
    assert two.functions[RIGHT] == {"1": ("find", 6)}
    await two.give(RIGHT, Item(call="1", value=4))
    await two.give(RIGHT, Result(call="1"))
    assert on_the_wire(two.wire[LEFT]) == [{"type": "item", "item": 4}, {"type": "end"}]
    await two.deliver(LEFT)
    await two.deliver(LEFT)
    assert (two.items, two.ended, two.timers[LEFT]) == ({(LEFT, call): [0, 1, 2, 3, 4]}, {(LEFT, call): None}, set())


async def test_a_stream_may_fail_after_items() -> None:
    two = await network()
    call = await two.call(LEFT, "find", name="x")
    await two.deliver(RIGHT)
    await two.give(RIGHT, Item(call="1", value=1))
    await two.give(RIGHT, Result(call="1", error=Failure(code=404, message="None.")))
    await two.deliver(LEFT)
    await two.deliver(LEFT)
    assert two.items[LEFT, call] == [1]
    assert two.ended[LEFT, call] == Failure(code=404, message="None.")


async def test_002_16_an_event_has_no_answer() -> None:
    two = await network()
    call = await two.call(LEFT, "tell", name="x")
    assert two.ended == {(LEFT, call): None}
    assert decode_json(two.wire[RIGHT][0]) == {"type": "event", "operation": "tell", "arguments": {"name": "x"}}
    await two.deliver(RIGHT)
    assert two.functions[RIGHT] == {"1": ("tell", 0)}
    await two.give(RIGHT, Result(call="1", error=Failure(code=500, message="It failed.")))
    assert two.notes == ["The event tell failed with code 500: It failed."]
    await two.give(RIGHT, Received(peer=LEFT, data=encode_json({"type": "event", "operation": "tell", "arguments": {}})))
    assert two.notes[1:] == ["Ignored an event that does not conform: arguments.name is missing."]
    assert two.wire == {LEFT: [], RIGHT: []}


@pytest.mark.parametrize("operation", ["ask", "find"])
async def test_002_21_a_cancelled_call_cancels_the_function(operation: str) -> None:
    two = await network()
    call = await two.call(LEFT, operation, name="x")
    await two.deliver(RIGHT)
    await two.cancel(LEFT, call)
    assert on_the_wire(two.wire[RIGHT]) == [{"type": "cancel"}]
    await two.deliver(RIGHT)
    assert two.functions[RIGHT] == {}
    assert (two.wire[LEFT], two.timers[LEFT], two.ended) == ([], set(), {})


async def test_002_21_an_answer_may_cross_one_cancellation() -> None:
    two = await network()
    call = await two.call(LEFT, "ask", name="x")
    await two.deliver(RIGHT)
    await two.give(RIGHT, Result(call="1", value="y"))
    await two.cancel(LEFT, call)
    answer = two.wire[LEFT][0]
    await two.deliver(LEFT)
    assert two.notes == []
    await two.give(LEFT, Received(peer=RIGHT, data=answer))
    assert two.notes == ["Ignored an answer to no open request."]
    # The provider has answered already: the cancellation means nothing to it.
    await two.deliver(RIGHT)
    assert (two.notes[1:], two.wire[LEFT]) == ([], [])


async def test_items_that_cross_the_early_end_of_a_stream_are_no_fault() -> None:
    two = await network()
    call = await two.call(LEFT, "find", name="x")
    await two.deliver(RIGHT)
    for value in range(4):
        await two.give(RIGHT, Item(call="1", value=value))
    await two.give(RIGHT, Result(call="1"))
    item = two.wire[LEFT][0]
    await two.cancel(LEFT, call)
    while two.wire[LEFT]:
        await two.deliver(LEFT)
    assert two.notes == []
    await two.give(LEFT, Received(peer=RIGHT, data=item))
    assert two.notes == ["Ignored an answer to no open request."]


@pytest.mark.parametrize(("operation", "missing"), [("ask", "answer"), ("find", "item")])
async def test_002_22_a_late_answer_fails_the_call_and_cancels_it(operation: str, missing: str) -> None:
    two = await network()
    call = await two.call(LEFT, operation, name="x")
    two.wire[RIGHT].clear()
    [timer] = two.timers[LEFT]
    await two.ring(LEFT, timer)
    assert two.ended[LEFT, call] == Failure(code=504, message=f"No {missing} came within 5 seconds.")
    assert on_the_wire(two.wire[RIGHT]) == [{"type": "cancel"}]


async def test_each_item_is_waited_for_anew() -> None:
    left = await session(PACKAGE, "left")
    timer, send = await left.handle(Call(call="1", operation="find", arguments={"name": "x"}))
    assert isinstance(timer, SetTimer) and isinstance(send, Send)
    number = decode_json(send.data)["id"]
    assert (timer.name, timer.seconds) == (number, 5.0)
    assert await left.handle(Requested(call="1", count=4)) == [SetTimer(name=number, seconds=5.0)]
    seconds = []
    for value in range(4):
        _, again = await left.handle(Received(peer=RIGHT, data=encode_json({"id": number, "type": "item", "item": value})))
        assert isinstance(again, SetTimer)
        seconds.append(again.seconds)
    assert seconds == [5.0, 5.0, 5.0, None]


@pytest.mark.parametrize(
    ("message", "phrase"),
    [
        ({"type": "request", "operation": "ask"}, "arguments is missing."),
        ({"type": "request", "operation": "ask", "arguments": []}, "arguments is not an object."),
        ({"type": "request", "operation": "ask", "arguments": {}}, "arguments.name is missing."),
        ({"type": "request", "operation": "ask", "arguments": {"name": 1}}, "arguments.name is not a string."),
        ({"type": "request", "operation": "ask", "arguments": {"name": "x", "size": True}}, "arguments.size is not an integer."),
        ({"type": "request", "operation": "buy", "arguments": {}}, "operation is none of ask, find."),
        ({"type": "question"}, "operation is none of ask, find. The type of a request is request."),
    ],
)
async def test_002_12_a_nonconforming_request_is_answered_with_400(message: dict[str, Any], phrase: str) -> None:
    right = await session(PACKAGE, "right", local=RIGHT, peer=LEFT)
    [send] = await right.handle(Received(peer=LEFT, data=encode_json({"id": "1", **message})))
    assert isinstance(send, Send)
    assert decode_json(send.data) == {"id": "1", "type": "error", "code": 400, "message": phrase}


async def test_002_12_the_hosts_sentence_is_used_for_other_faults() -> None:
    right = await session(PACKAGE, "right", local=RIGHT, peer=LEFT)
    long = {"id": "1", "type": "request", "operation": "ask", "arguments": {"name": "x" * 21}}
    [send] = await right.handle(Received(peer=LEFT, data=encode_json(long)))
    assert isinstance(send, Send)
    assert decode_json(send.data)["message"].startswith("The arguments of ask break the schema at $.name")


async def test_002_08_unknown_members_change_nothing() -> None:
    right = await session(PACKAGE, "right", local=RIGHT, peer=LEFT)
    message = {"id": "1", "type": "request", "operation": "ask", "arguments": {"name": "x"}, "trace": {"deep": [1]}}
    [invoke] = await right.handle(Received(peer=LEFT, data=encode_json(message)))
    assert invoke == Invoke(call="1", operation="ask", arguments={"name": "x"})


async def test_002_11_an_answer_to_no_open_request_is_noted() -> None:
    left = await session(PACKAGE, "left")
    for message in ({"id": "none", "type": "response", "result": "x"}, {"id": "none", "type": "end"}):
        [note] = await left.handle(Received(peer=RIGHT, data=encode_json(message)))
        assert isinstance(note, Audit)


async def test_a_pool_runs_it_without_a_process() -> None:
    async with SandboxPool(size=2) as pool:
        worker = await pool.load(PACKAGE, local=LEFT, peers=[RIGHT])
        assert pool.loaded == 0
        assert worker.alive
        opened = await worker.open("left")
        assert await opened.handle(Opened()) == []
        assert await opened.handle(Cancelled(call="none")) == []
        assert await worker.decode(await worker.encode({"type": "end"})) == {"type": "end"}
        assert await worker.validate({"type": "event", "operation": "tell", "arguments": {"name": "x"}}, "left") == []
        assert await worker.validate({"type": "event", "operation": "tell", "arguments": {}}, "left") == [
            "arguments.name is missing."
        ]
        wrong: list[Any] = ["text", [], None]
        for message in wrong:
            assert await worker.validate(message, "left") == ["A message is a JSON object."]
        await opened.close()
        await worker.close()


async def test_the_last_word_of_a_closed_call_is_its_return() -> None:
    left = await session(PACKAGE, "left")
    await left.handle(Call(call="1", operation="ask", arguments={"name": "x"}))
    assert list(left.pending_calls) == ["1"]
    number = "ce4b620fa96723c3"
    _, returned = await left.handle(Received(peer=RIGHT, data=encode_json({"id": number, "type": "response", "result": "y"})))
    assert returned == Return(call="1", value="y")
    assert list(left.pending_calls) == []


@pytest.mark.threat(340)
@pytest.mark.parametrize(("value", "values"), [(b"[ ]", 1), (b"{}", 1), (b'["]"]', 2), (b'{",":[1,2]}', 4), (b"-1.5e3", 1)])
def test_the_values_of_json_are_counted_before_they_are_read(value: bytes, values: int) -> None:
    """Exactly: as many as are allowed are read, and one more is not."""
    most = (MAX_VALUES - 1) // values
    room = MAX_VALUES - 1 - most * values
    assert len(decode_json(b"[%b]" % b",".join([value] * most + [b"0"] * room))) == most + room
    with pytest.raises(ValueError, match="more than"):
        decode_json(b"[%b]" % b",".join([value] * most + [b"0"] * (room + 1)))
    begun = b"[%b" % b",".join([value] * most + [b"0"] * (room + 1))
    with pytest.raises(ValueError, match="more than"):  # it is refused without being read: it is no JSON
        decode_json(begun)
