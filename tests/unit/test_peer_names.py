"""Names of peers: moved and changed agents, discovery with a cache, and the time for connecting. On sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, response
from meetings import LAPTOP, MAX_AGE, TOPIC, URI_1, URI_2, Party, SimulatedProtocols, buyer, product_info, shop
from pauses import pause

from treaty_agent import Policy
from treaty_agent.discovery.cache import CachedDiscoverer
from treaty_agent.discovery.documents import AgentFacts, OfferedProtocol, describe
from treaty_agent.sessions.opening import ChangedPeer, PeerPins
from treaty_agent.transport.connection import Backoff
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_handler import Effect, Event, Received
from treaty_io.identity import ClaimedPeer, ProvedPeer
from treaty_io.network.hosts import Address
from treaty_sandbox.interface import RunningHandler

HOST = "shop.example"
NAME = f"https://{HOST}/ad.json"
PRODUCT = {"productId": "P12345"}


@asynccontextmanager
async def listening(seller: Party, port: int = 0) -> AsyncIterator[int]:
    async with seller.agent.listen("127.0.0.1", port) as bound:
        yield bound


async def call(customer: Party, url: str, **options: Any) -> str:
    """One call in one session; the DID of the peer."""
    async with customer.agent.connect(url, topic=TOPIC, **options) as session:
        assert await session.call("getProductInfo", PRODUCT) == LAPTOP
        return session.peer.did


class Domain:
    """A host with the description of an agent, which may change. `asked`: the heads of the requests."""

    def __init__(self, folder: Path) -> None:
        self.loopback, self.did, self.address, self.status = Loopback(folder), f"did:wba:{HOST}", "", "200 OK"
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def answer(self, head: str) -> bytes:
        if self.status != "200 OK":
            return response(b"", status=self.status)
        offered = (OfferedProtocol(URI_2, "ab" * 32, TOPIC),)
        documents = describe(AgentFacts(self.did, (self.address,), offered, "The shop"))
        path = head.split(" ")[1]
        if path not in documents:
            return response(b"", status="404 Not Found")
        document = documents[path]
        if document.etag in head:
            return response(b"", status="304 Not Modified", headers="Cache-Control: max-age=60\r\n")
        return response(document.body, headers=f"ETag: {document.etag}\r\nCache-Control: max-age=60\r\n")

    def lead_to(self, name: str, port: int) -> None:
        """Describe the agent at wss://NAME, which is a port of this machine."""
        self.address = f"wss://{name}/"
        self.loopback.addresses[name] = Address("127.0.0.1", port)


@asynccontextmanager
async def domain(folder: Path) -> AsyncIterator[Domain]:
    domain = Domain(folder)
    domain.loopback.authority.issue_cert("one.example", "two.example").configure_cert(domain.tls)
    async with domain.loopback.serving(domain.answer, HOST):
        yield domain


async def test_a_description_is_asked_for_once_a_minute(tmp_path: Path) -> None:
    now = 0.0
    async with domain(tmp_path) as host:
        host.lead_to("one.example", 1)
        discoverer = CachedDiscoverer(host.loopback.network(), clock=lambda: now)
        first = await discoverer.discover(NAME)
        total = len(host.loopback.seen)
        assert await discoverer.discover(NAME) == first
        assert len(host.loopback.seen) == total
        now += 61
        assert await discoverer.discover(NAME) == first
        again = host.loopback.seen[total:]
        assert again and all("if-none-match" in head.lower() for head in again)
        host.lead_to("two.example", 1)
        assert (await discoverer.discover(NAME)).agents[0].address == first.agents[0].address, "still cached"
        assert (await discoverer.discover(NAME, fresh=True)).agents[0].address == "wss://two.example/"


async def test_a_failing_host_is_asked_a_bounded_number_of_times(tmp_path: Path) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            host.status = "200 OK"

    async with domain(tmp_path) as host:
        host.lead_to("one.example", 1)
        host.status = "503 Service Unavailable"
        discoverer = CachedDiscoverer(host.loopback.network(), backoff=Backoff(sleep=sleep))
        assert (await discoverer.discover(NAME)).agents[0].did == host.did
        assert len(pauses) == 2
        host.status = "500 Internal Server Error"
        with pytest.raises(Unavailable):
            await CachedDiscoverer(host.loopback.network(), backoff=Backoff(sleep=sleep)).discover(NAME)
        assert len(pauses) == 2 + Backoff().attempts - 1


async def test_a_moved_agent_is_found_at_its_new_address(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    async with domain(tmp_path) as host, seller.agent.listen("127.0.0.1", 0, tls=host.tls) as port:
        host.lead_to("one.example", port)
        customer = buyer(tmp_path, network=host.loopback.network())
        async with customer.agent, customer.agent.peer(NAME, topic=TOPIC) as peer:
            assert await peer.call("getProductInfo", PRODUCT) == LAPTOP
            await peer.aclose()
        customer = buyer(tmp_path, network=host.loopback.network())
        async with customer.agent:
            assert await call(customer, NAME) == seller.agent.did
            # The description that is known leads to a port where nothing listens any more.
            host.loopback.addresses["one.example"] = Address("127.0.0.1", 1)
            host.lead_to("two.example", port)
            assert await call(customer, NAME) == seller.agent.did
    await seller.agent.aclose()


async def test_another_did_at_a_known_address_needs_acceptance(tmp_path: Path) -> None:
    seller, impostor, customer = shop(tmp_path), shop(tmp_path, name="impostor"), buyer(tmp_path)
    async with customer.agent, listening(seller) as port:
        url = f"ws://127.0.0.1:{port}"
        assert await call(customer, url) == seller.agent.did
    async with listening(impostor, port):
        peers: list[ChangedPeer] = []

        async def judge(changed: ChangedPeer) -> bool:
            peers.append(changed)
            return len(peers) > 1

        customer = buyer(tmp_path)
        async with customer.agent:
            for _ in range(2):  # also once the agreement is forgotten
                with pytest.raises(Refused) as refused:
                    await call(customer, url)
            assert refused.value.code == "peer.changed"
            async with customer.agent.peer(url, topic=TOPIC) as peer:
                with pytest.raises(Refused) as changed:
                    await peer.call("getProductInfo", PRODUCT)
                assert changed.value.code == "peer.changed"
        assert impostor.runtime.opened == [], "it got no session"
        customer = buyer(tmp_path, on_changed_peer=judge)
        async with customer.agent:
            with pytest.raises(Refused):
                await call(customer, url)
            assert await call(customer, url) == impostor.agent.did
            assert peers[0] == ChangedPeer(url, ClaimedPeer(seller.agent.did), ClaimedPeer(impostor.agent.did))
            assert await call(customer, url) == impostor.agent.did
            assert len(peers) == 2, "it is pinned now"
    for party in (seller, impostor):
        await party.agent.aclose()


async def test_a_peer_that_is_named_is_pinned_without_a_question(tmp_path: Path) -> None:
    seller, heir, customer = shop(tmp_path), shop(tmp_path, name="heir"), buyer(tmp_path)
    async with customer.agent:
        async with listening(seller) as port:
            url = f"ws://127.0.0.1:{port}"
            await call(customer, url)
        async with listening(heir, port):
            assert await call(customer, url, did=heir.agent.did) == heir.agent.did
            assert await call(customer, url) == heir.agent.did
    for party in (seller, heir):
        await party.agent.aclose()


@pytest.mark.parametrize("encryption", ["required", "off"])
async def test_a_remembered_version_that_is_gone_fails_no_call(tmp_path: Path, encryption: Any) -> None:
    policy = Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption=encryption)
    old = SimulatedProtocols({URI_1: product_info(URI_1)})
    seller, customer = shop(tmp_path, URI_1, policy=policy), buyer(tmp_path, policy=policy, protocols=old)
    async with customer.agent, listening(seller) as port:
        url = f"ws://127.0.0.1:{port}"
        assert await call(customer, url) == seller.agent.did
    await seller.agent.aclose()
    assert isinstance(PeerPins(customer.home).get(url), ProvedPeer) is (encryption == "required")
    # Both sides are restarted, and the shop no longer speaks the version of the agreement.
    seller, customer = shop(tmp_path, URI_2, policy=policy), buyer(tmp_path, policy=policy)
    customer.protocols.store[product_info(URI_1).hash] = product_info(URI_1)
    async with customer.agent, listening(seller, port), customer.agent.peer(url, topic=TOPIC) as peer:
        calls = [peer.call("getProductInfo", PRODUCT) for _ in range(8)]
        assert await asyncio.gather(*calls) == [LAPTOP] * 8
    await seller.agent.aclose()


async def test_a_damaged_file_of_peers_accepts_no_one(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    customer.home.mkdir(parents=True, exist_ok=True)
    (customer.home / "peers.json").write_bytes(b"{")
    async with customer.agent, listening(seller) as port:
        with pytest.raises(TreatyError) as refused:
            await call(customer, f"ws://127.0.0.1:{port}")
        assert refused.value.code == "system.state"
    assert seller.runtime.opened == []
    await seller.agent.aclose()


def test_pins_that_another_process_of_the_home_makes_are_seen(tmp_path: Path) -> None:
    here, there = PeerPins(tmp_path), PeerPins(tmp_path)
    for number in range(3):
        assert here.get("wss://shop.example") == ClaimedPeer(f"did:wba:shop-{number - 1}.example" if number else "")
        there.pin("wss://shop.example", ClaimedPeer(f"did:wba:shop-{number}.example"))  # of the same size each time
    here.pin("wss://other.example", ProvedPeer("did:wba:other.example"))
    assert there.get("wss://other.example") == ProvedPeer("did:wba:other.example")
    assert there.get("wss://shop.example") == here.get("wss://shop.example") == ClaimedPeer("did:wba:shop-2.example")


async def test_connecting_to_an_agent_that_hangs_ends_in_time(tmp_path: Path) -> None:
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    customer = buyer(tmp_path)
    async with customer.agent:
        with pytest.raises(Unavailable) as late:
            await call(customer, url, timeout=0.3)
        assert late.value.code == "connection.failed"
        async with customer.agent.peer(url, topic=TOPIC, timeout=0.3) as peer:
            with pytest.raises(Unavailable) as later:
                await peer.call("getProductInfo", PRODUCT)
        assert later.value.code == "connection.failed"
    assert len(accepted) == 2, "one attempt each"
    for writer in accepted:
        writer.close()
    server.close()


async def test_a_peer_that_accepts_and_drops_is_retried_boundedly(tmp_path: Path) -> None:
    dropped = 0

    def drop(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dropped
        dropped += 1
        writer.close()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    customer = buyer(tmp_path)
    async with customer.agent, customer.agent.peer(url, topic=TOPIC, timeout=3) as peer:
        with pytest.raises(Unavailable):
            await asyncio.gather(*(peer.call("getProductInfo", PRODUCT) for _ in range(20)))
    assert 1 <= dropped <= 40, "for all calls together"
    server.close()


class Dying:
    """A handler that dies with each message of its peer."""

    kept = None

    def __init__(self, inner: RunningHandler) -> None:
        self.inner = inner

    async def handle(self, event: Event) -> Sequence[Effect]:
        if isinstance(event, Received):
            raise Unavailable("sandbox.died", "The worker died.")
        return await self.inner.handle(event)

    async def close(self) -> None:
        await self.inner.close()


async def test_a_peer_whose_handler_dies_is_retried_boundedly(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    seller.runtime.wrap = Dying
    async with customer.agent, listening(seller) as port, customer.agent.peer(f"ws://127.0.0.1:{port}", topic=TOPIC) as peer:
        with pytest.raises(Unavailable):
            await peer.call("getProductInfo", PRODUCT)
        assert 1 < len(seller.runtime.opened) <= customer.agent.config.peers.attempts
        seller.runtime.wrap = lambda handler: handler
        assert await peer.call("getProductInfo", PRODUCT) == LAPTOP
    await seller.agent.aclose()


async def test_closing_a_peer_fails_the_calls_that_wait_for_a_session(tmp_path: Path) -> None:
    accepted = asyncio.Event()
    server = await asyncio.start_server(lambda *_: accepted.set(), "127.0.0.1", 0)
    customer = buyer(tmp_path)
    async with customer.agent:
        peer = customer.agent.peer(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", topic=TOPIC)
        calls = [asyncio.create_task(peer.call("getProductInfo", PRODUCT)) for _ in range(3)]
        await accepted.wait()
        await peer.aclose()
        for calling in calls:
            with pytest.raises(Refused) as closed:
                await calling
            assert closed.value.code == "peer.closed"
    server.close()


@pytest.mark.parametrize("limits", [({}, {"within": 1.0}), ({"timeout": 1.0}, {})], ids=["call", "connecting"])
async def test_a_pause_of_the_process_takes_no_time_of_a_call(
    tmp_path: Path, limits: tuple[dict[str, float], dict[str, float]]
) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    async with customer.agent, listening(seller) as port:
        peer = customer.agent.peer(f"ws://127.0.0.1:{port}", topic=TOPIC, **limits[0])  # type: ignore[arg-type]
        calling = asyncio.create_task(peer.call("getProductInfo", PRODUCT, **limits[1]))
        for _ in range(4):
            await asyncio.sleep(0)
        pause(1.2)  # in the midst of the handshake
        assert await calling == LAPTOP
        await peer.aclose()
    await seller.agent.aclose()
