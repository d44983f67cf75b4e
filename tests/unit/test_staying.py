"""A role that only serves stays in a session: it heals, says why a session ended, and needs no call of its own."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, TOPIC, buyer, shop

from treaty_agent import Agent, AgentConfig, Policy, Session
from treaty_agent.sync import SyncAgent
from treaty_agent.testing import Simulation, run
from treaty_consensus.errors import Malformed, Refused, Unavailable

PAYMENT = Path(__file__).parents[1] / "support" / "payment"
SHOP = "wss://shop.example"


class Market:
    """A shop that asks its payers, and a payer that only answers."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.uri = simulation, simulation.uri("payment")
        self.payer, self.asked = simulation.agent("payer.example"), list[float]()
        self.shop = self.open_shop()

    def open_shop(self) -> Agent:
        agent = self.simulation.agent("shop.example")
        self.provide(agent)
        return agent

    def provide(self, agent: Agent) -> None:
        @agent.provides(self.uri, operation="pay", role="payee")
        async def take_money(amount: int) -> str:
            return f"paid {amount}"

        @agent.provides(self.uri, role="payee")
        async def count() -> int:
            return 7

    async def approve(self, amount: int) -> bool:
        self.asked.append(amount)
        return amount <= 100

    async def numbers(self) -> Any:
        yield 1

    def stay(self, address: str = SHOP, **options: Any) -> Any:
        serving: list[Callable[..., Any]] = [self.approve, self.numbers]
        return self.payer.stay(address, protocols=[self.uri], role="payer", serving=serving, **options)

    async def session(self) -> Session:
        """Wait until the shop has one session, which is open."""
        async with asyncio.timeout(3600):
            while [one.error for one in self.shop.sessions()] != [None]:  # noqa: ASYNC110  # the shop has no event for a test
                await asyncio.sleep(0.01)
        return self.shop.sessions()[0]


def simulated(body: Callable[[Market], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with Simulation([PAYMENT]) as simulation:
            await body(Market(simulation))

    run(main())


def test_remaining_members_are_asked_without_a_call(caplog: pytest.LogCaptureFixture) -> None:
    async def body(market: Market) -> None:
        errors, seen = list[str](), list[Session]()

        async def follow(stay: Any) -> None:
            async for session in stay:
                seen.append(session)
                errors.append((await session.wait_ended()).code)

        async with market.simulation.serving(market.shop), market.stay() as stay:
            following = asyncio.create_task(follow(stay))
            for attempt in range(1, 4):
                asking = await market.session()
                assert await asking.call("approve", amount=attempt, within=5)
                assert (stay.session, stay.session.error) == (seen[-1], None)
                assert await stay.call("pay", amount=1) == "paid 1", "by the same session"
                await market.simulation.links["shop.example"].cut()
                assert await asking.wait_ended() is asking.error
            asking = await market.session()
        await following
        assert stay.session is None
        assert (await asking.wait_ended()).code == "session.closed", "in good order"
        assert errors == ["session.closed"] * 4
        assert len({*map(id, seen)}) == 4
        assert market.asked == [1, 2, 3]

    with caplog.at_level(logging.INFO, "treaty_agent.sessions.stay"):
        simulated(body)
    assert caplog.text.count("ended and is opened again: The session is over.") == 3


def test_no_refusal_is_the_last_word(caplog: pytest.LogCaptureFixture) -> None:
    async def body(market: Market) -> None:
        async with market.simulation.serving(market.shop), market.stay() as stay:
            session = stay.session
            await market.shop.withdraw(market.uri)
            assert (await session.wait_ended()).peer_code == session.error.peer_code == "session.withdrawn"
            await asyncio.sleep(600)
            assert (stay.session, stay.error.code) == (None, "session.no-common-protocol")
            market.provide(market.shop)
            asking = await market.session()
            assert await asking.call("approve", amount=1)
            assert stay.session is not None

    simulated(body)
    refusals = [one for one in caplog.records if one.levelname == "WARNING" and "no-common-protocol" in one.getMessage()]
    assert 10 <= len(refusals) <= 60, "after pauses"


@pytest.mark.parametrize(("role", "other"), [("payer", "payee"), ("hearer", "bell")])
def test_a_role_that_only_serves_proposes_the_report(role: str, other: str) -> None:
    async def main() -> None:
        async with Simulation([PAYMENT]) as simulation:
            config = AgentConfig(Policy(report=True, report_delay=0))
            host, guest = simulation.agent("host.example", config), simulation.agent("guest.example", config)
            uri, served = simulation.uri("payment"), list[str]()

            async def approve(amount: int) -> bool:
                served.append("approve")
                return True

            async def rang(bell: str) -> None:
                served.append("rang")

            async def numbers() -> AsyncIterator[int]:
                yield 1

            async def pay(amount: int) -> str:
                return "paid"

            async def count() -> int:
                return 7

            async def welcome(session: Session) -> None:
                pass

            host.on_session(uri, role=other)(welcome)
            if other == "payee":
                host.provides(uri, role=other)(pay)
                host.provides(uri, role=other)(count)
            serving: list[Callable[..., Any]] = [approve, numbers] if role == "payer" else [rang]
            async with simulation.serving(host):
                async with guest.stay("host.example", protocols=[uri], role=role, serving=serving):
                    await asyncio.sleep(60)
                    (asking,) = host.sessions()
                    assert simulation.registry.reports == [], "nothing was done"
                    await (asking.call("approve", amount=1) if role == "payer" else asking.call("rang", bell="front"))
                    await asyncio.sleep(60)
                    assert len(simulation.registry.reports) == len(served) == 1
                await guest.aclose()
            assert len(simulation.registry.reports) == 1

    run(main())


def test_a_within_that_may_mean_an_argument_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "search"
    shutil.copytree(PAYMENT, folder)
    manifest = folder / "manifest.json"
    written = manifest.read_text().replace(
        '"amount": {"type": "integer"}}', '"amount": {"type": "integer"}, "within": {"type": "integer"}}', 1
    )
    manifest.write_text(written)

    async def main() -> None:
        async with Simulation([folder]) as simulation:
            market, seconds = Market(simulation), list[int]()
            host = simulation.agent("host.example")

            @host.provides(market.uri, role="payee")
            async def pay(amount: int, within: int = 0) -> str:
                seconds.append(within)
                return "paid"

            @host.provides(market.uri, role="payee")
            async def count() -> int:
                return 7

            serving: list[Callable[..., Any]] = [market.approve, market.numbers]
            peer = market.payer.peer("wss://host.example", protocols=[market.uri], role="payer", serving=serving)
            async with simulation.serving(host), peer:
                for arguments in ({}, {"amount": 1}):
                    with pytest.raises(Malformed) as unclear:
                        await peer.call("pay", arguments, amount=1, within=5)
                    assert unclear.value.code == "operation.arguments"
                assert seconds == []
                assert await peer.call("pay", {"amount": 1, "within": 9}, within=5) == "paid"
                assert await peer.call("pay", amount=1) == "paid"
                assert seconds == [9, 0]

    run(main())


def test_the_first_session_is_opened_or_its_error_raised() -> None:
    async def body(market: Market) -> None:
        market.simulation.links["shop.example"].refuses = True
        with pytest.raises(Unavailable) as absent:
            async with market.stay(timeout=5):
                raise AssertionError("a session with an agent that is not there")
        assert absent.value.code == "connection.failed"
        market.simulation.links["shop.example"].refuses = False
        with pytest.raises(Refused) as role:
            async with market.simulation.serving(market.shop), market.stay(did="did:wba:other.example"):
                raise AssertionError("a session with another agent")
        assert role.value.code == "hello.destination"
        assert market.shop.sessions() == []

    simulated(body)


def test_a_script_calls_without_async_beside_a_running_loop(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path)
        async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
            # In the thread of a loop that is running, as in a notebook, the calls would block that loop and its shop.
            await asyncio.to_thread(script, f"ws://127.0.0.1:{port}")

    def script(url: str) -> None:
        with SyncAgent(buyer(tmp_path).agent) as agent:
            for opened in (agent.connect, agent.peer, agent.stay):
                with opened(url, topic=TOPIC) as peer:
                    assert peer.call("getProductInfo", productId="P12345", within=5) == LAPTOP
                    with pytest.raises(Malformed) as wrong:
                        list(peer.stream("getProductInfo", productId="P12345"))
                    assert wrong.value.code == "session.operation"
            with pytest.raises(Malformed), agent.connect("no address", topic=TOPIC):
                raise AssertionError("a session with nobody")

    asyncio.run(main())
