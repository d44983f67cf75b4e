"""An agent: what an application uses to speak protocols with others.

    agent = Agent(identity, registry="https://registry.example#<vkey>", policy=Policy(publishers=["did:wba:example.com"]))

    @agent.provides("https://registry.example/protocols/example.com/product-info/1.0")        # the shop
    async def getProductInfo(productId: str) -> dict: ...
    await agent.serve("0.0.0.0", 9000)

    async with agent.connect("ws://shop.example:9000", topic="commerce/product-info") as session:     # the buyer
        info = await session.call("getProductInfo", productId="P12345")

Where nothing is published yet, two agents with negotiators agree on a protocol themselves, the first time:

    @agent.offers                                                                              # the shop
    async def getProductInfo(productId: str) -> Product: ...

    wanted = Requirement("Get a product by its id.", topic="commerce/product-info")            # the buyer
    async with agent.connect("ws://shop.example:9000", requirement=wanted) as session: ...
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TypeVar

from treaty_consensus.errors import Malformed, Refused, TreatyError
from treaty_consensus.protocol import parse_protocol_uri

from .discovery.candidates import candidates
from .discovery.client import Discoverer
from .fetch import Fetcher
from .flow.manager import MetaProtocolManager
from .flow.names import PolicyNames
from .flow.ports import FlowSettings
from .identity import Identity
from .meta.limits import Limits
from .negotiation.negotiator import Negotiators, Requirement
from .network.egress import EgressGuard
from .network.hosts import Network
from .network.resolver import DidResolver
from .policy import Policy
from .registries.trust import TrustedRegistries, parse_registry_name
from .reports.log import RegistryLog
from .reports.reporter import Reporter
from .session import meeting
from .session.acquaintances import Acquaintances
from .session.agreements import Agreements
from .session.conversation import Answerer
from .session.doors import Doors
from .session.escalation import Approvals, OnEscalation
from .session.household import AgentEvent, Household, Ports, Service
from .session.negotiated import NegotiatedProtocols
from .session.opening import Wish
from .session.operations import Function
from .session.provision import provide
from .session.publishing import RegistryPublisher
from .session.runtime import SandboxRuntime
from .session.session import Session
from .session.timing import PATIENT, SessionTimeouts
from .store import default_home
from .transport.application import Application
from .transport.connection import Connection

_F = TypeVar("_F", bound=Function)


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
        limits: Limits | None = None,
        flow: FlowSettings | None = None,
        negotiators: Negotiators | None = None,
        on_escalation: OnEscalation | None = None,
        on_event: Callable[[AgentEvent], None] | None = None,
        transcripts: Path | None = None,
        ports: Ports | None = None,
    ) -> None:
        """`registry`: BASE_URL#VKEY, from now on among those that `home` (default: $TREATY_HOME or ~/.treaty) trusts; what is
        negotiated is published and reported there. `policy`: the default runs nothing. `timeouts`: longer ones for whoever
        negotiates, unless given. `limits`: of messages and bytes in a session. `flow`: what is chosen of the flow profile.
        `negotiators`: who decides in negotiations, closed with the agent; without, there are none. `on_escalation`: asked when
        they fail (`session.escalation`). `on_event`: told of the Hello profile's events as they happen; must not block.
        `transcripts`: a folder for a transcript of every session of the Hello profile, business data included. `ports`: what to
        stand on instead of the network and the sandbox.

        Raises `Malformed` for a registry without its key, `Conflict` for one that is trusted by another key, `Refused`
        (`agent.isolation`) for negotiators without a sandbox.
        """
        home, policy, self._network = home or default_home(), policy or Policy(), network or Network()
        if negotiators is not None and policy.isolation == "none":
            raise Refused(
                "agent.isolation",
                "What a negotiator writes runs only in a sandbox: nobody vouches for it.",
                fix='Set isolation = "bubblewrap" in the policy, or do without negotiators.',
            )
        name = parse_registry_name(registry)
        TrustedRegistries(home).add(name)
        agreements = Agreements(home)
        ports = ports or _real_ports(identity, home, policy, self._network, name.origin, agreements)
        self._household = Household(
            identity=identity,
            registry=name.origin,
            home=home,
            policy=policy,
            timeouts=timeouts or (PATIENT if negotiators else SessionTimeouts()),
            limits=limits or Limits(),
            ports=ports,
            agreements=agreements,
            reporter=Reporter(identity, home, ports.log_of, delay=policy.report_delay),
            negotiated=NegotiatedProtocols(home),
            approvals=Approvals(home),
            negotiators=negotiators,
            on_escalation=on_escalation,
            on_event=on_event,
            transcripts=transcripts,
        )
        self._doors = Doors(self._household, self._network, flow or FlowSettings())
        self._warming: asyncio.Task[None] | None = None

    @property
    def did(self) -> str:
        """Who this agent says it is."""
        return self._household.identity.did

    @property
    def flow(self) -> MetaProtocolManager:
        """This agent in the flow profile: register what it offers there, or negotiate over a connection. What it offers, `listen`
        and `accept` serve beside the Hello profile."""
        return self._doors.flow

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the workers, the negotiators and the connections to registries. Reports that wait for their time are left to the
        next process."""
        if self._warming is not None:
            await self._warming
        await self._doors.aclose()
        await self._household.close()

    @property
    def unserved(self) -> Mapping[str, TreatyError]:
        """The provided protocols that are not served now, by URI, and what is wrong with each."""
        return MappingProxyType(self._household.unserved)

    # What this agent can do

    def provides(self, uri: str, *, role: str = "") -> Callable[[_F], _F]:
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

    def offers(self, function: _F) -> _F:
        """Offer a function to whoever negotiates a protocol for it; what it does is read off its name, docstring and type hints
        (`session.business`). Raises `Malformed` (`agent.function`)."""
        self._household.offers.add(function)
        return function

    def converses(self, function: Answerer) -> Answerer:
        """Have a coroutine function, (text, peer's DID) → answer, answer what peers say in natural language."""
        self._household.answerer = function
        return function

    # Serving

    async def serve(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        public: Sequence[str] = (),
        name: str = "",
        description: str = "",
    ) -> None:
        """`listen` until cancelled."""
        async with self.listen(host, port, tls=tls, public=public, name=name, description=description):
            await asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        public: Sequence[str] = (),
        name: str = "",
        description: str = "",
    ) -> AsyncIterator[int]:
        """Fetch and verify what is provided, have workers ready, then serve WebSocket and HTTP on one port; yields it (given 0, a
        free one).

        `public`: the URLs under which others reach it, best first, such as `wss://shop.example`; then it is described there by
        the documents of `discovery`, with a `name` and a `description` for people. HTTP requests have to be signed for one of
        them.

        A provided protocol that cannot be verified or loaded is not served: it is in `unserved`, logged as an error, told to
        `on_event`, and tried again later. Raises `Unavailable` when the address is taken, and what is wrong with the first
        protocol when none of those provided can be served. On exit sessions are ended.
        """
        await self.prepare()
        async with self._doors.listen(host, port, tls=tls, public=public, name=name, description=description) as bound:
            yield bound

    def asgi(self, public: Sequence[str], *, name: str = "", description: str = "") -> Application:
        """What `listen` serves, as an ASGI application for a server of your own. `prepare` comes before; `public` as there, at
        least one."""
        return self._doors.application(public=public, name=name, description=description)

    async def prepare(self) -> None:
        """What `listen` does before it opens the port. Raises as it does."""
        household = self._household
        if not (household.services or household.negotiators or household.answerer or len(self.flow.registry)):
            raise Refused(
                "agent.provides-nothing",
                "This agent provides no protocol, and neither negotiates nor converses.",
                fix="Register functions: @agent.provides(URI).",
            )
        await provide(household)
        await asyncio.to_thread(household.negotiated.load)
        await household.ports.runtime.warm()
        if household.policy.report:
            household.reporter.resume()

    async def accept(self, connection: Connection) -> None:
        """Serve one connection, whatever its transport, until the session is over. `prepare` comes before."""
        await self._doors.enter(connection)

    # Connecting

    @asynccontextmanager
    async def connect(
        self,
        url: str = "",
        *,
        discover: str = "",
        topic: str = "",
        protocols: Sequence[str] = (),
        requirement: Requirement | None = None,
        natural: bool = False,
        peer: str = "",
        role: str = "",
    ) -> AsyncIterator[Session]:
        """A session with the agent at a `ws`, `wss`, `http` or `https` URL, or with the one to `discover`: a domain, a DID, the
        URL of an agent description. It is about a `topic` or by one of `protocols` (URIs, best first), with a `requirement` to
        negotiate by where those lead nowhere; by a requirement alone; in `natural` language only; or, of an agent that was
        discovered, by what that says it speaks. The protocols of a topic are offered in this order: the consensus, what a
        discovered agent lists, the others.

        `peer`: the DID it has to claim. `role`: this side's, where the protocol leaves it open. With a remembered agreement the
        session begins at once, and what is wrong with it comes out at the first call; otherwise both sides are ready when it
        begins. Raises `Malformed`, `Unavailable` (`connection.failed`), `Refused` (`session.no-common-protocol`,
        `negotiation.rejected`, …), and what discovery, verification and negotiators raise. When the block ends without an error,
        what was negotiated is published, and a report co-signed, as far as the policies of both sides say so.
        """
        if bool(url) == bool(discover):
            raise Malformed("agent.address", "Connect to a URL, or to an agent to discover: one of the two.")
        self._begin_warming()
        wish = Wish(topic, tuple(protocols), peer, requirement, natural)
        if discover:
            url, wish = await self._discovered(discover, wish)

        async def dial() -> Connection:
            return self._doors.sealed(await self._doors.dial(url, hearsay=bool(discover)))

        async with meeting.visit(self._household, dial, url, wish, role, again=True) as session:
            yield session

    def connect_over(
        self,
        connection: Connection,
        *,
        topic: str = "",
        protocols: Sequence[str] = (),
        requirement: Requirement | None = None,
        natural: bool = False,
        peer: str = "",
        role: str = "",
    ) -> AbstractAsyncContextManager[Session]:
        """`connect` over an open connection of any transport, by whose address the agreement is remembered. What a person decides
        after a failed negotiation is proposed by the next one."""

        async def dial() -> Connection:
            return self._doors.sealed(connection)

        wish = Wish(topic, tuple(protocols), peer, requirement, natural)
        return meeting.visit(self._household, dial, connection.address, wish, role, again=False)

    async def dial(self, url: str) -> Connection:
        """An open connection to a URL, in the clear: for `flow`. Raises `Malformed`, `Unavailable`."""
        return await self._doors.dial(url)

    async def _discovered(self, name: str, wish: Wish) -> tuple[str, Wish]:
        """Where an agent is, and what to wish for there. What it says of itself is believed for no more than that."""
        described = (await Discoverer(self._network).discover(name)).agents[0]
        wanted = wish
        if wish.protocols or not (wish.topic or wish.requirement or wish.natural):
            wanted = replace(wish, protocols=candidates(described, wish.protocols))
        return described.address, replace(wanted, peer=wish.peer or described.did, described=described)

    def _begin_warming(self) -> None:
        """Have workers started while the network is waited for. Where that fails, the session's own worker will say why."""

        async def warm() -> None:
            with suppress(TreatyError):
                await self._household.ports.runtime.warm()

        if self._warming is None:
            self._warming = asyncio.create_task(warm())


def _real_ports(identity: Identity, home: Path, policy: Policy, network: Network, origin: str, agreements: Agreements) -> Ports:
    """The registries that are trusted, over the network, and the sandbox."""
    fetcher = Fetcher(home, policy, network)
    return Ports(
        protocols=fetcher,
        runtime=SandboxRuntime(home, policy.isolation),
        log_of=partial(RegistryLog, fetcher, EgressGuard(network)),
        publisher=RegistryPublisher(identity, fetcher, origin, network),
        resolver=DidResolver(Acquaintances(network, agreements).fetch),
        names=partial(PolicyNames, fetcher),
    )
