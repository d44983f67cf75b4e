"""Who only claims a DID, in a plain Hello, is never taken for the agent that proved it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from handoffs import DATA
from meetings import LAPTOP, MAX_AGE, TOPIC, URI_2, Party, buyer, identity, meeting, shop

from treaty_agent import Identity, Policy
from treaty_agent.sessions.opening import PeerPins
from treaty_agent.testing.virtual_time import run
from treaty_client.policy import Encryption
from treaty_consensus.errors import Refused
from treaty_handler import Effect, Event, Opened, PeerJoined, PeerLost, Persist, Received, Send, SetTimer
from treaty_handoff import Kind, build
from treaty_handoff.handler import handler
from treaty_handoff.handler.broker_session import MAX_MEMBERS
from treaty_io.identity import ClaimedPeer, ProvedPeer
from treaty_sandbox.interface import RunningHandler

ADA, BOB = "did:wba:ada.example", "did:wba:bob.example"
JOIN = {"event": "JOIN", "attributes": {}}


def policy(encryption: Encryption) -> Policy:
    return Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, encryption=encryption)


def impostor(domain: str) -> Identity:
    """Another agent that says it is the agent of this domain."""
    victim = identity(domain)
    return Identity(victim.did, victim.key_id, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


class Keeping:
    """A handler that notes what is stored when it begins, and then stores its own value."""

    kept = None

    def __init__(self, inner: RunningHandler, keeps: bytes, seen: list[Opened]) -> None:
        self.inner, self.keeps, self.seen = inner, keeps, seen

    async def handle(self, event: Event) -> Sequence[Effect]:
        effects = await self.inner.handle(event)
        if isinstance(event, Opened):
            self.seen.append(event)
            return [*effects, Persist(key="card", value=self.keeps)]
        return effects

    async def close(self) -> None:
        await self.inner.close()


def keeping(someone: Party, keeps: bytes) -> list[Opened]:
    """Let the handlers of a party keep a value from now on; what they are told when they begin."""
    seen = list[Opened]()
    someone.runtime.wrap = lambda handler: Keeping(handler, keeps, seen)
    return seen


class Broker:
    """A session of a broker with its storage. It moves by snapshot before each event."""

    def __init__(self, stored: dict[str, bytes] | None = None) -> None:
        self.stored, self.parameters = {} if stored is None else stored, {"peer": "", "seed": "0" * 32}
        self.session = handler.open("broker", self.parameters)
        self.now = 1_700_000_000_000
        self.handle(Opened(stored=dict(self.stored)))

    def handle(self, event: Event) -> list[tuple[str, str]]:
        """Give it an event: whom it sends what, the status of a report or `waits`."""
        if not isinstance(event, Opened):
            self.session = handler.open("broker", self.parameters, self.session.snapshot())
        self.now += 1_000
        sent = []
        for effect in self.session.handle(replace(event, at=self.now)):
            match effect:
                case Persist(key=key, value=None):
                    self.stored.pop(key, None)
                case Persist(key=key, value=bytes(value)):
                    self.stored[key] = value
                case Send(peer=peer, data=data):
                    sent.append((peer, json.loads(data)["payload"]["data"].get("status", "waits")))
        return sent

    def joins(self, peer: str, *, is_proved: bool) -> None:
        self.handle(PeerJoined(peer=peer, role="member", is_proved=is_proved))

    def member(self, peer: str, *, is_proved: bool = True, data: Any = None) -> str:
        """Join as a name that is the DID, and return the answer."""
        self.joins(peer, is_proved=is_proved)
        return self.says(peer, kind=Kind.NOTIFICATION, recipient="broker", data=data or JOIN)[0][1]

    @property
    def names(self) -> set[str]:
        value = json.loads(self.session.snapshot())
        return set(value["members"])

    def says(
        self,
        peer: str,
        *,
        recipient: str,
        kind: Kind = Kind.TASK_TRANSFER,
        data: Any = None,
        sender: str = "",
        name: str | None = None,
    ) -> list[tuple[str, str]]:
        parts: Any = {"sender": sender or peer, "recipient": recipient, "task": "t", "state": "OPEN", "message_id": name}
        message = build(kind, data or DATA[kind], now=datetime(2030, 1, 1, tzinfo=UTC), **parts)
        return self.handle(Received(peer=peer, data=json.dumps(message).encode()))


async def buy(seller: Party, customer: Party) -> None:
    async with meeting(seller) as tap, customer.agent.connect_over(tap, topic=TOPIC) as session:
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP


@pytest.mark.threat(57)
def test_a_claim_reaches_no_state_of_a_proved_peer(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path, URI_2, policy=policy("preferred"))
        victim = buyer(tmp_path / "victim", policy=policy("preferred"))
        mallory = buyer(tmp_path / "mallory", own=impostor("buyer.example"), policy=policy("off"))
        events = keeping(seller, b"4711")
        await buy(seller, victim)
        keeping(seller, b"evil")
        for _ in range(2):  # with an agreement that is remembered, too
            await buy(seller, mallory)
        after = keeping(seller, b"4711")
        await buy(seller, victim)
        assert [(event.stored, event.is_proved) for event in events] == [({}, True)]
        assert [(event.stored, event.is_proved) for event in after] == [({"card": b"4711"}, True)]

    run(main())


@pytest.mark.threat(57)
def test_a_claim_has_its_own_state_and_is_named_as_claim(tmp_path: Path) -> None:
    async def main() -> None:
        seller = shop(tmp_path, URI_2, policy=policy("preferred"))
        events = keeping(seller, b"of a proof")
        await buy(seller, buyer(tmp_path / "victim", policy=policy("preferred")))
        claimed = keeping(seller, b"of a claim")
        for _ in range(2):
            await buy(seller, buyer(tmp_path / "mallory", own=impostor("buyer.example"), policy=policy("off")))
        assert [event.is_proved for event in (*events, *claimed)] == [True, False, False]
        assert [event.stored for event in claimed] == [{}, {"card": b"of a claim"}]

    run(main())


@pytest.mark.threat(57)
@pytest.mark.parametrize("encryption", ["preferred", "required"])
def test_a_remembered_agreement_waits_for_the_proof(tmp_path: Path, encryption: Encryption) -> None:
    async def main() -> None:
        seller, customer = shop(tmp_path, URI_2, policy=policy(encryption)), buyer(tmp_path, policy=policy(encryption))
        events = keeping(customer, b"4711")
        for _ in range(2):
            await buy(seller, customer)
        assert [(event.stored, event.is_proved) for event in events] == [({}, True), ({"card": b"4711"}, True)]
        if encryption == "required":
            return
        # Somebody answers at the same address without a proof, and claims the DID of the agreement.
        fake = shop(tmp_path / "fake", URI_2, own=impostor("shop.example"), policy=policy("off"))
        events = keeping(customer, b"evil")
        await buy(fake, customer)
        assert [(event.stored, event.is_proved) for event in events] == [({}, False)]

    run(main())


@pytest.mark.threat(350)
async def test_a_pinned_proof_is_neither_met_nor_replaced_by_a_claim(tmp_path: Path) -> None:
    seller = shop(tmp_path, URI_2, policy=policy("preferred"))
    fake = shop(tmp_path / "fake", URI_2, own=impostor("shop.example"), policy=policy("off"))
    customer = buyer(tmp_path, policy=policy("preferred"))

    async def call(url: str, **options: Any) -> None:
        async with customer.agent.connect(url, topic=TOPIC, **options) as session:
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP

    async def is_refused(url: str) -> None:
        with pytest.raises(Refused) as refused:
            await call(url)
        assert refused.value.code == "peer.changed"

    async with customer.agent:
        async with seller.agent.listen("127.0.0.1", 0) as port:
            url = f"ws://127.0.0.1:{port}"
            await call(url)
        async with fake.agent.listen("127.0.0.1", port):
            await is_refused(url)  # it would begin with early data
            await is_refused(url)
    (customer.home / "agreements.json").unlink()
    customer = buyer(tmp_path, policy=policy("preferred"))
    async with customer.agent, fake.agent.listen("127.0.0.1", port):
        await call(url, did=seller.agent.did)  # the application says that it wants this session all the same
    assert PeerPins(customer.home).get(url) == ProvedPeer(seller.agent.did)
    for party in (seller, fake):
        await party.agent.aclose()


@pytest.mark.threat(341)
@pytest.mark.parametrize("rests", [False, True])
def test_a_brokers_name_belongs_to_its_owners_proofs(rests: bool) -> None:
    broker = Broker()
    for peer in (ADA, BOB):
        broker.joins(peer, is_proved=True)
        assert broker.says(peer, kind=Kind.NOTIFICATION, recipient="broker", data=JOIN) == [(peer, "ACCEPTED")]
    broker.handle(PeerLost(peer=BOB))
    assert broker.says(ADA, recipient=BOB) == [(ADA, "ACCEPTED")]
    if rests:  # a new process, and a worker that takes the session over
        broker = Broker(broker.stored)
    broker.joins(BOB, is_proved=False)
    before = dict(broker.stored)
    assert broker.says(BOB, kind=Kind.NOTIFICATION, recipient="broker", data=JOIN) == [(BOB, "REJECTED")]
    assert broker.says(BOB, recipient=ADA) == [(BOB, "REJECTED")]
    assert broker.stored == before
    broker.handle(PeerLost(peer=BOB))
    broker.joins(BOB, is_proved=True)
    assert broker.says(BOB, kind=Kind.NOTIFICATION, recipient="broker", data=JOIN) == [(BOB, "ACCEPTED"), (BOB, "waits")]


@pytest.mark.threat(341)
@pytest.mark.parametrize("rests", [False, True])
def test_a_claimed_did_keeps_nothing_at_a_broker(rests: bool) -> None:
    broker = Broker()
    assert [broker.member(ADA), broker.member(BOB, is_proved=False)] == ["ACCEPTED", "ACCEPTED"]
    if rests:
        # The session ends before the member leaves. The next one has the message, and no member with this name.
        assert broker.says(ADA, recipient=BOB) == [(BOB, "waits"), (ADA, "ACCEPTED")]
        broker = Broker(broker.stored)
        broker.joins(ADA, is_proved=True)
        assert broker.member(ADA) == "ACCEPTED"
    else:
        assert broker.says(ADA, recipient=BOB) == [(BOB, "waits"), (ADA, "ACCEPTED")]
        # Its sender learns that nothing waits.
        assert broker.handle(PeerLost(peer=BOB)) == [(ADA, "FAILED")]
    assert broker.names == {ADA} and not any(key.startswith("wait:") for key in broker.stored)
    assert broker.says(ADA, recipient=BOB) == [(ADA, "REJECTED")]
    # Who claims the DID next gets the name anew, and nothing that was sent under it.
    broker.joins(BOB, is_proved=False)
    assert broker.says(BOB, kind=Kind.NOTIFICATION, recipient="broker", data=JOIN) == [(BOB, "ACCEPTED")]


@pytest.mark.threat(341)
def test_the_next_owner_of_a_name_reports_no_old_message() -> None:
    def report(status: str) -> list[tuple[str, str]]:
        data = {"in_reply_to": task, "status": status}
        return broker.says(BOB, kind=Kind.STATUS_UPDATE, recipient=ADA, data=data, sender="pool")

    broker, task = Broker(), str(uuid.uuid4())
    joining = {"event": "JOIN", "attributes": {"groups": ["pool"]}}
    assert [broker.member(ADA), broker.member(BOB, is_proved=False, data=joining)] == ["ACCEPTED", "ACCEPTED"]
    assert broker.says(ADA, recipient="pool", name=task) == [(BOB, "waits"), (ADA, "ACCEPTED")]
    assert report("ACCEPTED") == [] and report("IN_PROGRESS") == [(ADA, "IN_PROGRESS")]
    broker.handle(PeerLost(peer=BOB))
    assert broker.member(BOB, is_proved=False, data=joining) == "ACCEPTED"
    assert report("COMPLETED") == []


@pytest.mark.threat(374)
def test_many_dids_of_one_agent_lock_no_names() -> None:
    broker = Broker()
    for peer in (ADA, BOB):
        assert broker.member(peer) == "ACCEPTED"
    broker.handle(PeerLost(peer=BOB))
    assert broker.says(ADA, recipient=BOB) == [(ADA, "ACCEPTED")]
    for number in range(2 * MAX_MEMBERS):
        mallory = f"did:key:z{number}"
        assert broker.member(mallory) == "ACCEPTED"
        # It also lets a message wait under each of its names, as long as there is room.
        broker.says(mallory, kind=Kind.NOTIFICATION, recipient=mallory)
        broker.handle(PeerLost(peer=mallory))
    assert len(broker.names) == MAX_MEMBERS
    before = dict(broker.stored)
    assert broker.member("did:wba:claimed.example", is_proved=False) == "REJECTED" and broker.stored == before
    assert broker.member("did:wba:honest.example") == "ACCEPTED"
    assert {ADA, BOB, "did:wba:honest.example"} <= broker.names and len(broker.names) == MAX_MEMBERS
    # The name and the message of the member that is away are still its own.
    broker.joins(BOB, is_proved=True)
    assert broker.says(BOB, kind=Kind.NOTIFICATION, recipient="broker", data=JOIN) == [(BOB, "ACCEPTED"), (BOB, "waits")]


@pytest.mark.threat(374)
def test_no_name_of_a_member_ends_the_session_of_a_broker() -> None:
    broker = Broker()
    for number, name in enumerate(("x" * 64, "中" * 64, "a b/c?*#", "send:", "ä")):
        broker.joins(f"did:key:z{number}", is_proved=True)
        message = build(Kind.NOTIFICATION, JOIN, sender=name, recipient="broker", task="t", state="OPEN", now=datetime.now(UTC))
        effects = broker.session.handle(Received(peer=f"did:key:z{number}", data=json.dumps(message).encode()))
        effects_of_all = [*effects, *broker.session.handle(PeerLost(peer=f"did:key:z{number}"))]
        keys = [effect.key for effect in effects_of_all if isinstance(effect, Persist)]
        keys += [effect.name for effect in effects_of_all if isinstance(effect, SetTimer)]
        assert len(keys) == 2 and all(re.fullmatch("[A-Za-z0-9._:-]{1,64}", key) for key in keys)


def test_a_claim_is_never_equal_to_a_proof() -> None:
    claim, proof = ClaimedPeer("did:wba:a.example"), ProvedPeer("did:wba:a.example")
    both: list[object] = [claim, proof]
    assert both.count(proof) == len(set(both)) - 1 == 1
    assert str(claim) == str(proof)
