"""What waits too long is refused before it is begun, with an error that says so; and the numbers that an agent tells."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, TOPIC, URI_2, InlineRuntime, Party, buyer, meeting, party, shop

from treaty_agent import Capacity, SessionTimeouts
from treaty_agent.sessions.operation_errors import OperationError
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_handler import Call, Effect, Event, Received, Result
from treaty_io.codes import SessionCode
from treaty_sandbox.interface import RunningHandler

PRODUCT = {"productId": "P12345"}


class NoWorker:
    """A handler whose next events of a kind get no worker."""

    kept = None

    def __init__(self, inner: RunningHandler, kind: type[Event], times: int) -> None:
        self.inner, self.kind, self.times = inner, kind, times

    async def handle(self, event: Event) -> Sequence[Effect]:
        if isinstance(event, self.kind) and self.times:
            self.times -= 1
            raise Unavailable(SessionCode.BUSY, "All workers are busy. Nothing was begun.")
        return await self.inner.handle(event)

    async def close(self) -> None:
        await self.inner.close()


def without_workers(party: Party, kind: type[Event], times: int) -> Party:
    party.runtime.wrap = lambda handler: NoWorker(handler, kind, times)
    return party


async def one_session(customer: Party, port: int) -> Any:
    async with customer.agent.connect(f"ws://127.0.0.1:{port}", topic=TOPIC) as session:
        return await session.call("getProductInfo", PRODUCT)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something that happens elsewhere has happened."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


async def test_a_call_without_a_worker_was_not_begun(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), without_workers(buyer(tmp_path), Call, 1)
    async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
        with pytest.raises(Unavailable) as refused:
            await session.call("getProductInfo", PRODUCT)
        assert refused.value.code == "session.busy"
        assert await session.call("getProductInfo", PRODUCT) == LAPTOP
    assert dict(customer.agent.metrics().calls.outcomes) == {"error": 1, "ok": 1}
    assert dict(seller.agent.metrics().functions.outcomes) == {"ok": 1}


async def test_a_peer_repeats_a_call_that_was_not_begun(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), without_workers(buyer(tmp_path), Call, 2)
    async with (
        customer.agent,
        seller.agent,
        seller.agent.listen("127.0.0.1", 0) as port,
        customer.agent.peer(f"ws://127.0.0.1:{port}", topic=TOPIC) as peer,
    ):
        assert await peer.call("getProductInfo", PRODUCT) == LAPTOP
    assert dict(seller.agent.metrics().functions.outcomes) == {"ok": 1}


@pytest.mark.parametrize("kind", [Received, Result])
async def test_an_event_waits_twice_before_its_session_ends(tmp_path: Path, kind: type[Event]) -> None:
    for times in (1, 2):
        seller, customer = without_workers(shop(tmp_path), kind, times), buyer(tmp_path)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            if times == 1:
                assert await session.call("getProductInfo", PRODUCT) == LAPTOP
            else:
                with pytest.raises(TreatyError):
                    await session.call("getProductInfo", PRODUCT)


async def test_a_busy_agent_refuses_and_is_retried(tmp_path: Path) -> None:
    """One session opens at a time, and takes longer than the others wait."""
    runtime = InlineRuntime(delay=0.3)
    seller, customer = (
        shop(tmp_path, sandbox=runtime, capacity=Capacity(openings=1, wait=0.1)),
        buyer(tmp_path, capacity=Capacity(openings=2)),
    )
    async with customer.agent, seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
        assert await asyncio.gather(*(one_session(customer, port) for _ in range(3))) == [LAPTOP] * 3
        # Those that were refused are over, and never had a handler.
        ends = [event for event in seller.events if event.name == "end"]
        assert len(runtime.opened) == 3 < len(ends)
        # A session that its application has left waits for its report.
        await until(lambda: seller.agent.metrics().sessions_in == customer.agent.metrics().sessions_out == 0)
        samples = seller.agent.metrics()
        assert (samples.opening, samples.sessions_waiting) == (0, 0)


async def test_connecting_to_a_busy_agent_ends_in_time(tmp_path: Path) -> None:
    gate = asyncio.Event()

    class Full(InlineRuntime):
        async def open(self, *arguments: Any, **options: Any) -> RunningHandler:
            await gate.wait()
            return await super().open(*arguments, **options)

    runtime = Full()
    seller, customer = shop(tmp_path, sandbox=runtime, capacity=Capacity(openings=1, wait=0.05)), buyer(tmp_path)
    async with customer.agent, seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
        first = asyncio.create_task(one_session(customer, port))
        await until(lambda: seller.agent.metrics().opening)
        with pytest.raises(Unavailable) as late:
            async with customer.agent.connect(f"ws://127.0.0.1:{port}", topic=TOPIC, timeout=1):
                pass
        assert late.value.code in ("connection.failed", "session.busy")
        assert runtime.opened == []
        gate.set()
        assert await first == LAPTOP


async def test_sessions_are_opened_in_turns(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path, sandbox=InlineRuntime(delay=0.05), capacity=Capacity(openings=2)), buyer(tmp_path)
    most = 0
    async with customer.agent, seller.agent, seller.agent.listen("127.0.0.1", 0) as port:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, seller.agent.metrics().opening)
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        assert await asyncio.gather(*(one_session(customer, port) for _ in range(8))) == [LAPTOP] * 8
        watching.cancel()
    assert most == 2


async def test_an_initiator_bounds_its_openings_to_an_address(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path, sandbox=InlineRuntime(delay=0.05)), buyer(tmp_path, capacity=Capacity(openings=2))
    async with customer.agent, seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
        visits = [asyncio.create_task(one_session(customer, port)) for _ in range(8)]
        await until(lambda: customer.agent.metrics().sessions_waiting == 6)
        assert await asyncio.gather(*visits) == [LAPTOP] * 8
        assert customer.agent.metrics().sessions_waiting == 0


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_function_that_waits_too_long_never_runs(tmp_path: Path, threaded: bool) -> None:
    capacity = Capacity(threads=1, wait=0.1) if threaded else Capacity(functions=1, wait=0.1)
    seller, release, entered = party("shop", tmp_path, capacity=capacity), threading.Event(), list[str]()

    async def wait(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N803
        entered.append(productId)
        await asyncio.to_thread(release.wait, 60)
        return LAPTOP

    def block(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N803
        entered.append(productId)
        release.wait(60)
        return LAPTOP

    function = block if threaded else wait
    function.__name__ = "getProductInfo"
    seller.agent.provides(URI_2)(function)
    customer = buyer(tmp_path, timeouts=SessionTimeouts(idle=60))
    async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
        first = asyncio.create_task(session.call("getProductInfo", PRODUCT))
        await until(lambda: entered)
        with pytest.raises(OperationError) as refused:
            await session.call("getProductInfo", PRODUCT)
        assert refused.value.status == 503
        samples = seller.agent.metrics()
        assert (samples.functions.under_way, samples.threads) == (1, 1 if threaded else 0)
        release.set()
        assert await first == LAPTOP
    assert entered == ["P12345"]


async def test_a_call_that_is_given_up_while_it_waits_is_never_run(tmp_path: Path) -> None:
    seller, release, entered = party("shop", tmp_path, capacity=Capacity(functions=1, wait=30)), asyncio.Event(), list[str]()

    @seller.agent.provides(URI_2)
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        entered.append(productId)
        await release.wait()
        return LAPTOP

    customer = buyer(tmp_path)
    async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
        calls = [asyncio.create_task(session.call("getProductInfo", PRODUCT)) for _ in range(4)]
        await until(lambda: seller.agent.metrics().functions.waiting == 3)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert seller.agent.metrics().functions.waiting == 0
    assert entered == ["P12345"]
    assert dict(customer.agent.metrics().calls.outcomes) == {"cancelled": 4}
    assert dict(seller.agent.metrics().functions.outcomes) == {"cancelled": 1}
