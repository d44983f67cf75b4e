"""Hosts that accept a connection and then answer for ever, or never: each exchange ends in time, and holds nobody else."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import requests
from fetching import kept_in
from loopback import Loopback
from simulated_registry import NAME, TOPIC, SimulatedNetwork, SimulatedRegistry, uri_of, with_echo

from treaty_agent.testing import virtual_time
from treaty_agent.transport import reconnect, websocket
from treaty_agent.transport.connection import Backoff, ConnectionFailed
from treaty_client.policy import Policy
from treaty_client.protocols import topics
from treaty_client.protocols.fetch import Fetcher
from treaty_client.registries.api import RegistryClient
from treaty_client.registries.trust import RegistryName, TrustedRegistries
from treaty_consensus.errors import Malformed, TreatyError, Unavailable
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.tiles import Bundle
from treaty_io.errors import RegistryUnavailable
from treaty_io.network.egress import EgressGuard
from treaty_io.network.exchange import MAX_AT_ONCE, BoundedClient
from treaty_io.network.hosts import Address, Network
from treaty_io.network.requests_adapter import session_setup

TIMEOUT, BOUND = 0.4, 15.0
"""Seconds: what an exchange may take here, and what tells it, on a busy machine, from one that never ends."""
LARGE = 16 * 1024 * 1024

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def forever(writer: asyncio.StreamWriter, piece: bytes, pause: float = 0.01) -> None:
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


def dripping(begin: bytes, piece: bytes, pause: float = 0.01) -> Serve:
    """Answers with a beginning, and then with one piece after the other."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await forever(writer, piece, pause)

    return serve


def answering(whole: bytes) -> Serve:
    """Answers every request alike."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(whole)
            await writer.drain()

    return serve


OK, CHUNKED = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"

ENDLESS = {
    "says nothing": silent,
    "drips its head": dripping(OK + b"X: ", b"x"),
    "drips header lines": dripping(OK, b"X: y\r\n"),
    "pours header lines": dripping(OK, b"X: y\r\n" * 1000, 0),
    "drips interim answers": dripping(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    "pours interim answers": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500, 0),
    "drips its body": dripping(SIZED % 4096, b"x"),
    "drips a large body": dripping(SIZED % LARGE, b"x"),
    "drips a body without an end": dripping(OK + b"\r\n", b"x"),
    "ends too early and stays": dripping(SIZED % 100 + b"x" * 50, b""),
    "drips chunks": dripping(CHUNKED, b"1\r\nx\r\n"),
    "drips the extension of a chunk": dripping(CHUNKED + b"1;", b"x"),
    "pours the extension of a chunk": dripping(CHUNKED + b"1;", b"x" * 65536, 0),
    "pours chunks with extensions": dripping(CHUNKED, (b"1;" + b"x" * 8192 + b"\r\nx\r\n") * 8, 0),
    "drips trailers": dripping(CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n"),
    "pours trailers": dripping(CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n" * 1000, 0),
    "drips a problem": dripping(b"HTTP/1.1 503 Busy\r\nContent-Length: 9999\r\n\r\n", b" "),
    "drips where it redirects to": dripping(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 9999\r\n\r\n", b" "),
    "pours nothing": dripping(CHUNKED, b"1\r\nx\r\n" * 2000, 0),
}


@asynccontextmanager
async def host(serve: Serve) -> AsyncIterator[tuple[str, set[asyncio.Task[None]]]]:
    """Yields the URL of a host, and its connections that are open."""
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        serving = asyncio.ensure_future(serve(reader, writer))
        gone = asyncio.ensure_future(_gone(reader)) if serve in ENDLESS.values() else serving
        try:
            await asyncio.wait({serving, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for work in (serving, gone):
                work.cancel()
            await asyncio.gather(serving, gone, return_exceptions=True)
            writer.close()
            connections.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _gone(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65536):
            pass


async def closed(connections: set[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*connections, return_exceptions=True)


@pytest.mark.sample(6)
@pytest.mark.threat(8)
@pytest.mark.parametrize("how", ENDLESS)
async def test_an_endless_answer_ends_at_the_deadline(how: str) -> None:
    async with host(ENDLESS[how]) as (url, connections), RegistryClient(url, Network(timeout=TIMEOUT)) as registry:
        async with asyncio.timeout(BOUND):
            with pytest.raises(TreatyError) as failure:
                await registry.tile(Bundle(0))
        assert failure.value.code in ("network.deadline", "egress.answer", "registry.broken", "registry.answer")
        if "drips" in how or how == "says nothing":
            assert failure.value.code == "network.deadline" and type(failure.value) is RegistryUnavailable
            assert "127.0.0.1" in failure.value.message and "0.4 seconds" in failure.value.message
        await closed(connections)


async def test_a_slow_body_at_the_least_rate_outlasts_the_timeout() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SIZED % 2000)
        for _ in range(20):
            writer.write(b"x" * 100)
            await writer.drain()
            await asyncio.sleep(0.05)

    async with host(slow) as (url, _):
        for least_rate, arrives in ((200, True), (1_000_000, False)):
            async with BoundedClient(timeout=TIMEOUT, least_rate=least_rate) as client:
                exchange = client.exchange(client.build_request("GET", url), limit=2000)
                if arrives:
                    assert (await exchange).body == b"x" * 2000
                else:
                    with pytest.raises(Unavailable):
                        await exchange


async def test_a_body_in_single_bytes_is_given_up() -> None:
    pieces = 0
    real = BoundedClient.send

    async def counting(client: BoundedClient, request: httpx.Request, **options: bool) -> httpx.Response:
        response = await real(client, request, **options)
        stream = response.stream

        class Counted(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                nonlocal pieces
                async for piece in stream:  # type: ignore[union-attr]
                    pieces += 1
                    yield piece

            async def aclose(self) -> None:
                await stream.aclose()  # type: ignore[union-attr]

        response.stream = Counted()
        return response

    async with host(answering(CHUNKED + b"1\r\nx\r\n" * 60_000 + b"0\r\n\r\n")) as (url, _), BoundedClient() as client:
        client.send = counting.__get__(client)  # type: ignore[method-assign]
        with pytest.raises(Malformed) as failure:
            await client.exchange(client.build_request("GET", url), limit=LARGE)
    assert failure.value.code == "egress.answer"
    assert pieces < 5000


async def test_a_compressed_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with host(answering(head + bomb)) as (url, _), BoundedClient() as client:
        reply = await client.exchange(client.build_request("GET", url), limit=1000)
        assert (len(reply.body), reply.whole) == (1000, False)
        assert reply.body == bomb[:1000], "as it came"
        async with RegistryClient(url, Network()) as registry:
            with pytest.raises(Malformed) as failure:
                await registry.checkpoint()
    assert failure.value.code == "registry.answer"


@pytest.mark.threat(8)
@pytest.mark.parametrize("cancelled", [False, True])
async def test_exchanges_that_are_read_at_once_give_their_places_back(cancelled: bool) -> None:
    requests, heads, all_read = 0, 0, asyncio.Event()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Ends no answer but those after the first `MAX_AT_ONCE`."""
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.write(SIZED % 4096 + b"x" if requests <= MAX_AT_ONCE else SIZED % 0)
        await reader.read()

    async def head_came(response: httpx.Response) -> None:
        nonlocal heads
        heads += 1
        if heads == MAX_AT_ONCE:
            all_read.set()

    client = BoundedClient(timeout=3600 if cancelled else 2.0, event_hooks={"response": [head_came]})
    async with host(begin) as (url, connections), client, asyncio.timeout(BOUND):
        reading = [asyncio.create_task(client.get(url)) for _ in range(MAX_AT_ONCE)]
        await all_read.wait()
        if cancelled:
            for task in reading:
                task.cancel()
        failures = await asyncio.gather(*reading, return_exceptions=True)
        await closed(connections)
        assert (await client.get(url)).status_code == 200
        codes = {getattr(failure, "code", type(failure)) for failure in failures}
        assert codes == ({asyncio.CancelledError} if cancelled else {"network.deadline"})


async def test_a_tls_handshake_that_never_ends_is_part_of_the_exchange() -> None:
    async with host(silent) as (url, connections):
        port = int(url.rpartition(":")[2])
        network = Network({"registry.example": Address("127.0.0.1", port)}, timeout=TIMEOUT)
        async with asyncio.timeout(BOUND), RegistryClient("https://registry.example", network) as registry:
            with pytest.raises(Unavailable) as failure:
                await registry.checkpoint()
        assert failure.value.code == "network.deadline"
        await closed(connections)


async def test_a_server_that_does_not_read_ends_an_upload_too() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    async with host(deaf) as (url, _), BoundedClient(timeout=TIMEOUT, least_rate=1e9) as client:
        async with asyncio.timeout(BOUND):
            with pytest.raises(Unavailable) as failure:
                await client.exchange(client.build_request("POST", url, content=bytes(64 * 1024 * 1024)), limit=1000)
    assert failure.value.code == "network.deadline"


@pytest.mark.threat(8)
async def test_a_hanging_host_holds_no_other_host() -> None:
    """More exchanges than a client has connections hang at one host; another host is answered meanwhile."""
    well = answering(SIZED % 2 + b"ok")
    async with host(silent) as (hanging, connections), host(well) as (other, _), Network(timeout=60).client() as client:
        stuck = [asyncio.create_task(client.exchange(client.build_request("GET", hanging), limit=10)) for _ in range(150)]
        async with asyncio.timeout(BOUND):
            assert (await client.exchange(client.build_request("GET", other), limit=10)).body == b"ok"
        assert not any(task.done() for task in stuck) and len(connections) <= MAX_AT_ONCE
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        await closed(connections)


async def test_turns_at_a_host_are_given_back_after_every_way_to_fail() -> None:
    async with host(silent) as (url, _), BoundedClient(timeout=0.05) as client:
        for _ in range(2 * MAX_AT_ONCE):
            with pytest.raises(Unavailable):
                await client.exchange(client.build_request("GET", url), limit=10)
    reached, lent = host(answering(SIZED % 5 + b"hello")), BoundedClient(timeout=BOUND)
    async with reached as (url, _), lent as client, client.stream("GET", url):  # one goes on all the time
        for _ in range(2 * MAX_AT_ONCE):
            assert not (await client.exchange(client.build_request("GET", url), limit=3)).whole


class HalfDeaf(SimulatedNetwork):
    """A network with one registry that answers, and a host at an address that does not."""

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        async def hang(request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(3600)
            raise AssertionError

        working = httpx.MockTransport(self._answer)
        return BoundedClient(transport=working, timeout=self.timeout, mounts={"all://hanging.example": httpx.MockTransport(hang)})


def half_deaf(registry: SimulatedRegistry, home: Path, *, timeout: float) -> Fetcher:
    network = HalfDeaf(registry)
    object.__setattr__(network, "timeout", timeout)
    registry.trusted_in(home)
    key = VerifierKey("hanging.example", NAME.key.type, NAME.key.public)
    TrustedRegistries(home).add(RegistryName("https://hanging.example", key))
    return Fetcher(home, Policy(publishers=["did:wba:alice.example"]), network, clock=lambda: registry.now)


@pytest.mark.threat(68)
async def test_a_guarded_fetch_from_a_dripping_host_ends(tmp_path: Path) -> None:
    async def drip(head: str) -> bytes:
        await asyncio.sleep(3600)
        raise AssertionError

    async with Loopback(tmp_path).serving(drip, "alice.example") as loopback:
        guard = EgressGuard(loopback.network(), deadline=TIMEOUT)
        async with asyncio.timeout(BOUND):
            with pytest.raises(Unavailable) as failure:
                await guard.get("https://alice.example/.well-known/did.json")
    assert failure.value.code == "egress.unreachable" and "alice.example" in failure.value.message


@pytest.mark.parametrize("how", ["says nothing", "drips its head", "drips its body", "pours interim answers"])
async def test_a_signing_authority_that_drips_is_left_at_the_deadline(how: str) -> None:
    def ask(url: str) -> None:
        with requests.Session() as session:
            session_setup(Network(timeout=TIMEOUT))(session)
            session.post(url, data=b"x")

    async with host(ENDLESS[how]) as (url, connections), asyncio.timeout(BOUND):
        with pytest.raises(Unavailable) as failure:
            await asyncio.to_thread(ask, url)
        assert failure.value.code == "network.deadline"
        await closed(connections)


@pytest.mark.parametrize("how", ["says nothing", "drips its head", "drips header lines", "drips its body"])
async def test_a_peer_that_never_opens_a_session_is_given_up(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "OPEN_TIMEOUT", 0.2)
    backoff = Backoff(attempts=1000, first=0.01, most=0.01, within=0.5)
    async with host(ENDLESS[how]) as (url, _), asyncio.timeout(BOUND):
        with pytest.raises(ConnectionFailed):
            await reconnect.connect(url.replace("http", "ws"), Network(), backoff=backoff)


async def test_a_registry_that_hangs_leaves_a_topic_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "LATE", 0.1)
    registry = with_echo()
    async with half_deaf(registry, tmp_path, timeout=3600) as agent, asyncio.timeout(BOUND):
        (view,) = await agent.topic(TOPIC)
        assert [protocol.uri for protocol in view.protocols] == [uri_of()]


class Dawdling(SimulatedNetwork):
    """A network with one registry that answers at once, and hosts that answer after these seconds that they know no topic."""

    delays: dict[str, float]
    answered: list[str]

    def __init__(self, registry: SimulatedRegistry, delays: dict[str, float]) -> None:
        super().__init__(registry)
        object.__setattr__(self, "delays", delays)
        object.__setattr__(self, "answered", [])

    def client(self, *, timeout: float | None = None) -> BoundedClient:
        async def answer(request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(self.delays[request.url.host])
            self.answered.append(request.url.host)
            return httpx.Response(404, stream=httpx.ByteStream(b""))

        late = {f"all://{name}": httpx.MockTransport(answer) for name in self.delays}
        return BoundedClient(transport=httpx.MockTransport(self._answer), timeout=3600, mounts=late)


def test_registries_in_turn_share_one_wait(tmp_path: Path) -> None:
    delays = {"one.example": 0.9 * topics.LATE, "two.example": 1.8 * topics.LATE, "three.example": 2.7 * topics.LATE}

    async def asked() -> list[str]:
        registry = with_echo()
        network = Dawdling(registry, delays)
        registry.trusted_in(tmp_path)
        for name in delays:
            key = VerifierKey(name, NAME.key.type, NAME.key.public)
            TrustedRegistries(tmp_path).add(RegistryName(f"https://{name}", key))
        async with Fetcher(tmp_path, Policy(), network, clock=lambda: registry.now) as agent:
            (view,) = await agent.topic(TOPIC)
            assert [protocol.uri for protocol in view.protocols] == [uri_of()]
        return network.answered

    assert virtual_time.run(asked()) == ["one.example"]


@pytest.mark.threat(8)
async def test_a_hanging_registry_holds_no_other_uri(tmp_path: Path) -> None:
    registry = with_echo()
    hanging = uri_of().replace(NAME.origin, "hanging.example")
    async with half_deaf(registry, tmp_path, timeout=1.0) as agent, asyncio.timeout(BOUND):
        first = asyncio.create_task(agent.fetch(hanging))
        await asyncio.sleep(0)
        assert (await agent.fetch(uri_of())).uri == uri_of()
        assert not first.done()
        memory = kept_in(tmp_path)
        for attempt in (first, agent.fetch(hanging)):  # the second waits for no turn that was not given back
            with pytest.raises(Unavailable) as failure:
                await attempt
            assert failure.value.code == "network.deadline" and "hanging.example" in failure.value.message
        assert kept_in(tmp_path) == memory
