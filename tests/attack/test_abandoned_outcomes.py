"""A handler that dies while somebody waits, or gave up waiting, writes nothing on the host's error stream by it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from handler_packages import LOCAL, PEER, package
from meetings import TOPIC, buyer, meeting, shop
from sandboxes import probe

from treaty_consensus.errors import TreatyError
from treaty_handler import Call, Opened
from treaty_sandbox import SandboxPool

SAY = """
import os, msgspec
def say(*parts):
    payload = msgspec.msgpack.encode(list(parts))
    os.write(0, len(payload).to_bytes(4, "big") + payload)
"""
HAND_WRITTEN = {
    "a reply, and the end": SAY + "say('effects', [])\nos._exit(0)",
    "a refusal, and the end": SAY + "say('failed', 'rejected', 'x')\nos._exit(0)",
    "two replies": SAY + "say('effects', [])\nsay('effects', [])\nos._exit(0)",
    "a reply and its own": SAY + "say('effects', [])",
    "half a reply": "import os\nos.write(0, b'\\x00\\x00\\x00\\x10ab')\nos._exit(0)",
    "no reply": "import os\nos._exit(0)",
}


@asynccontextmanager
async def nothing_unhandled() -> AsyncIterator[None]:
    """Fails when the loop has something to complain of by the end."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    yield
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    assert [(complaint["message"], complaint.get("exception")) for complaint in complaints] == []


@pytest.mark.sample(1)
@pytest.mark.threat(53)
@pytest.mark.parametrize("code", HAND_WRITTEN.values(), ids=list(HAND_WRITTEN))
async def test_a_handler_writes_a_reply_by_hand_and_dies(code: str) -> None:
    async with nothing_unhandled(), probe() as inside:

        async def ask(code: str) -> None:
            with suppress(TreatyError):
                await inside.effects(code)

        waiting = [asyncio.create_task(ask(text)) for text in (code, "value = 1", "value = 2")]
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await ask("value = 3")


@pytest.mark.deep
@pytest.mark.threat(53)
async def test_a_worker_that_is_ended_while_it_starts() -> None:
    async with nothing_unhandled():
        for steps in range(6):
            pool = SandboxPool(size=1)
            warming = asyncio.create_task(pool.warm())
            for _ in range(steps):
                await asyncio.sleep(0)
            await pool.close()
            await asyncio.gather(warming, return_exceptions=True)


async def test_a_caller_gives_up_and_then_the_handler_dies() -> None:
    async with nothing_unhandled(), SandboxPool(size=0) as pool:
        worker = await pool.load_code(package(), local=LOCAL, peers=[PEER])
        session = await worker.open("client")
        await session.handle(Opened())
        call = Call(call="1", operation="ask", arguments={"code": "while True: pass"})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.handle(call), 0.1)
        worker.kill()


async def test_who_asked_a_session_that_ends_meanwhile(tmp_path: Path) -> None:
    """A question is sent after the session's end was decided: it fails where it is sent, and again where the answer would be."""
    async with nothing_unhandled():
        seller, customer = shop(tmp_path), buyer(tmp_path)
        async with meeting(seller) as wire:
            with suppress(TreatyError):
                async with customer.agent.connect_over(wire, topic=TOPIC) as session:
                    asking = [asyncio.create_task(session.ask("Why?")) for _ in range(3)]
                    calling = asyncio.create_task(session.call("getProductInfo", productId="P12345"))
                    await asyncio.sleep(0)
                    await wire.inner.close("gone")
                    calling.cancel()
                    await asyncio.gather(*asking, calling, return_exceptions=True)
                    await session.call("getProductInfo", productId="P12345")
        await seller.agent.aclose()
        await customer.agent.aclose()
