"""Handshakes, from opening the connection to the first reply, between two agents that have been up for a while.

So everything is imported, the registry is known and its connection open, and sandboxes were started in advance, on both sides.
What the agent that connects knows beyond that makes the difference:

    cold    another protocol: bundle and wheel are downloaded, all ten steps taken, the handler is compiled
    warm    this protocol, verified a moment ago, but not the peer: the Hello settles on it
    0-RTT   the peer too: the first call goes out right behind the Hello

Each is measured twice: with a handler that has code and runs in a sandbox, and with the declarative handler of the same protocol.

Cold and warm are compared with plain GETs of the bytes that a cold handshake downloads, by the HTTP client that the agent uses,
over a connection that is kept alive; 0-RTT with a new WebSocket that echoes one message.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
from websockets.asyncio.client import connect

from treaty_agent.agent import Agent
from treaty_client.policy import Policy
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.identity import Identity

from .contest import Group, Meter, Row, Sample
from .counterpart import PRODUCT
from .publishing import author
from .servers import REPOSITORY, Registry, SceneFailed, free_port, listens, ready, registry, running, workspace

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the handler with code is the tests' own
from sandboxed import sandboxed_product_info

REPEATS = 3
REST = 0.4
"""Seconds after a handshake in which both sides start the next sandboxes."""

_GETS = "plain keep-alive GETs of the same bytes"
_ECHO = "one WebSocket echo, with its connection"
ROWS = (
    Row("cold", "cold handshake: resolve, download, ten checks, sandbox, first reply", _GETS, "ms", "cold", "gets", 8),
    Row("warm", "warm handshake: cached handler, sandbox, first reply", _GETS, "ms", "warm", "gets", 3),
    Row("0-rtt", "0-RTT handshake: sandbox, first reply", _ECHO, "ms", "0-rtt", "echo", 3),
    Row(
        "cold declarative",
        "cold handshake without code: resolve, download, ten checks, first reply",
        _GETS,
        "ms",
        "cold declarative",
        "gets declarative",
        5,
    ),
    Row("warm declarative", "warm handshake without code: first reply", _GETS, "ms", "warm declarative", "gets declarative", 2),
    Row("0-rtt declarative", "0-RTT handshake without code: first reply", _ECHO, "ms", "0-rtt declarative", "echo", 1.8),
)


class Versions(NamedTuple):
    """The URIs of two versions with the same kind of handler. A cold handshake by `new` follows one by `known`."""

    known: str
    new: str


@dataclass(frozen=True)
class Shop:
    """Where the counterpart listens. `sandboxed`, `declarative`: the protocols it provides, of either kind of handler."""

    port: int
    echo: int
    publisher: str
    sandboxed: Versions
    declarative: Versions

    @property
    def url(self) -> str:
        """The agent's address."""
        return f"ws://127.0.0.1:{self.port}"


@dataclass
class Buyer:
    """Connects to the shop. `folder`: for homes, one each cold handshake."""

    registry: Registry
    shop: Shop
    folder: Path
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def agent(self) -> Agent:
        """A new agent with an empty home."""
        home = self.folder / f"buyer-{next(self._numbers)}"
        return Agent(Identity.create(), self.registry.name, Policy(publishers=[self.shop.publisher]), home=home)

    def other_address(self) -> str:
        """An address of the shop that nobody remembers an agreement with."""
        return f"{self.shop.url}/{next(self._numbers)}"

    async def handshake(self, agent: Agent, url: str, protocol: str, *, resumed: bool) -> float:
        """Milliseconds from connecting to the first reply. Raises `SceneFailed` when it was another kind of handshake."""
        begun = time.perf_counter()
        async with agent.connect(url, protocols=[protocol]) as session:
            reply = await session.call("getProductInfo", productId=PRODUCT["productId"])
            taken = time.perf_counter() - begun
            if reply != PRODUCT or session.resumed != resumed:
                raise SceneFailed(f"a handshake with resumed={session.resumed} brought {reply!r}")
        await asyncio.sleep(REST)
        return taken * 1000

    async def cold(self, versions: Versions) -> float:
        """A handshake by a protocol this agent has not met, after one by another."""
        async with self.agent() as agent:
            await self.handshake(agent, self.shop.url, versions.known, resumed=False)
            return await self.handshake(agent, self.other_address(), versions.new, resumed=False)


@asynccontextmanager
async def scene() -> AsyncIterator[Mapping[str, Meter]]:
    """A registry with two versions of a protocol, each with either kind of handler, and a shop that provides all."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(workspace())
        served = await stack.enter_async_context(registry(folder))
        shop = await stack.enter_async_context(_shop(folder, served))
        buyer = Buyer(served, shop, folder)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=served.url))

        async def echo() -> float:
            begun = time.perf_counter()
            async with connect(f"ws://127.0.0.1:{shop.echo}", compression=None) as socket:
                await socket.send("{}")
                await socket.recv()
                return (time.perf_counter() - begun) * 1000

        sandboxed = await stack.enter_async_context(_handshakes(buyer, client, shop.sandboxed))
        declarative = await stack.enter_async_context(_handshakes(buyer, client, shop.declarative))
        yield {
            "echo": _median_of(echo),
            **sandboxed,
            **{f"{name} declarative": meter for name, meter in declarative.items()},
        }


@asynccontextmanager
async def _handshakes(buyer: Buyer, client: httpx.AsyncClient, versions: Versions) -> AsyncIterator[dict[str, Meter]]:
    """The three handshakes by one kind of handler, and the plain downloads of the same bytes."""
    downloads = await _downloads(client, versions.new)
    async with buyer.agent() as agent:
        # One address for each kind: the agent remembers one agreement with an address.
        address = buyer.other_address()
        await buyer.handshake(agent, address, versions.new, resumed=False)

        async def gets() -> float:
            begun = time.perf_counter()
            for target in downloads:
                (await client.get(target)).raise_for_status()
            return (time.perf_counter() - begun) * 1000

        async def warm() -> float:
            return await buyer.handshake(agent, buyer.other_address(), versions.new, resumed=False)

        async def zero_rtt() -> float:
            return await buyer.handshake(agent, address, versions.new, resumed=True)

        async def cold() -> float:
            return await buyer.cold(versions)

        handshakes = {"cold": cold, "warm": warm, "0-rtt": zero_rtt, "gets": gets}
        yield {name: _median_of(once) for name, once in handshakes.items()}


@asynccontextmanager
async def _shop(folder: Path, served: Registry) -> AsyncIterator[Shop]:
    """The counterpart's process, for protocols published in the name of a new identity."""
    async with author(served, folder) as writer:
        declarative = Versions(*[await writer.publish(version) for version in ("1.0", "1.1")])
        coded = [sandboxed_product_info(version, name="product-info-coded") for version in ("1.0", "1.1")]
        # Other documents, because an agreement is remembered by the hash of its document.
        coded = [replace(project, document=project.document + b"\nWith code.\n") for project in coded]
        sandboxed = Versions(*[await writer.publish_project(project) for project in coded])
        shop = Shop(free_port(), free_port(), writer.identity.did, sandboxed, declarative)
    home, log = folder / "shop", folder / "shop.log"
    named = ["--home", str(home), "--registry", served.name, "--publisher", shop.publisher]
    ports = ["--port", str(shop.port), "--echo", str(shop.echo)]
    protocols = [part for uri in (*sandboxed, *declarative) for part in ("--protocol", uri)]
    command = [sys.executable, "-m", "bench.counterpart", *named, *protocols, *ports]
    with running(command, log) as process:
        await ready(process, log, lambda: listens(shop.echo))
        await asyncio.sleep(REST)
        yield shop


async def _downloads(client: httpx.AsyncClient, uri: str) -> list[str]:
    """What a cold handshake asks the registry for."""
    path = parse_protocol_uri(uri).path
    size = int((await client.get("/checkpoint")).text.split("\n")[1])
    record = (await client.get(f"{path}.json")).json()
    return [f"{path}.bundle?since={size}", f"/blobs/sha256/{record['handlers'][0]['wheel']}"]


def _median_of(once: Callable[[], Awaitable[float]]) -> Meter:
    """A sample is the median of a few."""

    async def read() -> Sample:
        return Sample(median([await once() for _ in range(REPEATS)]))

    return read


GROUP = Group("handshaking", ROWS, scene, turns=2)
