"""Many sessions opened at once between two agents with sandboxes: all open, in turns, over a few workers. On sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from depth import FULL
from meetings import LAPTOP
from sandboxed import write_project

from treaty_agent import Agent, AgentConfig, Capacity, Identity, Passivation, Policy, SandboxLimits, SessionTimeouts
from treaty_client.protocols.local import LocalProtocols

DECLARED = Path(__file__).parents[2] / "protocols" / "product-info" / "1.1"
BURST = 200 if FULL else 60
# The sandboxes of both sides start on one machine, which may be busy with other tests.
PATIENT = SessionTimeouts(connect=300, hello=60, code=120)
UNHURRIED = SandboxLimits(start=120, load=60, event=60)


@asynccontextmanager
async def two_agents(home: Path, folder: Path, **options: Any) -> AsyncIterator[tuple[Agent, Agent, str, str]]:
    """A buyer, a shop, its URL and the protocol. `options`: of the configurations of both."""
    protocols = LocalProtocols([folder])
    async with AsyncExitStack() as stack:
        buyer, shop = [
            await stack.enter_async_context(
                Agent(
                    Identity.create(), protocols, AgentConfig(Policy(), PATIENT, sandbox=UNHURRIED, home=home / name, **options)
                )
            )
            for name in ("buyer", "shop")
        ]

        @shop.provides(protocols.uris[0])
        async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
            return LAPTOP

        port = await stack.enter_async_context(shop.listen("127.0.0.1", 0))
        yield buyer, shop, f"ws://127.0.0.1:{port}", protocols.uris[0]


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["code", "declared"])
async def test_a_burst_of_sessions_all_open_and_stay(tmp_path: Path, kind: str) -> None:
    folder = write_project(tmp_path / "project", "1.1") if kind == "code" else DECLARED
    # Fewer workers than sessions: while the last ones open, the first ones rest.
    workers = Passivation(max_workers=24, starts=4, wait=60)
    async with two_agents(tmp_path, folder, workers=workers, capacity=Capacity(openings=8, wait=50)) as (buyer, shop, url, uri):
        all_open, most = asyncio.Barrier(BURST), 0

        async def visit() -> None:
            nonlocal most
            async with buyer.connect(url, protocols=[uri]) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                most = max(most, shop.metrics().opening, buyer.metrics().workers.running)
                await all_open.wait()
                assert (buyer.metrics().sessions_out, shop.metrics().sessions_in) == (BURST, BURST)
                await all_open.wait()  # none leaves before all have looked

        await asyncio.gather(*(visit() for _ in range(BURST)))
        samples = buyer.metrics()
        assert (samples.calls.outcomes, samples.calls.under_way, samples.sessions_waiting) == ({"ok": BURST}, 0, 0)
        assert shop.metrics().functions.outcomes == {"ok": BURST}
        assert most <= 24
        assert samples.workers.failed == shop.metrics().workers.failed == 0
        assert samples.workers.started >= (BURST if kind == "code" else 0)
