"""Two agents that know nothing of each other but a domain: its documents say where to knock and what to offer first."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from loopback import Loopback
from meetings import LAPTOP, TOPIC, URI_1, URI_2, Party, Tap, buyer, shop

from treaty_agent.discovery.client import Discoverer, candidates
from treaty_agent.discovery.documents import AgentFacts, OfferedProtocol, describe
from treaty_agent.sessions.session import Session
from treaty_agent.transport import listener
from treaty_anp.discovery.parsing import AgentDescription
from treaty_consensus.errors import TreatyError
from treaty_io.network.hosts import Address, Network

HOST = "shop.example"
PUBLIC = (f"wss://{HOST}/", f"https://{HOST}")
NAMES = [HOST, f"did:wba:{HOST}", f"https://{HOST}/ad.json", f"https://{HOST}/.well-known/agent-card.json"]
ELSEWHERE = "https://registry.example/protocols/stranger.example/product-info/1.0"


def certified(folder: Path) -> tuple[Loopback, ssl.SSLContext]:
    loopback, tls = Loopback(folder), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    loopback.authority.issue_cert(HOST).configure_cert(tls)
    return loopback, tls


@asynccontextmanager
async def open_shop(seller: Party, folder: Path) -> AsyncIterator[Network]:
    """The shop and its documents on one port, as others reach it; yields the network on which they do."""
    loopback, tls = certified(folder)
    async with seller.agent.listen("127.0.0.1", 0, tls=tls, public=PUBLIC, name="The shop") as port:
        loopback.addresses[HOST] = Address("127.0.0.1", port)
        yield loopback.network()
    await seller.agent.aclose()


async def discovered(network: Network, name: str = HOST) -> AgentDescription:
    discovery = await Discoverer(network).discover(name)
    assert discovery.problems == ()
    (agent,) = discovery.agents
    return agent


async def buy(session: Session) -> None:
    assert await session.call("getProductInfo", productId=LAPTOP["productId"]) == LAPTOP


async def offered(customer: Party, agent: AgentDescription, address: str, uris: tuple[str, ...]) -> list[str]:
    """Buy by these candidates at that address; returns what stood in the Hello."""
    connection = await customer.agent.dial(address)
    tap = Tap(connection, connection.address)
    async with customer.agent.connect_over(tap, protocols=uris, did=agent.did) as session:
        await buy(session)
    hello = json.loads(tap.seen[0][1])
    assert hello["destinationDid"] == agent.did
    listed: list[str] = hello["metaProtocol"]["candidateProtocols"]
    return listed


@pytest.mark.parametrize("name", NAMES)
async def test_000_65_a_buyer_begins_with_a_common_protocol(name: str, tmp_path: Path) -> None:
    seller = shop(tmp_path, URI_1)
    async with open_shop(seller, tmp_path) as network, buyer(tmp_path, network=network).agent as customer:
        agent = await discovered(network, name)
        assert [(protocol.uri, protocol.version) for protocol in agent.protocols] == [(URI_1, "1.0")]
        assert agent.protocols[0].digest == seller.protocols.published[URI_1].hash
        assert (agent.addresses, agent.name) == (PUBLIC, "The shop")
        async with customer.connect(name, protocols=[URI_2, URI_1]) as session:
            await buy(session)
    assert [event.protocol for event in seller.events if event.name == "running"] == [URI_1]


async def test_000_65_what_both_list_is_offered_first(tmp_path: Path) -> None:
    seller = shop(tmp_path, URI_1)
    async with open_shop(seller, tmp_path) as network:
        customer = buyer(tmp_path, network=network)
        own = (await customer.protocols.candidates(TOPIC)).uris
        assert own == (URI_2, URI_1)
        agent = await discovered(network)
        assert await offered(customer, agent, agent.address, candidates(agent, own)) == [URI_1, URI_2]
        assert customer.protocols.fetched == [URI_1]
        await customer.agent.aclose()


async def test_000_65_without_preference_the_document_decides(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    async with open_shop(seller, tmp_path) as network:
        customer = buyer(tmp_path, network=network)
        async with customer.agent.connect(HOST) as session:
            await buy(session)
        agent = await discovered(network)
        for address in agent.addresses:
            assert await offered(customer, agent, address, candidates(agent)) == [URI_2, URI_1]
        await customer.agent.aclose()


async def test_000_65_the_consensus_precedes_an_old_document(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    async with open_shop(seller, tmp_path) as network:
        customer = buyer(tmp_path, network=network)
        agent = await discovered(network)
        agent = replace(agent, protocols=agent.protocols[1:])
        first = candidates(agent, [URI_1, ELSEWHERE, URI_2], consensus={URI_2})
        assert await offered(customer, agent, agent.address, first) == [URI_2, URI_1, ELSEWHERE]
        assert customer.protocols.fetched == [URI_2]
        await customer.agent.aclose()


@pytest.mark.parametrize(("consensus", "spoken"), [((), URI_1), ((URI_2,), URI_2), ((URI_1,), URI_1)])
async def test_000_63_the_consensus_of_a_topic_precedes_the_list(consensus: tuple[str, ...], spoken: str, tmp_path: Path) -> None:
    """The shop provides both protocols, of which the buyer would take URI_2 first; its document, an old one, lists URI_1."""
    seller = shop(tmp_path)
    loopback, tls = certified(tmp_path)
    documents = describe(AgentFacts(seller.agent.did, PUBLIC, (OfferedProtocol(URI_1, seller.protocols.published[URI_1].hash),)))
    await seller.agent.prepare()
    async with listener.listen(seller.agent.accept, "127.0.0.1", 0, tls=tls, max_connections=8, documents=documents) as port:
        loopback.addresses[HOST] = Address("127.0.0.1", port)
        customer = buyer(tmp_path, network=loopback.network())
        customer.protocols.consensus = frozenset(consensus)
        assert (await customer.protocols.candidates(TOPIC)).uris == (URI_2, URI_1)
        async with customer.agent.connect(f"https://{HOST}/ad.json", topic=TOPIC) as session:
            await buy(session)
        assert customer.protocols.fetched == [spoken]
        await customer.agent.aclose()
    await seller.agent.aclose()
    assert [event.protocol for event in seller.events if event.name == "running"] == [spoken]


async def test_an_unpublished_topic_is_no_listed_one(tmp_path: Path) -> None:
    seller = shop(tmp_path, URI_1)
    async with open_shop(seller, tmp_path) as network, buyer(tmp_path, network=network).agent as customer:
        with pytest.raises(TreatyError) as caught:
            async with customer.connect(HOST, topic="travel/trains"):
                raise AssertionError
    assert caught.value.code == "agent.no-candidates"


async def test_an_agent_that_nobody_announces_publishes_nothing(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    loopback, tls = certified(tmp_path)
    async with seller.agent.listen("127.0.0.1", 0, tls=tls) as port:
        loopback.addresses[HOST] = Address("127.0.0.1", port)
        with pytest.raises(TreatyError) as caught:
            await discovered(loopback.network())
    assert caught.value.code == "discovery.nothing"
    await seller.agent.aclose()


@pytest.mark.threat(108)
async def test_what_a_document_claims_is_believed_for_nothing_else(tmp_path: Path) -> None:
    """A document that names another's DID and a hash of its own leads to a refusal, or changes nothing."""
    seller = shop(tmp_path, URI_1)
    loopback, tls = certified(tmp_path)
    documents = describe(AgentFacts("did:wba:bank.example", PUBLIC, (OfferedProtocol(URI_1, "0" * 64),)))
    await seller.agent.prepare()
    async with listener.listen(seller.agent.accept, "127.0.0.1", 0, tls=tls, max_connections=8, documents=documents) as port:
        loopback.addresses[HOST] = Address("127.0.0.1", port)
        customer = buyer(tmp_path, network=loopback.network())
        agent = await discovered(loopback.network(), f"https://{HOST}/ad.json")
        assert (agent.did, agent.protocols[0].digest) == ("did:wba:bank.example", "0" * 64)
        with pytest.raises(TreatyError, match=r"hello\.destination"):
            async with customer.agent.connect(HOST):
                raise AssertionError
        assert customer.protocols.fetched == []
        async with customer.agent.connect(agent.address, protocols=agent.uris) as session:
            await buy(session)
        await customer.agent.aclose()
    await seller.agent.aclose()
