"""The E2EE profile over a connection: what waits for the keys, what is bounded, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from secure_peers import BUYER, MALLORY, SHOP, greet, plain_hello, resolve, secured

from treaty_agent.transport import listener, memory, reconnect
from treaty_agent.transport.connection import Connection, ConnectionLost
from treaty_agent.transport.secure import SecureConnection
from treaty_anp.frame import MAX_FRAME
from treaty_consensus.did import Did
from treaty_consensus.errors import NotFound, TooLarge, TreatyError
from treaty_io.network.did_documents import DidDocument, DidResolver, read_did_document
from treaty_io.network.hosts import Network

ASKED = plain_hello("sourceHello", BUYER, SHOP.did)
ANSWERED = plain_hello("destinationHello", SHOP, BUYER.did)


async def opened(**options: Any) -> tuple[SecureConnection, SecureConnection]:
    near, far = secured(*memory.pair(), **options)
    await greet(near, far)
    return near, far


@asynccontextmanager
async def over_network(scheme: str) -> AsyncIterator[tuple[SecureConnection, SecureConnection]]:
    """Both ends after the handshake, over a real transport."""
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def accept(connection: Connection) -> None:
        accepted.set_result(connection)
        await over.wait()

    async with listener.listen(accept, "127.0.0.1", 0, max_connections=2) as port:
        inner = await reconnect.connect(f"{scheme}://127.0.0.1:{port}/", Network())
        near = SecureConnection.source(inner, BUYER, resolve=resolve)
        asking = asyncio.create_task(near.send(ASKED))  # over HTTP it waits for the answer
        try:
            far = SecureConnection.destination(await accepted, SHOP, resolve=resolve)
            await far.receive()
            await far.send(ANSWERED)
            await near.receive()
            await asking
            yield near, far
        finally:
            over.set()
            await inner.close()


async def refused(code: str, connection: Connection) -> None:
    for _ in range(2):
        with pytest.raises(TreatyError) as refusal:
            await connection.receive()
        assert refusal.value.code == code


async def test_it_says_who_is_there_once_that_is_proved() -> None:
    near, far = secured(*memory.pair())
    assert (near.peer, far.peer) == ("", "")
    await greet(near, far)
    assert (near.peer, far.peer) == (SHOP.did, BUYER.did)
    assert near.address == "memory:destination"


async def test_frames_wait_for_the_keys_in_their_order() -> None:
    near, far = secured(*memory.pair())
    await near.send(ASKED)
    early = [asyncio.create_task(near.send(bytes([0x40, number]))) for number in range(3)]
    await far.receive()
    assert not any(task.done() for task in early)
    await far.send(ANSWERED)
    await far.send(b"\x00right behind")
    await near.receive()
    assert await near.receive() == b"\x00right behind"
    assert [await far.receive() for _ in early] == [bytes([0x40, number]) for number in range(3)]
    await asyncio.gather(*early)


@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_over_a_network(scheme: str) -> None:
    async with over_network(scheme) as (near, far):
        for from_, to in ((near, far), (far, near)):
            large = asyncio.create_task(from_.send(bytes(MAX_FRAME)))
            assert await to.receive() == bytes(MAX_FRAME)
            await large
        closing = asyncio.create_task(far.close("session.idle"))
        with pytest.raises(ConnectionLost) as lost:
            await near.receive()
        assert lost.value.reason == "session.idle"
        await closing


@pytest.mark.threat(104)
async def test_a_connection_that_is_cut_is_told_from_one_that_was_closed() -> None:
    for reason in ("", "session.idle"):
        inner = memory.pair()
        near, far = secured(*inner)
        await greet(near, far)
        await near.send(b"\x40last")
        await inner[0].close(reason)
        assert await far.receive() == b"\x40last"
        for _ in range(2):
            with pytest.raises(ConnectionLost) as lost:
                await far.receive()
            assert lost.value.reason == "secure.truncated"
        with pytest.raises(ConnectionLost):
            await far.send(b"\x40late")


async def test_the_reason_of_a_failed_handshake_is_passed_on() -> None:
    near, far = secured(*memory.pair())
    await near.send(ASKED)
    await far.receive()
    await far.close("session.no-common-protocol")
    with pytest.raises(ConnectionLost) as lost:
        await near.receive()
    assert lost.value.reason == "session.no-common-protocol"


async def test_a_destination_may_answer_and_leave_at_once() -> None:
    near, far = secured(*memory.pair())
    await near.send(ASKED)
    await far.receive()
    await far.send(ANSWERED)
    await far.close("session.no-common-protocol")
    assert isinstance(await near.receive(), str)
    with pytest.raises(ConnectionLost) as lost:
        await near.receive()
    assert lost.value.reason == "session.no-common-protocol"


async def test_the_handshake_takes_bounded_time_on_either_side() -> None:
    near, far = secured(*memory.pair(), timeout=0.05)
    await refused("session.reply-timeout", far)
    await near.send(ASKED)
    waiting = asyncio.create_task(near.send(b"\x40early"))
    await refused("session.reply-timeout", near)
    with pytest.raises(TreatyError) as refusal:
        await waiting
    assert refusal.value.code == "session.reply-timeout"


async def test_a_slow_resolver_is_not_waited_for_longer() -> None:
    async def slow(did: str, key_id: str) -> Mapping[str, Any]:
        await asyncio.sleep(60)
        return {}

    near, far = secured(*memory.pair(), resolve=slow, timeout=0.05)
    await near.send(ASKED)
    await refused("session.reply-timeout", far)
    assert far.peer == ""


async def test_a_document_that_cannot_be_had_proves_nothing() -> None:
    async def nothing(did: str, key_id: str) -> Mapping[str, Any]:
        raise NotFound("did.unknown", f"{did} has no document.")

    near, far = secured(*memory.pair(), resolve=nothing)
    await near.send(ASKED)
    await refused("secure.identity", far)
    assert far.peer == ""


async def test_a_rotated_key_proves_its_did_at_once_though_the_document_before_is_remembered() -> None:
    served = {identity.did: json.dumps(identity.did_document()).encode() for identity in (BUYER, SHOP)}
    seconds = iter(range(0, 1000, 10))

    async def fetch(did: Did) -> DidDocument:
        return read_did_document(did, served[did.text])

    resolver = DidResolver(fetch, clock=lambda: next(seconds))
    await resolver.document(BUYER.did)
    rotated = BUYER.rotated()
    served[BUYER.did] = json.dumps(rotated.did_document()).encode()
    here, there = memory.pair()
    near = SecureConnection.source(here, rotated, resolve=resolver.document)
    far = SecureConnection.destination(there, SHOP, resolve=resolver.document)
    await near.send(plain_hello("sourceHello", rotated, SHOP.did))
    assert isinstance(await far.receive(), str)
    assert far.peer == BUYER.did


async def test_cancelling_receive_while_a_did_is_resolved_loses_nothing() -> None:
    asked = asyncio.Event()

    async def slow_once(did: str, key_id: str) -> Mapping[str, Any]:
        if not asked.is_set():
            asked.set()
            await asyncio.sleep(60)
        return await resolve(did, key_id)

    near, far = secured(*memory.pair(), resolve=slow_once)
    await near.send(ASKED)
    first = asyncio.create_task(far.receive())
    await asked.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert isinstance(await far.receive(), str)
    assert far.peer == BUYER.did


async def test_a_broken_rule_ends_it_for_good_and_releases_whoever_waits() -> None:
    inner = memory.pair()
    near, _ = secured(*inner)
    await near.send(ASKED)
    waiting = asyncio.create_task(near.send(b"\x40early"))
    await inner[1].send(ANSWERED)
    await refused("secure.required", near)
    with pytest.raises(TreatyError) as refusal:
        await waiting
    assert refusal.value.code == "secure.required"
    await near.close("secure.required")
    assert await inner[1].receive()
    with pytest.raises(ConnectionLost) as lost:
        await inner[1].receive()
    assert lost.value.reason == "secure.required"


async def test_a_peer_that_is_refused_after_the_handshake_hears_why() -> None:
    inner = memory.pair()
    near, far = secured(*inner)
    await greet(near, far)
    await near.send(b"\x40first")
    assert await far.receive() == b"\x40first"
    await inner[0].send("{}")
    await refused("secure.record", far)
    await far.close("secure.record")
    with pytest.raises(ConnectionLost) as lost:
        await near.receive()
    assert lost.value.reason == "secure.record"


async def test_the_last_word_about_a_refused_hello_waits_for_no_keys() -> None:
    near, far = secured(*memory.pair())
    await near.send(ASKED)
    await far.receive()
    await far.send(b"\x00rejected")  # there will be no keys for it
    await far.close("hello.destination")
    with pytest.raises(ConnectionLost) as lost:
        await near.receive()
    assert lost.value.reason == "hello.destination"


async def test_a_send_that_was_cut_short_is_not_followed_by_anything() -> None:
    near, far = await opened()
    sending = asyncio.create_task(_flood(near))
    await asyncio.sleep(0.05)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    for _ in range(memory.CAPACITY - 1):  # the first place is taken by `finished`
        assert await far.receive() == b"\x40"
    await near.close("session.slow-peer")
    with pytest.raises(ConnectionLost) as lost:
        await far.receive()
    assert lost.value.reason == "secure.truncated"


async def _flood(connection: Connection) -> None:
    while True:
        await connection.send(b"\x40")


async def test_closing_is_bounded_when_the_peer_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_agent.transport.secure.CLOSE_TIMEOUT", 0.05)
    near, _ = await opened()
    flooding = asyncio.create_task(_flood(near))
    await asyncio.sleep(0.05)
    await asyncio.gather(near.close("first"), near.close("second"))
    with pytest.raises(ConnectionLost):
        await flooding


@pytest.mark.parametrize("binary", [False, True])
async def test_a_signed_hello_never_passes_for_a_plain_one(binary: bool) -> None:
    inner = memory.pair()
    near = SecureConnection.source(inner[0], BUYER, resolve=resolve)
    await near.send(ASKED)
    signed = str(await inner[1].receive())
    odd: str | bytes = signed.encode() if binary else signed[:-1] + ',"temperature":0.5}'
    for required in (False, True):
        asked = memory.pair()
        far = SecureConnection.destination(asked[1], SHOP, resolve=resolve, required=required)
        await asked[0].send(odd)
        await refused("secure.record" if binary else "canonical.json", far)


async def test_preferring_encryption_speaks_plain_with_a_plain_peer() -> None:
    inner = memory.pair()
    near = SecureConnection.source(inner[0], BUYER, resolve=resolve, required=False)
    await near.send(ASKED)
    early = asyncio.create_task(near.send(b"\x40early"))
    await inner[1].receive()
    await inner[1].send(ANSWERED)
    assert await near.receive() == ANSWERED
    await early
    assert await inner[1].receive() == b"\x40early"
    await near.send(b"\x40plain")
    assert await inner[1].receive() == b"\x40plain"
    assert near.peer == ""
    await near.close("session.idle")
    with pytest.raises(ConnectionLost) as lost:
        await inner[1].receive()
    assert lost.value.reason == "session.idle"


async def test_too_large_a_message_is_refused_here() -> None:
    near, far = await opened()
    with pytest.raises(TooLarge):
        await near.send(bytes(MAX_FRAME + 1))
    await near.send(b"\x40next")
    assert await far.receive() == b"\x40next"


async def test_whom_the_transport_proved_and_whom_the_handshake_proved_has_to_be_the_same() -> None:
    for did, code in ((MALLORY.did, "secure.identity"), (BUYER.did, None)):
        near, far = secured(*memory.pair(source=did))
        assert far.peer == did
        await near.send(ASKED)
        if code is None:
            assert isinstance(await far.receive(), str)
        else:
            await refused(code, far)


async def test_what_this_side_closed_itself_was_not_cut() -> None:
    near, _ = await opened()
    await near.close("session.idle")
    with pytest.raises(ConnectionLost) as lost:
        await near.receive()
    assert lost.value.reason != "secure.truncated"


async def test_the_reason_goes_over_the_wire_under_encryption_alone() -> None:
    inner = memory.pair()
    near, far = secured(*inner)
    await greet(near, far)
    await near.close("session.idle")
    with pytest.raises(ConnectionLost) as lost:
        while "session.idle" not in str(await inner[1].receive()):
            pass
    assert lost.value.reason == ""
