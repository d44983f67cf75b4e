"""Whose turn it is to ask a host, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from treaty_agent.testing.virtual_time import run
from treaty_consensus.errors import Unavailable
from treaty_io.network import turns
from treaty_io.network.turns import MAX_WAITING, Turns, asking_for

MALLORY, ALICE = "198.51.100.7", "192.0.2.1"


@dataclass
class Queue:
    """Asks for turns; `served`: URL → when it came up; `refused`: URLs that did not."""

    turns: Turns
    served: dict[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def ask(self, url: str, asker: str, host: str = "shared.example") -> None:
        with asking_for(asker):
            self.tasks.append(asyncio.create_task(self.serve_one(url, host)))

    async def serve_one(self, url: str, host: str) -> None:
        try:
            await self.turns.take(host, url)
            self.served[url] = asyncio.get_running_loop().time()
        except Unavailable as error:
            assert error.code == "egress.unreachable" and host in error.message
            self.refused.append(url)

    async def over(self) -> None:
        await asyncio.gather(*self.tasks)


def queue(*, burst: int = 4, patience: float = 1000.0) -> Queue:
    clock = asyncio.get_running_loop().time
    return Queue(Turns(interval=1.0, burst=burst, patience=patience, clock=clock))


def simulated(test: Coroutine[Any, Any, None]) -> None:
    run(test)


def test_every_window_has_the_burst_and_one_a_second() -> None:
    async def main() -> None:
        turns = queue()
        for number in range(40):
            turns.ask(f"u{number}", MALLORY if number % 2 else ALICE)
            await asyncio.sleep(0.3 * (number % 3))
        await turns.over()
        times = sorted(turns.served.values())
        assert len(times) == 40
        for first in range(40):
            for last in range(first, 40):
                assert last - first + 1 <= 4 + (times[last] - times[first]) + 1e-6

    simulated(main())


@pytest.mark.threat(70)
def test_one_who_asks_for_much_keeps_nobody_out() -> None:
    async def main() -> None:
        turns = queue()
        for number in range(500):
            turns.ask(f"mallory{number}", MALLORY)
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        turns.ask("alice", ALICE)
        turns.ask("alice, another", ALICE)
        await turns.over()
        assert turns.served["alice"] - began <= 2 and turns.served["alice, another"] - began <= 4
        assert len(turns.served) <= 4 + MAX_WAITING + 2
        assert all(url.startswith("mallory") for url in turns.refused)

    simulated(main())


def test_a_network_of_addresses_is_one_asker() -> None:
    async def main() -> None:
        turns = queue()
        for number in range(250):
            turns.ask(f"mallory{number}", f"198.51.100.{number}")
            turns.ask(f"mallory{number}, IPv6", f"2001:db8:5:{number:x}::1")
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        turns.ask("alice", ALICE)
        await turns.over()
        assert turns.served["alice"] - began <= 3

    simulated(main())


def test_a_crowd_waits_in_order_of_when_each_was_served_last() -> None:
    async def main() -> None:
        turns = queue(burst=1)
        for number in range(30):
            turns.ask(f"mallory{number}", MALLORY)
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        crowd = [f"10.1.{number}.1" for number in range(20)]
        for address in crowd:
            turns.ask(address, address)
        await turns.over()
        assert [turns.served[address] - began for address in crowd] == pytest.approx(
            [0.5 + number for number in range(20)], abs=0.3
        )
        assert turns.refused == []

    simulated(main())


@pytest.mark.threat(70)
def test_a_url_comes_up_in_the_turn_of_anybody_who_wants_it() -> None:
    async def main() -> None:
        turns = queue()
        for number in range(50):
            turns.ask(f"mallory{number}", MALLORY)
        turns.ask("alice", MALLORY)  # at the end of a long queue, so that it comes late
        await asyncio.sleep(0.5)
        with asking_for(ALICE):
            turns.turns.join("shared.example", "alice")
            turns.turns.join("shared.example", "what nobody waits for")
            turns.turns.join("other.example", "alice")
        began = asyncio.get_running_loop().time()
        await turns.over()
        assert turns.served["alice"] - began <= 1

    simulated(main())


def test_nobody_waits_longer_than_patience() -> None:
    async def main() -> None:
        turns = queue(burst=1, patience=5.0)
        for number in range(20):
            turns.ask(f"u{number}", MALLORY)
        await turns.over()
        assert max(turns.served.values()) - min(turns.served.values()) <= 6
        assert 5 <= len(turns.served) <= 7 and len(turns.refused) == 20 - len(turns.served)
        turns.tasks.clear()
        turns.ask("later", ALICE)
        await turns.over()
        assert "later" in turns.served

    simulated(main())


def test_who_has_gone_takes_no_turn() -> None:
    async def main() -> None:
        turns = queue(burst=1)
        for number in range(10):
            turns.ask(f"u{number}", MALLORY)
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        for task in turns.tasks[1:]:
            task.cancel()
        await asyncio.gather(*turns.tasks, return_exceptions=True)
        turns.tasks.clear()
        turns.ask("alice", ALICE)
        await turns.over()
        assert turns.served["alice"] - began <= 1.5

    simulated(main())


def test_hosts_do_not_wait_for_each_other_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(turns, "MAX_KEYS", 5)
        line = queue(burst=2)
        for number in range(7):
            line.ask(f"u{number}", MALLORY, host=f"host{number}.example")
        await line.over()
        assert max(line.served.values()) - min(line.served.values()) < 0.5 and len(line.served) == 5
        assert line.refused == ["u5", "u6"], "more hosts at once than are remembered: none is asked more often for it"
        await asyncio.sleep(2.0)
        line.ask("u7", MALLORY, host="host7.example")
        await line.over()
        assert "u7" in line.served

    simulated(main())


def test_without_an_interval_nobody_waits() -> None:
    async def main() -> None:
        unbounded = Turns(interval=0, burst=1)
        taking = asyncio.gather(*(unbounded.take("shared.example", "u") for _ in range(100)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert taking.done(), "none of them waited for a timer"

    simulated(main())


@pytest.mark.parametrize("address", [None, "", "?", "memory", "not an address"])
def test_who_comes_from_no_ip_address_is_one_asker(address: str | None) -> None:
    async def main() -> None:
        turns = queue(burst=1)
        for number in range(5):
            turns.ask(f"u{number}", "")
        with asking_for(address):
            turns.tasks.append(asyncio.create_task(turns.serve_one("one more", "shared.example")))
        await turns.over()
        assert max(turns.served, key=lambda url: turns.served[url]) == "one more"

    simulated(main())
