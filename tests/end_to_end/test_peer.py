"""A peer that is killed, moved, idle, busy or gone: `Agent.peer` calls on, and says when it does not know. Real processes."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from meetings import LAPTOP, URI_2, Published, SimulatedProtocols, product_info
from shop_process import agent

from treaty_agent.sessions.interfaces import AgentEvent, PeerSettings, SessionTimeouts
from treaty_agent.sessions.operation_errors import OperationError, OutcomeUnknown
from treaty_consensus.errors import Unavailable
from treaty_consensus.handler import Operation

SHOP = Path(__file__).parents[1] / "support" / "shop_process.py"


class Shop:
    """A shop's process, which may be killed and started again at its port."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        self.process: subprocess.Popen[str] | None = None

    def start(self, *, at: int = 0) -> None:
        self.port = at or self.port
        command = [sys.executable, str(SHOP), str(self.home), str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.line() == str(self.port)

    def line(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def calls(self) -> list[str]:
        return (self.home / "calls").read_text().split()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop")
    shop.start()
    yield shop
    shop.kill()


def not_idempotent() -> SimulatedProtocols:
    """The protocol as one in which the call must not be repeated."""
    protocol = product_info(URI_2)
    manifest = protocol.package.manifest

    def once(operations: Mapping[str, Operation]) -> dict[str, Operation]:
        return {name: dataclasses.replace(operation, idempotent=False) for name, operation in operations.items()}

    roles = {name: dataclasses.replace(role, calls=once(role.calls)) for name, role in manifest.roles.items()}
    package = dataclasses.replace(protocol.package, manifest=dataclasses.replace(manifest, roles=roles))
    return SimulatedProtocols({URI_2: Published(protocol.uri, protocol.hash, protocol.topic, package, 0, protocol.document)})


async def killed_in_the_middle(shop: Shop, calling: asyncio.Task[object]) -> None:
    assert await asyncio.to_thread(shop.line) == "CALLED"
    assert not calling.done()
    shop.kill()


async def test_an_idempotent_call_survives_the_death_of_the_peer(shop: Shop, tmp_path: Path) -> None:
    async with (
        agent("buyer.example", tmp_path / "buyer") as buyer,
        buyer.peer(shop.url, protocols=[URI_2]) as peer,
    ):
        assert await peer.call("getProductInfo", productId="P12345") == LAPTOP
        assert peer.did == "did:wba:shop.example"
        # A minute, because a busy machine starts the shop slowly.
        calling = asyncio.create_task(peer.call("getProductInfo", productId="HANG-ONCE", within=60))
        await killed_in_the_middle(shop, calling)
        await asyncio.to_thread(shop.start)
        assert await calling == LAPTOP
    assert shop.calls() == ["HANG-ONCE"] * 2


@pytest.mark.deep
async def test_another_call_fails_with_an_unknown_outcome(shop: Shop, tmp_path: Path) -> None:
    async with (
        agent("buyer.example", tmp_path / "buyer", protocols=not_idempotent()) as buyer,
        buyer.peer(shop.url, protocols=[URI_2]) as peer,
    ):
        calling = asyncio.create_task(peer.call("getProductInfo", productId="HANG-ONCE"))
        await killed_in_the_middle(shop, calling)
        await asyncio.to_thread(shop.start)
        with pytest.raises(OutcomeUnknown) as unknown:
            await calling
        assert unknown.value.code == "session.outcome-unknown"
        assert "unknown whether getProductInfo was done" in unknown.value.message
        # A call that was not sent is repeated all the same: the peer is found again.
        assert await peer.call("getProductInfo", productId="P12345") == LAPTOP
    assert shop.calls() == ["HANG-ONCE"]


@pytest.mark.deep
async def test_a_crash_of_the_handler_at_the_other_side_is_healed(shop: Shop, tmp_path: Path) -> None:
    async with (
        agent("buyer.example", tmp_path / "buyer") as buyer,
        buyer.peer(shop.url, protocols=[URI_2]) as peer,
    ):
        assert await peer.call("getProductInfo", productId="CRASH-ONCE") == LAPTOP


@pytest.mark.deep
async def test_a_peer_that_is_away_for_long_is_waited_for(shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The time for connecting counts, and not the attempts of a call."""
    caplog.set_level("INFO", "treaty_agent.sessions.peer")
    settings, timeouts = PeerSettings(attempts=2), SessionTimeouts(connect=60)
    async with (
        agent("buyer.example", tmp_path / "buyer", peers=settings, timeouts=timeouts) as buyer,
        buyer.peer(shop.url, protocols=[URI_2]) as peer,
    ):
        assert await peer.call("getProductInfo", productId="P12345") == LAPTOP
        shop.kill()
        calling = asyncio.create_task(peer.call("getProductInfo", productId="P12345"))
        while caplog.text.count("No session with") < 3:  # noqa: ASYNC110  # the log tells no event
            await asyncio.sleep(0.05)
        assert not calling.done()
        await asyncio.to_thread(shop.start)
        assert await calling == LAPTOP


@pytest.mark.deep
async def test_an_idle_session_is_no_error(shop: Shop, tmp_path: Path) -> None:
    events: list[AgentEvent] = []
    over = asyncio.Event()

    def note(event: AgentEvent) -> None:
        events.append(event)
        if event.name == "end":
            over.set()

    async with (
        agent("buyer.example", tmp_path / "buyer", timeouts=SessionTimeouts(idle=0.3), on_event=note) as buyer,
        buyer.peer(shop.url, protocols=[URI_2]) as peer,
    ):
        assert await peer.call("getProductInfo", productId="P12345") == LAPTOP
        await over.wait()
        assert await peer.call("getProductInfo", productId="P12345") == LAPTOP
    assert [event.name for event in events].count("running") == 2


@pytest.mark.deep
async def test_a_burst_on_a_cold_peer_makes_one_connection(shop: Shop, tmp_path: Path) -> None:
    events: list[AgentEvent] = []
    async with (
        agent("buyer.example", tmp_path / "buyer", on_event=events.append) as buyer,
        buyer.peer(shop.url, protocols=[URI_2]) as peer,
    ):
        calls = [peer.call("getProductInfo", productId="P12345") for _ in range(50)]
        assert await asyncio.gather(*calls) == [LAPTOP] * 50
    assert [event.name for event in events].count("hello") == 1


@pytest.mark.deep
async def test_a_call_has_a_time_of_its_own(shop: Shop, tmp_path: Path) -> None:
    async with (
        agent("buyer.example", tmp_path / "buyer") as buyer,
        buyer.peer(shop.url, protocols=[URI_2]) as peer,
    ):
        assert await peer.call("getProductInfo", productId="P12345") == LAPTOP
        with pytest.raises(OutcomeUnknown) as unknown:
            await peer.call("getProductInfo", productId="HANG", within=0.5)
        assert "0.5 seconds" in unknown.value.message
        with pytest.raises(OperationError) as failure:
            await peer.call("getProductInfo", productId="P99999")
        assert failure.value.status == 404
        shop.kill()
        with pytest.raises(Unavailable) as missed:
            await peer.call("getProductInfo", productId="P12345", within=0.5)
        assert not isinstance(missed.value, OutcomeUnknown), "it was not sent"


@pytest.mark.deep
async def test_a_closed_peer_calls_no_more(shop: Shop, tmp_path: Path) -> None:
    async with agent("buyer.example", tmp_path / "buyer") as buyer:
        peer = buyer.peer(shop.url, protocols=[URI_2])
        calling = asyncio.create_task(peer.call("getProductInfo", productId="HANG"))
        assert await asyncio.to_thread(shop.line) == "CALLED"
        await peer.aclose()
        for attempt in (calling, peer.call("getProductInfo", productId="P12345")):
            with pytest.raises(Exception, match="closed"):
                await attempt
    assert shop.calls() == ["HANG"]
