"""Sessions that their application has left: what they wait for, what they hold meanwhile, and what ends them. In virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from meetings import MAX_AGE, TOPIC, Party, buyer, meeting, shop
from report_log import SimulatedLog

from treaty_agent.config import AgentConfig
from treaty_agent.reports.report_rules import OpenEpoch
from treaty_agent.sessions.interfaces import Capacity, SessionTimeouts
from treaty_agent.testing import PeerDouble, Simulation, run
from treaty_client.policy import Policy
from treaty_consensus.errors import Unavailable

GREETING = Path(__file__).parents[2] / "examples" / "greeting"
REPORTING = Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, report=True, report_delay=0)
PATIENT = SessionTimeouts(report=1e6, close=1e6, idle=1e7)


class GatedLog(SimulatedLog):
    """A log whose epoch is told when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.asked = asyncio.Event(), 0

    async def epoch(self) -> OpenEpoch:
        self.asked += 1
        await self.gate.wait()
        return await super().epoch()


def pair(home: Path, log: SimulatedLog, **options: Any) -> tuple[Party, Party]:
    timeouts = {"timeouts": PATIENT} | options
    customer = buyer(home, policy=REPORTING, log_of=lambda _: log, **timeouts)
    return customer, shop(home, policy=REPORTING, log_of=lambda _: log, timeouts=PATIENT)


async def visit(customer: Party, wire: Any) -> None:
    async with customer.agent.connect_over(wire, topic=TOPIC) as session:
        await session.call("getProductInfo", productId="P12345")


async def settled() -> None:
    """Let all that can happen without a timer happen."""
    for _ in range(200):
        await asyncio.sleep(0)


def test_the_worker_returns_before_the_goodbye(tmp_path: Path) -> None:
    async def main() -> None:
        log = GatedLog()
        customer, seller = pair(tmp_path, log)
        async with meeting(seller) as wire:
            await visit(customer, wire)
            await settled()
            (handler,) = customer.runtime.opened
            assert handler.closed, "its worker is free for another session"
            assert "end" not in customer.names(), "the connection waits for the report"
            assert not seller.runtime.opened[0].closed
            log.gate.set()
        assert len(log.submitted) == 1
        assert customer.names()[-2:] == ["reported", "end"]

    run(main())


def test_an_error_in_the_block_ends_the_session_without_a_report(tmp_path: Path) -> None:
    async def main() -> None:
        log = GatedLog()
        customer, seller = pair(tmp_path, log)
        async with meeting(seller) as wire:
            with pytest.raises(ZeroDivisionError):
                async with customer.agent.connect_over(wire, topic=TOPIC) as session:
                    await session.call("getProductInfo", productId="P12345")
                    raise ZeroDivisionError
            assert customer.names()[-1] == "end"
            log.gate.set()
        await customer.agent.aclose()
        assert log.submitted == []

    run(main())


def test_lingering_sessions_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        log = GatedLog()
        customer, seller = pair(tmp_path, log, capacity=Capacity(lingering=1))
        async with meeting(seller, at="memory:1") as first, meeting(seller, at="memory:2") as second:
            for wire in (first, second):
                await visit(customer, wire)
            await settled()
            assert customer.names().count("end") == 1
            log.gate.set()
        assert len(log.submitted) == 1
        assert customer.names().count("end") == 2

    run(main())


def test_of_sessions_of_a_pair_at_once_one_proposes_a_report(tmp_path: Path) -> None:
    async def main() -> None:
        log = GatedLog()
        customer, seller = pair(tmp_path, log)
        async with meeting(seller, at="memory:1") as first, meeting(seller, at="memory:2") as second:
            async with (
                customer.agent.connect_over(first, topic=TOPIC) as one,
                customer.agent.connect_over(second, topic=TOPIC) as other,
            ):
                for session in (one, other):
                    await session.call("getProductInfo", productId="P12345")
                log.gate.set()
                await asyncio.sleep(1)
            sent = [message for tap in (first, second) for way, message in tap.seen if way == ">"]
            assert sum(b"reportCosignature" in message for message in sent if isinstance(message, bytes)) == 1
        assert len(log.submitted) == 1
        assert {"reported", "nothing to report"} <= set(customer.names())

    run(main())


def test_a_session_lingers_for_no_recently_failed_registry(tmp_path: Path) -> None:
    async def main() -> None:
        log = GatedLog()
        customer, seller = pair(tmp_path, log)
        answer, log.down = log.epoch, 0

        async def down() -> OpenEpoch:
            raise Unavailable("registry.unreachable", "Nothing listens there.")

        log.epoch = down  # type: ignore[method-assign]
        async with meeting(seller) as wire:
            await visit(customer, wire)
        assert "report failed" in customer.names()
        log.epoch = answer  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        # It hangs now, and the session knows that it did not answer.
        async with meeting(seller) as wire:
            await visit(customer, wire)
            await settled()
            assert customer.names().count("end") == 2
            assert log.asked, "it is asked again all the same"
            log.gate.set()
            await settled()
        async with meeting(seller) as wire:
            await visit(customer, wire)
        assert len(log.submitted) == 1, "it answered, so sessions report again"
        assert asyncio.get_running_loop().time() - began < 1_000, "virtual time"

    run(main())


def test_an_agents_end_awaits_lingering_sessions(tmp_path: Path) -> None:
    async def main() -> None:
        log = GatedLog()
        customer, seller = pair(tmp_path, log, timeouts=dataclasses.replace(PATIENT, close=50.0))
        async with meeting(seller) as wire:
            await visit(customer, wire)
            now = asyncio.get_running_loop().time
            began = now()
            await customer.agent.aclose()
            assert 50 <= now() - began < 100, "virtual time"
            assert customer.names()[-1] == "end", "the connection is closed"
        assert log.submitted == []
        assert not (customer.home / "reports").exists()

    run(main())


def test_a_call_under_way_fails_when_its_application_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        log = GatedLog()
        customer, seller = pair(tmp_path, log)
        async with meeting(seller) as wire:
            async with customer.agent.connect_over(wire, topic=TOPIC) as session:
                await session.call("getProductInfo", productId="P12345")
                calling = asyncio.create_task(session.call("getProductInfo", productId="P12345"))
                listening = asyncio.create_task(anext(session.heard(), "nothing more"))
                await asyncio.sleep(0)
            assert await listening == "nothing more"
            assert "end" not in customer.names()
            with pytest.raises(Unavailable):
                await calling
            with pytest.raises(Unavailable) as closed:
                await session.call("getProductInfo", productId="P12345")
            assert closed.value.code == "session.closed"
            with pytest.raises(Unavailable):
                await session.ask("Why?")
            assert session.is_over
            log.gate.set()
        assert len(log.submitted) == 1

    run(main())


def test_the_sessions_of_a_peer_that_is_closed_are_reported() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            config = AgentConfig(Policy(report=True, report_delay=0))
            host = PeerDouble(simulation.agent("host.example", config), simulation.uri("greeting"), {"greet": "Hello!"})
            guest = simulation.agent("guest.example", config)
            async with simulation.serving(host.agent):
                async with guest.peer("wss://host.example", topic="social/greeting") as peer:
                    await peer.call("greet", name="Ada")
                    simulation.registry.state = "silent"
                assert simulation.registry.reports == []
                simulation.registry.state = "up"
                await guest.aclose()
            assert len(simulation.registry.reports) == 1

    run(main())
