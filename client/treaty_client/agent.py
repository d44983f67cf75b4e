"""An agent: what an application uses to speak protocols with others.

    agent = Agent(identity, registry="https://registry.example#<vkey>", policy=Policy(publishers=["did:wba:example.com"]))

    @agent.provides("https://registry.example/protocols/example.com/product-info/1.0")        # the shop
    async def getProductInfo(productId: str) -> dict: ...
    await agent.serve("0.0.0.0", 9000)

    async with agent.connect("ws://shop.example:9000", topic="commerce/product-info") as session:     # the buyer
        info = await session.call("getProductInfo", productId="P12345")

What is said first, in order of preference: the hash of what was agreed on with this address before, if its code is here and was
verified recently enough; then candidate URIs, the topic's consensus first. Nobody's DID is proved by the Hello's plain profile.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError
from treaty_consensus.protocol import parse_protocol_uri

from .fetch import Fetcher
from .identity import Identity
from .meta.hello import MAX_CANDIDATES, REPORT_COSIGNATURE, Hello, HelloType
from .meta.machine import Machine, State
from .network.egress import EgressGuard
from .network.hosts import Network
from .policy import Policy
from .registries.trust import TrustedRegistries, parse_registry_name
from .reports.log import RegistryLog
from .reports.reporter import Reporter
from .session.agreements import Agreements, Remembered
from .session.driver import SessionDriver
from .session.operations import Function, choose_role
from .session.ports import SpokenProtocol
from .session.runtime import SandboxRuntime
from .session.session import Session
from .session.sides import AgentEvent, Destination, Household, Ports, Service, Source, check_functions, session_facts
from .session.timing import SessionTimeouts
from .store import default_home
from .transport import websocket
from .transport.connection import Connection

MAX_SESSIONS = 256
"""Sessions that are served at once."""
REPORT_TIME = 60
"""Seconds that the end of a session may be put off by a report."""

_log = logging.getLogger(__name__)
_F = TypeVar("_F", bound=Function)


@dataclass(frozen=True)
class _Offer:
    """What a source says first, and to whom ("" for whoever answers). `remembered` and `known` come together or not at all."""

    candidates: tuple[str, ...]
    peer: str
    remembered: Remembered | None = None
    known: SpokenProtocol | None = None


class Agent:
    """One identity's sessions, in both directions. For one event loop; `aclose` it, or use `async with`."""

    def __init__(
        self,
        identity: Identity,
        registry: str,
        policy: Policy | None = None,
        *,
        home: Path | None = None,
        network: Network | None = None,
        timeouts: SessionTimeouts | None = None,
        on_event: Callable[[AgentEvent], None] | None = None,
        ports: Ports | None = None,
    ) -> None:
        """`registry`: BASE_URL#VKEY, from now on among those that `home` (default: $TREATY_HOME or ~/.treaty) trusts. `policy`:
        the default runs nothing. `on_event`: told of every session's events as they happen; must not block. `ports`: what to
        stand on instead of the network and the sandbox.

        Raises `Malformed` for a registry without its key, `Conflict` for one that is trusted by another key.
        """
        home, policy, self._network = home or default_home(), policy or Policy(), network or Network()
        TrustedRegistries(home).add(parse_registry_name(registry))
        ports = ports or _real_ports(home, policy, self._network)
        self._household = Household(
            identity=identity,
            home=home,
            policy=policy,
            timeouts=timeouts or SessionTimeouts(),
            ports=ports,
            agreements=Agreements(home),
            reporter=Reporter(identity, home, ports.log_of, delay=policy.report_delay),
            services={},
            on_event=on_event,
        )
        self._warming: asyncio.Task[None] | None = None

    @property
    def did(self) -> str:
        """Who this agent says it is."""
        return self._household.identity.did

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the workers and the connections to registries. Reports that wait for their time are left to the next process."""
        household = self._household
        await household.reporter.close()
        if self._warming is not None:
            await self._warming
        await household.ports.runtime.close()
        await household.ports.protocols.aclose()
        for service in household.services.values():
            service.functions.close()

    def provides(self, uri: str, *, role: str | None = None) -> Callable[[_F], _F]:
        """Register the decorated function for the operation of its name in a protocol. Apply it once an operation.

        `role`: this side's, where the protocol leaves it open. Raises `Malformed`.
        """
        parse_protocol_uri(uri)

        def register(function: _F) -> _F:
            service = self._household.services.setdefault(uri, Service())
            service.functions.add(function)
            service.role = role or service.role
            return function

        return register

    async def serve(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """`listen` until cancelled."""
        async with self.listen(host, port, tls=tls):
            await asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        """Fetch and verify what is provided, have workers ready, then serve connections; yields the port (given 0, a free one).

        Raises `Unavailable` when the address is taken, and whatever keeps a provided protocol from running: an agent that cannot
        speak what it says it speaks does not open its door. On exit sessions are ended.
        """
        await self.prepare()
        async with websocket.listen(self.accept, host, port, tls=tls, max_connections=MAX_SESSIONS) as bound:
            yield bound

    async def prepare(self) -> None:
        """What `listen` does before it opens the port. Raises as it does."""
        household = self._household
        if not household.services:
            raise Refused(
                "agent.provides-nothing", "This agent provides no protocol.", fix="Register functions: @agent.provides(URI)."
            )
        fetched = await asyncio.gather(*map(household.ports.protocols.fetch, household.services))
        for (uri, service), protocol in zip(household.services.items(), fetched, strict=True):
            role = choose_role(protocol.package.manifest, calling=False, wanted=service.role)
            check_functions(service, role, uri)
            await household.ports.runtime.rehearse(protocol.package, local=self.did)
            service.protocol = protocol
        await household.ports.runtime.warm()
        if household.policy.report:
            household.reporter.resume()

    async def accept(self, connection: Connection) -> None:
        """Serve one connection, whatever its transport, until the session is over. `prepare` comes before."""
        machine = Machine.destination(
            self._hello("destinationHello"),
            now=asyncio.get_running_loop().time(),
            timeouts=self._household.timeouts,
            provides=self._household.provided(),
        )
        await SessionDriver(connection, machine, [], Destination(self._household)).run()

    @asynccontextmanager
    async def connect(
        self, url: str, *, topic: str = "", protocols: Sequence[str] = (), peer: str = "", role: str | None = None
    ) -> AsyncIterator[Session]:
        """A session with the agent at `ws://…` or `wss://…`, about a `topic` or by one of `protocols` (URIs, best first).

        `peer`: the DID it has to claim. `role`: this side's, where the protocol leaves it open. With a remembered agreement the
        session begins at once, and what is wrong with it comes out at the first call; otherwise both sides are ready when it
        begins. Raises `Malformed`, `Unavailable` (`connection.failed`), `Refused` (`session.no-common-protocol`, …), and what
        verification raises. When the block ends without an error and both policies report, a report is co-signed.
        """
        self._begin_warming()
        offer = await self._offer(url, topic, protocols, peer)
        async with self._session(await websocket.connect(url, self._network), offer, url, topic, role) as session:
            yield session

    @asynccontextmanager
    async def connect_over(
        self, connection: Connection, *, topic: str = "", protocols: Sequence[str] = (), peer: str = "", role: str | None = None
    ) -> AsyncIterator[Session]:
        """`connect` over an open connection of any transport, by whose address the agreement is remembered."""
        offer = await self._offer(connection.address, topic, protocols, peer)
        async with self._session(connection, offer, connection.address, topic, role) as session:
            yield session

    @asynccontextmanager
    async def _session(
        self, connection: Connection, offer: _Offer, address: str, topic: str, role: str | None
    ) -> AsyncIterator[Session]:
        household, remembered = self._household, offer.remembered
        machine, first = Machine.source(
            self._hello("sourceHello", offer),
            now=asyncio.get_running_loop().time(),
            timeouts=household.timeouts,
            known_uri=remembered.uri if remembered else "",
        )
        side = Source(household, address=address, topic=topic, candidates=offer.candidates, role=role)
        early = (offer.known, remembered.did) if offer.known and remembered else None
        driver = SessionDriver(connection, machine, first, side, early=early)
        task = asyncio.create_task(driver.run())
        try:
            if early is None:
                await driver.running
            yield Session(driver)
            await self._report(driver)
        finally:
            driver.leave()
            await task
            if remembered and not driver.was_running:
                household.agreements.forget(address, topic)

    def _begin_warming(self) -> None:
        """Have workers started while the network is waited for. Where that fails, the session's own worker will say why."""

        async def warm() -> None:
            with suppress(TreatyError):
                await self._household.ports.runtime.warm()

        if self._warming is None:
            self._warming = asyncio.create_task(warm())

    async def _offer(self, address: str, topic: str, protocols: Sequence[str], peer: str) -> _Offer:
        """What to say first: a remembered hash whose code is here and fresh, and candidates; the network only without one."""
        if bool(topic) == bool(protocols):
            raise Malformed("agent.offer", "Connect about a topic, or by protocols: one of the two.")
        source = self._household.ports.protocols
        remembered = self._household.agreements.get(address, topic)
        if remembered and (topic or remembered.uri in protocols) and peer in ("", remembered.did):
            known = source.cached(remembered.hash)
            if known is not None:
                return _Offer(tuple(protocols) or remembered.candidates, remembered.did, remembered, known)
        candidates = list(protocols) or await source.candidates(topic)
        if not candidates:
            raise NotFound(
                "agent.no-candidates", f"No protocol is published about {topic}.", fix="Name another topic, or publish one."
            )
        return _Offer(tuple(candidates[:MAX_CANDIDATES]), peer)

    def _hello(self, type: HelloType, offer: _Offer | None = None) -> Hello:
        """This agent's Hello; a destination's is completed by the machine."""
        remembered = offer.remembered if offer else None
        return Hello(
            type=type,
            message_id=secrets.token_urlsafe(12),
            session_id=secrets.token_urlsafe(12),
            source_did=self.did,
            destination_did=offer.peer if offer else "",
            capabilities=(REPORT_COSIGNATURE,) if self._household.policy.report else (),
            random=secrets.token_urlsafe(24),
            key_id=self._household.identity.key_id,
            used_protocol_hash=remembered.hash if remembered else None,
            candidate_protocols=offer.candidates if offer else (),
        )

    async def _report(self, driver: SessionDriver) -> None:
        """Co-sign a report of the session if both sides do that. Whatever fails is told to the log and the observer only."""
        if driver.machine.state is not State.RUNNING or not driver.machine.can_report() or not driver.replies:
            return
        try:
            async with asyncio.timeout(REPORT_TIME):
                made = await self._household.reporter.report(session_facts(driver), driver.propose)
        except (TreatyError, TimeoutError) as error:
            _log.warning("No report was made with %s: %s", driver.machine.peer and driver.machine.peer.source_did, error)
            driver.tell("report failed")
        else:
            driver.tell("reported" if made else "reported before")


def _real_ports(home: Path, policy: Policy, network: Network) -> Ports:
    """The registries that are trusted, over the network, and the sandbox."""
    fetcher, guard = Fetcher(home, policy, network), EgressGuard(network)
    return Ports(fetcher, SandboxRuntime(home, policy.isolation), partial(RegistryLog, fetcher, guard))
