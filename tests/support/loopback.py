"""HTTPS servers on the loopback interface, with certificates of a throw-away authority."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from treaty_io.network.hosts import Address, Network

Answer = Callable[[str], Awaitable[bytes]]
"""From the request's head to the whole response."""


def response(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    """An HTTP/1.1 response."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


@dataclass
class Loopback:
    """A certificate authority and where its servers listen. `seen`: the heads of all requests."""

    folder: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    addresses: dict[str, Address] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    connections: int = 0

    def network(self) -> Network:
        """A network on which the hosts are found and the authority is accepted."""
        ca = self.folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(ca))
        return Network(self.addresses, ca)

    @asynccontextmanager
    async def serving(self, answer: Answer, *hosts: str, certified: tuple[str, ...] | None = None) -> AsyncIterator[Loopback]:
        """Serve `hosts` at one address, with a certificate for them or for `certified`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(*(certified or hosts)).configure_cert(context)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    self.seen.append(head.decode())
                    writer.write(await answer(head.decode()))
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        self.addresses |= {host: Address("127.0.0.1", port) for host in hosts}
        try:
            yield self
        finally:
            server.close()


def answering(body: bytes, **options: str) -> Answer:
    """Always the same response."""

    async def answer(head: str) -> bytes:
        return response(body, **options)

    return answer
