"""Which profile a connection speaks: `connect` and `listen` choose, and the application does the same under both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flow_peers import INFO_2, agent
from flow_peers import meeting as flow_meeting
from meetings import LAPTOP, MAX_AGE, TOPIC, URI_2, Party, Tap, buyer, identity, meeting, party, product_info, shop

from treaty_agent.sessions.escalation import Escalation
from treaty_agent.sessions.flow_context import system_clock
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.sessions.session import Session
from treaty_agent.transport import listener
from treaty_agent.transport.connection import next_message
from treaty_anp.flow_profile.capabilities import FlowRequest, ProtocolOffer
from treaty_anp.flow_profile.errors import ErrorCode, report
from treaty_anp.flow_profile.messages import TYPE, FlowMessage, encode
from treaty_anp.flow_profile.parameters import Range
from treaty_anp.transcript import parse_transcript, replay
from treaty_client.policy import Encryption, Policy
from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_handler import Effect, Event, Opened
from treaty_io.identity import ProvedPeer
from treaty_sandbox.interface import RunningHandler

OFFER = ProtocolOffer(INFO_2, ("getProductInfo",), uri=URI_2)


def policy(encryption: Encryption = "off", **fields: Any) -> Policy:
    return Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption=encryption, **fields)


def flow_shop(home: Path, **options: Any) -> Party:
    """A shop with URI_2, under an id of the flow profile."""
    seller = shop(home, URI_2, **options)
    seller.agent.flow.registry.add(OFFER)
    return seller


def first_types(tap: Tap) -> list[str]:
    """The type of each text message in the clear."""
    return [json.loads(text)["type"] for _, text in tap.seen if isinstance(text, str)]


async def buy(session: Session) -> None:
    assert await session.call("getProductInfo", productId="P12345") == LAPTOP


@asynccontextmanager
async def listening(seller: Party) -> AsyncIterator[str]:
    async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
        yield f"ws://127.0.0.1:{port}"


# Connecting


async def test_an_id_goes_to_the_flow_profile_at_once(tmp_path: Path) -> None:
    seller, customer = flow_shop(tmp_path), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    async with meeting(seller) as tap, customer.agent.connect_over(tap, protocols=[INFO_2], did=seller.agent.did) as session:
        await buy(session)
        assert (session.profile, session.protocol, session.protocol_id) == ("flow", URI_2, INFO_2)
        assert session.peer == ProvedPeer(seller.agent.did)
    assert set(first_types(tap)) == {"meta-protocol", "product-info"}


async def test_an_id_without_a_peer_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    seller, customer = flow_shop(tmp_path), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    async with meeting(seller) as tap:
        with pytest.raises(Malformed, match="DID"):
            async with customer.agent.connect_over(tap, protocols=[INFO_2]):
                raise AssertionError
    assert tap.seen == []


async def test_a_hello_only_peer_is_spoken_to_in_the_hello_profile(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    async with meeting(seller) as tap, customer.agent.connect_over(tap, topic=TOPIC) as session:
        await buy(session)
        assert (session.profile, session.protocol_id) == ("hello", "")


async def test_two_peers_of_both_profiles_use_a_common_protocol(tmp_path: Path) -> None:
    seller, customer = flow_shop(tmp_path), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    async with meeting(seller) as tap, customer.agent.connect_over(tap, topic=TOPIC) as session:
        await buy(session)
        assert session.profile == "hello"


async def test_a_common_flow_profile_keeps_the_connection(tmp_path: Path) -> None:
    """The seller provides nothing in the Hello profile: its functions are those of an id."""
    seller, customer = party("shop", tmp_path), buyer(tmp_path)

    @seller.agent.provides(URI_2)
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        return LAPTOP

    for someone in (seller, customer):
        someone.agent.flow.registry.add(OFFER)
    await seller.agent.prepare()
    seller.agent.context.served.services[URI_2].protocol = None  # not served in the Hello profile at present
    async with meeting(seller) as tap, customer.agent.connect_over(tap, protocols=[URI_2]) as session:
        await buy(session)
        assert (session.profile, session.peer) == ("flow", ProvedPeer(seller.agent.did))
    assert first_types(tap)[:3] == ["sourceHello", "destinationHello", "meta-protocol"]
    assert customer.names()[-4:] == ["sandbox", "running", "first reply", "end"]


async def test_without_an_id_nothing_is_common(tmp_path: Path) -> None:
    seller, customer = party("shop", tmp_path), buyer(tmp_path)
    seller.agent.flow.registry.add(OFFER)
    seller.protocols.fetched.append("prepared")
    async with meeting(seller) as tap:
        with pytest.raises(Refused) as refusal:
            async with customer.agent.connect_over(tap, protocols=[URI_2]):
                raise AssertionError
    assert refusal.value.code == "session.no-common-protocol"


async def test_a_flow_only_peer_is_reached_again_and_remembered(tmp_path: Path) -> None:
    peer, customer = agent("shop", tmp_path, ProtocolOffer(INFO_2, ("query",)), clock=system_clock), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    async with listener.listen(peer.manager.accept, "127.0.0.1", 0, max_connections=4) as port, customer.agent as connecting:
        url = f"ws://127.0.0.1:{port}"
        for resumed in (False, True):
            async with connecting.connect(url, topic=TOPIC, did="did:wba:shop.example") as session:
                await buy(session)
                assert (session.profile, session.resumed) == ("flow", resumed)
        record = connecting.context.memory.agreements.get(url, TOPIC)
        assert record is not None
        assert (record.profile, record.uri, record.candidates) == ("flow", URI_2, (INFO_2,))
        async with connecting.connect(url, topic=TOPIC) as session:  # the DID is remembered too
            await buy(session)
    assert peer.events.count("hello") == 3


async def test_a_remembered_profile_that_no_longer_holds_is_forgotten(tmp_path: Path) -> None:
    peer, customer = agent("shop", tmp_path, ProtocolOffer(INFO_2, ("query",)), clock=system_clock), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    seller = shop(tmp_path / "hello", URI_2)
    await seller.agent.prepare()
    serving = [peer.manager.accept, seller.agent.accept]

    async def serve(connection: Any) -> None:
        await serving[0](connection)

    async with listener.listen(serve, "127.0.0.1", 0, max_connections=4) as port, customer.agent as connecting:
        url = f"ws://127.0.0.1:{port}"
        async with connecting.connect(url, topic=TOPIC, did="did:wba:shop.example") as session:
            await buy(session)
        serving.pop(0)
        async with connecting.connect(url, topic=TOPIC) as session:
            await buy(session)
            assert session.profile == "hello"
    await seller.agent.aclose()


async def test_an_alias_is_offered_in_the_flow_profile_too(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
    for someone in (seller, customer):
        claimed = replace(product_info(URI_2), aliases=(INFO_2, "https://elsewhere.example/x", "anp:protocol:Not An Id"))
        someone.protocols.published[URI_2] = claimed
    async with listening(seller) as url, customer.agent as connecting:
        (offer,) = seller.agent.flow.registry
        assert (offer.id, offer.uri, offer.capabilities) == (INFO_2, URI_2, ("getProductInfo",))
        connecting.flow.registry.add(OFFER)
        async with connecting.connect(url, protocols=[INFO_2], did=seller.agent.did) as session:
            await buy(session)
            assert session.profile == "flow"


@pytest.mark.parametrize(
    ("source", "destination"), [("required", "required"), ("preferred", "preferred"), ("required", "preferred")]
)
async def test_the_flow_profile_runs_inside_an_encrypted_connection(
    tmp_path: Path, source: Encryption, destination: Encryption
) -> None:
    seller = flow_shop(tmp_path, policy=policy(destination))
    customer = buyer(tmp_path, policy=policy(source))
    customer.agent.flow.registry.add(OFFER)
    async with meeting(seller) as tap, customer.agent.connect_over(tap, protocols=[INFO_2]) as session:
        await buy(session)
        assert (session.profile, session.peer) == ("flow", ProvedPeer(seller.agent.did))
    overheard = b"".join(message.encode() if isinstance(message, str) else message for _, message in tap.seen)
    for word in (b"initialize", b"product-info", b"getProductInfo", b"P12345"):
        assert word not in overheard


async def test_required_encryption_excludes_the_plain_flow_profile(tmp_path: Path) -> None:
    peer, customer = agent("shop", tmp_path, clock=system_clock), buyer(tmp_path, policy=policy("required"))
    customer.agent.flow.registry.add(OFFER)
    async with listener.listen(peer.manager.accept, "127.0.0.1", 0, max_connections=4) as port, customer.agent as connecting:
        with pytest.raises(TreatyError):
            async with connecting.connect(f"ws://127.0.0.1:{port}", protocols=[INFO_2], did="did:wba:shop.example"):
                raise AssertionError
    assert peer.runtime.opened == []


async def test_preferred_encryption_allows_the_plain_flow_profile(tmp_path: Path) -> None:
    peer = agent("shop", tmp_path, ProtocolOffer(INFO_2, ("query",)), clock=system_clock)
    customer = buyer(tmp_path, policy=policy("preferred"))
    customer.agent.flow.registry.add(OFFER)
    async with listener.listen(peer.manager.accept, "127.0.0.1", 0, max_connections=4) as port, customer.agent as connecting:
        url = f"ws://127.0.0.1:{port}"
        async with connecting.connect(url, protocols=[INFO_2], did="did:wba:shop.example") as session:
            await buy(session)
            assert session.profile == "flow"


@pytest.mark.parametrize("claimed", ["did:wba:shop.example", "did:wba:bank.example"])
async def test_a_flow_answer_to_a_hello_is_named_and_proved(tmp_path: Path, claimed: str) -> None:
    peer, customer = agent("shop", tmp_path, ProtocolOffer(INFO_2, ("query",)), clock=system_clock), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    answers = [encode(error_message(claimed, customer.agent.did), identity("shop.example"))]

    async def serve(connection: Any) -> None:
        first = str(await next_message(connection))
        if answers:
            connection.send(answers.pop())
            with suppress(TreatyError):
                await next_message(connection)
            await connection.close()
        else:
            await peer.manager.accept(connection, first=first)

    async with listener.listen(serve, "127.0.0.1", 0, max_connections=4) as port, customer.agent as connecting:
        connection = connecting.connect(f"ws://127.0.0.1:{port}", topic=TOPIC)
        if claimed == "did:wba:bank.example":
            with pytest.raises(TreatyError):
                await connection.__aenter__()
            assert peer.runtime.opened == []
            return
        async with connection as session:
            await buy(session)
            assert (session.profile, session.peer) == ("flow", ProvedPeer(claimed))


def error_message(sender: str, recipient: str) -> FlowMessage:
    """The answer of a peer that knows no Hello."""
    payload = report(ErrorCode.VERSION_CONFLICT, "This is no message of the flow profile.")
    return FlowMessage(
        type=TYPE,
        action=payload.ACTION,
        message_id="msg-00000001",
        sender=sender,
        recipient=recipient,
        timestamp=system_clock().unix,
        payload=payload,
    )


# What a session has under both profiles


async def test_what_a_profile_cannot_do_is_refused_by_a_code(tmp_path: Path) -> None:
    seller, customer = flow_shop(tmp_path), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    async with meeting(seller) as tap, customer.agent.connect_over(tap, protocols=[INFO_2], did=seller.agent.did) as session:
        for refused in (session.say("x"), session.ask("x"), session.report_error("x")):
            with pytest.raises(Refused) as refusal:
                await refused
            assert refusal.value.code == "session.profile"
        with pytest.raises(Refused):
            session.heard()
        await session.renegotiate()
    async with meeting(seller) as tap, customer.agent.connect_over(tap, topic=TOPIC) as session:
        with pytest.raises(Refused) as refusal:
            await session.renegotiate()
        assert refusal.value.code == "session.profile"
        assert (dict(session.parameters), session.expires_at, session.is_over) == ({}, 0, False)
        await session.close()
        assert session.is_over


async def test_both_sides_record_a_flow_session_that_replays(tmp_path: Path) -> None:
    folders = {"shop": tmp_path / "shop-transcripts", "buyer": tmp_path / "buyer-transcripts"}
    seller, customer = flow_shop(tmp_path, transcripts=folders["shop"]), buyer(tmp_path, transcripts=folders["buyer"])
    customer.agent.flow.registry.add(OFFER)
    async with meeting(seller) as tap, customer.agent.connect_over(tap, protocols=[INFO_2], did=seller.agent.did) as session:
        await buy(session)
        assert parse_transcript(session.transcript)[0] == "flow"
        names = [event.name for event in session.timeline]
        # The one protocol that is asked for is verified while the peer answers.
    assert (sorted(names[:2]), names[2:]) == (["hello", "verified"], ["sandbox", "running", "first reply"])
    for side, folder in (("responder", folders["shop"]), ("initiator", folders["buyer"])):
        (path,) = folder.iterdir()
        assert path.name.startswith(f"{side}-flow-")
        assert replay(path.read_bytes()) > 5
    assert seller.names() == ["hello", "verified", "sandbox", "running", "end"]


class Noting:
    """A handler that notes the parameters it is opened with."""

    kept = None

    def __init__(self, inner: RunningHandler, seen: list[dict[str, Any]]) -> None:
        self.inner, self.seen = inner, seen

    async def handle(self, event: Event) -> Any:
        if isinstance(event, Opened):
            self.seen.append(dict(event.parameters))
        effects: list[Effect] = list(await self.inner.handle(event))
        return effects

    async def close(self) -> None:
        await self.inner.close()


async def test_a_handler_learns_the_agreed_parameters(tmp_path: Path) -> None:
    seller, customer = shop(tmp_path, URI_2), buyer(tmp_path)
    seen: dict[str, list[dict[str, Any]]] = {"shop": [], "buyer": []}
    for someone, name, high in ((seller, "shop", 20_000), (customer, "buyer", 50_000)):
        rules = {"maxMessageSize": Range(1000, high)}
        someone.agent.flow.registry.add(ProtocolOffer(INFO_2, ("getProductInfo",), parameters=rules, uri=URI_2))
        someone.runtime.wrap = lambda handler, name=name: Noting(handler, seen[name])  # type: ignore[misc]
    async with meeting(seller) as tap, customer.agent.connect_over(tap, protocols=[INFO_2], did=seller.agent.did) as session:
        await buy(session)
        assert session.parameters == {"maxMessageSize": 20_000}
    async with meeting(seller) as tap, customer.agent.connect_over(tap, topic=TOPIC) as session:
        await buy(session)
    assert seen == {"shop": [{"maxMessageSize": 20_000}, {}], "buyer": [{"maxMessageSize": 20_000}, {}]}


@pytest.mark.parametrize("answer", [INFO_2, URI_2, None])
async def test_a_person_names_the_protocol_after_a_failure(tmp_path: Path, answer: str | None) -> None:
    escalations: list[Escalation] = []

    async def on_escalation(escalation: Escalation) -> str | None:
        escalations.append(escalation)
        return answer

    other = "anp:protocol:other:1.0"
    seller, customer = flow_shop(tmp_path), buyer(tmp_path, on_escalation=on_escalation)
    customer.agent.flow.registry.add(OFFER)
    async with listening(seller) as url, customer.agent as connecting:
        connection = connecting.connect(url, protocols=[other], did=seller.agent.did)
        if answer is None:
            with pytest.raises(Refused) as refusal:
                await connection.__aenter__()
            assert refusal.value.code == "session.no-common-protocol"
        else:
            async with connection as session:
                await buy(session)
                assert session.protocol_id == INFO_2
    (escalation,) = escalations
    assert (escalation.profile, escalation.role, escalation.peer) == ("flow", "initiator", seller.agent.did)
    assert (escalation.own_proposal, escalation.peer_proposal) == (other, INFO_2)
    assert replay(escalation.transcript) > 1


async def test_a_named_protocol_waits_for_the_next_connection(
    tmp_path: Path,
) -> None:
    async def on_escalation(escalation: Escalation) -> str:
        return INFO_2

    seller, customer = flow_shop(tmp_path), buyer(tmp_path, on_escalation=on_escalation)
    customer.agent.flow.registry.add(OFFER)
    for works in (False, True):
        async with meeting(seller) as tap:
            connection = customer.agent.connect_over(tap, protocols=["anp:protocol:other:1.0"], did=seller.agent.did)
            if works:
                async with connection as session:
                    await buy(session)
            else:
                with pytest.raises(Refused):
                    await connection.__aenter__()


async def test_an_operation_fails_alike_under_both_profiles(tmp_path: Path) -> None:
    seller, customer = flow_shop(tmp_path), buyer(tmp_path)
    customer.agent.flow.registry.add(OFFER)
    for options in ({"protocols": [INFO_2]}, {"topic": TOPIC}):
        async with meeting(seller) as tap, customer.agent.connect_over(tap, did=seller.agent.did, **options) as session:
            with pytest.raises(OperationError) as failure:
                await session.call("getProductInfo", productId="none")
            assert failure.value.status == 404


async def test_several_agents_negotiate_with_one_shop_at_once(tmp_path: Path) -> None:
    seller = flow_shop(tmp_path)
    async with listening(seller) as url:

        async def customer(number: int, **value: Any) -> str:
            someone = buyer(tmp_path, name=f"buyer{number}")
            someone.agent.flow.registry.add(OFFER)
            async with someone.agent as connecting, connecting.connect(url, did=seller.agent.did, **value) as session:
                await buy(session)
                return session.profile

        value: list[dict[str, Any]] = [{"topic": TOPIC}, {"protocols": [INFO_2]}] * 2
        profiles = await asyncio.gather(*(customer(number, **what) for number, what in enumerate(value)))
    assert profiles == ["hello", "flow"] * 2


async def test_the_manager_still_negotiates_by_itself(tmp_path: Path) -> None:
    peer, other = agent("shop", tmp_path, clock=system_clock), agent("buyer", tmp_path, clock=system_clock)
    async with (
        flow_meeting(peer) as tap,
        await other.manager.negotiate(tap, FlowRequest("buying"), peer="did:wba:shop.example") as session,
    ):
        await buy(session)
        assert [one.id for one in peer.manager.sessions] == [session.id]


# The end


@pytest.mark.parametrize("profile", ["hello", "flow"])
async def test_a_stopping_agent_answers_its_read_messages(tmp_path: Path, profile: str) -> None:
    seller, customer, begun, go = party("shop", tmp_path), buyer(tmp_path), asyncio.Event(), asyncio.Event()

    @seller.agent.provides(URI_2)
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        begun.set()
        await go.wait()
        return LAPTOP

    for someone in (seller, customer):
        someone.agent.flow.registry.add(OFFER)
    options: dict[str, Any] = {"topic": TOPIC} if profile == "hello" else {"protocols": [INFO_2], "did": seller.agent.did}
    async with meeting(seller) as tap, customer.agent.connect_over(tap, **options) as session:
        assert session.profile == profile
        call = asyncio.create_task(session.call("getProductInfo", productId="P12345"))
        await begun.wait()
        draining = asyncio.create_task(seller.agent.drain())
        await asyncio.sleep(0.05)
        # One more message may be under way when the reading stops.
        late = [asyncio.create_task(session.call("getProductInfo", productId="P12345")) for _ in range(3)]
        await asyncio.sleep(0.05)
        go.set()
        assert await call == LAPTOP
        await draining
        outcomes = await asyncio.gather(*late, return_exceptions=True)
        assert all(outcome == LAPTOP or getattr(outcome, "code", "") == "session.draining" for outcome in outcomes)
        assert getattr(outcomes[-1], "code", "") == "session.draining"
        assert session.is_over
    async with meeting(seller) as tap:
        with pytest.raises(TreatyError) as refused:
            async with buyer(tmp_path / "later").agent.connect_over(tap, **options):
                pass
    assert refused.value.code in ("session.draining", "session.peer-lost")
