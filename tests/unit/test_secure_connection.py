"""The E2EE profile over a connection: what waits for the keys, what is bounded, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pytest
from secure_peers import BUYER, MALLORY, SHOP, greet, plain_hello, resolve, secured

from treaty_agent.sessions.wire import Wire
from treaty_agent.testing.virtual_time import run
from treaty_agent.transport import listener, memory, reconnect
from treaty_agent.transport.connection import Connection, ConnectionLost, next_message
from treaty_agent.transport.secure import SecureConnection
from treaty_anp.ending import ended_by_peer
from treaty_anp.frame import MAX_FRAME
from treaty_consensus.did import Did
from treaty_consensus.errors import Malformed, NotFound, Refused, TooLarge, TreatyError, Unavailable
from treaty_io.codes import SessionCode
from treaty_io.errors import PeerUnavailable
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
        near.send(ASKED)
        try:
            far = SecureConnection.destination(await accepted, SHOP, resolve=resolve)
            await next_message(far)
            far.send(ANSWERED)
            await next_message(near)
            yield near, far
        finally:
            over.set()
            await inner.close()


async def refused(code: str, connection: Connection) -> None:
    for _ in range(2):
        with pytest.raises(TreatyError) as refusal:
            await next_message(connection)
        assert refusal.value.code == code


async def test_it_says_who_is_there_once_that_is_proved() -> None:
    near, far = secured(*memory.pair())
    assert (near.peer, far.peer) == ("", "")
    await greet(near, far)
    assert (near.peer, far.peer) == (SHOP.did, BUYER.did)
    assert near.address == "memory:destination"


async def test_frames_wait_for_the_keys_in_their_order() -> None:
    inner = memory.pair()
    near, far = secured(*inner)
    near.send(ASKED)
    early = [bytes([0x40, number]) for number in range(3)]
    for message in early:
        near.send(message)
    await next_message(far)
    assert (near.backlog, inner[0].backlog) == (6, 0)
    far.send(ANSWERED)
    far.send(b"\x00right behind")
    woken = asyncio.Event()
    near.watch(woken.set)
    assert near.receive() is None  # the DID is resolved
    await woken.wait()
    woken.clear()
    assert isinstance(near.receive(), str)
    assert woken.is_set()  # the backlog fell: they left, and the other side has to read them
    assert near.backlog == inner[0].backlog > 6
    assert await next_message(near) == b"\x00right behind"
    assert [await next_message(far) for _ in early] == early
    assert near.backlog == 0


async def test_what_a_destination_sends_before_its_hello_follows_it() -> None:
    near, far = secured(*memory.pair())
    far.send(b"\x40early")
    await greet(near, far)
    assert await next_message(near) == b"\x40early"


@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_over_a_network(scheme: str) -> None:
    async with over_network(scheme) as (near, far):
        for from_, to in ((near, far), (far, near)):
            from_.send(bytes(MAX_FRAME))
            assert await next_message(to) == bytes(MAX_FRAME)
        closing = asyncio.create_task(far.close("session.idle"))
        with pytest.raises(ConnectionLost) as lost:
            await next_message(near)
        assert lost.value.reason == "session.idle"
        await closing


@pytest.mark.threat(104)
async def test_a_cut_connection_differs_from_a_closed_one() -> None:
    for reason in ("", "session.idle"):
        inner = memory.pair()
        near, far = secured(*inner)
        await greet(near, far)
        near.send(b"\x40last")
        await inner[0].close(reason)
        assert await next_message(far) == b"\x40last"
        for _ in range(2):
            with pytest.raises(ConnectionLost) as lost:
                await next_message(far)
            assert lost.value.reason == "secure.truncated"
        with pytest.raises(ConnectionLost):
            far.send(b"\x40late")


async def test_the_reason_of_a_failed_handshake_is_passed_on() -> None:
    near, far = secured(*memory.pair())
    near.send(ASKED)
    await next_message(far)
    await far.close("session.no-common-protocol")
    with pytest.raises(ConnectionLost) as lost:
        await next_message(near)
    assert lost.value.reason == "session.no-common-protocol"


async def test_a_destination_may_answer_and_leave_at_once() -> None:
    near, far = secured(*memory.pair())
    near.send(ASKED)
    await next_message(far)
    far.send(ANSWERED)
    await far.close("session.no-common-protocol")
    assert isinstance(await next_message(near), str)
    with pytest.raises(ConnectionLost) as lost:
        await next_message(near)
    assert lost.value.reason == "session.no-common-protocol"


async def test_the_handshake_takes_bounded_time_on_either_side() -> None:
    inner = memory.pair()
    near, far = secured(*inner, timeout=0.05)
    await refused("session.reply-timeout", far)
    near.send(ASKED)
    near.send(b"\x40early")
    await refused("session.reply-timeout", near)
    assert near.backlog == inner[0].backlog
    with pytest.raises(TreatyError) as refusal:
        near.send(b"\x40late")
    assert refusal.value.code == "session.reply-timeout"


async def test_the_time_begins_when_somebody_watches() -> None:
    _, far = secured(*memory.pair(), timeout=0.05)
    woken = asyncio.Event()
    far.watch(woken.set)
    await woken.wait()
    with pytest.raises(TreatyError) as refusal:
        far.receive()
    assert refusal.value.code == "session.reply-timeout"


def test_the_time_ends_with_the_handshake() -> None:
    async def main() -> None:
        near, far = await opened()
        near.send(b"\x40first")
        await next_message(far)  # after the source's `finished`
        inner = memory.pair()
        plain = SecureConnection.source(inner[0], BUYER, resolve=resolve, required=False)
        plain.send(ASKED)
        inner[1].send(ANSWERED)
        await next_message(plain)
        await asyncio.sleep(3600)
        assert near.receive() is far.receive() is plain.receive() is None

    run(main())


async def test_a_slow_resolver_is_not_waited_for_longer() -> None:
    ended = asyncio.Event()

    async def slow(did: str, key_id: str) -> Mapping[str, Any]:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return {}

    near, far = secured(*memory.pair(), resolve=slow, timeout=0.05)
    near.send(ASKED)
    await refused("session.reply-timeout", far)
    assert far.peer == ""
    await ended.wait()


async def test_a_document_that_cannot_be_had_proves_nothing() -> None:
    async def nothing(did: str, key_id: str) -> Mapping[str, Any]:
        raise NotFound("did.unknown", f"{did} has no document.")

    near, far = secured(*memory.pair(), resolve=nothing)
    near.send(ASKED)
    await refused("secure.identity", far)
    assert far.peer == ""


async def test_a_resolver_that_fails_unexpectedly_proves_nothing() -> None:
    async def fail(did: str, key_id: str) -> Mapping[str, Any]:
        raise RuntimeError("broken")

    near, far = secured(*memory.pair(), resolve=fail)
    near.send(ASKED)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await next_message(far)
    assert far.peer == ""
    await far.close()


async def test_a_resolver_that_fails_unread_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(did: str, key_id: str) -> Mapping[str, Any]:
        raise NotFound("did.unknown", f"{did} has no document.")

    near, far = secured(*memory.pair(), resolve=fail)
    near.send(ASKED)
    failed = asyncio.Event()
    assert far.receive() is None
    far.watch(failed.set)
    await failed.wait()
    await far.close()
    del near, far
    gc.collect()
    assert not caplog.records


async def test_resolving_a_did_reads_nothing_from_another_connection() -> None:
    go_on = asyncio.Event()

    async def slow(did: str, key_id: str) -> Mapping[str, Any]:
        await go_on.wait()
        return await resolve(did, key_id)

    inner = memory.pair()
    near, far = secured(*inner, resolve=slow)
    near.send(ASKED)
    assert far.receive() is None
    inner[0].send("{}")
    assert far.receive() is None
    assert inner[0].backlog == 2
    go_on.set()
    assert isinstance(await next_message(far), str)
    await refused("secure.record", far)


async def test_documents_are_fetched_for_the_host_that_is_served() -> None:
    # As `turns.asking_for` does, which counts the fetches of a host.
    asker = ContextVar("asker", default="")
    askers: list[str] = []

    async def noting(did: str, key_id: str) -> Mapping[str, Any]:
        askers.append(asker.get())
        return await resolve(did, key_id)

    token = asker.set("stranger")
    near, far = secured(*memory.pair(), resolve=noting)
    asker.reset(token)
    # Whatever context wakes the owner:
    await greet(near, far)
    assert askers == ["stranger"] * 2


async def test_a_rotated_key_proves_its_did_at_once() -> None:
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
    near.send(plain_hello("sourceHello", rotated, SHOP.did))
    assert isinstance(await next_message(far), str)
    assert far.peer == BUYER.did


async def test_cancelling_a_wait_while_a_did_is_resolved_loses_nothing() -> None:
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow(did: str, key_id: str) -> Mapping[str, Any]:
        begun.release()
        await go_on.wait()
        return await resolve(did, key_id)

    near, far = secured(*memory.pair(), resolve=slow)
    near.send(ASKED)
    first = asyncio.create_task(next_message(far))
    await begun.acquire()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go_on.set()
    assert isinstance(await next_message(far), str)
    assert far.peer == BUYER.did
    assert begun.locked()  # asked once


async def test_a_broken_rule_ends_it_for_good_and_drops_what_waits() -> None:
    inner = memory.pair()
    near, _ = secured(*inner)
    near.send(ASKED)
    near.send(b"\x40early")
    assert near.backlog > inner[0].backlog
    inner[1].send(ANSWERED)
    await refused("secure.required", near)
    assert near.backlog == inner[0].backlog
    with pytest.raises(TreatyError) as refusal:
        near.send(b"\x40late")
    assert refusal.value.code == "secure.required"
    await near.close("secure.required")
    assert await next_message(inner[1])
    with pytest.raises(ConnectionLost) as lost:
        await next_message(inner[1])
    assert lost.value.reason == "secure.required"


async def test_a_peer_that_is_refused_after_the_handshake_hears_why() -> None:
    inner = memory.pair()
    near, far = secured(*inner)
    await greet(near, far)
    near.send(b"\x40first")
    assert await next_message(far) == b"\x40first"
    inner[0].send("{}")
    await refused("secure.record", far)
    await far.close("secure.record")
    with pytest.raises(ConnectionLost) as lost:
        await next_message(near)
    assert lost.value.reason == "secure.record"


async def test_the_last_word_about_a_refused_hello_waits_for_no_keys() -> None:
    near, far = secured(*memory.pair())
    near.send(ASKED)
    await next_message(far)
    far.send(b"\x00rejected")  # there will be no keys for it
    assert far.backlog == 0
    await far.close("hello.destination")
    with pytest.raises(ConnectionLost) as lost:
        await next_message(near)
    assert lost.value.reason == "hello.destination"


@pytest.mark.parametrize("error", [ConnectionLost("gone"), RuntimeError("broken")])
async def test_a_send_that_was_cut_short_is_not_followed_by_anything(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = memory.pair()
    near, far = secured(*inner)
    await greet(near, far)
    sends = iter([inner[0].send, _raiser(error)])

    def send(record: str | bytes) -> None:
        next(sends)(record)

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(inner[0], "send", send)
        near.send(bytes(MAX_FRAME))  # two records
    with pytest.raises(type(error)):
        near.send(b"\x40")
    await near.close("session.slow-peer")
    with pytest.raises(ConnectionLost) as lost:
        await next_message(far)
    assert lost.value.reason == "secure.truncated"


async def test_what_arrived_before_a_reply_failed_can_still_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = memory.pair()
    near, far = secured(*inner)
    near.send(ASKED)
    near.send(b"\x40early")
    await next_message(far)
    far.send(ANSWERED)
    far.send(b"\x40right behind")
    monkeypatch.setattr(inner[0], "send", _raiser(ConnectionLost("gone")))  # `finished` cannot be sent
    assert isinstance(await next_message(near), str)
    assert await next_message(near) == b"\x40right behind"
    assert near.backlog == 0
    with pytest.raises(ConnectionLost) as lost:
        near.send(b"\x40late")
    assert lost.value.reason == "gone"


def _raiser(error: Exception) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise error

    return fail


async def test_closing_is_bounded_when_the_peer_reads_nothing() -> None:
    near, _ = await opened()
    for _ in range(64):
        near.send(bytes(MAX_FRAME))
    await asyncio.gather(near.close("first"), near.close("second"))
    with pytest.raises(ConnectionLost):
        near.send(b"\x40")


async def test_closing_is_bounded_when_the_resolver_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treaty_agent.transport.secure.CLOSE_TIMEOUT", 0.05)
    over, cancelled = asyncio.Event(), asyncio.Event()

    async def stubborn(did: str, key_id: str) -> Mapping[str, Any]:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await over.wait()
            cancelled.set()
        return {}

    inner = memory.pair()
    near, far = secured(*inner, resolve=stubborn)
    near.send(ASKED)
    waiting = asyncio.create_task(next_message(far))
    await asyncio.sleep(0)
    await inner[0].close()  # seen only after the DID is resolved
    await asyncio.sleep(0)
    await far.close("first")
    assert cancelled.is_set()
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(ConnectionLost):
        far.receive()
    over.set()
    await far.close("second")


@pytest.mark.parametrize("binary", [False, True])
async def test_a_signed_hello_never_passes_for_a_plain_one(binary: bool) -> None:
    inner = memory.pair()
    near = SecureConnection.source(inner[0], BUYER, resolve=resolve)
    near.send(ASKED)
    signed = str(await next_message(inner[1]))
    odd: str | bytes = signed.encode() if binary else signed[:-1] + ',"temperature":0.5}'
    for required in (False, True):
        asked = memory.pair()
        far = SecureConnection.destination(asked[1], SHOP, resolve=resolve, required=required)
        asked[0].send(odd)
        await refused("secure.record" if binary else "canonical.json", far)


async def test_preferring_encryption_speaks_plain_with_a_plain_peer() -> None:
    inner = memory.pair()
    near = SecureConnection.source(inner[0], BUYER, resolve=resolve, required=False)
    near.send(ASKED)
    near.send(b"\x40early")
    await next_message(inner[1])
    inner[1].send(ANSWERED)
    assert await next_message(near) == ANSWERED
    assert await next_message(inner[1]) == b"\x40early"
    near.send(b"\x40plain")
    assert await next_message(inner[1]) == b"\x40plain"
    assert near.peer == ""
    await near.close("session.idle")
    with pytest.raises(ConnectionLost) as lost:
        await next_message(inner[1])
    assert lost.value.reason == "session.idle"


async def test_too_large_a_message_is_refused_here() -> None:
    near, far = secured(*memory.pair())
    near.send(ASKED)
    for message in (bytes(MAX_FRAME + 1), "é" * (MAX_FRAME // 2 + 1)):
        backlog = near.backlog
        with pytest.raises(TooLarge):
            near.send(message)  # before there are keys
        assert near.backlog == backlog
    near.send(b"\x40early")
    await next_message(far)
    far.send(ANSWERED)
    await next_message(near)
    with pytest.raises(TooLarge):
        near.send(bytes(MAX_FRAME + 1))
    near.send(b"\x40next")
    assert [await next_message(far) for _ in range(2)] == [b"\x40early", b"\x40next"]


async def test_a_too_large_plain_message_is_refused_alone() -> None:
    inner = memory.pair()
    near = SecureConnection.source(inner[0], BUYER, resolve=resolve, required=False)
    near.send(ASKED)
    inner[1].send(ANSWERED)
    await next_message(near)
    with pytest.raises(TooLarge):
        near.send(bytes(MAX_FRAME + 1))
    near.send(b"\x40next")
    assert [await next_message(inner[1]) for _ in range(2)][1] == b"\x40next"


async def test_transport_and_handshake_prove_the_same_did() -> None:
    for did, code in ((MALLORY.did, "secure.identity"), (BUYER.did, None)):
        near, far = secured(*memory.pair(source=did))
        assert far.peer == did
        near.send(ASKED)
        if code is None:
            assert isinstance(await next_message(far), str)
        else:
            await refused(code, far)


async def test_a_source_says_nothing_to_another_proved_did() -> None:
    near, far = secured(*memory.pair(source=MALLORY.did)[::-1])
    near.send(ASKED)
    near.send(b"\x40early")
    await next_message(far)
    far.send(ANSWERED)
    await refused("secure.identity", near)
    await near.close("secure.identity")
    with pytest.raises(ConnectionLost) as lost:
        await next_message(far)
    assert lost.value.reason == "secure.identity"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Unavailable("egress.unreachable", "buyer.example could not be reached."), "egress.unreachable"),
        (Refused("did.deactivated", "The owner has deactivated it."), "secure.identity"),
        (Malformed("did.document", "It is no document."), "secure.identity"),
    ],
)
async def test_only_a_document_refuses_and_its_absence_passes(failure: TreatyError, code: str) -> None:
    async def fails(did: str, key_id: str = "") -> Mapping[str, Any]:
        raise failure

    inner = memory.pair()
    near = SecureConnection.source(inner[0], BUYER, resolve=resolve)
    far = SecureConnection.destination(inner[1], SHOP, resolve=fails)
    near.send(ASKED)
    with pytest.raises(TreatyError) as refusal:
        await next_message(far)
    error = refusal.value
    assert (error.code, error.__cause__, isinstance(error, PeerUnavailable)) == (code, failure, code != "secure.identity")
    assert failure.message in error.message
    assert error.retryable is isinstance(failure, Unavailable)
    # The peer is told codes alone, and judges alike.
    wire = Wire(far, wake=lambda: None, patience=10)
    await wire.close(error)
    with pytest.raises(ConnectionLost) as lost:
        await next_message(inner[0])
    told = ended_by_peer(lost.value.reason, "The other side ended the session", SessionCode.PEER_LOST, SessionCode.PEER_REFUSED)
    assert (told.peer_code, told.retryable) == (code, error.retryable)
    assert "buyer.example" not in str(told)


async def test_an_early_message_that_cannot_be_sent_ends_it() -> None:
    now = time.time()
    # The keys of a day expire between the peer's `finished` and the first record.
    times = iter([now] * 4 + [now + 2 * 86400] * 9)
    inner = memory.pair()
    near = SecureConnection.source(inner[0], BUYER, resolve=resolve, clock=lambda: next(times))
    far = SecureConnection.destination(inner[1], SHOP, resolve=resolve)
    near.send(ASKED)
    near.send(b"\x40early")
    await next_message(far)
    far.send(ANSWERED)
    await refused("session.closed", near)


async def test_nothing_follows_an_unsendable_early_message() -> None:
    now = time.time()
    # The keys of a day expire between its Hello and the first record.
    times = iter([now] * 3 + [now + 2 * 86400] + [now] * 9)
    inner = memory.pair()
    near = SecureConnection.source(inner[0], BUYER, resolve=resolve)
    far = SecureConnection.destination(inner[1], SHOP, resolve=resolve, clock=lambda: next(times))
    far.send(b"\x40early")
    near.send(ASKED)
    await next_message(far)
    with pytest.raises(TreatyError) as refusal:
        far.send(ANSWERED)
    assert refusal.value.code == "session.closed"
    with pytest.raises(TreatyError) as refusal:
        far.send(b"\x40next")
    assert refusal.value.code == "session.closed"
    await refused("session.closed", far)


async def test_what_this_side_closed_itself_was_not_cut() -> None:
    near, _ = await opened()
    await near.close("session.idle")
    with pytest.raises(ConnectionLost) as lost:
        await next_message(near)
    assert lost.value.reason != "secure.truncated"


async def test_the_reason_goes_over_the_wire_under_encryption_alone() -> None:
    inner = memory.pair()
    near, far = secured(*inner)
    await greet(near, far)
    await near.close("session.idle")
    with pytest.raises(ConnectionLost) as lost:
        while "session.idle" not in str(await next_message(inner[1])):
            pass
    assert lost.value.reason == ""
