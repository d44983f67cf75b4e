"""What has to hold of a message before it counts: for whom, by whom, when, and that it is new."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from flow_peers import BUYER, SHOP, START, at, wrap

from treaty_anp.flow_profile import processor as processing
from treaty_anp.flow_profile.messages import MAX_MESSAGE, FlowMessage, encode
from treaty_anp.flow_profile.payloads import Initialize
from treaty_anp.flow_profile.processor import MessageProcessor, Now, ReplayMemory
from treaty_consensus.errors import NotFound, TooLarge, TreatyError, Unavailable
from treaty_io.errors import PeerUnavailable
from treaty_io.identity import Identity

STRANGER = Identity.create()


def said(number: int = 1, *, seconds: float = 0, by: Any = BUYER, **fields: Any) -> str:
    """An initialize to SHOP."""
    given = {
        "type": "meta-protocol",
        "action": "initialize",
        "message_id": f"msg-{number:08}",
        "sender": by.did,
        "recipient": SHOP.did,
        "timestamp": START + round(seconds * 1000),
        "payload": Initialize(purpose="x", request_capabilities=True),
        **fields,
    }
    return encode(FlowMessage(**given), by)


class World:
    """A processor of SHOP's, and who was asked for keys."""

    def __init__(self, memory: ReplayMemory | None = None, peer: str = "") -> None:
        self.asked: list[str] = []
        self.is_away = False
        self.documents = {BUYER.did: [BUYER.public_key]}
        self.memory = memory or ReplayMemory()
        self.processor = MessageProcessor(SHOP, self.keys, self.memory, peer)

    async def keys(self, did: str) -> Sequence[bytes]:
        self.asked.append(did)
        if self.is_away:
            raise Unavailable("egress.unreachable", "Its host could not be reached.")
        if did not in self.documents:
            raise NotFound("egress.not-found", "There is no document.")
        return self.documents[did]

    async def open(self, text: str, now: Now | None = None, limit: int = MAX_MESSAGE) -> FlowMessage:
        return await self.processor.open(text, now or at(0), limit=limit)

    async def refuses(self, text: str, now: Now | None = None, *, because: str = "") -> str:
        """The code of the refusal, whose message has the pattern `because`."""
        before = self.state()
        with pytest.raises(TreatyError, match=because) as failure:
            await self.open(text, now)
        assert self.state() == before
        return failure.value.code

    def state(self) -> tuple[object, ...]:
        processor, memory = self.processor, self.memory
        ids_of = {sender: set(ids) for sender, ids in memory.known.items()}
        return processor.peer, processor.peer_key, ids_of, list(memory.order), memory.since


async def test_001_31_a_verified_message_binds_the_connection() -> None:
    world = World()
    message = await world.open(said())
    assert message.sender == world.processor.peer == BUYER.did
    assert await world.refuses(said(2, by=SHOP), because="where .* speaks") == "flow.peer"


async def test_001_17_a_misaddressed_or_missigned_message_is_ignored() -> None:
    world = World()
    assert await world.refuses(said(recipient=BUYER.did), because="not for this agent") == "flow.peer"
    assert await world.refuses(said(sender=BUYER.did, by=SHOP)) == "flow.verification"
    assert await world.refuses(said(by=SHOP), because="No authentication key|cannot be had") == "flow.verification"
    assert await World(peer=SHOP.did).refuses(said(), because="where .* speaks") == "flow.peer"
    world.documents[BUYER.did] = []
    assert await World(peer=BUYER.did).refuses(said().replace("purpose", "porpuse")) == "flow.message"


async def test_keys_that_cannot_be_had_now_are_no_refusal() -> None:
    world = World()
    world.is_away = True
    with pytest.raises(PeerUnavailable, match="could not be reached") as away:
        await world.open(said())
    assert (away.value.code, away.value.retryable) == ("egress.unreachable", True)
    world.is_away = False
    assert (await world.open(said())).sender == BUYER.did


@pytest.mark.parametrize(("age", "counts"), [(0, True), (120, True), (121, False), (-30, True), (-31, False), (10**6, False)])
async def test_001_17_only_messages_of_now_count(age: float, counts: bool) -> None:
    world = World()
    if counts:
        await world.open(said(), at(age))
    else:
        assert await world.refuses(said(), at(age)) == "flow.stale"


async def test_001_17_a_message_counts_once_on_whatever_connection() -> None:
    memory = ReplayMemory()
    first, second = World(memory), World(memory)
    await first.open(said())
    assert await first.refuses(said(), because="twice") == "flow.verification"
    assert await second.refuses(said(), because="twice") == "flow.verification"
    await second.open(said(2))


async def test_001_17_a_restart_voids_earlier_messages() -> None:
    assert await World(ReplayMemory(since=START + 1)).refuses(said()) == "flow.stale"


async def test_001_17_messages_of_a_connection_count_in_their_order() -> None:
    world = World()
    await world.open(said(1, seconds=2), at(2))
    await world.open(said(3, seconds=2), at(2))
    await world.open(said(4, seconds=1), at(2))  # a clock one second back, or whole seconds after decimals
    await world.open(said(5, seconds=5), at(5))
    assert await world.refuses(said(6, seconds=2.9), at(5), because="much older") == "flow.verification"
    await world.open(said(7, seconds=3), at(5))
    assert await world.refuses(said(7, seconds=3), at(5), because="twice") == "flow.verification"


async def test_001_17_a_protocols_messages_are_not_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoken(number: int, seconds: float = 0) -> str:
        fields = {"type": "echo", "action": "message", "payload": wrap(b"x"), "session_id": "session-12345678"}
        return said(number, seconds=seconds, **fields)

    world = World()
    await world.open(spoken(1))
    assert await world.refuses(spoken(1)) == "flow.verification"
    assert world.memory.known == {}
    monkeypatch.setattr(processing, "MAX_RECENT", 2)
    await world.open(spoken(2, 0.1), at(1))
    await world.open(spoken(3, 0.2), at(1))  # the first one is forgotten now
    assert await world.refuses(spoken(1), at(1)) == "flow.verification"
    assert await world.refuses(spoken(2, 0.1), at(1)) == "flow.verification"
    await world.open(spoken(4, 0.1), at(1))


@pytest.mark.threat(112)
async def test_a_greedy_sender_obstructs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "MAX_OF_SENDER", 2)
    world, other = World(), World()
    other.memory = other.processor.memory = world.memory
    other.documents[STRANGER.did] = [STRANGER.public_key]
    await world.open(said(1))
    await world.open(said(2))
    assert await world.refuses(said(3)) == "flow.busy"
    await other.open(said(3, by=STRANGER))
    await world.open(said(4, seconds=200), at(200))
    assert world.memory.known == {BUYER.did: {"msg-00000004"}}
    assert len(world.memory.order) == 1


@pytest.mark.threat(112)
async def test_strangers_neither_fill_the_memory_nor_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processing, "MAX_REMEMBERED", 8)
    memory = ReplayMemory()
    await World(memory).open(said(1))
    for seconds in range(1, 41):
        stranger = Identity.create()
        world = World(memory)
        world.documents[stranger.did] = [stranger.public_key]
        await world.open(said(seconds, by=stranger, seconds=seconds), at(seconds))
        assert len(memory.known) == len(memory.order) <= 8
    assert await World(memory).refuses(said(1), at(40)) == "flow.stale"
    await World(memory).open(said(2, seconds=39), at(40))
    assert await World(memory).refuses(said(2, seconds=39), at(40)) == "flow.verification"


async def test_a_message_forgotten_during_a_key_lookup_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "MAX_REMEMBERED", 1)
    memory = ReplayMemory()
    first, slow = World(memory), World(memory)
    lookup, may_answer = asyncio.Event(), asyncio.Event()

    async def keys(did: str) -> Sequence[bytes]:
        lookup.set()
        await may_answer.wait()
        return [BUYER.public_key]

    slow.processor.keys = keys
    replayed = asyncio.create_task(slow.open(said(1)))
    await lookup.wait()
    await first.open(said(1))
    await first.open(said(2, seconds=1), at(1))
    assert memory.known == {BUYER.did: {"msg-00000002"}}
    may_answer.set()
    with pytest.raises(TreatyError) as failure:
        await replayed
    assert failure.value.code == "flow.stale"
    assert memory.known == {BUYER.did: {"msg-00000002"}}


async def test_keys_are_asked_for_once_and_again_after_a_while() -> None:
    world = World()
    await world.open(said(1))
    await world.open(said(2))
    assert world.asked == [BUYER.did]
    world.documents[BUYER.did] = [SHOP.public_key]  # the key was taken back
    later = processing.KEYS_AGE + 1
    assert await world.refuses(said(3, seconds=later), at(later)) == "flow.verification"
    assert world.asked == [BUYER.did] * 2


async def test_what_is_sent_never_goes_back_in_time() -> None:
    world = World()
    sent = MessageProcessor(BUYER, world.keys, ReplayMemory())
    message = FlowMessage(
        type="meta-protocol",
        action="initialize",
        message_id="msg-00000001",
        sender=BUYER.did,
        recipient=SHOP.did,
        timestamp=0,
        payload=Initialize(purpose="x", request_capabilities=True),
    )
    first = sent.seal(message, at(5))
    second = sent.seal(FlowMessage(**{**vars(message), "message_id": "msg-00000002"}), at(1))
    await world.open(first, at(5))
    assert (await world.open(second, at(5))).timestamp == at(5).unix


async def test_before_a_session_runs_messages_are_small() -> None:
    with pytest.raises(TooLarge):
        await World().open(" " * (MAX_MESSAGE + 1))
