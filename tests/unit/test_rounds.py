"""Turns at beginning requests: how many of a network begin in a round, and that nobody waits for another network's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

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


async def test_a_network_begins_so_many_requests_in_an_iteration_and_all_in_the_end() -> None:
    requests = Requests()
    requests.count_iterations()
    await asyncio.gather(*requests.send(FLOOD, 50))
    assert len(requests.begun) == 50
    assert requests.most_at_once(FLOOD) == SHARE


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
async def test_while_several_networks_ask_a_line_leaves_the_loop_free_between_rounds() -> None:
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
