"""Attacks on protocols without code. Their interpreter runs in the agent's process, so its cost must be bounded."""

from __future__ import annotations

import copy
import json
import random
import sys
from typing import Any

import pytest
from declared import EVERY, LEFT, MANIFEST, RIGHT, Network, build, declared, session

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler.messages import MAX_FORM_NODES
from treaty_handler import (
    Audit,
    Call,
    Cancel,
    Effect,
    Failure,
    Invoke,
    Received,
    Request,
    Requested,
    Result,
    Return,
    Send,
    decode_json,
    encode_json,
)
from treaty_sandbox.in_process import MAX_IGNORED, LocalSession

PACKAGE = declared()


async def hosted() -> LocalSession:
    return await session(PACKAGE, "right", local=RIGHT, peer=LEFT)


async def calling() -> tuple[Network, str, str]:
    """A stream that the left side asked for, and its id on the wire."""
    network = Network(await session(PACKAGE, "left"), await hosted(), random.Random(0))
    call = await network.call(LEFT, "find", name="x")
    return network, call, decode_json(network.wire[RIGHT][0])["id"]


async def say(to: LocalSession, **message: Any) -> list[Effect]:
    return await to.handle(Received(peer=LEFT, data=encode_json(message)))


def request(number: str, operation: str = "find") -> dict[str, Any]:
    return {"id": number, "type": "request", "operation": operation, "arguments": {"name": "x"}}


def both(names: list[str]) -> dict[str, Any]:
    """Two roles, each of which calls and serves these operations."""
    return {role: {"peer": peer, "calls": names, "invokes": names} for role, peer in (("left", "right"), ("right", "left"))}


# The peer


@pytest.mark.threat(340)
async def test_junk_beyond_the_useful_messages_ends_a_session() -> None:
    junk = Received(peer=LEFT, data=b"junk")
    right = await hosted()
    for number in range(3 * MAX_IGNORED):
        assert not any(isinstance(effect, Audit) for effect in await say(right, **request(str(number))))
        assert [type(effect) for effect in await right.handle(junk)] == [Audit]
    for _ in range(MAX_IGNORED - 1):
        assert [type(effect) for effect in await right.handle(junk)] == [Audit]
    with pytest.raises(Refused) as refused:
        await right.handle(junk)
    assert refused.value.code == "session.ignored" and right.ended


@pytest.mark.threat(160)
async def test_002_17_a_peer_beyond_its_credit_ends_the_stream() -> None:
    network, call, number = await calling()
    for value in range(4):
        await network.give(LEFT, Received(peer=RIGHT, data=encode_json({"id": number, "type": "item", "item": value})))
    assert network.items[LEFT, call] == [0, 1, 2, 3]
    await network.give(LEFT, Received(peer=RIGHT, data=encode_json({"id": number, "type": "item", "item": 4})))
    assert network.items[LEFT, call] == [0, 1, 2, 3]
    assert network.ended[LEFT, call] == Failure(code=502, message="The right sent more items than were asked for.")
    assert decode_json(network.wire[RIGHT][-1]) == {"id": number, "type": "cancel"}
    assert network.timers[LEFT] == set()


@pytest.mark.threat(160)
async def test_002_19_unrequested_items_are_bounded() -> None:
    left = await session(PACKAGE, "left")
    network = Network(left, await hosted(), random.Random(0))
    network.calls[LEFT, "c"] = "find", 0
    await network.give(LEFT, Call(call="c", operation="find", arguments={"name": "x"}))
    number = decode_json(network.wire[RIGHT][0])["id"]
    item = {"id": number, "type": "item", "item": 1, "filler": "x" * 400_000}
    for _ in range(2):
        await network.give(LEFT, Received(peer=RIGHT, data=encode_json(item)))
    assert (LEFT, "c") not in network.ended
    await network.give(LEFT, Received(peer=RIGHT, data=encode_json(item)))
    failure = network.ended[LEFT, "c"]
    assert failure is not None and failure.code == 500


@pytest.mark.threat(160)
async def test_002_19_items_of_all_streams_are_bounded_together() -> None:
    left = await session(PACKAGE, "left")
    network = Network(left, await hosted(), random.Random(0))
    numbers = []
    for call in ("a", "b"):
        network.calls[LEFT, call] = "find", 0
        await network.give(LEFT, Call(call=call, operation="find", arguments={"name": "x"}))
        numbers.append(decode_json(network.wire[RIGHT][-1])["id"])

    async def item(stream: int) -> None:
        data = encode_json({"id": numbers[stream], "type": "item", "item": 1, "filler": "x" * 400_000})
        await network.give(LEFT, Received(peer=RIGHT, data=data))

    for stream in (0, 1):
        await item(stream)
    # An item that the application took does not count any more, although others of its stream wait.
    network.calls[LEFT, "a"] = "find", 1
    await network.give(LEFT, Requested(call="a", count=1))
    await item(1)
    assert network.ended == {}
    await item(0)
    failure = network.ended[LEFT, "a"]
    assert failure is not None and failure.code == 500
    assert (LEFT, "b") not in network.ended


async def test_002_19_an_end_waits_for_the_items_before_it() -> None:
    network, call, number = await calling()
    network.calls[LEFT, "late"] = "find", 0
    await network.give(LEFT, Call(call="late", operation="find", arguments={"name": "x"}))
    late = decode_json(network.wire[RIGHT][-1])["id"]
    for message in ({"type": "item", "item": 1}, {"type": "item", "item": 2}, {"type": "end"}, {"type": "end"}):
        await network.give(LEFT, Received(peer=RIGHT, data=encode_json({"id": late, **message})))
    assert (LEFT, "late") not in network.ended
    network.calls[LEFT, "late"] = "find", 2
    await network.give(LEFT, Requested(call="late", count=1))
    assert (network.items[LEFT, "late"], (LEFT, "late") in network.ended) == ([1], False)
    await network.give(LEFT, Requested(call="late", count=1))
    assert (network.items[LEFT, "late"], network.ended[LEFT, "late"]) == ([1, 2], None)
    assert (LEFT, call) not in network.ended
    assert number != late


@pytest.mark.threat(160)
async def test_002_14_a_request_under_an_open_id_is_not_invoked_again() -> None:
    right = await hosted()
    assert [type(effect) for effect in await say(right, **request("1"))] == [Invoke, Request]
    for operation in ("find", "ask"):
        [note] = await say(right, **request("1", operation))
        assert note == Audit(text="Ignored a request whose id is open already.")
    # After it was cancelled, the id is free.
    [cancel] = await say(right, id="1", type="cancel")
    assert isinstance(cancel, Cancel)
    assert isinstance((await say(right, **request("1", "ask")))[0], Invoke)


@pytest.mark.threat(160)
async def test_002_18_a_million_more_cost_one_answer() -> None:
    right = await hosted()
    await say(right, **request("1"))
    seen: list[Effect] = []
    for _ in range(2_000):
        seen += await say(right, id="1", type="more", count=1)
    requested = [effect for effect in seen if isinstance(effect, Request)]
    # The window of 4 and 1,020 more are outstanding. The next one breaks the protocol, and the others are for no open request.
    assert sum(effect.count for effect in requested) == 1_020
    assert [type(effect) for effect in seen[len(requested) :]] == [Cancel, Send]
    send = seen[-1]
    assert isinstance(send, Send)
    assert decode_json(send.data)["code"] == 400


@pytest.mark.parametrize("count", [0, -1, 1_021, 2**53 - 1, True, 1.5, "1", None])
async def test_002_18_a_more_of_another_count_ends_the_stream(count: Any) -> None:
    right = await hosted()
    await say(right, **request("1"))
    cancel, send = await say(right, id="1", type="more", count=count)
    assert isinstance(cancel, Cancel) and isinstance(send, Send)
    assert decode_json(send.data)["code"] == 400
    assert await say(right, id="1", type="more", count=1) == []


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        ("ask", {"type": "response", "result": 7}),
        ("ask", {"type": "response"}),
        ("ask", {"type": "item", "item": 1}),
        ("ask", {"type": "end"}),
        ("ask", {"type": "error", "code": "404", "message": "x"}),
        ("ask", {"type": "error", "code": 404, "message": 7}),
        ("ask", {"type": "error", "code": 418, "message": "x"}),
        ("ask", {"type": "other"}),
        ("ask", {}),
        ("find", {"type": "item", "item": "text"}),
        ("find", {"type": "item"}),
        ("find", {"type": "response", "result": "x"}),
    ],
)
async def test_002_11_an_answer_of_another_form_fails_with_502(operation: str, answer: dict[str, Any]) -> None:
    network = Network(await session(PACKAGE, "left"), await hosted(), random.Random(0))
    call = await network.call(LEFT, operation, name="x")
    number = decode_json(network.wire[RIGHT][0])["id"]
    await network.give(LEFT, Received(peer=RIGHT, data=encode_json({"id": number, **answer})))
    failure = network.ended[LEFT, call]
    assert failure is not None and failure.code == 502
    assert network.timers[LEFT] == set()
    assert network.items == {}


@pytest.mark.threat(160)
async def test_002_15_a_flood_of_requests_and_events_is_bounded() -> None:
    right = await hosted()
    invoked = 0
    for number in range(600):
        message = (
            request(str(number), "ask") if number % 2 else {"type": "event", "operation": "tell", "arguments": {"name": "x"}}
        )
        [effect] = await say(right, **message)
        invoked += isinstance(effect, Invoke)
        assert isinstance(effect, Invoke | Audit | Send)
        if isinstance(effect, Send):
            assert decode_json(effect.data)["code"] == 429
    assert invoked == 256


async def test_002_14_long_ids_are_not_kept() -> None:
    right = await hosted()
    [note] = await say(right, **request("x" * 257, "ask"))
    assert note == Audit(text="Ignored a message without an id.")
    assert isinstance((await say(right, **request("x" * 256, "ask")))[0], Invoke)


async def test_002_13_the_error_of_a_provider_is_never_answered() -> None:
    """Two providers that answer each other's errors would go on for ever."""
    right = await hosted()
    data = encode_json({"id": "1", "type": "nonsense"})
    for _ in range(3):
        effects = await right.handle(Received(peer=LEFT, data=data))
        if not isinstance(effects[0], Send):
            break
        data = effects[0].data
    assert [type(effect) for effect in effects] == [Audit]


@pytest.mark.threat(160)
async def test_002_04_a_message_is_checked_once_for_each_form() -> None:
    """Counted in calls of Python functions, which do not depend on the machine."""
    many = copy.deepcopy(MANIFEST)
    many["operations"] = {f"op{number}": MANIFEST["operations"]["ask"] for number in range(64)}
    names = list(many["operations"])
    many["roles"] = both(names)
    few = copy.deepcopy(many)
    for manifest, count in ((many, 64), (few, 1)):
        manifest["operations"] = {name: manifest["operations"][name] for name in names[:count]}
        for role in manifest["roles"].values():
            role["calls"] = role["invokes"] = names[:count]
    spent = []
    for manifest in (few, many):
        right = await session(declared(manifest), "right", local=RIGHT, peer=LEFT)
        for message in (
            request("1", "op0"),
            {"id": "2", "type": "request", "operation": "none", "arguments": {}},
            {"id": "3", "type": "cancel"},
        ):
            spent.append(await _calls(right, encode_json(message)))
    # 64 operations that share their forms cost what one costs; only the sentence about an unknown one names five of them.
    assert all(after <= 2 * before + 400 for before, after in zip(spent[:3], spent[3:], strict=True))


async def _calls(side: LocalSession, data: bytes) -> int:
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        await side.handle(Received(peer=LEFT, data=data))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" + b"1," * 300_000 + b"1]",
        json.dumps({"id": "1", "type": "request", "operation": "ask", "arguments": {str(n): n for n in range(19_000)}}).encode(),
        b'{"id":"1","type":"request","operation":"ask","arguments":' + b'{"name":' * 25 + b'"x"' + b"}" * 26,
        b'{"type":"request","type":"request"}',
        b'{"id":"\\ud800","type":"request"}',
        b"1" * 1_000_000,
    ],
)
async def test_large_and_deep_messages_are_answered_or_ignored(data: bytes) -> None:
    right = await hosted()
    effects = await right.handle(Received(peer=LEFT, data=data))
    assert len(effects) == 1
    assert isinstance(effects[0], Audit | Send)
    assert not isinstance(effects[0], Send) or len(effects[0].data) < 2_000
    assert isinstance((await say(right, **request("9", "ask")))[0], Invoke)


async def test_002_20_a_value_too_large_fails_the_call_alone() -> None:
    left = await session(declared(_any_values()), "left")
    value: Any = "x"
    for _ in range(28):
        value = [value]
    [returned] = await left.handle(Call(call="1", operation="ask", arguments={"a": [[value]]}))
    assert isinstance(returned, Return) and returned.error is not None
    assert returned.error.code == 500
    right = await session(declared(_any_values()), "right", local=RIGHT, peer=LEFT)
    [invoke] = await say(right, id="1", type="request", operation="ask", arguments={})
    assert isinstance(invoke, Invoke)
    [send] = await right.handle(Result(call=invoke.call, value="x" * (1024 * 1024)))
    assert isinstance(send, Send)
    assert decode_json(send.data)["code"] == 500


def _any_values() -> dict[str, Any]:
    manifest = copy.deepcopy(MANIFEST)
    manifest["operations"] = {"ask": {**MANIFEST["operations"]["ask"], "arguments": {"type": "object"}, "result": {}}}
    manifest["roles"] = {
        "left": {"peer": "right", "calls": ["ask"], "invokes": []},
        "right": {"peer": "left", "calls": [], "invokes": ["ask"]},
    }
    return manifest


# The author


@pytest.mark.threat(160)
async def test_a_manifest_built_to_be_costly_is_bounded() -> None:
    """The largest forms of the most operations: reading the manifest and a message of each kind stay cheap, in function calls."""
    wide = {kind: {**form, **{f"n{place}": place for place in range(MAX_FORM_NODES - 8)}} for kind, form in EVERY.items()}
    names = [f"op{number}" for number in range(64)]
    manifest = {
        "operations": dict.fromkeys(names, MANIFEST["operations"]["find"]),
        "roles": both(names),
        "messages": {"*": wide},
    }
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        build(manifest)
    finally:
        sys.setprofile(None)
    assert count < 2_000_000
    right = await session(declared(manifest), "right", local=RIGHT, peer=LEFT)
    for message in ({}, {"id": "1"}, {"id": "1", "type": "request", "operation": "op1", **{f"n{n}": n for n in range(60)}}):
        assert await _calls(right, encode_json(message)) < 20_000


def _with_status(request: Any, response: Any, errors: dict[str, str]) -> dict[str, Any]:
    """A manifest whose forms differ by the member `status` alone, which is the code in an error."""
    ask = {**MANIFEST["operations"]["ask"], "result": {"type": "null"}, "errors": errors}
    forms = {
        "request": {"id": "$id", "status": request, "arguments": "$arguments"},
        "response": {"id": "$id", "status": response},
        "error": {"id": "$id", "status": "$code"},
    }
    return {"operations": {"ask": ask}, "roles": both(["ask"]), "messages": {"ask": forms}}


@pytest.mark.threat(160)
@pytest.mark.parametrize("status", [400, 429, 400.0, 500])
def test_002_03_no_form_has_the_code_of_a_refusal(status: float) -> None:
    """Else a refusal is a request: two agents that serve the operation refuse each other's refusals for ever."""
    assert declared(_with_status("ask", 200, {}))
    for request, response in ((status, 200), ("ask", status)):
        with pytest.raises(TreatyError, match="not told apart"):
            declared(_with_status(request, response, {}))


@pytest.mark.threat(160)
def test_002_03_a_code_may_be_written_as_a_float() -> None:
    """Else an error 404 is a success: a reader takes 404 and 404.0 for equal."""
    assert declared(_with_status("ask", 404.0, {}))
    with pytest.raises(TreatyError, match="not told apart"):
        declared(_with_status("ask", 404.0, {"404": "There is none."}))


def test_002_05_a_constant_is_an_integer_that_a_message_can_have() -> None:
    assert declared(_with_status("ask", 2**53 - 1, {}))
    with pytest.raises(TreatyError, match="integer beyond"):
        declared(_with_status("ask", 2**53, {}))


async def test_a_schema_with_impossible_numbers_blames_no_agent() -> None:
    manifest = copy.deepcopy(MANIFEST)
    manifest["operations"]["ask"]["result"] = {"enum": [2**53 + 1, "x"]}
    assert (await session(declared(manifest), "left")).pending_calls == ()


def test_forms_that_share_no_constants_cannot_be_many() -> None:
    """Forms without common places would each need a look of their own; they are refused, because nothing tells them apart."""
    names = [f"op{number}" for number in range(64)]
    manifest = {
        "operations": dict.fromkeys(names, MANIFEST["operations"]["tell"]),
        "roles": {"left": {"peer": "left", "calls": names, "invokes": names}},
        "messages": {name: {"event": {f"type{name}": "event", "arguments": "$arguments"}} for name in names},
    }
    with pytest.raises(TreatyError, match="not told apart"):
        declared(manifest)
