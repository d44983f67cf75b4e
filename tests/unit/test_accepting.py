"""A port whose process has no file free for a connection."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from treaty_io.admission.accepting import Accepting
from treaty_io.admission.rounds import Rounds


class Greeting(asyncio.Protocol):
    """Says something to each connection that has spoken."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"welcome")

    def data_received(self, data: bytes) -> None:
        """Leave the end to the client: unread bytes would reset the connection."""


@contextmanager
def no_free_file() -> Iterator[None]:
    """Let this process open no further file in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def refused_for_want_of_files(port: int, client: socket.socket, seconds: float = 0.2) -> None:
    """Connect to a port that cannot accept for so long."""
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    with no_free_file():
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, b"hello")
        await asyncio.sleep(seconds)


async def test_a_connection_that_found_no_file_is_accepted_later(caplog: pytest.LogCaptureFixture) -> None:
    server = Accepting([socket.create_server(("127.0.0.1", 0))], Greeting, Rounds(), handshake=10)
    with socket.socket() as client:
        await refused_for_want_of_files(server.port, client, 1.2)  # two attempts
        assert caplog.text.count("A connection was not accepted") <= 1  # another test may have had that of this minute
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(client, 100) == b"welcome"
    await server.aclose()


async def test_a_port_that_is_closed_in_the_pause_stays_closed() -> None:
    faults = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    server = Accepting([socket.create_server(("127.0.0.1", 0))], Greeting, Rounds(), handshake=10)
    with socket.socket() as client:
        await refused_for_want_of_files(server.port, client)
        server.close()
        await asyncio.sleep(1.2)  # longer than the pause
        with pytest.raises(ConnectionError):
            await asyncio.get_running_loop().sock_recv(client, 100)
    assert faults == []
    await server.aclose()
