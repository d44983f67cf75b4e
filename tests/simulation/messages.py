"""The HTTP client of a simulated registry: it asks witnesses, and sends statements to the node that leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from treaty_consensus.errors import TreatyError
from treaty_io.network.exchange import HttpReply
from treaty_registry.log.forwarding import HEADER, PATH

from .processes import Process, World
from .scheduler import settle
from .witnesses import WitnessHost


class _Response:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status_code = status
        self.headers = headers
        self.content = body

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        yield self.content


class SimulatedNetwork:
    """Stands for the client's `Network` in a registry."""

    def __init__(self, *_: Any) -> None: ...

    def client(self, **_: Any) -> SimulatedNetwork:
        return self

    def transport(self, address: Any) -> Any:
        raise AssertionError(f"no document is fetched from {address}")

    async def aclose(self) -> None: ...

    @asynccontextmanager
    async def stream(self, method: str, url: str, *, content: bytes, headers: Any) -> AsyncIterator[_Response]:
        """Send a request to a witness. The request or its answer may be lost."""
        loop: Any = asyncio.get_running_loop()
        world: World = loop.process.world
        host: WitnessHost = world.hosts[url.split("/")[2]]
        answer: asyncio.Future[_Response] = loop.create_future()
        rng = world.scheduler.rng
        lost = rng.random() < world.faults.witness_losses

        def arrive() -> None:
            if host.down:
                return
            status, kind, body = host.answer(content)
            if not lost:
                response = _Response(status, {"Content-Type": kind}, body)
                world.scheduler.after(rng.random() * 0.02, loop, lambda: settle(answer, response))

        world.scheduler.after(rng.random() * 0.02, None, arrive)
        if lost and rng.random() < 0.5:
            await asyncio.sleep(0.5)
            raise httpx.ReadError("connection reset")
        yield await answer

    def build_request(
        self, method: str, url: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Request:
        """As the client that it stands for."""
        return httpx.Request(method, url, content=content, headers=headers)

    async def exchange(self, request: httpx.Request, *, limit: int) -> HttpReply:
        """Send statements to another node, or read the box of a witness. Request and answer may be lost, late or repeated; a cut
        makes them wait."""
        loop: Any = asyncio.get_running_loop()
        process: Process = loop.process
        world, rng = process.world, process.world.scheduler.rng
        if request.url.host in world.hosts:
            await asyncio.sleep(rng.random() * 0.04)
            if world.hosts[request.url.host].down or rng.random() < world.faults.witness_losses:
                raise httpx.ReadError("connection reset")
            return HttpReply(200, httpx.Headers(), b'{"next":0,"stamped":[]}', True)
        peer = next((other for other in world.processes if str(request.url) == other.url + PATH), None)
        if peer is None or peer.registry is None:
            await asyncio.sleep(rng.random() * 0.01)
            raise httpx.ConnectError("connection refused")
        answer: asyncio.Future[HttpReply] = loop.create_future()

        async def serve() -> None:
            # As the route does. A node that is stopping answers nothing.
            registry: Any = peer.registry
            if registry is None:
                return
            try:
                body, code = await registry.nodes.take(registry.sequencer, request.content, request.headers[HEADER])
                reply = HttpReply(200, httpx.Headers({HEADER: code}), body, len(body) <= limit)
            except TreatyError:
                reply = HttpReply(503, httpx.Headers(), b"", True)
            if rng.random() >= world.faults.message_losses:
                world.scheduler.at(world.network.between(peer.machine, process.machine), loop, lambda: settle(answer, reply))

        def arrive() -> None:
            if peer.alive:
                peer.loop.create_task(serve())

        for _ in range(2 if rng.random() < world.faults.message_losses else 1):
            if rng.random() >= world.faults.message_losses:
                world.scheduler.at(world.network.between(process.machine, peer.machine), peer.loop, arrive)
        try:
            async with asyncio.timeout(10.0):
                return await answer
        except TimeoutError as error:
            raise httpx.ReadTimeout("") from error
