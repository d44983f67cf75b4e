"""A simulated registry behind a real HTTPS port, which can be slow, or accept requests and never answer.

python tests/support/socket_registry.py FOLDER      serves one until it is killed, so that a test can stop its process

It prints its port. Its certificate authority is FOLDER/ca.pem, and it has both versions of product-info.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import trustme
from signers import ORIGIN
from simulated_registry import SimulatedRegistry
from working_agents import agents_registry

from treaty_consensus.errors import NotFound, TreatyError
from treaty_io.network.hosts import Address, Network


async def _at_once(path: str) -> None:
    """Let a request pass."""


@dataclass
class SocketRegistry:
    """`before`: waited for before each answer, with the path of the request. `asked`: the paths of all requests."""

    registry: SimulatedRegistry
    network: Network
    before: Callable[[str], Awaitable[None]] = _at_once
    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                line, *lines = head.split("\r\n")
                method, path, _ = line.split()
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.asked.append(path)
                await self.before(path)
                status, answer = self._answer(httpx.Request(method, f"https://{ORIGIN}{path}", content=body))
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, request: httpx.Request) -> tuple[int, bytes]:
        try:
            return self.registry.answer(request)
        except TreatyError as error:
            return (404 if isinstance(error, NotFound) else 422), f'{{"code": "{error.code}", "detail": "No."}}'.encode()


@asynccontextmanager
async def socket_registry(folder: Path) -> AsyncIterator[SocketRegistry]:
    """Serve a registry on a free port of loopback."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(ORIGIN).configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    registry = SocketRegistry(agents_registry(), Network())
    server = await asyncio.start_server(registry.serve, "127.0.0.1", 0, ssl=context)
    registry.network = network_to(server.sockets[0].getsockname()[1], folder)
    try:
        yield registry
    finally:
        server.close()


def network_to(port: int, folder: Path) -> Network:
    """Return a network on which the registry is at a port."""
    return Network({ORIGIN: Address("127.0.0.1", port)}, folder / "ca.pem")


async def _serve(folder: Path) -> None:
    async with socket_registry(folder) as server:
        assert isinstance(server.network.resolve, dict)
        print(server.network.resolve[ORIGIN].port, flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
