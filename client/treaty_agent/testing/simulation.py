"""Agents that meet in one process: a simulated network between them, a registry in memory, and faults on demand."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from treaty_client.policy import Policy
from treaty_consensus import canonical
from treaty_consensus.did import Did
from treaty_consensus.errors import Malformed, NotFound
from treaty_io.codes import AgentCode, EgressCode
from treaty_io.identity import Identity
from treaty_io.network.did_documents import DidDocument, DidResolver, read_did_document
from treaty_io.network.hosts import Address, Network
from treaty_io.task_set import TaskSet

from ..agent import Agent
from ..config import AgentConfig
from ..sessions.flow_context import LocalNames
from ..sessions.interfaces import Ports
from ..transport import memory
from ..transport.application import Application
from ..transport.connection import Connection, ConnectionFailed, ConnectionLost, unwatched
from .inline_runtime import InlineRuntime
from .memory_registry import MemoryRegistry, RegistryView

# An address of RFC 5737 §3, which no host has. Nothing connects to it.
_NOWHERE = Address("192.0.2.1", 443)
_UNDER_WAY = 8
"""Messages that a slow link carries at once. Then its sender has to wait."""


@dataclass
class Link:
    """The faults on the way to one agent. Change them at any time.

    `refuses`: new connections fail, as those to a host without a server.
    `delay`: seconds that each message takes, in both directions.
    `silent`: messages are accepted and never arrive; the connections stay open, as those to a suspended process.
    `has_document`: False while the web server of its DID answers 404, as one that restarts.
    """

    refuses: bool = False
    has_document: bool = True
    delay: float = 0.0
    silent: bool = False
    _open: list[Connection] = field(default_factory=list)

    async def cut(self) -> None:
        """End all connections at once, as a crash of the host does. The agent itself goes on and can be reached again."""
        cut, self._open = self._open, []
        for connection in cut:
            await connection.close()


class Simulation:
    """Some agents, their registry and the network between them. Use it with `async with`, which ends all agents.

    async with Simulation(["protocols/greeting"]) as simulation:
        host, guest = simulation.agent("host.example"), simulation.agent("guest.example")
        host.provides(simulation.uri("greeting"))(greet)
        async with simulation.serving(host), guest.connect("wss://host.example", topic="social/greeting") as session:
            assert await session.call("greet", name="Ada") == "Hello, Ada!"
    """

    def __init__(self, folders: Iterable[str | Path]) -> None:
        """Read the protocols of some folders. Raises the errors of `LocalProtocols`."""
        self.registry = MemoryRegistry(folders)
        self.links: dict[str, Link] = {}
        """By domain: the faults on the way to an agent."""
        self._identities: dict[str, Identity] = {}
        self._serving: dict[str, Agent] = {}
        self._documents: dict[str, Application] = {}
        self._network = _SimulatedNetwork(documents=self._documents)
        self._home = Path(tempfile.mkdtemp(prefix="treaty-testing-"))
        self._agents, self._made = AsyncExitStack(), list[Agent]()
        self._sessions = TaskSet[None]()

    async def __aenter__(self) -> Simulation:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A registry that never answers must not hold the end of the test.
        self.registry.state = "down"
        for link in self.links.values():
            await link.cut()
        await self._agents.aclose()
        await self._sessions.finish()
        shutil.rmtree(self._home, ignore_errors=True)

    def uri(self, name: str) -> str:
        """Return the URI of a protocol by its name. Raises `NotFound` (`protocol.unknown`)."""
        return self.registry.protocols.uri(name)

    def agent(self, domain: str, config: AgentConfig | Policy | None = None, **options: Any) -> Agent:
        """Make the agent of a domain, such as `hotel.example`; the simulation ends it. The same domain a second time is the same
        identity and home, as after a restart.

        `config`: as for `Agent`, without a home. `options`: other arguments of `Agent`. Raises their errors.
        """
        identity = self._identities.setdefault(domain, Identity.create(domain))
        self.links.setdefault(domain, Link())
        self._network.add(domain)
        base = config if isinstance(config, AgentConfig) else AgentConfig(config or Policy())
        view = RegistryView(self.registry, identity, DidResolver(self._document))
        agent = Agent(
            identity,
            self.registry.name,
            replace(base, home=self._home / domain),
            network=self._network,
            ports=Ports(
                protocols=view,
                runtime=InlineRuntime(),
                log_of=lambda origin: view,
                publisher=view,
                resolver=view.resolver,
                names=partial(_names, self.registry),
                dial=self._dial,
            ),
            **options,
        )
        self._made.append(agent)
        self._agents.push_async_callback(agent.aclose)
        return agent

    @asynccontextmanager
    async def serving(self, *agents: Agent) -> AsyncIterator[None]:
        """Let agents be reached at `wss://DOMAIN`, and be discovered at their domains. Their sessions end with the block."""
        domains = [str(agent.context.identity.parsed.host) for agent in agents]
        for agent, domain in zip(agents, domains, strict=True):
            await agent.prepare()
            self._serving[domain] = agent
            self._documents[domain] = agent.asgi([f"wss://{domain}"], name=domain)
        try:
            yield
        finally:
            # The sessions that the block left may wait for their reports.
            await asyncio.gather(*(agent.context.finish() for agent in self._made))
            for domain in domains:
                del self._serving[domain], self._documents[domain]
                await self.links[domain].cut()

    async def _dial(self, url: str) -> Connection:
        domain = urlsplit(url).hostname or ""
        link = self.links.get(domain)
        if link is None:
            raise Malformed(AgentCode.CALL, f"{url} is no agent of this simulation.", fix=f"It has: {', '.join(self.links)}.")
        if link.refuses or domain not in self._serving:
            raise ConnectionFailed(url, again=True)
        near, far = memory.pair()
        connection = _FaultyConnection(near, link, url)
        link._open.append(near)
        self._sessions.start(self._serving[domain].accept(far))
        return connection

    async def _document(self, did: Did) -> DidDocument:
        identity = self._identities.get(str(did.host))
        if identity is None:
            raise Malformed(AgentCode.CALL, f"{did.text} is no agent of this simulation.")
        if not self.links[str(did.host)].has_document:
            raise NotFound(EgressCode.NOT_FOUND, f"There is no document at {did.document_url}.")
        return read_did_document(did, canonical.dumps(identity.did_document()))


class _FaultyConnection:
    """One end of a connection, with the faults of a link."""

    def __init__(self, inner: Connection, link: Link, address: str) -> None:
        self._inner, self._link, self._address = inner, link, address
        self._wake: Callable[[], None] = unwatched
        self._arriving: deque[tuple[float, str | bytes]] = deque()
        self._sent_until = 0.0

    @property
    def address(self) -> str:
        return self._address

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def backlog(self) -> int:
        return self._inner.backlog

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._inner.watch(wake)

    def send(self, message: str | bytes) -> None:
        loop = asyncio.get_running_loop()
        # Never before an earlier message, which may have been slower.
        self._sent_until = due = max(loop.time() + self._link.delay, self._sent_until)
        if self._link.silent:
            return
        if due > loop.time():
            loop.call_at(due, self._arrive, message)
        else:
            self._inner.send(message)

    def receive(self) -> str | bytes | None:
        now = asyncio.get_running_loop().time()
        try:
            while len(self._arriving) < _UNDER_WAY and (message := self._inner.receive()) is not None:
                if not self._link.silent:
                    self._delay(message, now)
        except ConnectionLost:
            if not self._arriving:
                raise
        # The loop rings a timer up to its resolution early.
        if self._arriving and self._arriving[0][0] - now < 0.001:
            return self._arriving.popleft()[1]
        return None

    async def close(self, reason: str = "") -> None:
        await self._inner.close(reason)

    def _delay(self, message: str | bytes, now: float) -> None:
        due = max(now + self._link.delay, self._arriving[-1][0] if self._arriving else 0.0)
        self._arriving.append((due, message))
        if due > now:
            asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._wake()

    def _arrive(self, message: str | bytes) -> None:
        with suppress(ConnectionLost):  # the other end has gone meanwhile
            self._inner.send(message)


@dataclass(frozen=True)
class _SimulatedNetwork(Network):
    """HTTPS to the documents of the agents that serve now, by domain."""

    documents: Mapping[str, Application] = field(default_factory=dict)

    def add(self, domain: str) -> None:
        """Make a domain known."""
        assert isinstance(self.resolve, dict)
        self.resolve[domain] = _NOWHERE

    def transport(self, address: Address) -> httpx.AsyncBaseTransport:
        return _DocumentTransport(self.documents)


class _DocumentTransport(httpx.AsyncBaseTransport):
    def __init__(self, documents: Mapping[str, Application]) -> None:
        self._documents = documents

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        application = self._documents.get(request.url.host)
        if application is None:
            raise httpx.ConnectError("No agent serves this domain in the simulation.")
        return await httpx.ASGITransport(application).handle_async_request(request)


def _names(registry: MemoryRegistry, pins: Any) -> LocalNames:
    return LocalNames(registry.protocols, pins)
