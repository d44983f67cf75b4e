"""A caller that came through a door has its side of the session in the agent's process, as a stranger of its network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from treaty_agent import AgentConfig, Policy, current_call
from treaty_agent.sessions.in_process import InProcessCaller
from treaty_agent.sessions.interfaces import Capacity
from treaty_agent.testing import Simulation, run
from treaty_consensus.errors import Unavailable
from treaty_io.identity import ClaimedPeer

GREETING = Path(__file__).parents[2] / "examples" / "greeting"


@pytest.mark.threat(401)
def test_its_calls_prove_nothing_and_are_never_reported() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            host = simulation.agent("host.example", Policy(report=True, report_delay=1))
            uri, peers = simulation.uri("greeting"), list[object]()

            @host.provides(uri)
            async def greet(name: str) -> str:
                call = current_call()
                assert call is not None
                peers.append(call.peer)
                return f"Hello, {name}!"

            await host.prepare()
            caller, application = InProcessCaller(host.context, host.flow), host.asgi(["wss://host.example"])
            for _ in range(2):
                async with caller.session(application, "192.0.2.1:1", uri) as session:
                    assert await session.call("greet", name="Ada") == "Hello, Ada!"
            await asyncio.sleep(3600)
            await application.aclose()
            await caller.aclose()
            assert [type(peer) for peer in peers] == [ClaimedPeer, ClaimedPeer]
            assert host.did not in map(str, peers)
            assert host.metrics().reports_waiting == 0
            assert simulation.registry.reports == []

    run(main())


@pytest.mark.threat(402)
def test_one_network_leaves_room_for_others() -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            config = AgentConfig(Policy(), capacity=Capacity(sessions=128))
            host, uri = simulation.agent("host.example", config=config), simulation.uri("greeting")

            @host.provides(uri)
            async def greet(name: str) -> str:
                return name

            await host.prepare()
            caller, application = InProcessCaller(host.context, host.flow), host.asgi(["wss://host.example"])

            async def hold(address: str) -> None:
                async with caller.session(application, address, uri) as session:
                    await session.call("greet", name="Ada")
                    await asyncio.sleep(3600)

            tasks = [asyncio.create_task(hold(f"192.0.2.{number}:1")) for number in range(64)]
            await asyncio.sleep(60)
            with pytest.raises(Unavailable) as refused:
                await hold("192.0.2.200:1")
            assert refused.value.code == "connection.busy"
            async with caller.session(application, "198.51.100.1:1", uri) as session:
                assert await session.call("greet", name="Ada") == "Ada"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await application.aclose()
            await caller.aclose()

    run(main())
