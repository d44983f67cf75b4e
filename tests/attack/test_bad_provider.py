"""A protocol that an agent provides is bad, by its handler, its publisher or its registry: the others are served all the same."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from handler_packages import PROBE, package
from meetings import LAPTOP, TOPIC, URI_1, URI_2, Party, Published, SimulatedProtocols, buyer, meeting, shop
from rejections import rejection
from sandboxes import descendants, gone

from treaty_agent.sessions import provision
from treaty_agent.sessions.interfaces import SessionTimeouts
from treaty_agent.testing.virtual_time import run
from treaty_consensus.errors import NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.handler import HandlerPackage
from treaty_sandbox import SandboxLimits, SandboxPool

BAD = {
    "while True: pass": "sandbox.limit: .*longer",
    "held = []\nwhile True: held.append(bytes(1 << 20))": "sandbox.limit: .*memory",
    "def broken(:": "handler.failed: does not compile",
    "raise SystemExit": "handler.failed: raised",
    "import os; os._exit(0)": "sandbox.died",
    "import os; os.write(0, b'x' * 1000)": "handler.failed: interface|reply|wrote",
    PROBE.replace("handler = Handler()", ""): "handler.failed: raised",
}


def uri(number: int) -> str:
    return f"https://registry.example/protocols/example.com/bad{number}/1.0"


def provide_also(seller: Party, address: str) -> None:
    """Provide a protocol with an operation `serve`."""

    @seller.agent.provides(address, role="server")
    async def serve() -> str:
        return ""


class Registry(SimulatedProtocols):
    """A registry that refuses some protocols, and knows how often it was asked for each."""

    def __init__(self, **refused: TreatyError) -> None:
        super().__init__()
        self.refused = refused

    async def fetch(self, uri: str) -> Published:
        name = uri.split("/")[-2]
        if name in self.refused:
            self.fetched.append(uri)
            raise self.refused[name]
        return await super().fetch(uri)


@pytest.mark.deep
@pytest.mark.threat(47)
async def test_handlers_that_hang_eat_memory_or_do_not_compile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = descendants()
    # On a busy machine the slowest handler is only known after a while.
    seller = shop(tmp_path, URI_2, timeouts=SessionTimeouts(provide=60.0))

    async def preload(package: HandlerPackage, *, local: str) -> None:
        """As the runtime does it, with less patience."""
        async with SandboxPool(size=0, limits=SandboxLimits(load=3.0)) as pool:
            await (await pool.load(package, local=local, peers=[local])).close()

    seller.runtime.preload = preload  # type: ignore[method-assign]
    for number, source in enumerate(BAD):
        seller.protocols.published[uri(number)] = Published(uri(number), f"{number:064}", "bad", package(source))
        provide_also(seller, uri(number))
    with caplog.at_level(logging.ERROR, logger="treaty_agent"):
        async with meeting(seller) as wire, buyer(tmp_path).agent.connect_over(wire, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
    expected = {uri(number): code for number, code in enumerate(BAD.values())}
    unserved = seller.agent.unserved
    assert {address: rejection(error, expected[address]) for address, error in unserved.items()} == expected
    assert [event.protocol for event in seller.events if event.name == "unserved"] == list(seller.agent.unserved)
    for address, error in seller.agent.unserved.items():
        [said] = [record.getMessage() for record in caplog.records if address in record.getMessage()]
        assert error.code in said
        assert str(error) in said
    await seller.agent.aclose()
    assert gone(descendants() - before), before


async def test_a_peer_cannot_choose_what_is_not_served(tmp_path: Path) -> None:
    seller = shop(tmp_path, URI_2, URI_1, protocols=Registry())
    del seller.protocols.published[URI_2]
    async with meeting(seller) as wire, buyer(tmp_path).agent.connect_over(wire, protocols=[URI_2, URI_1]) as session:
        assert session.protocol == URI_1
    await seller.agent.aclose()


REVOKED = Refused("status.revoked", "Its publisher revoked it.", fix="Provide another version.")
AWAY = Unavailable("registry.unreachable", "The registry is away.", fix="Try again later.")


def two(tmp_path: Path, **refused: TreatyError) -> Party:
    """A shop that provides two protocols, of which the registry refuses some."""
    seller = shop(tmp_path, URI_2, protocols=Registry(**refused))
    seller.protocols.published[uri(1)] = Published(uri(1), "1" * 64, "other", package())
    provide_also(seller, uri(1))
    return seller


@pytest.mark.threat(47)
def test_a_protocol_that_was_revoked_or_whose_registry_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        for number, error in enumerate((REVOKED, AWAY)):
            seller = two(tmp_path / str(number), bad1=error)
            await seller.agent.prepare()
            assert dict(seller.agent.unserved) == {uri(1): error}
            async with meeting(seller) as wire, buyer(tmp_path / str(number)).agent.connect_over(wire, topic=TOPIC) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            await seller.agent.aclose()

    run(main())


def test_it_is_tried_again_and_served_once_it_is_well(tmp_path: Path) -> None:
    async def main() -> None:
        seller = two(tmp_path, bad1=REVOKED)
        await seller.agent.prepare()
        await seller.agent.prepare()  # and begins no second round
        tally = seller.protocols.fetched.count(uri(1))
        await asyncio.sleep(3 * provision.RETRY + 1)
        assert seller.protocols.fetched.count(uri(1)) == tally + 2  # after one minute, and two more
        assert seller.protocols.fetched.count(URI_2) == 1
        registry: Any = seller.protocols
        registry.refused.clear()
        await asyncio.sleep(provision.MAX_RETRY)
        assert not seller.agent.unserved
        assert seller.names() == ["unserved", "revoked"] + ["unserved"] * (tally + 1) + ["served"]
        await seller.agent.aclose()

    run(main())


def test_a_registry_that_was_away_is_asked_again_soon(tmp_path: Path) -> None:
    async def main() -> None:
        seller = two(tmp_path, bad1=AWAY)
        await seller.agent.prepare()
        registry: Any = seller.protocols
        registry.refused.clear()
        await asyncio.sleep(provision.SOON + 1)
        assert not seller.agent.unserved
        assert seller.names() == ["unserved", "served"]
        await seller.agent.aclose()

    run(main())


class Dripping(SimulatedProtocols):
    """A registry that answers for some protocols after a time of their own (seconds)."""

    def __init__(self, **seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def fetch(self, uri: str) -> Published:
        await asyncio.sleep(self.seconds.get(uri.split("/")[-2], 0.0))
        return await super().fetch(uri)


@pytest.mark.threat(47)
def test_a_dripping_registry_delays_no_other_protocol(tmp_path: Path) -> None:
    async def main() -> None:
        now = asyncio.get_running_loop().time
        timeouts = SessionTimeouts(provide=5.0)
        seller = shop(tmp_path, URI_2, protocols=Dripping(bad1=600.0, bad2=3.0), timeouts=timeouts)
        for number in (1, 2):
            seller.protocols.published[uri(number)] = Published(uri(number), f"{number}" * 64, "other", package())
            provide_also(seller, uri(number))
        begun = now()
        await seller.agent.prepare()
        assert 3.0 <= now() - begun < 60.0
        assert {address: error.code for address, error in seller.agent.unserved.items()} == {uri(1): "agent.late"}
        async with meeting(seller) as wire:
            with pytest.raises(Unavailable) as raised_error:
                async with buyer(tmp_path / "early").agent.connect_over(wire, protocols=[uri(1)]):
                    pass
        assert raised_error.value.code == "session.protocol-unavailable"
        async with meeting(seller) as wire, buyer(tmp_path).agent.connect_over(wire, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        await seller.agent.prepare()  # begins nothing that is under way
        await asyncio.sleep(600)
        assert not seller.agent.unserved
        assert seller.protocols.fetched.count(uri(1)) == 1
        assert [(event.name, event.protocol) for event in seller.events if "served" in event.name] == [
            ("unserved", uri(1)),
            ("served", uri(1)),
        ]
        await seller.agent.aclose()

    run(main())


def test_the_first_that_is_ready_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path, URI_2, protocols=Dripping(**{"product-info": 600.0}))
        provide_also(seller, uri(1))  # which nobody published
        await seller.agent.prepare()
        assert list(seller.agent.unserved) == [uri(1)]
        await seller.agent.aclose()

    run(main())


def test_a_protocol_that_is_still_awaited_ends_with_the_agent(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path, URI_2, protocols=Dripping(bad1=1e6))
        provide_also(seller, uri(1))
        await seller.agent.prepare()
        await seller.agent.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_where_none_is_left_the_agent_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        unknown = NotFound("protocol.unknown", "It is not published.")
        seller = two(tmp_path, bad1=unknown, **{"product-info": REVOKED})
        with pytest.raises(Refused) as caught:
            await seller.agent.prepare()
        assert caught.value is REVOKED
        assert not seller.agent.unserved
        await seller.agent.aclose()

    run(main())


def test_an_agent_starts_without_its_registry(tmp_path: Path) -> None:
    async def main() -> None:
        seller = two(tmp_path, bad1=REVOKED, **{"product-info": AWAY})
        await seller.agent.prepare()
        async with meeting(seller) as wire:
            with pytest.raises(Unavailable) as error:
                async with buyer(tmp_path).agent.connect_over(wire, topic=TOPIC):
                    pass
        assert error.value.code == "session.protocol-unavailable"
        registry: Any = seller.protocols
        registry.refused.clear()
        await asyncio.sleep(provision.SOON + 1)
        async with meeting(seller) as wire, buyer(tmp_path / "later").agent.connect_over(wire, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        await seller.agent.aclose()

    run(main())
