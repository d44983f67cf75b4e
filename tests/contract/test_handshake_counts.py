"""Count the work of a handshake, because counts do not depend on the load of a machine.

Two agents of one process meet over a real WebSocket, by a protocol without code, and a former agreement (0-RTT). Counted are the
calls of Python functions, the tasks and the timers of both sides, from connecting to the first reply. A bound only falls, unless
docs/decisions/sessions-and-transports.md says why.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

from ports import free_port

from treaty_agent import Agent, Identity, LocalProtocols

PROTOCOL = Path(__file__).parents[2] / "protocols" / "product-info" / "1.0"
PRODUCT = {"productId": "P12345", "productName": "Laptop", "productDescription": "A laptop.", "price": 1299.99, "currency": "USD"}
BOUNDS = {"calls": 2_800, "tasks": 5, "timers": 5}
ATTEMPTS = 10


class Counting:
    """Counts inside a `with` block, in the running event loop."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def __enter__(self) -> Counting:
        loop = asyncio.get_running_loop()
        self._call_at = loop.call_at

        def call_at(when: float, callback: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:
            self.counts["timers"] += 1
            return self._call_at(when, callback, *args, **options)

        def make_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
            self.counts["tasks"] += 1
            return asyncio.Task(work, loop=loop, **options)

        loop.call_at = call_at  # type: ignore[method-assign, assignment]
        loop.set_task_factory(make_task)  # type: ignore[arg-type]
        # A collection would call finalizers of earlier tests.
        gc.disable()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()
        loop = asyncio.get_running_loop()
        loop.call_at = self._call_at  # type: ignore[method-assign]
        loop.set_task_factory(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.counts["calls"] += 1


async def test_a_code_free_resumption_takes_few_calls_and_tasks(tmp_path: Path) -> None:
    protocols = LocalProtocols([PROTOCOL])
    (uri,) = protocols.uris
    seller = Agent(Identity.create(), protocols, home=tmp_path / "seller")
    buyer = Agent(Identity.create(), LocalProtocols([PROTOCOL]), home=tmp_path / "buyer")

    @seller.provides(uri)
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803 (the operation)
        return PRODUCT

    async def handshake() -> bool:
        async with buyer.connect(f"ws://127.0.0.1:{port}", protocols=[uri]) as session:
            assert await session.call("getProductInfo", productId="P12345") == PRODUCT
            return session.resumed

    port = free_port()
    async with buyer, seller, seller.listen("127.0.0.1", port):
        # The first agrees, and the others fill the caches of both sides.
        assert [await handshake() for _ in range(3)] == [False, True, True]
        counts = []
        # What runs in the background falls into some handshakes, more of them on a loaded machine.
        for _ in range(ATTEMPTS):
            await asyncio.sleep(0.1)  # the end of the former session, and what it stores in the background
            with Counting() as counting:
                async with buyer.connect(f"ws://127.0.0.1:{port}", protocols=[uri]) as session:
                    assert await session.call("getProductInfo", productId="P12345") == PRODUCT
                    counts.append(dict(counting.counts))
                    assert session.resumed
            if all(counts[-1][name] <= most for name, most in BOUNDS.items()):
                return
    raise AssertionError(f"none of {ATTEMPTS} handshakes keeps {BOUNDS}: {counts}")
