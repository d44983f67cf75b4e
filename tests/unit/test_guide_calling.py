"""The guide to calling is executed: its Python with a shop on a socket, one that changed hands, and none."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, PROTOCOLS, buyer, shop

from treaty_agent.sessions.opening import ChangedPeer
from treaty_agent.testing import PeerDouble, Simulation, run
from treaty_io.identity import ClaimedPeer, ProvedPeer

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "calling.md").read_text(encoding="utf-8")


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("calling_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/guides/calling.md", "exec"), module.__dict__)
    return module


async def test_the_outcomes_of_a_call(tmp_path: Path, guide: Any) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path).agent
    async with customer, seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
        url = f"ws://127.0.0.1:{port}"
        assert await guide.look_up(customer, url, "P12345") == LAPTOP["productName"]
        assert "404" in await guide.look_up(customer, url, "P99999")
        price = await asyncio.to_thread(guide.price, buyer(tmp_path).agent, url, "P12345")
        assert price == LAPTOP["price"]


def test_silence_is_no_answer_with_an_error(guide: Any) -> None:
    async def main() -> None:
        async with Simulation([PROTOCOLS / "1.1"]) as simulation:
            seller = PeerDouble(simulation.agent("shop.example"), simulation.uri("product-info"), {"getProductInfo": LAPTOP})
            customer = simulation.agent("buyer.example")
            async with simulation.serving(seller.agent):
                seller.delay = 3600
                outcome = await guide.look_up(customer, "wss://shop.example", "P12345")
                assert (outcome, len(seller.calls)) == ("The call was sent, and no answer came: ask before you repeat it.", 1)

    run(main())


async def test_a_change_that_is_known_is_accepted(guide: Any) -> None:
    peer, other = ProvedPeer("did:wba:old-shop.example"), ProvedPeer("did:wba:other.example")
    changed = ChangedPeer("wss://shop.example", peer, ProvedPeer("did:wba:shop.example"))
    assert await guide.judge(changed)
    for proof in (other, ClaimedPeer("did:wba:shop.example")):
        assert not await guide.judge(ChangedPeer(changed.name, peer, proof))
