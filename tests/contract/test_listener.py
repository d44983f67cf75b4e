"""One port for WebSockets, the HTTP binding and documents, on real sockets: bounds, headers, and the end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from websockets.asyncio.client import connect as raw_connect
from websockets.exceptions import ConnectionClosed

from treaty_agent.transport import listener, reconnect, websocket
from treaty_agent.transport.application import StaticDocument
from treaty_agent.transport.connection import Backoff, Connection, ConnectionLost, next_message
from treaty_agent.transport.http import MEDIA_TYPE, SESSIONS
from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import Unavailable
from treaty_io.network.hosts import Address, Network

DOCUMENTS = {"/.well-known/agent-descriptions": StaticDocument("application/json", b"{}")}
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def echo(connection: Connection) -> None:
    """Says everything back until the end."""
    with suppress(ConnectionLost):
        while True:
            connection.send(await next_message(connection))


@asynccontextmanager
async def dialled(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def gone(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side hangs up."""
    data = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(20):
            while piece := await reader.read(1 << 16):
                data += piece
    return data


async def test_everything_is_on_one_port() -> None:
    async with listener.listen(echo, "127.0.0.1", 0, max_connections=8, documents=DOCUMENTS) as port:
        for scheme in ("ws", "http"):
            connection = await reconnect.connect(f"{scheme}://127.0.0.1:{port}", Network())
            connection.send("hello")
            assert await next_message(connection) == "hello"
            connection.send(b"\x40frame")
            assert await next_message(connection) == b"\x40frame"
            await connection.close()
        async with httpx.AsyncClient() as client:
            reply = await client.get(f"http://127.0.0.1:{port}/.well-known/agent-descriptions")
        assert (reply.status_code, reply.content) == (200, b"{}")
        assert {"server", "date"} & set(reply.headers) == set()


async def test_everything_is_there_over_tls(tmp_path: Path) -> None:
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("shop.example").configure_cert(tls)
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    once = Backoff(attempts=2, first=0)
    async with listener.listen(echo, "127.0.0.1", 0, tls=tls, max_connections=8) as port:
        names = {host: Address("127.0.0.1", port) for host in ("shop.example", "other.example")}
        for scheme in ("wss", "https"):
            connection = await reconnect.connect(f"{scheme}://shop.example", Network(names, ca), backoff=once)
            connection.send("hello")
            assert await next_message(connection) == "hello"
            await connection.close()
            for host, network in (("other.example", Network(names, ca)), ("shop.example", Network(names))):
                with pytest.raises(Unavailable) as failure:
                    failing = await reconnect.connect(f"{scheme}://{host}", network, backoff=once)
                    failing.send("hello")
                    await next_message(failing)
                assert failure.value.code == "connection.failed"
                assert not failure.value.again  # type: ignore[attr-defined]


async def test_an_agent_that_goes_away_says_so() -> None:
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def wait(connection: Connection) -> None:
        accepted.set_result(connection)
        with pytest.raises(ConnectionLost):
            await next_message(connection)

    async with listener.listen(wait, "127.0.0.1", 0, max_connections=8) as port:
        socket = await raw_connect(f"ws://127.0.0.1:{port}/", proxy=None)
        far = await accepted
    with pytest.raises(ConnectionClosed) as closed:
        await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
    with pytest.raises(ConnectionLost):
        far.send("too late")


async def test_whoever_does_not_say_what_it_wants_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "OPEN_TIMEOUT", 0.2)
    async with listener.listen(echo, "127.0.0.1", 0, max_connections=8, documents=DOCUMENTS) as port:
        async with dialled(port) as (reader, _):
            assert await gone(reader) == b""
        async with dialled(port) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: ")
            assert await gone(reader) == b""
        async with dialled(port) as (reader, writer):
            writer.write(b"GET /.well-known/agent-descriptions HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readuntil(b"{}")
            await asyncio.sleep(0.5)  # between two requests there is time
            writer.write(b"GET /.well-known/agent-descriptions HTTP/1.1\r\n")
            assert await gone(reader) == b""


async def test_a_request_that_is_being_answered_is_not_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "OPEN_TIMEOUT", 0.2)

    async def slow(connection: Connection) -> None:
        await asyncio.sleep(0.6)
        await echo(connection)

    async with listener.listen(slow, "127.0.0.1", 0, max_connections=8) as port:
        for scheme in ("ws", "http"):
            connection = await reconnect.connect(f"{scheme}://127.0.0.1:{port}", Network())
            connection.send("hello")
            assert await next_message(connection) == "hello"
            await connection.close()


async def test_a_closed_websocket_leaves_despite_a_silent_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listener, websocket):
        monkeypatch.setattr(module, "CLOSE_TIMEOUT", 0.2)
    sockets: list[Any] = []
    closed = asyncio.Event()

    async def flood(connection: Connection) -> None:
        while connection.backlog < 4 * MAX_FRAME:
            connection.send(bytes(MAX_FRAME))
            await asyncio.sleep(0)
        await connection.close("session.slow-peer")
        closed.set()

    original = websocket.WebSocketConnection.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        sockets.append(transport)
        original(self, transport)

    monkeypatch.setattr(websocket.WebSocketConnection, "connection_made", connection_made)
    async with listener.listen(flood, "127.0.0.1", 0, max_connections=8) as port, dialled(port) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(UPGRADE)
        await closed.wait()
        await asyncio.sleep(0.5)
        assert sockets[0].get_write_buffer_size() == 0  # thrown away


@pytest.mark.threat(93)
async def test_unread_answers_are_neither_kept_nor_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "READ_TIMEOUT", 2)
    served: list[Any] = []
    original = listener._Http.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # as to a peer far away
        served.append(transport)
        original(self, transport)

    async def generous(connection: Connection) -> None:
        with suppress(ConnectionLost):
            await next_message(connection)
            connection.send(b"small")
            connection.send(bytes(MAX_FRAME))
            await next_message(connection)

    def asking(url: str, body: bytes = b"") -> bytes:
        return (
            f"POST {url} HTTP/1.1\r\nHost: x\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )

    monkeypatch.setattr(listener._Http, "connection_made", connection_made)
    opening = f"{SESSIONS}?key={'k' * 43}"
    async with listener.listen(generous, "127.0.0.1", 0, max_connections=8) as port, httpx.AsyncClient() as client:
        reply = await client.post(
            f"http://127.0.0.1:{port}{opening}", content=b"\x80\0\0\0", headers={"Content-Type": MEDIA_TYPE}
        )
        again = f"{reply.headers['Location']}?sequence=1&acknowledge=0"
        idle = []
        for number in range(20):
            near = socket.socket()
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            near.setblocking(False)
            await asyncio.get_running_loop().sock_connect(near, ("127.0.0.1", port))
            await asyncio.get_running_loop().sock_sendall(near, asking(opening, b"\x80\0\0\0") if number % 2 else asking(again))
            idle.append(near)
        await asyncio.sleep(0.5)
        assert sum(transport.get_write_buffer_size() for transport in served) < 4 * 256 * 1024
        await asyncio.sleep(3)
        assert not any(transport.get_write_buffer_size() for transport in served)
        reply = await client.post(f"http://127.0.0.1:{port}{again}", headers={"Content-Type": MEDIA_TYPE})
        assert len(reply.content) > MAX_FRAME  # who reads gets all of it
        for near in idle:
            near.close()


async def test_a_refused_websocket_writes_no_line(caplog: pytest.LogCaptureFixture) -> None:
    async with listener.listen(echo, "127.0.0.1", 0, max_connections=0) as port, dialled(port) as (reader, writer):
        writer.write(UPGRADE)
        assert b" 503 " in await gone(reader)
    assert not caplog.records


@pytest.mark.parametrize("wrong", [(b"GET", b"POST"), (b"HTTP/1.1", b"HTTP/1.0"), (b"Sec-WebSocket-Version: 13", b"A: b")])
async def test_a_request_that_opens_no_websocket_is_refused(wrong: tuple[bytes, bytes]) -> None:
    served = False

    async def serve(connection: Connection) -> None:
        nonlocal served
        served = True

    async with listener.listen(serve, "127.0.0.1", 0, max_connections=8) as port, dialled(port) as (reader, writer):
        assert wrong[0] in UPGRADE
        writer.write(UPGRADE.replace(*wrong))
        assert b" 400 " in await gone(reader)
    assert not served


async def test_a_peer_that_answers_no_ping_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_INTERVAL", 0.2)
    lost = asyncio.Event()

    async def wait(connection: Connection) -> None:
        with pytest.raises(ConnectionLost):
            await next_message(connection)
        lost.set()

    async with listener.listen(wait, "127.0.0.1", 0, max_connections=8) as port, dialled(port) as (_, writer):
        writer.write(UPGRADE)
        async with asyncio.timeout(20):
            await lost.wait()


async def test_what_serving_raises_ends_that_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(connection: Connection) -> None:
        if await next_message(connection) == "bad":
            raise RuntimeError("a fault")
        await echo(connection)

    async with listener.listen(fail, "127.0.0.1", 0, max_connections=8) as port:
        good, bad = [await reconnect.connect(f"ws://127.0.0.1:{port}", Network()) for _ in range(2)]
        good.send("good")
        bad.send("bad")
        with pytest.raises(ConnectionLost) as lost:
            await next_message(bad)
        assert lost.value.reason == "session.internal"
        good.send("still here")
        assert await next_message(good) == "still here"
        await good.close()
    assert "a fault" in caplog.text


async def test_an_error_of_the_server_says_nothing_of_itself() -> None:
    async def fail(connection: Connection) -> None:
        raise RuntimeError("a secret")

    async with listener.listen(fail, "127.0.0.1", 0, max_connections=8) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}{SESSIONS}?key={'k' * 43}"
        gone = await client.post(url, content=b"\x80\x00\x00\x00", headers={"Content-Type": MEDIA_TYPE})
    assert (gone.status_code, gone.json()["reason"]) == (410, "session.internal")
    assert b"secret" not in gone.content
