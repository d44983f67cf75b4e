"""The ways in and out of an agent: which profile a connection speaks, encryption, who is proved, and the agent's documents."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from connections import ConnectionWrapper
from meetings import LAPTOP, MAX_AGE, TOPIC, URI_1, URI_2, Party, Tap, buyer, identity, meeting, party, shop
from meta_peers import source_hello
from scripted_negotiators import TEST_CASES, WANTED, Script, ScriptedNegotiators

from treaty_agent.authentication.request_signing import RequestSigner
from treaty_agent.sessions.flow_context import FlowSettings
from treaty_agent.transport import memory
from treaty_agent.transport.connection import next_message
from treaty_agent.transport.http import MEDIA_TYPE, SESSIONS, encode_messages
from treaty_anp.flow_profile.capabilities import FlowRequest, ProtocolOffer
from treaty_anp.flow_profile.payloads import ContextInfo
from treaty_anp.flow_profile.states import FlowLimits
from treaty_client.policy import Encryption, Policy
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unavailable
from treaty_io.identity import ClaimedPeer, ProvedPeer
from treaty_io.network import egress
from treaty_io.network.hosts import Address, Network

ID = "anp:protocol:product-info:1.1"


def policy(encryption: Encryption) -> Policy:
    return Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption=encryption)


async def buy(seller: Party, customer: Party) -> tuple[Any, Tap, bool, bool]:
    """One call: its value, what went over the wire, whether each side knows who the other is."""
    async with meeting(seller) as tap, customer.agent.connect_over(tap, topic=TOPIC) as session:
        value = await session.call("getProductInfo", productId="P12345")
        return value, tap, isinstance(session.peer, ProvedPeer), session.resumed


def overheard(tap: Tap) -> bytes:
    """All that somebody in between can make of what went over the wire: as it is, unescaped, and out of its base64."""
    frames = []
    for _, message in tap.seen:
        raw = message.encode() if isinstance(message, str) else message
        frames.append(raw)
        with suppress(ValueError):
            value = json.loads(raw if isinstance(message, str) else raw[1:])
            frames.append(json.dumps(value, ensure_ascii=False).encode())
        frames += [
            base64.b64decode(part)
            for part in re.findall(rb"(?:[A-Za-z0-9+/]{4}){2,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", raw)
        ]
    return b"\n".join(frames)


# Encryption


@pytest.mark.parametrize(
    ("source", "destination", "encrypted"),
    [
        ("off", "off", False),
        ("off", "preferred", False),
        ("preferred", "off", False),
        ("preferred", "preferred", True),
        ("required", "preferred", True),
        ("required", "required", True),
    ],
)
async def test_encryption_is_as_both_policies_say(
    tmp_path: Path, source: Encryption, destination: Encryption, encrypted: bool
) -> None:
    seller, customer = shop(tmp_path, policy=policy(destination)), buyer(tmp_path, policy=policy(source))
    for resumed in (False, True):
        value, tap, proved, was_resumed = await buy(seller, customer)
        assert (value, proved, was_resumed) == (LAPTOP, encrypted, resumed)
        for word in ("高性能", "P12345", "getProductInfo", "generated"):
            expected = not encrypted and (word != "generated" or not resumed)
            assert (word.encode() in overheard(tap)) is expected, word


@pytest.mark.parametrize("encryption", ["off", "required"])
async def test_an_encrypted_negotiation_is_private(tmp_path: Path, encryption: Encryption) -> None:
    here, there = (ScriptedNegotiators(Script(tests=TEST_CASES)) for _ in range(2))
    seller = party("shop", tmp_path, policy=policy(encryption), negotiators=there)
    customer = party("buyer", tmp_path, policy=policy(encryption), negotiators=here)

    @seller.agent.offers
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        return LAPTOP

    @seller.agent.converses
    async def answer(text: str, peer: str) -> str:
        return f"You said: {text}"

    async with meeting(seller) as tap, customer.agent.connect_over(tap, requirement=WANTED) as session:
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        assert await session.ask("In which currency?") == "You asked: In which currency?"
    async with meeting(seller) as other, customer.agent.connect_over(other, natural=True) as session:
        await session.say("Between you and me")
        async for text in session.heard():
            assert text == "You said: Between you and me"
            break
    tap.seen += other.seen
    words = ("## Data format", "protocolNegotiation", "# Test case 1", "高性能", "In which currency?", "Between you and me")
    for word in words:
        assert (word.encode() in overheard(tap)) is (encryption == "off"), word


@pytest.mark.parametrize(("source", "destination"), [("off", "required"), ("required", "off")])
async def test_who_insists_on_encryption_speaks_to_nobody_in_plain(
    tmp_path: Path, source: Encryption, destination: Encryption
) -> None:
    seller, customer = shop(tmp_path, policy=policy(destination)), buyer(tmp_path, policy=policy(source))
    with pytest.raises(TreatyError) as refusal:
        await buy(seller, customer)
    assert "secure.required" in refusal.value.code + refusal.value.message
    assert customer.runtime.opened == []
    assert all(handler.closed for handler in seller.runtime.opened)
    customer.agent.context.afterwards.settle()
    assert not (customer.home / "agreements.json").exists()


# Who is at the other end


@pytest.mark.parametrize("proved", ["did:wba:buyer.example", "did:wba:mallory.example"])
async def test_a_hello_for_another_proved_did_is_refused(tmp_path: Path, proved: str) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    await seller.agent.prepare()
    near, far = memory.pair()
    task = asyncio.create_task(seller.agent.accept(ConnectionWrapper(far, peer=proved)))
    if proved == customer.agent.did:
        async with customer.agent.connect_over(near, topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert isinstance(session.peer, ClaimedPeer)  # on this side nothing was
    else:
        with pytest.raises(TreatyError) as refusal:
            async with customer.agent.connect_over(near, topic=TOPIC):
                raise AssertionError("a session under a false name")
        assert "hello.destination" in refusal.value.message
        assert seller.runtime.opened == []
    await near.close()
    await task


async def test_a_hello_for_another_signer_is_refused_over_http(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    text = source_hello((URI_1,), to="").format()
    async with seller.agent.listen("127.0.0.1", 0) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}{SESSIONS}?key={'k' * 43}"
        body = encode_messages([text])
        signed = RequestSigner(identity("mallory.example")).headers("POST", url, body)
        reply = await client.post(url, content=body, headers={"Content-Type": MEDIA_TYPE, **signed})
        assert (reply.status_code, reply.json()["reason"]) == (410, "hello.destination")
    assert seller.runtime.opened == []


# The flow profile


async def test_the_first_message_decides_the_profile(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path), buyer(tmp_path)
    for someone in (seller, customer):
        someone.agent.flow.registry.add(ProtocolOffer(ID, capabilities=("query",), uri=URI_2))
    async with (
        meeting(seller) as tap,
        await customer.agent.flow.negotiate(tap, FlowRequest("buying"), peer=seller.agent.did) as session,
    ):
        assert session.protocol == URI_2
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP
    assert json.loads(str(tap.seen[0][1]))["type"] == "meta-protocol"
    value, tap, _, _ = await buy(seller, customer)
    assert value == LAPTOP
    assert json.loads(str(tap.seen[0][1]))["type"] == "sourceHello"
    await customer.agent.aclose()


async def test_what_an_owner_chooses_of_the_flow_profile_holds(tmp_path: Path) -> None:
    settings = FlowSettings(limits=FlowLimits(lifetime=60), context=ContextInfo("low"), shortcuts=False)
    seller, customer = shop(tmp_path), buyer(tmp_path, flow=settings)
    for someone in (seller, customer):
        someone.agent.flow.registry.add(ProtocolOffer(ID, ("query",), uri=URI_2))
    for _ in range(2):  # without shortcuts the second time is as the first
        async with meeting(seller) as tap:
            tap.peer = seller.agent.did
            async with await customer.agent.flow.negotiate(tap, FlowRequest("buying")) as session:
                assert session.expires_at <= (time.time() + 60) * 1000
            payloads = [
                json.loads(text)["payload"] for way, text in tap.seen if way == ">" and "capabilities-exchange" in str(text)
            ]
            assert [payload["contextInfo"]["resourceAvailability"] for payload in payloads] == ["low"]


@pytest.mark.parametrize("has_resolver", [True, False])
async def test_001_33_an_owner_gives_the_resolver_of_other_did_methods(tmp_path: Path, has_resolver: bool) -> None:
    stranger = identity("buyer.example")

    async def of_anp(did: str) -> list[bytes]:
        assert did == "did:anp:123456789abcdefghi"
        return [stranger.public_key]

    seller = shop(tmp_path, flow=FlowSettings(resolvers={"anp": of_anp} if has_resolver else {}))
    customer = buyer(tmp_path)
    object.__setattr__(stranger, "did", "did:anp:123456789abcdefghi")  # Treaty itself makes no such identity
    customer.agent.flow.identity = stranger
    for someone in (seller, customer):
        someone.agent.flow.registry.add(ProtocolOffer(ID, ("query",), uri=URI_2))
    async with meeting(seller) as tap:
        tap.peer = seller.agent.did
        if has_resolver:
            async with await customer.agent.flow.negotiate(tap, FlowRequest("buying")) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            return
        with pytest.raises(TreatyError) as failure:
            await customer.agent.flow.negotiate(tap, FlowRequest("buying"))
        assert failure.value.code == "flow.verification"
        assert "did:anp cannot be resolved" in failure.value.message
        assert seller.runtime.opened == []


async def test_an_encrypting_agent_refuses_the_flow_profile(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path, policy=policy("required")), buyer(tmp_path)
    for someone in (seller, customer):
        someone.agent.flow.registry.add(ProtocolOffer(ID, capabilities=("query",), uri=URI_2))
    async with meeting(seller) as tap:
        with pytest.raises(TreatyError):
            await customer.agent.flow.negotiate(tap, FlowRequest("buying"), peer=seller.agent.did)
    assert seller.runtime.opened == []
    await customer.agent.aclose()


async def test_a_silent_peer_is_dismissed_at_the_first_message(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    seller.agent.flow.registry.add(ProtocolOffer(ID, capabilities=("query",), uri=URI_2))
    seller.agent.context.timeouts = type(seller.agent.context.timeouts)(hello=0.1)
    async with meeting(seller) as tap:
        with pytest.raises(TreatyError) as lost:
            await next_message(tap)
        assert getattr(lost.value, "reason", "") == "session.reply-timeout"


# One port


@asynccontextmanager
async def open_shop(home: Path, **options: Any) -> AsyncIterator[tuple[Party, int]]:
    seller = shop(home)
    async with seller.agent, seller.agent.listen("127.0.0.1", 0, **options) as port:
        yield seller, port


@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_one_port_serves_websocket_and_signed_http(tmp_path: Path, scheme: str) -> None:
    async with open_shop(tmp_path) as (_, port), buyer(tmp_path).agent as customer:
        for resumed in (False, True):
            async with customer.connect(f"{scheme}://127.0.0.1:{port}", topic=TOPIC) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                assert session.resumed is resumed


@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_an_address_where_nobody_listens(tmp_path: Path, scheme: str) -> None:
    async with open_shop(tmp_path) as (_, port):
        pass
    async with buyer(tmp_path).agent as customer:
        with pytest.raises(TreatyError) as failure:
            async with customer.connect(f"{scheme}://127.0.0.1:{port}", topic=TOPIC):
                raise AssertionError("a session with nobody")
        assert failure.value.code == "connection.failed"


async def test_a_door_can_be_opened_again_and_leaves_nothing_behind(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    async with seller.agent:
        async with seller.agent.listen("127.0.0.1", 0) as port:
            pass
        assert not (seller.home / "nonces").exists()
        for _ in range(2):
            async with seller.agent.listen("127.0.0.1", port) as bound:
                assert bound == port
        assert (seller.home / "nonces" / f"127.0.0.1-{port}").exists()


async def test_without_a_public_address_nothing_is_described(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as (_, port), httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}/ad.json")).status_code == 404


async def test_an_agent_is_described_at_its_public_address(tmp_path: Path) -> None:
    public = ["wss://shop.example"]
    async with open_shop(tmp_path, public=public, name="The shop") as (seller, port), httpx.AsyncClient() as client:
        base = f"http://127.0.0.1:{port}"
        page = (await client.get(f"{base}/.well-known/agent-descriptions")).json()
        assert page["items"][0]["name"] == "The shop"
        description = (await client.get(f"{base}/ad.json")).json()
        assert description["did"] == seller.agent.did
        assert URI_2 in [interface.get("protocol") for interface in description["interfaces"]]
        document = (await client.get(f"{base}/.well-known/did.json")).json()
        assert document["id"] == seller.agent.did
        assert document["service"][0]["serviceEndpoint"] == "https://shop.example/ad.json"


async def test_an_agent_is_an_asgi_application_too(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    async with seller.agent:
        await seller.agent.prepare()
        transport = httpx.ASGITransport(seller.agent.asgi(["https://shop.example"]))
        async with httpx.AsyncClient(transport=transport, base_url="https://shop.example") as client:
            assert (await client.get("/ad.json")).json()["did"] == seller.agent.did
            headers = {"Content-Type": MEDIA_TYPE}
            unsigned = await client.post(f"{SESSIONS}?key={'k' * 43}", content=b"\x80\x00\x00\x02{}", headers=headers)
            assert unsigned.status_code == 401


async def test_a_discovered_agent_is_spoken_to_in_its_protocols(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("shop.example").configure_cert(tls)
    async with open_shop(tmp_path, tls=tls, public=["wss://shop.example"]) as (seller, port):
        network = Network({"shop.example": Address("127.0.0.1", port)}, tmp_path / "ca.pem")
        async with buyer(tmp_path, network=network).agent as customer:
            async with customer.connect("shop.example") as session:
                assert (session.peer.did, session.protocol) == (seller.agent.did, URI_2)
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            async with customer.connect(seller.agent.did, protocols=[URI_1]) as session:
                assert session.protocol == URI_1


@pytest.mark.threat(96)
async def test_a_strangers_description_reaches_no_local_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description is at a public place, and the address in it has a name that leads back here."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("shop.example").configure_cert(tls)
    knocks: list[bytes] = []

    async def knocked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocks.append(await reader.read(100))
        writer.close()

    async def lookup(host: str) -> list[str]:
        assert host == "inside.example"
        return ["127.0.0.1"]

    monkeypatch.setattr(egress, "system_lookup", lookup)
    inside = await asyncio.start_server(knocked, "127.0.0.1", 0)
    inner = inside.sockets[0].getsockname()[1]
    for address in (f"ws://inside.example:{inner}", f"http://inside.example:{inner}/admin"):
        async with open_shop(tmp_path / address[:2], tls=tls, public=[address]) as (_, port):
            network = Network({"shop.example": Address("127.0.0.1", port)}, tmp_path / "ca.pem")
            async with buyer(tmp_path / address[:2], network=network).agent as customer:
                with pytest.raises(Unavailable) as refusal:
                    async with customer.connect("https://shop.example/ad.json"):
                        raise AssertionError
        assert refusal.value.code == "egress.unreachable"
    inside.close()
    assert knocks == []


async def test_a_signed_ipv6_address_has_brackets(tmp_path: Path) -> None:
    seller = shop(tmp_path)
    async with seller.agent, seller.agent.listen("::1", 0) as port, httpx.AsyncClient() as client:
        unsigned = await client.post(
            f"http://[::1]:{port}{SESSIONS}?key={'k' * 43}", content=b"\x80\x00\x00\x02{}", headers={"Content-Type": MEDIA_TYPE}
        )
        assert (unsigned.status_code, unsigned.headers["WWW-Authenticate"]) == (401, 'DIDWba realm="::1"')
        async with buyer(tmp_path).agent as customer, customer.connect(f"http://[::1]:{port}", topic=TOPIC) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP


async def test_an_address_is_a_url_or_a_name_to_discover(tmp_path: Path) -> None:
    async with buyer(tmp_path).agent as customer:
        for address in ("", "a shop"):
            with pytest.raises(Malformed) as refusal:
                async with customer.connect(address, topic=TOPIC):
                    raise AssertionError("a session with nobody in particular")
            assert refusal.value.code == "network.url"


async def test_no_negotiator_without_a_sandbox(tmp_path: Path) -> None:
    unconfined = Policy(publishers=["did:wba:publisher.example"], isolation="none")
    with pytest.raises(Refused) as refusal:
        buyer(tmp_path, policy=unconfined, negotiators=ScriptedNegotiators())
    assert refusal.value.code == "agent.settings"
