"""DID documents, fetched and read."""

from __future__ import annotations

import gc
import json
import tracemalloc
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
from loopback import Loopback, answering

from treaty_consensus.did import Did, parse_did
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, Unauthorized, Unavailable
from treaty_io.identity import Identity
from treaty_io.network import did_documents
from treaty_io.network.did_documents import MAX_AGE, REFETCH_AGE, DidDocument, DidResolver, fetch_did_document, read_did_document
from treaty_io.network.egress import EgressGuard
from treaty_io.network.hosts import Address, Network


async def test_an_identitys_own_document_is_fetched_and_gives_its_key(tmp_path: Path) -> None:
    identity = Identity.create("alice.example:agents:shop")
    data = json.dumps(identity.did_document(), indent=2).encode()
    async with Loopback(tmp_path).serving(answering(data), "alice.example") as loopback:
        document = await fetch_did_document(identity.parsed, EgressGuard(loopback.network()))
    assert loopback.seen[0].startswith("GET /agents/shop/did.json HTTP/1.1\r\n")
    assert document.data == data
    assert document.keys == {identity.key_id: identity.public_key}


async def test_a_did_key_has_no_document(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no document"):
        await fetch_did_document(Identity.create().parsed, EgressGuard(Loopback(tmp_path).network()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{}",
        b'{"id":"did:wba:alice.example"}',
        b'{"id":"did:wba:evil.example"}',
        b"\xff",
        b'{"id":1.5}',
    ],
)
def test_what_is_not_its_document_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_did_document(parse_did("did:wba:alice.example"), data)


def test_a_document_over_the_cap_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(TooLarge):
        read_did_document(parse_did("did:wba:alice.example"), b"{" * (64 * 1024 + 1))


def test_another_dids_document_is_refused() -> None:
    identity = Identity.create("alice.example")
    with pytest.raises(Malformed, match="has another id than"):
        read_did_document(parse_did("did:web:alice.example"), json.dumps(identity.did_document()).encode())


async def test_only_an_agent_fetches_a_did_at_a_port(tmp_path: Path) -> None:
    identity = Identity.create("alice.example%3A8443:shop")
    data = json.dumps(identity.did_document()).encode()
    async with Loopback(tmp_path).serving(answering(data), "alice.example") as loopback:
        document = await fetch_did_document(identity.parsed, EgressGuard(loopback.network(), other_ports=True))
        with pytest.raises(Refused, match="port 443"):
            await fetch_did_document(identity.parsed, EgressGuard(loopback.network()))
    assert loopback.seen[0].startswith("GET /shop/did.json HTTP/1.1\r\n")
    assert "Host: alice.example:8443\r\n" in loopback.seen[0]
    assert document.keys == {identity.key_id: identity.public_key}


async def test_a_port_that_is_allowed_is_the_one_that_is_asked(tmp_path: Path) -> None:
    addresses = []

    async def lookup(host: str) -> list[str]:
        return ["93.184.215.14"]

    def transport(address: Address) -> httpx.AsyncBaseTransport:
        addresses.append(address)
        return httpx.MockTransport(lambda request: httpx.Response(404, stream=httpx.ByteStream(b"")))

    guard = EgressGuard(Network(), lookup=lookup, transport=transport, other_ports=True, interval=0)
    for text in ("did:wba:alice.example%3A8443:shop", "did:web:alice.example"):
        with pytest.raises(NotFound):
            await fetch_did_document(parse_did(text), guard)
    assert addresses == [Address("93.184.215.14", 8443), Address("93.184.215.14", 443)]


@pytest.mark.parametrize("value", [True, None, "true", 1])
def test_a_deactivated_document_is_refused(value: object) -> None:
    identity = Identity.create("alice.example")
    document = {**identity.did_document(), "deactivated": value}
    with pytest.raises(Refused) as refusal:
        read_did_document(identity.parsed, json.dumps(document).encode())
    assert refusal.value.code == "did.deactivated"
    assert read_did_document(identity.parsed, json.dumps({**document, "deactivated": False}).encode()).keys


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"proof": None}, "carries no"),
        ({"proof": {"type": "DataIntegrityProof"}}, "carries no"),
        ({"more": 1}, "does not verify"),
        ({"assertionMethod": []}, "not by the key"),
    ],
)
def test_a_bound_dids_document_needs_its_keys_proof(change: dict[str, object], reason: str) -> None:
    identity = Identity.create("alice.example", bind=True)
    data = json.dumps({**identity.did_document(), **change}).encode()
    with pytest.raises(Unauthorized, match=reason):
        read_did_document(identity.parsed, data)


def test_control_of_the_host_alone_speaks_for_no_bound_did() -> None:
    identity, mallory = Identity.create("alice.example", bind=True), Identity.create("mallory.example", bind=True)
    forged = Identity(f"{mallory.did}", mallory.key_id, mallory.private_key).did_document()
    text = json.dumps(forged).replace(mallory.did, identity.did)
    with pytest.raises(Unauthorized, match="not by the key"):
        read_did_document(identity.parsed, text.encode())


class Hosts:
    """Serve one document, or fail; count how often it was asked for."""

    def __init__(self, identity: Identity) -> None:
        self.identity, self.now, self.asked = identity, 0.0, 0
        self.error: Exception | None = None
        self.resolver = DidResolver(self.fetch, clock=lambda: self.now)

    async def fetch(self, did: Did) -> DidDocument:
        self.asked += 1
        if self.error:
            raise self.error
        return read_did_document(did, json.dumps(self.identity.did_document()).encode())


async def test_a_document_is_remembered_for_its_age_and_not_longer() -> None:
    hosts = Hosts(Identity.create("alice.example"))
    did = hosts.identity.parsed
    for now, count in ((0.0, 1), (MAX_AGE - 1, 1), (MAX_AGE, 2)):
        hosts.now = now
        assert (await hosts.resolver.resolve(did)).keys == {hosts.identity.key_id: hosts.identity.public_key}
        assert hosts.asked == count
    assert await hosts.resolver.document(did.text) == hosts.identity.did_document()
    hosts.now, hosts.error = 2 * MAX_AGE, Unavailable("egress.unreachable", "No.")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await hosts.resolver.resolve(did)
    hosts.error = None
    assert (await hosts.resolver.resolve(did)).did == did


async def test_a_document_without_the_key_is_fetched_again_later() -> None:
    hosts = Hosts(Identity.create("alice.example"))
    did, first_identity = hosts.identity.parsed, hosts.identity
    await hosts.resolver.resolve(did)
    hosts.identity = first_identity.rotated()
    assert first_identity.key_id in (await hosts.resolver.resolve(did, listing=hosts.identity.key_id)).keys
    hosts.now = REFETCH_AGE
    assert (await hosts.resolver.resolve(did, listing=hosts.identity.key_id)).keys.keys() == {hosts.identity.key_id}
    assert hosts.asked == 2


async def test_a_failing_host_does_not_erase_a_good_document() -> None:
    hosts = Hosts(Identity.create("alice.example"))
    did = hosts.identity.parsed
    await hosts.resolver.resolve(did)
    hosts.now, hosts.error = REFETCH_AGE, Unavailable("egress.unreachable", "No.")
    with pytest.raises(Unavailable):
        await hosts.resolver.resolve(did, listing=f"{did.text}#other")
    assert (await hosts.resolver.resolve(did)).did == did


async def test_a_host_without_a_document_is_asked_again() -> None:
    hosts = Hosts(Identity.create("alice.example"))
    did, hosts.error = hosts.identity.parsed, NotFound("egress.not-found", "There is no document.")
    for _ in range(2):
        with pytest.raises(Unavailable, match="no document") as absent:
            await hosts.resolver.resolve(did)
        assert (absent.value.code, absent.value.retryable) == ("egress.unreachable", True)
    hosts.error = None
    assert (await hosts.resolver.resolve(did)).did == did
    assert hosts.asked == 3


async def test_a_wrong_document_refuses_for_some_seconds() -> None:
    hosts = Hosts(Identity.create("alice.example"))
    did, hosts.error = hosts.identity.parsed, Refused("did.deactivated", "It is deactivated.")
    for _ in range(2):
        with pytest.raises(Refused):
            await hosts.resolver.resolve(did)
    assert hosts.asked == 1
    hosts.now, hosts.error = REFETCH_AGE, None
    assert (await hosts.resolver.resolve(did)).did == did


async def test_a_did_key_is_its_own_document() -> None:
    identity = Identity.create()
    hosts = Hosts(identity)
    assert (await hosts.resolver.resolve(identity.parsed)).keys == {identity.key_id: identity.public_key}
    assert hosts.asked == 0


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.threat(95)
@pytest.mark.parametrize("usable", [True, False])
async def test_foreign_documents_take_their_bytes_of_memory(usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is 60 KB of empty lists, which are twenty times as large when they are parsed."""
    monkeypatch.setattr(did_documents, "_REMEMBERED_BYTES", 300_000)
    stuffing = "[" + ",".join(["[]"] * 20_000) + "]"

    async def fetch(did: Did) -> DidDocument:
        document: dict[str, object] = Identity.create(did.text.removeprefix("did:wba:")).did_document()
        if not usable:
            del document["authentication"]
        return read_did_document(did, f'{json.dumps(document)[:-1]},"stuffing":{stuffing}}}'.encode())

    resolver = DidResolver(fetch)
    tracemalloc.start()
    try:
        for number in range(20):
            with nullcontext() if usable else pytest.raises(Malformed):
                await resolver.resolve(parse_did(f"did:wba:evil.example:{number}"))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
