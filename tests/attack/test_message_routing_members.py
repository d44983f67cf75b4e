"""Hostile and failing members of an environment: they cost the others nothing, and a refused request changes nothing."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from routing import ENVIRONMENT, Wired, member_did, routing_package, rules, wired

from treaty_handler import (
    Call,
    Failure,
    Multicast,
    Opened,
    PeerJoined,
    Persist,
    Received,
    Return,
    SetTimer,
    Timer,
    decode_json,
    encode_json,
)
from treaty_sandbox import SandboxPool

BOB, EVE, DAN = map(member_did, ("Bob", "Eve", "Dan"))
FLOW = {"<idle>": ["Do"], "Do": ["<idle>"]}


class Doing:
    """The application of a member. `answer`: the result of its actions; a text is the message of their error."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = {} if answer is None else answer
        self.news: list[str] = []
        self.acted = asyncio.Event()

    async def act(self, action: str, news: list[dict[str, Any]]) -> Any:
        self.news += [message["content"] for message in news]
        self.acted.set()
        if isinstance(self.answer, str):
            raise RuntimeError(self.answer)
        return self.answer


async def join(wiring: Wired, did: str, name: str, address: str, **more: Any) -> Any:
    return await wiring.call(did, "join", name=name, address=address, transitions=FLOW, **more)


async def state_of(wiring: Wired) -> tuple[Any, Any, Any]:
    """All that an environment shows: its members, its history, and how many messages each peer was sent."""
    return await wiring.call(ENVIRONMENT, "readMembers"), await wiring.history(), dict(wiring.received)


async def send(wiring: Wired, did: str, message: Any) -> None:
    """Have a peer send a message that its own session would not."""
    data = message if isinstance(message, bytes) else encode_json(message)
    await wiring.give(ENVIRONMENT, Received(peer=did, data=data))


def message(**fields: Any) -> dict[str, Any]:
    """A whole message on the wire."""
    usual = {"id": "m", "content": "x", "instruct_content": None, "role": "user", "cause_by": "Do", "sent_from": "Eve"}
    return {**usual, "send_to": ["<all>"], **fields}


@pytest.mark.threat(220)
async def test_a_member_speaks_for_itself_alone() -> None:
    bob = Doing()
    async with wired({"Bob": bob, "Eve": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await join(wiring, EVE, "Eve", "Reader")
        for name in ("Bob", "Writer", "Alice"):
            before = await state_of(wiring)
            refused = await wiring.call(EVE, "publish", content="x", sent_from=name)
            assert isinstance(refused, Failure)
            assert refused.code == 403
            after = await state_of(wiring)
            assert after[:2] == before[:2]
            assert after[2][BOB] == before[2][BOB]
        for name in ("Eve", "Reader", ""):
            assert "id" in await wiring.call(EVE, "publish", content="x", sent_from=name)
        await send(wiring, EVE, {"type": "publish", "id": "p", "message": message(sent_from="")})
        assert len(await wiring.history()) == 3, "without a sender it would be the user's"


@pytest.mark.sample(1)
@pytest.mark.threat(220)
@pytest.mark.parametrize(("name", "address"), [("Bob", "Other"), ("Writer", "Other"), ("Eve", "Bob"), ("Eve", "Writer")])
async def test_a_name_or_class_of_another_is_not_taken_over(name: str, address: str) -> None:
    async with wired({"Bob": Doing(), "Eve": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        before = await state_of(wiring)
        refused = await join(wiring, EVE, name, address)
        assert isinstance(refused, Failure)
        assert refused.code == 409
        assert (await state_of(wiring))[0] == before[0]
        assert await join(wiring, EVE, "Eve", "Reader") == {}
        await send(wiring, EVE, {"type": "join", "id": "again", "name": "Dan", "address": "Other", "shared": True})
        assert len((await state_of(wiring))[0]["members"]) == 2, "a peer is one member"
        assert (await join(wiring, EVE, "Dan", "Writer")).code == 409


@pytest.mark.sample(1)
@pytest.mark.threat(223)
@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (False, False)])
async def test_a_class_is_one_members_unless_all_share_it(first: bool, second: bool) -> None:
    """What is sent to a class goes to all that have it, and a message without a sender is sent from the class."""
    async with wired({"Bob": Doing(), "Eve": Doing(), "Dan": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer", shared=first)
        before = await state_of(wiring)
        refused = await join(wiring, EVE, "Eve", "Writer", shared=second)
        assert isinstance(refused, Failure)
        assert refused.code == 409
        assert (await state_of(wiring))[:2] == before[:2]
        assert await join(wiring, EVE, "Eve", "Reader", shared=True) == {}
        assert await join(wiring, DAN, "Dan", "Reader", shared=True) == {}
        before = await state_of(wiring)
        assert "id" in await wiring.call(ENVIRONMENT, "publish", content="x", send_to=["Reader"])
        counts = {did: number - before[2].get(did, 0) for did, number in (await state_of(wiring))[2].items()}
        assert (counts[BOB], counts[EVE], counts[DAN]) == (0, 1, 1)


@pytest.mark.threat(223)
async def test_an_environment_may_demand_a_proof_of_the_did() -> None:
    async with wired({"Bob": Doing(), "Eve": Doing()}) as wiring:
        await wiring.lose(EVE)
        await wiring.give(ENVIRONMENT, PeerJoined(peer=EVE, role="member", is_proved=False))
        assert await join(wiring, EVE, "Eve", "Reader") == {}
        [eve] = (await state_of(wiring))[0]["members"]
        assert eve == {"name": "Eve", "address": "Reader", "idle": True, "proved": False}
        assert await wiring.call(ENVIRONMENT, "configure", proved=True) == {}
        await wiring.lose(EVE)
        await wiring.give(ENVIRONMENT, PeerJoined(peer=EVE, role="member", is_proved=False))
        before = await state_of(wiring)
        await send(wiring, EVE, {"type": "join", "id": "1", "name": "Eve", "address": "Reader", "shared": False})
        assert (await state_of(wiring))[:2] == before[:2]
        assert await join(wiring, BOB, "Bob", "Writer") == {}
        assert [one["proved"] for one in (await state_of(wiring))[0]["members"]] == [True]


@pytest.mark.threat(220)
async def test_who_has_not_joined_gets_nothing_done() -> None:
    async with wired({"Bob": Doing(), "Eve": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        before = await state_of(wiring)
        await send(wiring, EVE, {"type": "publish", "id": "p", "message": message()})
        await send(wiring, EVE, {"type": "state", "round": 0, "idle": False, "error": ""})
        after = await state_of(wiring)
        assert after[:2] == before[:2]
        for operation in ("publish", "recall"):
            refused = await wiring.call(EVE, operation, **({"content": "x"} if operation == "publish" else {}))
            assert isinstance(refused, Failure)
            assert refused.code == 403


PARTS: dict[str, list[Any]] = {
    "type": ["join", "publish", "state", "run", "message", "accepted", "refused", None, 7],
    "id": ["1", "", "x" * 65, "a.b", "<all>", 7],
    "name": ["Bob", "", "<self>", "a\nb", None],
    "address": ["Writer", "x" * 65],
    "round": [0, 1, -1, 2**31 + 1, True, 1.5],
    "idle": [True, 0],
    "error": ["", "x" * 501, None],
    "code": [409, 7],
    "reason": ["", "x" * 501],
    "message": [
        message(),
        message(id=""),
        message(cause_by="a.b"),
        message(send_to=[]),
        message(send_to="Bob"),
        {},
        [],
        message(role="x"),
    ],
}


@pytest.mark.sample(1)
@pytest.mark.threat(220)
@pytest.mark.parametrize("did", [ENVIRONMENT, BOB])
async def test_messages_of_any_form_change_nothing_and_end_no_session(did: str) -> None:
    draw = random.Random(1)
    async with wired({"Bob": Doing(), "Eve": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await join(wiring, EVE, "Eve", "Reader")
        before = await state_of(wiring)
        sender = EVE if did == ENVIRONMENT else ENVIRONMENT
        for data in (b"", b"\xff", b"[]", b"null", b'{"type": []}', json.dumps({"type": "x" * 10_000}).encode()):
            await wiring.give(did, Received(peer=sender, data=data))
        for _ in range(600):
            # One member too few, or one that is wrong: never a whole message.
            names = draw.sample(list(PARTS), draw.randint(0, 6))
            odd = {name: draw.choice(PARTS[name][1:]) for name in names}
            await wiring.give(did, Received(peer=sender, data=encode_json({**odd, "other": 1})))
        assert await state_of(wiring) == before
        assert all(len(note) <= 1_000 for note in wiring.notes)


@pytest.mark.sample(1)
@pytest.mark.threat(220)
@pytest.mark.parametrize("name", ["id", "role", "cause_by", "sent_from", "send_to"])
async def test_a_message_on_the_wire_has_no_defaults(name: str) -> None:
    async with wired({"Bob": Doing(), "Eve": Doing()}) as wiring:
        await join(wiring, EVE, "Eve", "Reader")
        before = await state_of(wiring)
        for empty in (None, [] if name == "send_to" else ""):
            await send(wiring, EVE, {"type": "publish", "id": "p", "message": message(**{name: empty})})
            # Only the user has no name.
            faults = rules().wire.wire_faults({"type": "message", "message": message(**{name: empty})}, "environment")
            assert bool(faults) is not (name == "sent_from" and empty == "")
        after = await state_of(wiring)
        assert after[:2] == before[:2]
        await send(wiring, EVE, {"type": "publish", "id": "p", "message": message()})
        assert len(await wiring.history()) == 1


@pytest.mark.threat(221)
async def test_a_member_that_is_lost_ends_no_round() -> None:
    bob = Doing()
    async with wired({"Bob": bob, "Eve": Doing(), "Dan": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        for did, name in ((EVE, "Eve"), (DAN, "Dan")):
            await send(wiring, did, {"type": "join", "id": "1", "name": name, "address": "Reader", "shared": True})
        await wiring.call(ENVIRONMENT, "publish", content="x")
        # Eve and Dan have joined without their sessions knowing it, so they never finish the round.
        running = asyncio.create_task(wiring.call(ENVIRONMENT, "run", rounds=5))
        await asyncio.wait_for(bob.acted.wait(), 30)
        refused = await wiring.call(ENVIRONMENT, "run")
        assert isinstance(refused, Failure)
        assert refused.code == 409
        await wiring.lose(EVE)
        assert not running.done()
        await wiring.lose(DAN)
        assert await running == {"idle": True, "rounds": 1, "failures": []}
        assert [one["name"] for one in (await state_of(wiring))[0]["members"]] == ["Bob"]
        assert wiring.notes[-2:] == ["Eve: left.", "Dan: left."]
        await wiring.come(EVE)
        await send(wiring, EVE, {"type": "join", "id": "2", "name": "Eve", "address": "Reader", "shared": False})
        assert len((await state_of(wiring))[0]["members"]) == 2, "its name is free again"


@pytest.mark.sample(1)
@pytest.mark.threat(221)
@pytest.mark.parametrize(
    "answer", ["No model.", {"publish": [{"content": "kept back"}], "response": {"content": "x", "cause_by": "a.b"}}]
)
async def test_an_action_that_fails_publishes_nothing_and_is_reported(answer: Any) -> None:
    bob, eve = Doing(answer), Doing()
    async with wired({"Bob": bob, "Eve": eve}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await join(wiring, EVE, "Eve", "Reader")
        await wiring.call(ENVIRONMENT, "publish", content="x")
        done = await wiring.call(ENVIRONMENT, "run", rounds=5)
        assert (done["idle"], done["rounds"]) == (True, 1)
        [failure] = done["failures"]
        assert failure["name"] == "Bob"
        assert failure["reason"] == answer if isinstance(answer, str) else "cause_by" in failure["reason"]
        assert len(await wiring.history()) == 1
        assert eve.news == ["x"]
        bob.answer = {}
        await wiring.call(ENVIRONMENT, "publish", content="y")
        assert (await wiring.call(ENVIRONMENT, "run"))["failures"] == []
        assert bob.news == ["x", "y"]


@pytest.mark.deep
@pytest.mark.threat(221)
async def test_a_member_without_room_misses_a_message_alone() -> None:
    async with wired({"Bob": Doing(), "Eve": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await join(wiring, EVE, "Eve", "Reader")
        for number in range(256):
            assert "id" in await wiring.call(ENVIRONMENT, "publish", content=str(number), send_to=["Bob"])
        before = await state_of(wiring)
        for did in (ENVIRONMENT, EVE):
            refused = await wiring.call(did, "publish", content="too much", send_to=["Bob"])
            assert isinstance(refused, Failure)
            assert refused.code == 429
        after = await state_of(wiring)
        assert after[:2] == before[:2]
        assert after[2][BOB] == before[2][BOB]
        answer = await wiring.call(ENVIRONMENT, "publish", content="for all")
        assert wiring.received[EVE] > after[2][EVE]
        assert wiring.received[BOB] == before[2][BOB]
        assert wiring.notes == [f"1 members had no room for the message {answer['id']}."]
        await wiring.call(ENVIRONMENT, "run")
        assert "id" in await wiring.call(ENVIRONMENT, "publish", content="room again")


@pytest.mark.threat(221)
async def test_large_messages_are_bounded_together() -> None:
    bob = Doing()
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        refused = None
        for number in range(40):
            answer = await wiring.call(ENVIRONMENT, "publish", content=f"{number}" + "é" * 30_000)
            refused = refused or (number if isinstance(answer, Failure) else None)
        assert refused == 17, "17 messages of 60,000 bytes are below a mebibyte"
        assert (await wiring.call(ENVIRONMENT, "publish", content="é" * 33_000)).code == 400
        await wiring.call(ENVIRONMENT, "run")
        assert len(bob.news) == 17
        history = await wiring.history()
        assert [entry["content"] for entry in history] == bob.news


def nested(levels: int) -> Any:
    """A value that is so deep."""
    return {"a": nested(levels - 1)} if levels > 1 else 1


@pytest.mark.sample(1)
@pytest.mark.threat(221)
@pytest.mark.parametrize("about", [{"a": [0] * 1_000}, nested(16)])
async def test_a_message_that_does_not_fit_into_an_action_is_refused(about: Any) -> None:
    async with wired({"Bob": Doing(), "Eve": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await join(wiring, EVE, "Eve", "Reader")
        before = await state_of(wiring)
        await send(wiring, EVE, {"type": "publish", "id": "p", "message": message(instruct_content=about)})
        assert await state_of(wiring) == before
        assert (await wiring.call(EVE, "publish", content="x", instruct_content=about)).code == 400


@pytest.mark.deep
@pytest.mark.threat(221)
async def test_the_values_that_wait_for_a_member_fit_into_its_action() -> None:
    bob = Doing()
    about = {"a": [nested(13)] * 60, "b": list(range(100))}
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        answers = [await wiring.call(ENVIRONMENT, "publish", content=str(n), instruct_content=about) for n in range(40)]
        refused = [answer for answer in answers if isinstance(answer, Failure)]
        assert 0 < len(refused) < 40
        assert {answer.code for answer in refused} == {429}
        assert (await wiring.call(ENVIRONMENT, "run"))["failures"] == []
        assert len(bob.news) == 40 - len(refused)
        assert await wiring.call(BOB, "recall")
        # A history with more values than one result may have is read page by page.
        for number in range(100, 160):
            if isinstance(await wiring.call(ENVIRONMENT, "publish", content=str(number), instruct_content=about), Failure):
                await wiring.call(ENVIRONMENT, "run")
        history = await wiring.history()
        assert len(history) > len(bob.news)


@pytest.mark.threat(221)
async def test_too_many_own_messages_cost_one_note() -> None:
    bob = Doing(
        {
            "publish": [{"content": str(n), "send_to": ["<self>"]} for n in range(256)],
            "response": {"content": "x", "send_to": ["Bob"]},
        }
    )
    async with wired({"Bob": bob}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await wiring.call(BOB, "publish", content="begin", send_to=["<self>"])
        await wiring.call(ENVIRONMENT, "run")
        bob.answer = {}
        await wiring.call(ENVIRONMENT, "run")
        assert len(bob.news) == 257
        assert len(wiring.notes) == 1


@pytest.mark.threat(222)
async def test_a_large_message_to_many_members_ends_no_session() -> None:
    """It is one part of the worker's answer, which has a bound, and not one for each member."""
    peers = [f"did:example:{number}" for number in range(256)]
    async with SandboxPool(size=0) as pool:
        worker = await pool.load(routing_package(), local=ENVIRONMENT, peers=peers)
        session = await worker.open("environment")
        await session.handle(Opened())
        for number, peer in enumerate(peers):
            await session.handle(PeerJoined(peer=peer, role="member", is_proved=True))
            joined = {"type": "join", "id": "1", "name": f"N{number}", "address": "Worker", "shared": True}
            await session.handle(Received(peer=peer, data=encode_json(joined)))
        large = message(content="x" * 65_000, sent_from="N0")
        request = Received(peer=peers[0], data=encode_json({"type": "publish", "id": "p", "message": large}))
        _, multicast, accepted = await session.handle(request)
        assert isinstance(multicast, Multicast)
        assert multicast.peers == tuple(peers)
        assert decode_json(accepted.data)["type"] == "accepted"  # type: ignore[union-attr]
        _, multicast, answer = await session.handle(Call(call="own", operation="publish", arguments={"content": "x" * 65_000}))
        assert isinstance(multicast, Multicast)
        assert multicast.peers == tuple(peers)
        assert isinstance(answer, Return)
        assert answer.error is None


@pytest.mark.sample(1)
@pytest.mark.threat(221)
@pytest.mark.parametrize(
    "published",
    [
        [{"content": "kept back"}, {"content": "x", "sent_from": "Eve"}],
        [{"content": f"{number}" + "\x01" * 10_000} for number in range(40)],
    ],
)
async def test_an_answer_of_which_a_part_is_refused_publishes_nothing(published: list[Any]) -> None:
    bob = Doing({"publish": published})
    async with wired({"Bob": bob, "Eve": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await join(wiring, EVE, "Eve", "Reader")
        await wiring.call(ENVIRONMENT, "publish", content="begin", send_to=["Bob"])
        [failure] = (await wiring.call(ENVIRONMENT, "run"))["failures"]
        assert failure["name"] == "Bob"
        assert len(await wiring.history()) == 1
        bob.answer = {}
        await wiring.call(ENVIRONMENT, "publish", content="again", send_to=["Bob"])
        assert (await wiring.call(ENVIRONMENT, "run"))["failures"] == []


@pytest.mark.deep
async def test_messages_to_oneself_take_no_room_from_those_of_others() -> None:
    bob = Doing()
    async with wired({"Bob": bob, "Eve": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await join(wiring, EVE, "Eve", "Reader")
        for number in range(256):
            await wiring.call(BOB, "publish", content=f"own {number}", send_to=["<self>"])
        refused = await wiring.call(BOB, "publish", content="too much", send_to=["<self>"])
        assert isinstance(refused, Failure)
        assert refused.code == 429
        for number in range(128):
            assert "id" in await wiring.call(EVE, "publish", content=f"of Eve {number}", send_to=["Bob"])
        assert await wiring.call(ENVIRONMENT, "run", rounds=5) == {"idle": True, "rounds": 2, "failures": []}
        own, others = [f"own {number}" for number in range(256)], [f"of Eve {number}" for number in range(128)]
        assert bob.news == [*others, *own]
        assert wiring.notes == []


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.threat(224)
@pytest.mark.parametrize("send_to", [["<all>"], ["<none>"], ["Bob"]])
async def test_a_member_that_floods_takes_no_room_of_others(send_to: list[str]) -> None:
    async with wired({"Bob": Doing(), "Eve": Doing(), "Dan": Doing()}) as wiring:
        await join(wiring, BOB, "Bob", "Writer")
        await join(wiring, EVE, "Eve", "Reader")
        await join(wiring, DAN, "Dan", "Other")
        for number in range(128):
            assert "id" in await wiring.call(EVE, "publish", content=str(number), send_to=send_to)
        before = await state_of(wiring)
        refused = await wiring.call(EVE, "publish", content="more", send_to=send_to)
        assert isinstance(refused, Failure)
        assert refused.code == 429
        after = await state_of(wiring)
        assert after[:2] == before[:2]
        assert "id" in await wiring.call(DAN, "publish", content="of Dan")
        assert "id" in await wiring.call(ENVIRONMENT, "publish", content="of the user")
        await wiring.call(ENVIRONMENT, "run")
        assert "id" in await wiring.call(EVE, "publish", content="in the next round", send_to=send_to)


@pytest.mark.threat(224)
async def test_a_silent_member_holds_a_round_for_its_timeout() -> None:
    async with SandboxPool(size=0) as pool:
        worker = await pool.load(routing_package(), local=ENVIRONMENT, peers=[BOB])
        session = await worker.open("environment")
        await session.handle(Opened())
        await session.handle(PeerJoined(peer=BOB, role="member", is_proved=True))
        joined = {"type": "join", "id": "1", "name": "Bob", "address": "Writer", "shared": False}
        await session.handle(Received(peer=BOB, data=encode_json(joined)))
        await session.handle(Call(call="p", operation="publish", arguments={"content": "x"}))
        await session.handle(Call(call="c", operation="configure", arguments={"patience": 7}))
        timer, multicast = await session.handle(Call(call="r", operation="run", arguments={}))
        assert timer == SetTimer(name="round", seconds=7)
        assert isinstance(multicast, Multicast)
        *_, answer = await session.handle(Timer(name="round"))
        assert answer == Return(call="r", value={"idle": True, "rounds": 1, "failures": []})


@pytest.mark.threat(224)
async def test_random_content_keeps_no_environment_from_its_rest() -> None:
    """A session that cannot rest ends with the time of its worker. The oldest of the history are given up for it."""
    draw = random.Random(1)
    async with SandboxPool(size=0) as pool:
        worker = await pool.load_code(routing_package(), local=ENVIRONMENT, peers=[BOB])
        session = await worker.open("environment")
        await session.handle(Opened())
        for number in range(20):
            arguments = {"content": draw.randbytes(24_000).hex(), "send_to": ["<none>"], "id": str(number)}
            await session.handle(Call(call=str(number), operation="publish", arguments=arguments))
        await session.resume(worker, await session.rest())
        [page] = await session.handle(Call(call="r", operation="readHistory", arguments={"start": 0}))
        assert isinstance(page, Return)
        ids = [one["id"] for one in page.value["messages"]]
        assert ids
        assert ids == [str(number) for number in range(20)][-len(ids) :]
        assert page.value["total"] == 20
        # What was given up is no longer stored either.
        effects = await session.handle(Call(call="p", operation="publish", arguments={"content": "x"}))
        deleted = [effect.key for effect in effects if isinstance(effect, Persist) and effect.value is None]
        assert deleted == [f"history:{number}" for number in range(20 - len(ids))]
        await worker.close()
