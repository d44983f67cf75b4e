"""An agent that cannot be reached is one class of error, whatever the stage, and a registry another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from meetings import TOPIC, buyer, meeting, shop

from treaty_agent import Agent, OutcomeUnknown, PeerUnavailable, Policy, RegistryUnavailable, Session
from treaty_agent.testing import PeerDouble, Simulation, run
from treaty_consensus.errors import NotFound, Origin, TreatyError

GREETING = Path(__file__).parents[2] / "examples" / "greeting"
HOST, ABOUT = "wss://host.example", "social/greeting"


@asynccontextmanager
async def agents() -> AsyncIterator[tuple[Simulation, PeerDouble, Agent]]:
    async with Simulation([GREETING]) as simulation:
        host = PeerDouble(simulation.agent("host.example"), simulation.uri("greeting"), {"greet": "Hello!"})
        guest = simulation.agent("guest.example")
        async with simulation.serving(host.agent):
            yield simulation, host, guest


async def refuses(simulation: Simulation, guest: Agent) -> None:
    simulation.links["host.example"].refuses = True
    async with guest.connect(HOST, topic=ABOUT):
        pass


async def hangs(simulation: Simulation, guest: Agent) -> None:
    simulation.links["host.example"].silent = True
    async with guest.connect(HOST, topic=ABOUT, timeout=3):
        pass


async def says_nothing(simulation: Simulation, guest: Agent) -> None:
    simulation.links["host.example"].silent = True
    async with guest.connect(HOST, topic=ABOUT, timeout=3600):
        pass


async def is_not_found(simulation: Simulation, guest: Agent) -> None:
    async with guest.connect("gone.example", topic=ABOUT):
        pass


async def is_cut(simulation: Simulation, guest: Agent) -> None:
    async with guest.connect(HOST, topic=ABOUT) as session:
        await simulation.links["host.example"].cut()
        await ended(session)
        await session.call("greet", name="Ada")


async def is_idle(simulation: Simulation, guest: Agent) -> None:
    async with guest.connect(HOST, topic=ABOUT) as session:
        await ended(session)
        await session.call("greet", name="Ada")


async def is_late(simulation: Simulation, guest: Agent) -> None:
    simulation.links["host.example"].silent = True
    await guest.peer(HOST, topic=ABOUT).call("greet", name="Ada", within=2)


async def ended(session: Session) -> None:
    for _ in range(3600):
        if session.is_over:
            return
        await asyncio.sleep(1)


@pytest.mark.parametrize("stage", [refuses, hangs, says_nothing, is_not_found, is_cut, is_idle, is_late])
def test_one_class_is_enough(stage: Callable[[Simulation, Agent], Awaitable[None]]) -> None:
    async def main() -> None:
        async with agents() as (simulation, host, guest):
            with pytest.raises(PeerUnavailable) as failure:
                await stage(simulation, guest)
            error = failure.value
            assert not isinstance(error, OutcomeUnknown | RegistryUnavailable)
            assert (error.family, error.retryable) == ("Unavailable", True)
            assert error.origin in (Origin.PEER, Origin.NETWORK, Origin.CALLER)
            assert host.calls == []

    run(main())


def test_a_call_that_was_sent_is_another_class() -> None:
    async def main() -> None:
        async with agents() as (_, host, guest):
            host.delay = 5
            async with guest.connect(HOST, topic=ABOUT) as session:
                with pytest.raises(OutcomeUnknown) as failure:
                    await session.call("greet", name="Ada", within=1)
            assert not isinstance(failure.value, PeerUnavailable)
            assert failure.value.retryable  # greet is idempotent

    run(main())


@pytest.mark.parametrize("absent", ["guest.example", "host.example"])
def test_a_briefly_absent_did_document_refuses_nothing(absent: str) -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            policy = Policy(encryption="required")
            host = PeerDouble(simulation.agent("host.example", policy), simulation.uri("greeting"), {"greet": "Hello!"})
            guest = simulation.agent("guest.example", policy)
            link = simulation.links[absent]
            async with simulation.serving(host.agent), guest.peer(HOST, topic=ABOUT) as peer:
                link.has_document = False
                with pytest.raises(PeerUnavailable) as away:
                    async with guest.connect(HOST, topic=ABOUT):
                        pass
                assert "egress.unreachable" in (away.value.code, away.value.peer_code)
                assert away.value.retryable
                asyncio.get_running_loop().call_later(4, setattr, link, "has_document", True)
                assert await peer.call("greet", name="Ada") == "Hello!"
                assert len(host.calls) == 1

    run(main())


def test_a_registry_is_another_class() -> None:
    async def main() -> None:
        async with agents() as (simulation, _, guest):
            simulation.registry.state = "down"
            with pytest.raises(RegistryUnavailable) as failure:
                async with guest.connect(HOST, topic=ABOUT):
                    pass
            assert (failure.value.origin, failure.value.retryable) == (Origin.REGISTRY, True)

    run(main())


@pytest.mark.parametrize(
    ("failure", "family", "retryable"),
    [
        (RegistryUnavailable("registry.unreachable", "secret-host.internal is away."), "Unavailable", True),
        (NotFound("protocol.unknown", "secret-host.internal says no."), "Refused", False),
    ],
)
def test_a_peer_whose_proof_is_too_old_says_whether_that_passes(
    tmp_path: Path, failure: TreatyError, family: str, retryable: bool
) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire:
            seller.protocols.failure = failure
            with pytest.raises(TreatyError) as failed:
                async with customer.agent.connect_over(wire, topic=TOPIC):
                    pass
        error = failed.value
        assert (error.code, error.family, error.peer_code) == ("session.peer-code", family, failure.code)
        assert error.retryable is retryable
        assert "secret-host" not in str(error)
        await seller.agent.aclose()
        await customer.agent.aclose()

    run(main())


@pytest.mark.parametrize("encryption", ["off", "required"])
def test_a_session_without_its_last_message_may_be_opened_again(encryption: Literal["off", "required"]) -> None:
    async def main() -> None:
        async with Simulation([GREETING]) as simulation:
            policy = Policy(encryption=encryption)
            host = PeerDouble(simulation.agent("host.example", policy), simulation.uri("greeting"), {"greet": "Hello!"})
            guest = simulation.agent("guest.example", policy)
            async with simulation.serving(host.agent), guest.connect(HOST, topic=ABOUT) as session:
                await simulation.links["host.example"].cut()
                await ended(session)
                with pytest.raises(PeerUnavailable) as error:
                    await session.call("greet", name="Ada")
            assert error.value.retryable
            assert host.calls == []

    run(main())
