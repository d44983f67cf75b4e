"""Sessions that other agents opened: the responder calls, streams and broadcasts in them, under both profiles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from treaty_agent import Agent, AgentConfig, Session
from treaty_agent.sessions.interfaces import Capacity
from treaty_agent.testing import Simulation, run
from treaty_anp.flow_profile.capabilities import ProtocolOffer

PAYMENT = Path(__file__).parents[1] / "support" / "payment"
ID = "anp:protocol:payment:1.0"
SHOP = "wss://shop.example"
PROFILES = ["hello", "flow"]


class Payer:
    """An agent that approves when its event is set, and counts what it was asked."""

    def __init__(self, simulation: Simulation, domain: str, *, answers: bool = True) -> None:
        self.agent, self.asked, self.left = simulation.agent(domain), list[float](), 0
        self.may_answer = asyncio.Event()
        if answers:
            self.may_answer.set()
        self.uri = simulation.uri("payment")

    async def approve(self, amount: int) -> bool:
        self.asked.append(asyncio.get_running_loop().time())
        await self.may_answer.wait()
        return amount <= 100

    async def numbers(self) -> AsyncIterator[int]:
        try:
            for number in range(1000):
                yield number
        finally:
            self.left += 1

    def connect(self, shop: Agent, profile: str = "hello") -> Any:
        if self.agent.flow.registry.get(ID) is None:
            self.agent.flow.registry.add(ProtocolOffer(ID, uri=self.uri))
        named = self.uri if profile == "hello" else ID
        serving: list[Callable[..., Any]] = [self.approve, self.numbers]
        return self.agent.connect(SHOP, protocols=[named], did=shop.did, role="payer", serving=serving)


def shop_of(simulation: Simulation) -> Agent:
    agent, uri = simulation.agent("shop.example", AgentConfig(capacity=Capacity(sessions=1000))), simulation.uri("payment")

    @agent.provides(uri, role="payee")
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @agent.provides(uri, role="payee")
    async def count() -> int:
        return 7

    agent.flow.registry.add(ProtocolOffer(ID, uri=uri))
    return agent


def simulated(body: Callable[[Simulation, Agent], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with Simulation([PAYMENT]) as simulation:
            await body(simulation, shop_of(simulation))

    run(main())


async def until(condition: Callable[[], object]) -> None:
    """Wait in virtual time until a condition holds."""
    async with asyncio.timeout(600):
        while not condition():  # noqa: ASYNC110  # the sessions of the product have no event for a test
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_responder_calls_and_streams_in_a_session_of_its_own(profile: str) -> None:
    async def body(simulation: Simulation, shop: Agent) -> None:
        payer = Payer(simulation, "payer.example")
        async with simulation.serving(shop), payer.connect(shop, profile) as session:
            assert (session.profile, await session.call("pay", amount=1)) == (profile, "paid 1")
            (own,) = shop.sessions(payer.uri)
            assert shop.sessions() == [own]
            assert shop.sessions("https://registry.example/protocols/example.com/other/1.0") == []
            assert (own.peer.did, own.role, own.id, own.protocol) == (payer.agent.did, "payee", session.id, payer.uri)
            assert (await own.call("approve", amount=1), await own.call("approve", amount=101)) == (True, False)
            async with own.stream("numbers") as numbers:
                assert [await anext(numbers) for _ in range(3)] == [0, 1, 2]
            await until(lambda: payer.left)
        await until(lambda: not shop.sessions())
        assert own.is_over
        assert shop.metrics().calls.total == 3

    simulated(body)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("end", ["initiator", "responder", "cut"])
def test_the_function_of_a_session_lives_as_long_as_the_session(profile: str, end: str) -> None:
    async def body(simulation: Simulation, shop: Agent) -> None:
        payer, seen = Payer(simulation, "payer.example"), list[str]()

        @shop.on_session(payer.uri)
        async def watch(session: Session) -> None:
            try:
                seen.append("begun" if await session.call("approve", amount=1) else "refused")
                if end == "responder":
                    await session.close()
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")

        async with simulation.serving(shop), AsyncExitStack() as stack:
            session = await stack.enter_async_context(payer.connect(shop, profile))
            await until(lambda: seen)
            if end == "cut":
                await simulation.links["shop.example"].cut()
            elif end == "initiator":
                await session.close()
            await until(lambda: "cancelled" in seen)
            assert seen == ["begun", "cancelled"]
            await until(lambda: session.is_over and not shop.sessions())

    simulated(body)


def test_a_function_that_raises_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def body(simulation: Simulation, shop: Agent) -> None:
        payer = Payer(simulation, "payer.example")

        @shop.on_session(payer.uri)
        async def fail(session: Session) -> None:
            raise RuntimeError("a fault of the application")

        async with simulation.serving(shop), payer.connect(shop) as session:
            assert await session.call("pay", amount=1) == "paid 1"
            assert len(shop.sessions()) == 1

    with caplog.at_level(logging.ERROR):
        simulated(body)
    assert "a fault of the application" in caplog.text


def test_sessions_of_this_side_and_refused_ones_are_not_listed() -> None:
    async def body(simulation: Simulation, shop: Agent) -> None:
        payer = Payer(simulation, "payer.example")
        async with simulation.serving(shop), payer.connect(shop):
            assert payer.agent.sessions() == []
            with pytest.raises(Exception, match=r"role"):  # the code is tested in test_roles
                async with payer.agent.connect(SHOP, protocols=[payer.uri], role="bell"):
                    pass
            assert len(shop.sessions()) == 1

    simulated(body)


# Broadcasts


@pytest.mark.parametrize("profile", PROFILES)
def test_a_broadcast_has_one_outcome_a_session(profile: str) -> None:
    async def body(simulation: Simulation, shop: Agent) -> None:
        payers = [Payer(simulation, f"payer-{number}.example", answers=number != 1) for number in range(3)]
        async with simulation.serving(shop), AsyncExitStack() as stack:
            for payer in payers:
                await stack.enter_async_context(payer.connect(shop, profile))
            await until(lambda: len(shop.sessions()) == 3)  # a caller may have opened its session before the shop has
            outcomes = await shop.broadcast(payers[0].uri, "approve", amount=1)
            assert [outcome.session.peer.did for outcome in outcomes] == [payer.agent.did for payer in payers]
            assert [outcome.value for outcome in outcomes] == [True, None, True]
            assert [getattr(outcome.error, "code", None) for outcome in outcomes] == [None, "session.outcome-unknown", None]
            sessions = [one for one in shop.sessions() if one.peer.did == payers[2].agent.did]
            assert [one.value for one in await shop.broadcast(sessions, "approve", amount=101, within=1)] == [False]
            wrong = await shop.broadcast(payers[0].uri, "approve", amount="much")
            assert {getattr(outcome.error, "code", None) for outcome in wrong} == {"operation.arguments"}
            assert await shop.broadcast("https://registry.example/protocols/example.com/other/1.0", "approve", amount=1) == []
            assert [len(payer.asked) for payer in payers] == [1, 1, 2]

    simulated(body)


def test_a_cancelled_broadcast_gives_up_all_calls() -> None:
    async def body(simulation: Simulation, shop: Agent) -> None:
        payers = [Payer(simulation, f"payer-{number}.example", answers=False) for number in range(3)]
        async with simulation.serving(shop), AsyncExitStack() as stack:
            for payer in payers:
                await stack.enter_async_context(payer.connect(shop))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await shop.broadcast(payers[0].uri, "approve", amount=1)
            for payer in payers:
                payer.may_answer.set()
            outcomes = await shop.broadcast(payers[0].uri, "approve", amount=1)
            assert [outcome.value for outcome in outcomes] == [True] * 3

    simulated(body)


def outcomes_of(outcomes: Sequence[Any]) -> tuple[int, int]:
    return sum(outcome.value is True for outcome in outcomes), sum(outcome.error is not None for outcome in outcomes)


@pytest.mark.deep
@pytest.mark.threat(174)
def test_hanging_members_cost_the_others_little() -> None:
    async def body(simulation: Simulation, shop: Agent) -> None:
        quick, slow = Payer(simulation, "quick.example"), Payer(simulation, "slow.example", answers=False)
        async with simulation.serving(shop), AsyncExitStack() as stack:
            for number in range(500):
                await stack.enter_async_context((slow if number % 5 == 0 else quick).connect(shop))
            await until(lambda: len(shop.sessions()) == 500)  # an initiator with a remembered agreement waits for nothing
            outcomes = await shop.broadcast(quick.uri, "approve", amount=1)
            assert outcomes_of(outcomes) == (400, 100)
            # All are asked before the first call of those that hang is over, which is after a minute of virtual time.
            assert len(quick.asked) == 400
            assert max(quick.asked) < min(slow.asked) + 60
            # The sessions go on, also those that hung.
            slow.may_answer.set()
            assert outcomes_of(await shop.broadcast(quick.uri, "approve", amount=1)) == (500, 0)

    simulated(body)


@pytest.mark.threat(174)
def test_sessions_ended_during_a_broadcast_fail_alone() -> None:
    async def body(simulation: Simulation, shop: Agent) -> None:
        stay, leave = Payer(simulation, "stay.example"), Payer(simulation, "leave.example", answers=False)
        async with simulation.serving(shop), AsyncExitStack() as stack:
            leaving = [await stack.enter_async_context(leave.connect(shop)) for _ in range(3)]
            for _ in range(3):
                await stack.enter_async_context(stay.connect(shop))
            await until(lambda: len(shop.sessions()) == 6)
            broadcast = asyncio.create_task(shop.broadcast(stay.uri, "approve", amount=1))
            await until(lambda: len(leave.asked) == 3)
            for session in leaving:
                await session.close()
            assert outcomes_of(await broadcast) == (3, 3)
            await until(lambda: len(shop.sessions()) == 3)

    simulated(body)
