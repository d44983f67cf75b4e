"""A stranger that takes all it can get from one network: connections, openings, threads. Others still get their part."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from bench.sessions import Buyer
from meetings import LAPTOP, TOPIC, URI_2, InlineRuntime, buyer, shop

from treaty_agent import Capacity
from treaty_agent.sessions.call_context import CallContext
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.sessions.operations import Functions
from treaty_agent.transport import listener
from treaty_agent.transport.application import ANY_NETWORK
from treaty_agent.transport.connection import Connection
from treaty_anp.hello_profile import hello
from treaty_consensus.handler import HandlerPackage, Operation
from treaty_io.network.turns import asking_for
from treaty_sandbox.interface import RunningHandler

WAIT = Operation("wait", {}, {}, MappingProxyType({}), idempotent=True, timeout=60)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something that happens elsewhere has happened."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


@asynccontextmanager
async def guests(port: int, number: int, network: int) -> AsyncIterator[list[Buyer]]:
    """WebSockets from 127.0.NETWORK.0/24; those that were refused are lost."""
    loop = asyncio.get_running_loop()
    came = [
        (await loop.create_connection(Buyer, "127.0.0.1", port, local_addr=(f"127.0.{network}.{1 + count % 200}", 0)))[1]
        for count in range(number)
    ]
    try:
        for guest in came:
            if not guest.lost:
                await guest_is_in_or_out(guest)
        yield came
    finally:
        for guest in came:
            guest.close()


async def guest_is_in_or_out(guest: Buyer) -> None:
    try:
        await guest.receive()
    except Exception:
        assert guest.lost


@pytest.mark.threat(190)
async def test_one_network_gets_at_most_half_of_the_connections(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def accept(connection: Connection) -> None:
        await over.wait()

    most = 4 * ANY_NETWORK
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listener.listen(accept, "127.0.0.1", 0, max_connections=most))
        stack.callback(over.set)
        for network, share in ((1, most // 2), (2, ANY_NETWORK), (3, ANY_NETWORK)):
            came = await stack.enter_async_context(guests(port, share + 8, network))
            assert sum(not guest.lost for guest in came) == share
        full = await stack.enter_async_context(guests(port, 1, 4))
        assert full[0].lost, "now all places are taken, by three networks"


@pytest.mark.threat(190)
async def test_many_sessions_of_a_network_delay_others_by_one_opening(tmp_path: Path) -> None:
    flood, going = 20, asyncio.Event()

    class Slow(InlineRuntime):
        async def open(self, package: HandlerPackage, role: str, **options: Any) -> RunningHandler:
            await going.wait()
            peers.append(options["peer"])
            return await super().open(package, role, **options)

    peers = list[str]()
    seller = shop(tmp_path, sandbox=Slow(), capacity=Capacity(openings=1, wait=60))
    customer = buyer(tmp_path)
    async with customer.agent, seller.agent, seller.agent.listen("127.0.0.1", 0) as port, guests(port, flood, 1) as strangers:
        for number, stranger in enumerate(strangers):
            stranger.send(
                hello.Hello(
                    type="sourceHello",
                    message_id=os.urandom(8).hex(),
                    session_id=os.urandom(8).hex(),
                    source_did=f"did:wba:stranger-{number}.example",
                    destination_did="",
                    capabilities=(),
                    random=os.urandom(16).hex(),
                    candidate_protocols=(URI_2,),
                ).format()
            )
        await until(lambda: seller.agent.metrics().sessions_waiting == flood - 1)
        honest = asyncio.create_task(one_session(customer.agent.connect(f"ws://127.0.0.1:{port}", topic=TOPIC)))
        await until(lambda: seller.agent.metrics().sessions_waiting == flood)
        going.set()
        assert await honest == LAPTOP
        assert peers.index("did:wba:buyer.example") <= 1


async def one_session(connecting: object) -> object:
    async with connecting as session:  # type: ignore[attr-defined]
        return await session.call("getProductInfo", productId="P12345")


@pytest.mark.threat(190)
async def test_hanging_functions_of_a_network_leave_threads_for_others() -> None:
    functions, release = Functions(Capacity(threads=8, wait=0.2)), threading.Event()

    def wait(hangs: bool) -> bool:
        if hangs:
            release.wait(60)
        return hangs

    functions.add(wait)

    async def call(network: str, arguments: Mapping[str, bool]) -> object:
        with asking_for(network):
            try:
                return await functions.call(CallContext(), WAIT, arguments)
            except OperationError as error:
                return error.status

    hanging = [asyncio.create_task(call("203.0.113.7", {"hangs": True})) for _ in range(20)]
    await until(lambda: functions.threads.taken == 4)
    for _ in range(10):
        assert await call("198.51.100.1", {"hangs": False}) is False
    await until(lambda: functions.threads.waiting == 0)
    release.set()
    outcomes = await asyncio.gather(*hanging)
    assert sorted(map(str, outcomes)) == ["503"] * 16 + ["True"] * 4, "those that waited too long never ran"
    functions.close()
