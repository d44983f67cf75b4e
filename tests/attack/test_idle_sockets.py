"""A stranger that opens sockets and rests on them. Others are still served, and the log stays short."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from websockets.asyncio.client import connect

FILES = 256
"""The files that the server may open, and no more."""
CROWD = 400
STRANGER, HONEST = ("127.0.9.1", 0), ("127.0.10.1", 0)
_AGENT = """
import asyncio
from contextlib import suppress
from treaty_agent.transport import listener
from treaty_agent.transport.connection import ConnectionLost, next_message

async def echo(connection):
    with suppress(ConnectionLost):
        while True:
            connection.send(await next_message(connection))

async def main():
    async with listener.listen(echo, "127.0.0.1", 0, max_connections=10_000) as port:
        print(port, flush=True)
        await asyncio.to_thread(input)

asyncio.run(main())
"""


@asynccontextmanager
async def serving(program: str, lines: int = 12) -> AsyncIterator[int]:
    """Run a server that may open few files. It prints its port, and ends at a line of input. It may write so many lines."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))\n{program}"
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", limited, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        assert server.stdout is not None
        yield int(await server.stdout.readline())
    finally:
        _, errors = await server.communicate(b"\n")
    print(errors.decode())
    assert errors.count(b"\n") <= lines


@asynccontextmanager
async def crowd(port: int, opening: bytes) -> AsyncIterator[None]:
    """Sockets of one address, which send this and rest; one that is closed is opened again, at most once."""

    async def rest() -> None:
        for _ in range(2):
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=STRANGER)
                try:
                    writer.write(opening)
                    while await reader.read(1 << 16):
                        pass
                finally:
                    writer.transport.abort()
        await asyncio.sleep(60)

    resting = [asyncio.create_task(rest()) for _ in range(CROWD)]
    await asyncio.sleep(0.5)
    try:
        yield
    finally:
        for task in resting:
            task.cancel()
        await asyncio.gather(*resting, return_exceptions=True)


async def answered(ask: Callable[[], Awaitable[None]]) -> None:
    """Ask again until there is an answer. The stranger's sockets would be kept for longer than this."""
    async with asyncio.timeout(30):
        while True:
            with suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(5):
                    return await ask()
            await asyncio.sleep(0.1)


@pytest.mark.threat(190)
async def test_idle_sockets_of_one_address_do_not_switch_an_agent_off() -> None:
    async with serving(_AGENT) as port:

        async def session() -> None:
            async with connect(f"ws://127.0.0.1:{port}", local_addr=HONEST, proxy=None) as socket:
                await socket.send("still there")
                assert await socket.recv() == "still there"

        async with crowd(port, b"GET /nothing HTTP/1.1\r\nHost: agent.example\r\n\r\n"):
            for _ in range(3):
                await answered(session)


_GATEWAY = """
import asyncio
import trustme
from treaty_aip import Gateway, Security

async def main():
    own = trustme.CA().issue_cert("127.0.0.1")
    chain = b"".join(each.bytes() for each in own.cert_chain_pems)
    security = Security(certificate=(chain, own.private_key_pem.bytes()) if TLS else None)
    gateway = await Gateway("127.0.0.1:0", security=security).start()
    print(gateway.address.rpartition(":")[2], flush=True)
    await asyncio.to_thread(input)
    await gateway.stop()

asyncio.run(main())
"""


@pytest.mark.threat(190)
@pytest.mark.parametrize("opening", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"], ids=["silent", "preface"])
async def test_idle_sockets_of_one_address_do_not_switch_a_gateway_off(opening: bytes) -> None:
    async with serving(f"TLS = False{_GATEWAY}") as port:

        async def http_2() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=HONEST)
            try:
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                # The first frame of a server is SETTINGS (RFC 9113, section 3.4).
                assert (await reader.readexactly(9))[3] == 4
            finally:
                writer.transport.abort()

        async with crowd(port, opening):
            for _ in range(3):
                await answered(http_2)


@pytest.mark.threat(190)
async def test_tls_handshakes_with_a_gateway_that_fail_write_nothing() -> None:
    async with serving(f"TLS = True{_GATEWAY}", lines=0) as port:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=STRANGER)
            writer.write(b"no handshake of TLS\r\n")
            with suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
            writer.close()
