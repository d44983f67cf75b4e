"""A stranger that sends messages without end in many sessions. Sessions of other networks go on meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from bench.sessions import Buyer
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.server import ServerProtocol

from treaty_agent.transport import listener
from treaty_agent.transport.connection import Connection, ConnectionLost, next_message
from treaty_aip import GatewayServiceStub
from treaty_aip.stubs import aip_pb2
from treaty_io.admission.in_turns import InTurns
from treaty_io.admission.message_turns import HEAVY
from treaty_io.asgi import Receive, Scope, Send

SESSIONS, EACH, ROUND_TRIPS = 40, 50, 20
CROWD = 400


async def no_content(_scope: Scope, _receive: Receive, send: Send) -> None:
    """An application that answers 204."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def joined(port: int, address: str) -> Buyer:
    """Open a WebSocket from an address."""
    loop = asyncio.get_running_loop()
    _, buyer = await loop.create_connection(Buyer, "127.0.0.1", port, local_addr=(address, 0))
    await buyer.receive()
    return buyer


@pytest.mark.threat(340)
@pytest.mark.parametrize("size", [10, HEAVY + 1], ids=["small", "heavy"])
async def test_messages_of_one_network_wait_for_its_turns(size: int) -> None:
    """Counted, not timed: so few messages of the stranger are handled before all round trips of an honest session."""
    handled, all_are = Counter[str](), asyncio.Event()

    async def echo(connection: Connection) -> None:
        with suppress(ConnectionLost):
            while True:
                message = await next_message(connection)
                handled[connection.address.rpartition(":")[0]] += 1
                if handled["127.0.9.1"] == SESSIONS * EACH:
                    all_are.set()
                if len(message) == 5:
                    connection.send(message)

    async with listener.listen(echo, "127.0.0.1", 0, max_connections=1_000) as port:
        honest = await joined(port, "127.0.10.1")
        crowd = [await joined(port, "127.0.9.1") for _ in range(SESSIONS)]
        for buyer in crowd:
            for _ in range(EACH):
                buyer.send(b"x" * size)
        for _ in range(ROUND_TRIPS):
            honest.send(b"hello")
            assert await honest.receive() == b"hello"
        before = handled["127.0.9.1"]
        print(before, "messages of the stranger before", ROUND_TRIPS, "round trips")
        async with asyncio.timeout(30):
            await all_are.wait()
        for buyer in (honest, *crowd):
            buyer.close()
    assert before <= ROUND_TRIPS * (20 if size <= HEAVY else 6)


@pytest.mark.threat(340)
async def test_requests_of_a_network_wait_for_its_turns() -> None:
    """What both have around their applications."""
    handled = Counter[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        handled[scope["client"][0]] += 1
        await no_content(scope, receive, send)

    async def asking(port: int, address: str, requests: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * requests)
        return reader, writer

    async with listener.serving(InTurns(app), "127.0.0.1", 0, sockets=1_000) as server:
        port = server.port
        reader, honest = await asking(port, "127.0.10.1", 1)
        await reader.readuntil(b"\r\n\r\n")
        crowd = [await asking(port, "127.0.9.1", EACH) for _ in range(SESSIONS)]
        for _ in range(ROUND_TRIPS):
            honest.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
        before = handled["127.0.9.1"]
        print(before, "requests of the stranger before", ROUND_TRIPS, "honest ones")
        for _, writer in (*crowd, (reader, honest)):
            writer.transport.abort()
    assert before <= ROUND_TRIPS * 20


PING = b"\x89\x80\0\0\0\0"


def upgraded(port: int, address: str) -> socket.socket:
    """Ask for a WebSocket on a plain socket, which hides nothing from the other side."""
    peer = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
    fields = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + fields + b"Sec-WebSocket-Key: " + b"A" * 22 + b"==\r\n\r\n")
    return peer


async def echo(connection: Connection) -> None:
    """Send each message back."""
    with suppress(ConnectionLost):
        while True:
            connection.send(await next_message(connection))


@pytest.mark.threat(340)
async def test_tiny_frames_of_a_network_are_parsed_in_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: frames that are read in one piece are not parsed in one, and few before the round trips of another network."""
    parsed, parse = list[int](), ServerProtocol.receive_data

    def noted(self: ServerProtocol, data: bytes) -> None:
        parsed.append(data.count(PING))
        parse(self, data)

    monkeypatch.setattr(ServerProtocol, "receive_data", noted)
    async with listener.listen(echo, "127.0.0.1", 0, max_connections=1_000) as port:
        honest = await joined(port, "127.0.10.1")
        crowd = [await asyncio.to_thread(upgraded, port, "127.0.9.1") for _ in range(SESSIONS // 4)]
        # Without an iteration of the event loop between, so that all wait in the kernel.
        for each in crowd:
            each.sendall(PING * 5_000)
        for _ in range(ROUND_TRIPS):
            honest.send(b"hello")
            assert await honest.receive() == b"hello"
        before = sum(parsed)
        for each in crowd:
            each.close()
        honest.close()
    print(before, "frames of the stranger before", ROUND_TRIPS, "round trips, at most", max(parsed), "in a step")
    assert 0 < max(parsed) <= 64
    assert before <= ROUND_TRIPS * 64 * 10


@pytest.mark.threat(340)
async def test_a_peer_that_pings_and_reads_nothing_is_ended() -> None:
    """The answers would fill the memory. What it sends until its end is thrown away."""
    async with listener.listen(echo, "127.0.0.1", 0, max_connections=1_000) as port:
        peer = await asyncio.to_thread(upgraded, port, "127.0.9.1")
        pings = (b"\x89\xfd\0\0\0\0" + b"x" * 125) * 512
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(30):
                while True:
                    await asyncio.to_thread(peer.sendall, pings)
        peer.close()


@pytest.mark.threat(340)
async def test_connections_that_were_reset_are_forgotten() -> None:
    """Each would stay for the minute in which an idle connection is kept, with all that its request made."""
    async with listener.serving(no_content, "127.0.0.1", 0, sockets=1_000) as server:
        for _ in range(EACH):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        await asyncio.sleep(0.1)
        gc.collect()
        assert [each for each in gc.get_objects() if isinstance(each, H11Protocol)] == []


@pytest.mark.threat(340)
async def test_connections_of_a_network_are_read_in_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: so few of the stranger's come before one of another network, which the kernel hands out after all of them."""
    set_up, read = list[str](), list[str]()

    def note(method: str, order: list[str]) -> None:
        original = getattr(listener._Http, method)

        def noted(self: listener._Http, *arguments: object) -> None:
            original(self, *arguments)
            order.append((self.client or ("gone", 0))[0])

        monkeypatch.setattr(listener._Http, method, noted)

    async def until(is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_done():  # noqa: ASYNC110 (another layer counts)
                await asyncio.sleep(0.001)

    note("connection_made", set_up)
    note("handle_events", read)
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with listener.serving(InTurns(no_content), "127.0.0.1", 0, sockets=1_000) as server:

        def connected(address: str) -> socket.socket:
            return socket.create_connection(("127.0.0.1", server.port), source_address=(address, 0))

        crowd = [connected("127.0.9.1") for _ in range(CROWD)]
        honest = connected("127.0.10.1")
        await asyncio.sleep(0.1)
        assert set_up == []  # silent connections are accepted, and cost no more
        # Without an iteration of the event loop between, so that all have spoken.
        for each in (*crowd, honest):
            each.sendall(request[:1])
        await until(lambda: "127.0.10.1" in set_up)
        crowd[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        crowd.pop().close()  # reset while it waits for its turn: it is never set up
        await until(lambda: len(set_up) == CROWD == len(read))
        read.clear()
        for each in (*crowd, honest):
            each.sendall(request[1:])
        await until(lambda: "127.0.10.1" in read)
        assert (await asyncio.to_thread(honest.recv, 64)).startswith(b"HTTP/1.1 204")
        await until(lambda: len(read) >= CROWD)
        for each in (*crowd, honest):
            each.close()
    print(set_up.index("127.0.10.1"), "set up and", read.index("127.0.10.1"), "read before an honest one")
    assert "gone" not in set_up
    assert set_up.index("127.0.10.1") <= CROWD // 4
    assert read.index("127.0.10.1") <= CROWD // 4


_GATEWAY = """
import asyncio
from treaty_aip import Gateway

async def main():
    gateway = await Gateway("127.0.0.1:0").start()
    print(gateway.address.rpartition(":")[2], flush=True)
    await asyncio.to_thread(input)
    await gateway.stop()

asyncio.run(main())
"""


@asynccontextmanager
async def gateway() -> AsyncIterator[int]:
    """A gateway of another process, whose event loop is its own. Its port."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _GATEWAY, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline())
    finally:
        await process.communicate(b"\n")


@asynccontextmanager
async def heartbeats(port: int, address: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A call to a gateway from this address, by a relay: gRPC's channels cannot choose theirs."""
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        writers.extend((writer, back))
        await asyncio.gather(copy(reader, back), copy(there, writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        near = server.sockets[0].getsockname()[1]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{near}") as channel:
            stub = GatewayServiceStub(channel)

            async def call() -> None:
                await stub.Heartbeat(aip_pb2.HeartbeatRequest(sender_id="unknown"))

            await call()
            yield call
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.05)  # their tasks end


async def stranger(port: int, at_once: int) -> None:
    """Call without end, and print the number of answers at each line of input; a process of its own."""
    answered = 0

    async def go_on(call: Callable[[], Awaitable[None]]) -> None:
        nonlocal answered
        while True:
            await call()
            answered += 1

    async with heartbeats(port, "127.0.9.1") as call:
        crowd = [asyncio.create_task(go_on(call)) for _ in range(at_once)]
        while await asyncio.to_thread(sys.stdin.readline):
            print(answered, flush=True)
        for task in crowd:
            task.cancel()


@pytest.mark.deep
@pytest.mark.threat(340)
async def test_calls_of_one_network_wait_for_its_turns_at_a_gateway() -> None:
    """Counted: without turns, an honest call waits until each of the stranger's is answered."""
    at_once, honest_calls, pipe = 200, 10, asyncio.subprocess.PIPE
    async with gateway() as port, heartbeats(port, "127.0.10.1") as honest:
        command = [sys.executable, __file__, str(port), str(at_once)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        flood = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
        stream, telling = flood.stdin, flood.stdout
        assert stream is not None and telling is not None

        async def answered() -> int:
            stream.write(b"\n")
            return int(await telling.readline())

        while (before := await answered()) < at_once:  # noqa: ASYNC110 (another process counts)
            await asyncio.sleep(0.05)
        for _ in range(honest_calls):
            await honest()
        between = await answered() - before
        print(between, "calls of the stranger during", honest_calls, "honest ones")
        await flood.communicate()
    assert between < honest_calls * at_once // 2  # a busy machine delays the honest process itself


if __name__ == "__main__":
    asyncio.run(stranger(int(sys.argv[1]), int(sys.argv[2])))
