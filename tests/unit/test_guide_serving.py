"""The guide to serving is executed: its Python with a shop and a buyer over TLS, its commands in a home of their own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import ssl
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback
from meetings import LAPTOP, URI_1, buyer, shop
from streaming import URI, feeding

from treaty_agent.testing import Simulation, run
from treaty_consensus.errors import NotFound
from treaty_io.network.hosts import Address

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "serving.md").read_text(encoding="utf-8")
HOST = "shop.example"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("serving_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks("python"):
        # The stream of the protocol in `streaming` has another name than that of the guide.
        exec(compile(block.replace("findProducts", "watch"), "docs/guides/serving.md", "exec"), module.__dict__)
    return module


async def test_a_domain_is_enough_to_meet(tmp_path: Path, guide: Any) -> None:
    loopback, tls = Loopback(tmp_path), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    loopback.authority.issue_cert(HOST).configure_cert(tls)
    seller = shop(tmp_path, URI_1)
    async with seller.agent, guide.door(seller.agent, tls, "127.0.0.1", 0) as port:
        loopback.addresses[HOST] = Address("127.0.0.1", port)
        async with buyer(tmp_path, network=loopback.network()).agent as customer:
            assert await guide.visit(customer) == LAPTOP


async def test_a_search_gives_as_many_products_as_are_taken(tmp_path: Path, guide: Any) -> None:
    seller, customer = (feeding(name, tmp_path, operation={"result": {"type": "object"}}) for name in ("shop", "buyer"))
    guide.provide_search(seller.agent, URI, [{"name": f"lamp {number}"} for number in range(100)])
    seller.agent.provides(URI)(count)
    seller.agent.provides(URI)(note)
    async with (
        seller.agent,
        customer.agent,
        seller.agent.listen("127.0.0.1", 0) as port,
        customer.agent.connect(f"ws://127.0.0.1:{port}", protocols=[URI]) as session,
    ):
        assert await guide.first_five(session, "lamp 1") == [{"name": f"lamp {n}"} for n in (1, 10, 11, 12, 13)]
        assert await guide.first_five(session, "chair") == []


async def count() -> int:
    return 0


async def note(text: str = "") -> None: ...


async def test_the_numbers_of_an_agent_as_prometheus_reads_them(tmp_path: Path, guide: Any) -> None:
    seller, customer = shop(tmp_path, URI_1), buyer(tmp_path)
    async with (
        seller.agent,
        customer.agent,
        seller.agent.listen("127.0.0.1", 0) as port,
        customer.agent.connect(f"ws://127.0.0.1:{port}", protocols=[URI_1]) as session,
    ):
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        lines = guide.exposition(seller.agent).splitlines()
        assert {"treaty_sessions_in 1", 'treaty_functions_total{outcome="ok"} 1', "treaty_workers_running 0"} <= set(lines)
    assert 'treaty_calls_total{outcome="ok"} 1' in guide.exposition(customer.agent)


async def test_an_agent_of_a_home_begins_with_its_identity(tmp_path: Path, guide: Any) -> None:
    with pytest.raises(NotFound) as failure:
        await guide.serve_home(tmp_path, URI_1)
    assert failure.value.code == "identity.missing"


def test_a_room_greets_a_member_and_tells_it_what_was_said(guide: Any, caplog: pytest.LogCaptureFixture) -> None:
    calling = (Path(__file__).parents[2] / "docs" / "guides" / "calling.md").read_text(encoding="utf-8")
    matches = re.findall(r"^```python\n(.*?)^```$", calling, re.MULTILINE | re.DOTALL)
    for block in matches:
        if "serving=" in block:
            exec(compile(block, "docs/guides/calling.md", "exec"), guide.__dict__)

    async def main() -> None:
        async with Simulation([Path(__file__).parents[2] / "examples" / "chat"]) as simulation:
            room, member = simulation.agent("room.example"), simulation.agent("member.example")
            guide.provide_room(room, simulation.uri("chat"))
            async with simulation.serving(room):
                lines = await guide.listen_to(member, "wss://room.example", simulation.uri("chat"))
                following = asyncio.create_task(guide.follow(member, "room.example", simulation.uri("chat")))
                await asyncio.sleep(10)
                await simulation.links["room.example"].cut()
                await asyncio.sleep(10)
                following.cancel()
            assert lines == ["room: Welcome.", "Ada: Good morning."]

    with caplog.at_level(logging.INFO):
        run(main())
    messages = [one.getMessage() for one in caplog.records if one.name == "root"]
    again = ["Listening to did:wba:room.example", "room: Welcome."]
    assert [one for one in messages if "ended" not in one] == 2 * again
    assert "The session ended: session.closed" in messages


def test_the_commands_make_a_bound_did_and_rotate_its_key(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TREATY_HOME": str(tmp_path / "home"),
    }
    (script,) = blocks("sh")
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60)
    document = json.loads((tmp_path / "did.json").read_text())
    assert document["id"].startswith(f"did:wba:{HOST}:e1_")
    assert [key.partition("#")[2] for key in document["authentication"]] == ["key-2"]
