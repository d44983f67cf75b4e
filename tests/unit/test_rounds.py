"""Turns of requests and messages: how many of a network begin in a round, and that nobody waits for another network's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from treaty_io.admission.message_turns import HEAVY, MessageTurns
from treaty_io.admission.rounds import Rounds

FLOOD, HONEST = "192.0.2.0/24", "198.51.100.0/24"
SHARE = 3


@dataclass
class Requests:
    """Requests that note when they began: the network, and in which iteration of the event loop."""

    rounds: Rounds = field(default_factory=lambda: Rounds(SHARE))
    begun: list[tuple[str, int]] = field(default_factory=list)
    iteration: int = 0

    async def request(self, network: str) -> None:
        if not self.rounds.take(network):
            await self.rounds.wait(network)
        self.begun.append((network, self.iteration))

    def send(self, network: str, count: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.request(network)) for _ in range(count)]

    def count_iterations(self) -> None:
        self.iteration += 1
        asyncio.get_running_loop().call_soon(self.count_iterations)

    def most_at_once(self, network: str) -> int:
        at = [iteration for asker, iteration in self.begun if asker == network]
        return max(map(at.count, at))


async def test_a_networks_requests_begin_in_bounded_rounds() -> None:
    requests = Requests()
    requests.count_iterations()
    await asyncio.gather(*requests.send(FLOOD, 50))
    assert len(requests.begun) == 50
    assert requests.most_at_once(FLOOD) == SHARE


@pytest.mark.parametrize("iterations", [1, 3])
async def test_a_turn_comes_although_its_round_is_over(iterations: int) -> None:
    rounds = Rounds(SHARE, iterations=iterations)
    # A task waits, and first runs in the next iteration. In a quiet process nothing else would begin a round for it.
    assert [rounds.take(FLOOD) for _ in range(SHARE + 1)] == [True] * SHARE + [False]
    for _ in range(5):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        for _ in range(4 * SHARE):
            await rounds.wait(FLOOD)
        await asyncio.gather(*(rounds.wait(network) for network in (FLOOD, HONEST) for _ in range(SHARE + 1)))


@pytest.mark.threat(114)
async def test_another_network_does_not_wait_behind_a_line() -> None:
    requests = Requests()
    flood = requests.send(FLOOD, 50)
    honest = requests.send(HONEST, SHARE)
    await asyncio.gather(*honest)
    assert requests.begun == [(FLOOD, 0)] * SHARE + [(HONEST, 0)] * SHARE
    await asyncio.gather(*flood)
    assert len(requests.begun) == 50 + SHARE


@pytest.mark.threat(114)
async def test_rounds_of_several_networks_leave_the_loop_free() -> None:
    requests = Requests()
    requests.count_iterations()
    await asyncio.gather(*requests.send(HONEST, 1), *requests.send(FLOOD, 5 * SHARE))
    rounds = sorted({iteration for network, iteration in requests.begun if network == FLOOD})
    assert len(rounds) == 5
    assert all(later - earlier > 2 for earlier, later in pairwise(rounds)), "the iterations of a pause"


async def test_a_request_that_is_cancelled_gives_its_turn_to_the_next() -> None:
    requests = Requests()
    tasks = requests.send(FLOOD, SHARE * 4)
    await asyncio.sleep(0)
    for task in tasks[SHARE:-1]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(requests.begun) == SHARE + 1
    await asyncio.gather(*requests.send(FLOOD, SHARE))  # no line is left behind
    assert len(requests.begun) == 2 * SHARE + 1


@pytest.mark.threat(114)
async def test_bodies_that_arrive_at_once_are_taken_up_in_turns() -> None:
    requests = Requests()
    requests.count_iterations()
    arrived = asyncio.Event()

    async def receive() -> Any:
        await arrived.wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def read() -> None:
        assert (await requests.rounds.after(receive, FLOOD)())["type"] == "http.request"
        requests.begun.append((FLOOD, requests.iteration))

    readers = [asyncio.create_task(read()) for _ in range(20)]
    await asyncio.sleep(0)
    arrived.set()
    await asyncio.gather(*readers)
    assert len(requests.begun) == 20
    assert requests.most_at_once(FLOOD) == SHARE


class Messages:
    """A connection with messages of these sizes, which it takes when it may."""

    def __init__(self, requests: Requests, sizes: list[int], network: str = FLOOD) -> None:
        self.requests, self.sizes, self.network = requests, sizes, network
        self.turns = MessageTurns(requests.rounds, network)
        self.over = asyncio.Event()

    def take_all(self) -> None:
        while self.sizes and self.turns.take_now(self.sizes[0], self.take_all):
            self.sizes.pop(0)
            self.requests.begun.append((self.network, self.requests.iteration))
        if not self.sizes:
            self.over.set()


@pytest.mark.threat(114)
async def test_messages_take_their_networks_turns_without_a_task() -> None:
    requests = Requests()
    requests.count_iterations()
    connections = [Messages(requests, [0] * 10) for _ in range(5)]
    honest = Messages(requests, [0] * SHARE, HONEST)
    for connection in [*connections, honest]:
        connection.take_all()
    assert requests.begun == [(FLOOD, 1)] * SHARE + [(HONEST, 1)] * SHARE
    await asyncio.gather(*(connection.over.wait() for connection in connections))
    assert len(requests.begun) == 50 + SHARE
    assert requests.most_at_once(FLOOD) == SHARE


@pytest.mark.threat(114)
async def test_a_large_message_takes_the_whole_share_of_its_network() -> None:
    requests = Requests()
    requests.count_iterations()
    connections = [Messages(requests, [HEAVY + 1] * 4), Messages(requests, [HEAVY] * SHARE)]
    for connection in connections:
        connection.take_all()
    assert requests.begun == [(FLOOD, 1)]
    await asyncio.gather(*(connection.over.wait() for connection in connections))
    assert len(requests.begun) == 4 + SHARE
    assert requests.most_at_once(FLOOD) <= SHARE


async def test_a_connection_has_one_place_in_the_line() -> None:
    rounds, woken = Rounds(SHARE), list[str]()
    turns = [MessageTurns(rounds, FLOOD) for _ in range(2)]
    assert [turns[0].take_now(0, lambda: None) for _ in range(SHARE)] == [True] * SHARE
    for name in ("first", "second", "third"):
        assert not turns[0].take_now(0, lambda name=name: woken.append(name))  # type: ignore[misc]
    assert not turns[1].take_now(0, lambda: woken.append("other"))
    await asyncio.sleep(0.01)
    assert woken == ["third", "other"]
    assert turns[0].take_now(0, lambda: None)
    # Two turns of this round are taken, by the two that waited.
    assert [turns[0].take_now(0, lambda: None) for _ in range(2)].count(True) == 2


async def test_a_closed_connections_turn_does_not_block_the_line() -> None:
    requests = Requests()
    assert requests.rounds.take(FLOOD, SHARE)
    closed = [MessageTurns(requests.rounds, FLOOD) for _ in range(3)]
    for turns in closed:
        assert not turns.take_now(HEAVY + 1, lambda: None)  # nobody asks again
    behind = Messages(requests, [0])
    behind.take_all()
    del closed
    waiting = requests.send(FLOOD, 1)
    async with asyncio.timeout(5):
        await behind.over.wait()
        await asyncio.gather(*waiting)
    assert len(requests.begun) == 2
