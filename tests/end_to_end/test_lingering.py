"""Sessions whose application has left: on real sockets, with registries that are slow, hang, or are stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, TOPIC, identity
from simulated_registry import ALICE, NAME
from socket_registry import SocketRegistry, network_to, socket_registry
from working_agents import CUSTOMER, NEW, SELLER

from treaty_agent import Agent, AgentConfig, Policy, Unavailable
from treaty_agent.sessions.interfaces import AgentEvent, SessionTimeouts
from treaty_client.protocols.fetch import Fetcher
from treaty_consensus import kinds
from treaty_io.network.hosts import Network

OF_REPORTS = ("/log", "/checkpoint", "/identities/", "/statements")
"""The beginnings of the paths that only reports use."""
POLICY = Policy(publishers=[ALICE.did], report=True, report_delay=0)


def agent(network: Network, home: Path, domain: str, **options: Any) -> Agent:
    """An agent that reports. `timeouts`: of its sessions."""
    config = AgentConfig(POLICY, options.pop("timeouts", None), home=home / domain)
    return Agent(identity(domain), str(NAME), config, network=network, **options)


@asynccontextmanager
async def shop(network: Network, home: Path) -> AsyncIterator[str]:
    """A shop that serves, and its address."""
    async with agent(network, home, SELLER) as seller:

        @seller.provides(NEW)
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            return LAPTOP

        async with seller.listen("127.0.0.1", 0) as port:
            yield f"ws://127.0.0.1:{port}"


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[SocketRegistry]:
    async with socket_registry(tmp_path) as server:
        yield server


def close_gate(registry: SocketRegistry) -> asyncio.Event:
    """Let no request for a report be answered until the event is set."""
    gate = asyncio.Event()

    async def wait(path: str) -> None:
        if path.startswith(OF_REPORTS):
            await gate.wait()

    registry.before = wait
    return gate


def reports(registry: SocketRegistry) -> list[kinds.Report]:
    return [statement.body for _, statement in registry.registry.statements() if isinstance(statement.body, kinds.Report)]


async def one_shot(customer: Agent, url: str) -> None:
    async with customer.connect(url, protocols=[NEW]) as session:
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP
    assert session.is_over
    with pytest.raises(Unavailable) as over:
        await session.call("getProductInfo", productId="P12345")
    assert over.value.code == "session.closed"


async def test_a_report_is_made_after_the_application_left(registry: SocketRegistry, tmp_path: Path) -> None:
    gate, events = close_gate(registry), list[AgentEvent]()
    async with (
        shop(registry.network, tmp_path) as url,
        agent(registry.network, tmp_path, CUSTOMER, on_event=events.append) as customer,
    ):
        await one_shot(customer, url)
        await one_shot(customer, url)  # the address is not busy
        assert reports(registry) == []
        gate.set()
    assert [body.topic for body in reports(registry)] == [TOPIC], "of two sessions of a pair one is reported"
    names = [event.name for event in events]
    assert names.index("first reply") < names.index("reported") < names.index("end")
    assert names.count("end") == 2


async def test_a_one_shot_session_reports_to_a_slow_registry(registry: SocketRegistry, tmp_path: Path) -> None:
    async def wait(path: str) -> None:
        if path.startswith(OF_REPORTS):
            await asyncio.sleep(2)

    registry.before = wait
    async with shop(registry.network, tmp_path) as url:
        async with agent(registry.network, tmp_path, CUSTOMER) as customer:
            await one_shot(customer, url)
        assert len(reports(registry)) == 1


async def test_a_silent_registry_is_awaited_for_a_bounded_time(registry: SocketRegistry, tmp_path: Path) -> None:
    close_gate(registry)
    timeouts = SessionTimeouts(close=0.2)
    async with shop(registry.network, tmp_path) as url:
        async with agent(registry.network, tmp_path, CUSTOMER, timeouts=timeouts) as customer:
            await one_shot(customer, url)
        assert reports(registry) == []


async def test_a_peer_is_closed_at_once_and_its_session_is_reported(registry: SocketRegistry, tmp_path: Path) -> None:
    gate = close_gate(registry)
    async with shop(registry.network, tmp_path) as url:
        async with agent(registry.network, tmp_path, CUSTOMER) as customer:
            async with customer.peer(url, protocols=[NEW]) as peer:
                assert await peer.call("getProductInfo", productId="P12345") == LAPTOP
            assert reports(registry) == []
            gate.set()
        assert len(reports(registry)) == 1


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[Network, subprocess.Popen[str]]]:
    """A registry in a process of its own, which the test stops and continues."""
    program = Path(__file__).parents[1] / "support" / "socket_registry.py"
    command = [sys.executable, str(program), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield network_to(int(process.stdout.readline()), tmp_path), process
        process.kill()


@pytest.mark.deep
async def test_a_report_follows_when_a_stopped_registry_goes_on(
    stopped: tuple[Network, subprocess.Popen[str]], tmp_path: Path
) -> None:
    network, process = stopped
    async with shop(network, tmp_path) as url:
        async with agent(network, tmp_path, CUSTOMER) as customer:
            # With the code in the store: fetching it needs the registry.
            await customer.context.ports.protocols.fetch(NEW)
            before = await _size(network, tmp_path)
            os.kill(process.pid, signal.SIGSTOP)
            await one_shot(customer, url)
            await one_shot(customer, url)
            os.kill(process.pid, signal.SIGCONT)
        assert await _size(network, tmp_path) == before + 1


async def _size(network: Network, home: Path) -> int:
    async with Fetcher(home / CUSTOMER, POLICY, network) as fetcher:
        return (await fetcher.client(NAME.origin).log()).size
