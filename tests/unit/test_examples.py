"""The protocols of examples/: three without code, and two whose handlers have logic of their own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from treaty_client.protocols.project import load_project
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_handler import (
    Audit,
    Call,
    Effect,
    End,
    Failure,
    Invoke,
    Opened,
    PeerLost,
    Received,
    Result,
    Return,
    Send,
    encode_json,
)
from treaty_sandbox import Isolation, LoadedSession, SandboxPool, run_vectors

EXAMPLES = Path(__file__).parents[2] / "examples"
BUYER, SELLER = "did:wba:buyer.example", "did:wba:seller.example"


def built(name: str) -> HandlerPackage:
    project = load_project(EXAMPLES / name)
    return read_wheel(*project.build_wheel(f"https://registry.example/protocols/example.com/{name}/1.0"))


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "declarative"), [("greeting", True), ("appointment", True), ("chat", True), ("haggling", False), ("assembly", False)]
)
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
async def test_vectors(name: str, declarative: bool, isolation: Isolation) -> None:
    package, project = built(name), load_project(EXAMPLES / name)
    assert package.is_declarative == declarative
    assert {role for vector in project.vectors for role in vector.roles} == set(package.manifest.roles)
    async with SandboxPool(size=0, levels=(isolation,)) as pool:
        assert await run_vectors(pool, package, project.vectors) == []


async def haggle(sides: dict[str, LoadedSession], offer: int, limit: int, ask: int, floor: int, call: str) -> Return:
    """One talk from its call to the return."""
    event = Call(call=call, operation="buy", arguments={"item": "lamp", "offer": offer, "limit": limit})
    queue: list[tuple[str, Sequence[Effect]]] = [(BUYER, await sides[BUYER].handle(event))]
    returned: list[Return] = []
    while queue:
        side, effects = queue.pop(0)
        for effect in effects:
            match effect:
                case Send(peer=peer, data=data):
                    queue.append((peer, await sides[peer].handle(Received(peer=side, data=data))))
                case Invoke(call=invoke):
                    queue.append((side, await sides[side].handle(Result(call=invoke, value={"ask": ask, "floor": floor}))))
                case Return():
                    returned.append(effect)
    [one] = returned
    return one


@pytest.mark.deep
async def test_two_sides_that_haggle_meet_between_floor_and_limit() -> None:
    draw = random.Random(1)
    async with SandboxPool(size=0, levels=("none",)) as pool:
        sides: dict[str, LoadedSession] = {}
        for local, peer, role in ((BUYER, SELLER, "buyer"), (SELLER, BUYER, "seller")):
            worker = await pool.load(built("haggling"), local=local, peers=[peer])
            sides[local] = await worker.open(role)
            await sides[local].handle(Opened())
        met = 0
        for number in range(200):
            offer, limit, ask, floor = (draw.randint(1, 2_000) for _ in range(4))
            returned = await haggle(sides, offer, limit, ask, floor, f"c{number}")
            if returned.error is None:
                assert floor <= returned.value <= limit
                met += 1
            else:
                assert returned.error.code == 409
        assert met > 50
        for side, peer in ((BUYER, SELLER), (SELLER, BUYER)):
            assert await sides[side].handle(PeerLost(peer=peer)) == [End()]  # no talk is left open


@pytest.mark.parametrize("role", ["buyer", "seller"])
async def test_a_hostile_peer_does_not_end_a_haggling_session(role: str) -> None:
    peer = SELLER if role == "buyer" else BUYER
    async with SandboxPool(size=0, levels=("none",)) as pool:
        worker = await pool.load(built("haggling"), local=BUYER, peers=[peer])
        session = await worker.open(role, seed="0" * 32)
        await session.handle(Opened())
        if role == "buyer":
            await session.handle(Call(call="1", operation="buy", arguments={"item": "lamp", "offer": 1, "limit": 9}))
        number = "ce4b620fa96723c3"
        kinds = ("offer", "counter", "accept", "refuse", "other", None, 7)
        prices = (0, -1, 5, 10**9, 10**9 + 1, True, 1.5, "5", None)
        messages = [
            {"id": name, "type": kind, "item": "lamp", "price": price, "code": 404, "message": "x"}
            for name in (number, "other", 7)
            for kind in kinds
            for price in prices
        ]
        for data in (b"", b"\xff", b"[]", *map(encode_json, messages)):
            for effect in await session.handle(Received(peer=peer, data=data)):
                if isinstance(effect, Invoke):
                    await session.handle(Result(call=effect.call, error=Failure(code=404, message="There is none.")))
                assert not isinstance(effect, Audit)
        assert worker.alive
