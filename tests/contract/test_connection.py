"""What every transport promises, on each of them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest
import trustme
from secure_peers import greet, secured
from websockets.asyncio.client import connect as raw_connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as raw_serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.utils import accept_key

from treaty_agent.transport import listener, memory, reconnect, websocket
from treaty_agent.transport.connection import Connection, ConnectionLost, next_message
from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import Malformed, TooLarge, TreatyError, Unavailable
from treaty_io.network.hosts import Address, Network


@asynccontextmanager
async def in_memory() -> AsyncIterator[tuple[Connection, Connection]]:
    yield memory.pair()


@asynccontextmanager
async def over_network(scheme: str) -> AsyncIterator[tuple[Connection, Connection]]:
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def accept(connection: Connection) -> None:
        accepted.set_result(connection)
        await over.wait()

    async with listener.listen(accept, "127.0.0.1", 0, max_connections=2) as port:
        near = await reconnect.connect(f"{scheme}://127.0.0.1:{port}/", Network())
        near.send("hello")  # over HTTP this opens it
        far = await accepted
        assert await next_message(far) == "hello"
        far.send("hello to you")
        assert await next_message(near) == "hello to you"
        try:
            yield near, far
        finally:
            over.set()
            await near.close()


@asynccontextmanager
async def encrypted() -> AsyncIterator[tuple[Connection, Connection]]:
    near, far = secured(*memory.pair())
    await greet(near, far)
    yield near, far


TRANSPORTS = {"memory": in_memory, "ws": partial(over_network, "ws"), "http": partial(over_network, "http"), "e2ee": encrypted}


@pytest.fixture(params=TRANSPORTS.values(), ids=list(TRANSPORTS))
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Connection, Connection]]:
    async with request.param() as ends:
        yield ends


async def test_messages_arrive_whole_in_order_and_of_their_kind(pair: tuple[Connection, Connection]) -> None:
    messages: list[str | bytes] = ["你好", b"\x40\x00\xff", "", b"", "last"]
    for near, far in (pair, pair[::-1]):
        for message in messages:
            near.send(message)
        assert [await next_message(far) for _ in messages] == messages
        assert far.receive() is None


async def test_the_largest_frame_passes(pair: tuple[Connection, Connection]) -> None:
    near, far = pair
    near.send(bytes(MAX_FRAME))
    assert await next_message(far) == bytes(MAX_FRAME)


async def test_too_large_a_message_does_not_arrive(pair: tuple[Connection, Connection]) -> None:
    near, far = pair
    try:
        near.send(bytes(MAX_FRAME + 1))
    except TooLarge:
        return
    with pytest.raises(ConnectionLost):
        await next_message(far)


async def test_a_close_carries_its_reason_after_earlier_messages(
    pair: tuple[Connection, Connection],
) -> None:
    near, far = pair
    near.send("goodbye")
    closing = asyncio.create_task(near.close("session.idle"))
    assert await next_message(far) == "goodbye"
    for _ in range(2):
        with pytest.raises(ConnectionLost) as lost:
            await next_message(far)
        assert lost.value.reason == "session.idle"
    await closing
    with pytest.raises(ConnectionLost):
        far.send("too late")
    with pytest.raises(ConnectionLost):
        near.send("too late")
    await near.close()
    await far.close("again")


async def test_a_normal_end_has_no_reason(pair: tuple[Connection, Connection]) -> None:
    near, far = pair
    closing = asyncio.create_task(near.close())
    with pytest.raises(ConnectionLost) as lost:
        await next_message(far)
    assert lost.value.reason == ""
    await closing


async def test_closing_wakes_the_own_side(pair: tuple[Connection, Connection]) -> None:
    for connection in pair:
        waiting = asyncio.create_task(next_message(connection))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(ConnectionLost):
            await waiting


async def test_cancelling_a_wait_loses_nothing(pair: tuple[Connection, Connection]) -> None:
    near, far = pair
    waiting = asyncio.create_task(next_message(far))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    near.send("still here")
    assert await next_message(far) == "still here"


async def test_a_connection_passes_from_one_owner_to_the_next(pair: tuple[Connection, Connection]) -> None:
    near, far = pair
    first_owner, owner = asyncio.Event(), asyncio.Event()
    far.watch(first_owner.set)
    far.watch(owner.set)
    near.send("for the owner")
    while (message := far.receive()) is None:
        owner.clear()
        await owner.wait()
    assert message == "for the owner"
    assert not first_owner.is_set()


@pytest.mark.sample(2)
async def test_a_reader_that_takes_nothing_makes_the_backlog_grow(pair: tuple[Connection, Connection]) -> None:
    near, far = pair
    for number in range(48):
        near.send(bytes([number]) * MAX_FRAME)
    before = -1
    while near.backlog != before:
        before = near.backlog
        await asyncio.sleep(0.2)
    # The transports and the system's buffers hold a bounded part, which is some megabytes.
    assert near.backlog > 24 * MAX_FRAME
    fell = asyncio.Event()
    near.watch(fell.set)
    for number in range(48):
        message = await next_message(far)
        assert (message[:1], len(message)) == (bytes([number]), MAX_FRAME)
    while near.backlog:
        fell.clear()
        await fell.wait()
    near.send("next")
    assert await next_message(far) == "next"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "ws:///nowhere", "ws://user@127.0.0.1/", "ws://127.0.0.1:99999/", "nonsense"]
)
async def test_what_is_no_address_is_refused_without_connecting(url: str) -> None:
    with pytest.raises(Malformed):
        await websocket.connect(url, Network())


async def test_over_tls_the_server_must_be_the_host_of_the_url(tmp_path: Path) -> None:
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("shop.example").configure_cert(tls)
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    async with listener.listen(_hang_up, "127.0.0.1", 0, tls=tls, max_connections=4) as port:
        resolve = {host: Address("127.0.0.1", port) for host in ("shop.example", "other.example")}
        connection = await websocket.connect("wss://shop.example/", Network(resolve, ca))
        with pytest.raises(ConnectionLost):
            await next_message(connection)
        for url, network in (
            ("wss://other.example/", Network(resolve, ca)),
            ("wss://shop.example/", Network(resolve)),
            ("ws://shop.example/", Network(resolve, ca)),
        ):
            with pytest.raises(Unavailable):
                await websocket.connect(url, network)


async def test_nobody_there_is_a_clear_error() -> None:
    async with listener.listen(_hang_up, "127.0.0.1", 0, max_connections=1) as port:
        pass
    with pytest.raises(Unavailable) as failure:
        await websocket.connect(f"ws://127.0.0.1:{port}/", Network())
    assert failure.value.code == "connection.failed"


async def test_an_address_that_is_taken_is_a_clear_error() -> None:
    async with listener.listen(_hang_up, "127.0.0.1", 0, max_connections=1) as port:
        with pytest.raises(Unavailable) as failure:
            async with listener.listen(_hang_up, "127.0.0.1", port, max_connections=1):
                raise AssertionError("two servers on one port")
        assert failure.value.code == "connection.listen"


@pytest.mark.threat(99)
async def test_a_web_page_cannot_speak_to_an_agent() -> None:
    async with listener.listen(_hang_up, "127.0.0.1", 0, max_connections=1) as port:
        with pytest.raises(InvalidStatus) as refusal:
            await raw_connect(f"ws://127.0.0.1:{port}/", origin="https://evil.example", proxy=None)  # type: ignore[arg-type]
        assert refusal.value.response.status_code == 403


async def test_one_connection_too_many_is_told_to_come_back_later() -> None:
    started, over = asyncio.Event(), asyncio.Event()

    async def wait(connection: Connection) -> None:
        started.set()
        await over.wait()

    async with listener.listen(wait, "127.0.0.1", 0, max_connections=1) as port:
        first = await websocket.connect(f"ws://127.0.0.1:{port}/", Network())
        await started.wait()
        with pytest.raises(InvalidStatus) as refusal:
            await raw_connect(f"ws://127.0.0.1:{port}/", proxy=None)
        assert refusal.value.response.status_code == 503
        over.set()
        await first.close()


@pytest.mark.parametrize("piece", [1, 1_000], ids=["byte for byte", "with the first frames"])
async def test_frames_begin_after_the_head_of_the_answer(piece: int) -> None:
    """However it arrives, and also if a message looks like its end."""
    message = b"one\r\n\r\nmessage"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        key = next(line.partition(b": ")[2] for line in request.splitlines() if line.lower().startswith(b"sec-websocket-key"))
        fields = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept_key(key.decode())}\r\n\r\n"
        sent = b"HTTP/1.1 101 Switching Protocols\r\n" + fields.encode() + 10 * (b"\x82" + bytes([len(message)]) + message)
        for start in range(0, len(sent), piece):
            writer.write(sent[start : start + piece])
            await asyncio.sleep(0.002)  # so that the other side reads each piece alone
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        connection = await websocket.connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", Network())
        async with asyncio.timeout(20):
            assert [await next_message(connection) for _ in range(10)] == [message] * 10
        assert isinstance(connection, websocket.WebSocketConnection)
        connection.abort()


async def test_a_redirect_is_not_followed() -> None:
    async with raw_serve(_raw_hang_up, "127.0.0.1", 0, process_request=_redirect) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(Unavailable):
            await websocket.connect(f"ws://127.0.0.1:{port}/", Network())


async def test_a_compressed_message_is_not_offered() -> None:
    async with listener.listen(_hang_up, "127.0.0.1", 0, max_connections=1) as port:
        socket = await raw_connect(f"ws://127.0.0.1:{port}/", proxy=None)
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def _hang_up(connection: Connection) -> None:
    await connection.close()


async def _raw_hang_up(socket: object) -> None: ...


def _redirect(socket: ServerConnection, _: Request) -> Response:
    response = socket.respond(HTTPStatus.FOUND, "")
    response.headers["Location"] = "ws://127.0.0.1:1/"
    return response


def test_a_lost_connection_is_a_documented_error() -> None:
    assert issubclass(ConnectionLost, TreatyError)
