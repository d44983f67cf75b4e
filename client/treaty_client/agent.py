"""An agent: an application uses it to speak protocols with other agents.

The first `Agent` imports the sessions with all their libraries; importing its class does not, so that a program starts fast.

    agent = Agent(identity, "https://registry.example#<vkey>", Policy(publishers=["did:wba:example.com"]))

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
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, TypeVar

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.extras import naming_extras
from treaty_consensus.protocol import parse_protocol_uri

from .codes import AgentCode
from .home import default_home

if TYPE_CHECKING:
    from .config import AgentConfig
    from .identity import Identity
    from .negotiators.negotiator import Negotiators, Requirement
    from .network.hosts import Network
    from .network.transport.application import Application
    from .network.transport.connection import Connection
    from .policy import Policy
    from .protocols.local import LocalProtocols
    from .sessions.context import AgentContext, AgentEvent, Ports
    from .sessions.escalation import OnEscalation
    from .sessions.flow_manager import MetaProtocolManager
    from .sessions.negotiation import Answerer
    from .sessions.opening import OnChangedPeer
    from .sessions.operations import Function
    from .sessions.peer import Peer, SessionPool
    from .sessions.session import Session

_F = TypeVar("_F", bound="Function")
_log = logging.getLogger(__name__)


class Agent:
    """One identity's sessions, in both directions. For one event loop; `aclose` it. `config`: the effective configuration."""

    def __init__(
        self,
        identity: Identity,
        registry: str | LocalProtocols,
        config: AgentConfig | Policy | None = None,
        *,
        home: Path | None = None,
        network: Network | None = None,
        negotiators: Negotiators | None = None,
        on_escalation: OnEscalation | None = None,
        on_event: Callable[[AgentEvent], None] | None = None,
        on_changed_peer: OnChangedPeer | None = None,
        ports: Ports | None = None,
    ) -> None:
        """Make an agent; nothing is sent or started.

        `registry`: BASE_URL#VKEY. The home trusts it from now on; negotiated protocols are published and reported there. Or
        protocols in folders, without any registry: then nothing is published or reported.
        `config`: the owner's choices. A policy, with the `home`, is short for AgentConfig(policy, home=home).
        `negotiators`: decide in negotiations and are closed with the agent; without them there are none. `on_escalation`: asked
        when they fail (`sessions.escalation`). `on_event`: called with each event as it happens; must not block.
        `on_changed_peer`: asked when another DID answers at a known address; without it that is refused (`sessions.opening`).
        `ports`: replace the network and the sandbox.

        Raises `Malformed` for a registry without its key, or with `config.home` for a `home` beside an `AgentConfig`; `Conflict`
        for a registry that is trusted by another key; `Refused` (`agent.isolation`) for negotiators without a sandbox. Then
        nothing changed.
        """
        # Here, so that importing this class costs little.
        with naming_extras():
            from .assembly import assemble

        self.config, self._network, self._context, self._endpoint, self._opener = assemble(
            identity,
            registry,
            config,
            home=home,
            network=network,
            negotiators=negotiators,
            on_escalation=on_escalation,
            on_event=on_event,
            on_changed_peer=on_changed_peer,
            ports=ports,
        )
        self._pools: set[SessionPool] = set()
        self._warming: asyncio.Task[None] | None = None

    @classmethod
    def from_home(
        cls,
        home: Path | None = None,
        *,
        registry: str = "",
        network: Network | None = None,
        negotiators: Negotiators | None = None,
        on_escalation: OnEscalation | None = None,
        on_event: Callable[[AgentEvent], None] | None = None,
        on_changed_peer: OnChangedPeer | None = None,
        ports: Ports | None = None,
    ) -> Agent:
        """Make the agent of a home (default: $TREATY_HOME or ~/.treaty): its identity, policy.toml, agent.toml and the registry
        that it trusts.

        `registry`: the origin of a trusted registry where there are several, or BASE_URL#VKEY. `network`: default, the one of
        $TREATY_RESOLVE and $TREATY_CA. The others as in `Agent`.

        Raises the errors of `Identity.load`, `AgentConfig.load`, `TrustedRegistries.choose`, `Network.from_environment` and
        `Agent`. Then nothing changed.
        """
        from .config import AgentConfig
        from .identity import Identity
        from .network.hosts import Network
        from .registries.trust import TrustedRegistries

        home = home or default_home()
        return cls(
            Identity.load(home / "identity.json"),
            registry if "#" in registry else str(TrustedRegistries(home).choose(registry).name),
            AgentConfig.load(home, negotiates=negotiators is not None),
            network=network or Network.from_environment(),
            negotiators=negotiators,
            on_escalation=on_escalation,
            on_event=on_event,
            on_changed_peer=on_changed_peer,
            ports=ports,
        )

    @property
    def did(self) -> str:
        """The DID of this agent."""
        return self._context.identity.did

    @property
    def context(self) -> AgentContext:
        """The state that all sessions of this agent share. Read it only."""
        return self._context

    @property
    def flow(self) -> MetaProtocolManager:
        """This agent in the flow profile: register offers, or negotiate over a connection. `listen` and `accept` serve these
        offers beside the Hello profile."""
        return self._endpoint.flow

    async def __aenter__(self) -> Agent:
        """Load the libraries that sessions need. Raises `Unavailable` (`system.extra`) if `treaty[agent]` is not installed."""
        from .assembly import import_libraries

        # Before the first session, which would wait for it, and in a thread: Sigstore takes a third of a second to import.
        await asyncio.to_thread(import_libraries)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the workers, the negotiators and the connections to registries. Reports that are not due yet stay on disk for the
        next process."""
        if self._warming is not None:
            # First, so that no worker starts after the runtime was closed.
            await self._warming
        await asyncio.gather(*(pool.aclose() for pool in self._pools))
        await self._endpoint.aclose()
        await self._context.close()

    @property
    def unserved(self) -> Mapping[str, TreatyError]:
        """The provided protocols that are not served now, by URI, and the error of each."""
        return MappingProxyType(self._context.unserved)

    # What this agent can do

    def provides(self, uri: str, *, role: str = "") -> Callable[[_F], _F]:
        """Register the decorated function for the operation of its name in a protocol. Use it once for each operation.

        `role`: the role of this side, where the protocol leaves it open. Raises `Malformed`.
        """
        from .sessions.context import Service

        parse_protocol_uri(uri)

        def register(function: _F) -> _F:
            service = self._context.services.setdefault(uri, Service())
            service.functions.add(function)
            service.role = role or service.role
            return function

        return register

    def offers(self, function: _F) -> _F:
        """Offer a function to peers that negotiate a protocol for it. Its name, docstring and type hints describe it
        (`sessions.operations`). Raises `Malformed` (`agent.function`)."""
        self._context.offers.add(function)
        return function

    def converses(self, function: Answerer) -> Answerer:
        """Register a coroutine function, (text, peer's DID) → answer, that answers natural language of peers."""
        self._context.answerer = function
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
        """Serve as `listen` does, until cancelled."""
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
        """Verify the provided protocols, start workers, and serve WebSocket and HTTP on one port. Yield the port (0: a free one).

        `public`: the URLs under which others reach this agent, best first, such as `wss://shop.example`. With them the agent
        serves the documents of `discovery`, with a `name` and a `description` for people. HTTP requests must be signed for one
        of these URLs, without them for the address.

        One line of the log (INFO) tells the address and the protocols. A provided protocol that cannot be verified or loaded is
        not served: it is in `unserved`, logged as an error, told to `on_event`, and tried again later. Sessions end with the
        block. Raises `Unavailable` when the address is taken, and the error of the first protocol when none can be served.
        """
        await self.prepare()
        async with self._endpoint.listen(host, port, tls=tls, public=public, name=name, description=description) as bound:
            served = ", ".join(uri for uri, service in self._context.services.items() if service.protocol is not None)
            unserved = ", ".join(f"{uri} ({error.code})" for uri, error in self.unserved.items())
            _log.info("Listening on %s, port %s; served: %s; not served: %s", host, bound, served or "none", unserved or "none")
            yield bound

    def asgi(self, public: Sequence[str], *, name: str = "", description: str = "") -> Application:
        """Return an ASGI application that serves as `listen` does, for a server of your own. Call `prepare` first. `public`: as
        for `listen`, at least one."""
        return self._endpoint.application(public=public, name=name, description=description)

    async def prepare(self) -> None:
        """Do the work of `listen` before it opens the port. Raises the same errors."""
        from .sessions.provision import needs_sandbox, provide

        context = self._context
        if not (context.services or context.negotiators or context.answerer or len(self.flow.registry)):
            raise Refused(
                AgentCode.PROVIDES_NOTHING,
                "This agent provides no protocol, and neither negotiates nor converses.",
                fix="Register functions: @agent.provides(URI).",
            )
        await provide(context)
        await asyncio.to_thread(context.negotiated.load)
        # Before the port opens: the first session must not find that there is no sandbox. Protocols without code need none.
        if context.negotiators or needs_sandbox(context):
            await context.ports.runtime.warm()
        if context.policy.report:
            context.reporter.resume()

    async def accept(self, connection: Connection) -> None:
        """Serve one connection of any transport until its session is over. Call `prepare` first."""
        await self._endpoint.enter(connection)

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
        timeout: float | None = None,  # noqa: ASYNC109  # the time of opening, and not of the block
    ) -> AsyncIterator[Session]:
        """Open a session with the agent at a `ws`, `wss`, `http` or `https` URL, or with an agent to `discover`: a domain, a DID,
        or the URL of an agent description.

        Choose by a `topic`, by `protocols` (URIs, or ids `anp:protocol:…`, best first), by a `requirement` to negotiate, or only
        by `natural` language. A requirement beside a topic or protocols is negotiated when those lead nowhere. Without any, the
        protocols that a discovered agent lists are offered. Of a topic the consensus is offered first, then the protocols that
        a discovered agent lists, then the others. `sessions.profiles` says how the profile is chosen.

        `peer`: the DID that the peer has to claim; by default the one that answered there first. `role`: the role of this side,
        where the protocol leaves it open. `timeout`: seconds for opening the session; by default `timeouts.connect`, and no limit
        for a requirement. With a remembered agreement the session begins at once, and the first call raises its errors; otherwise
        both sides are ready when it begins. Reports and publications follow the policies, and wait for no registry.

        Raises `Malformed`, `Unavailable` (`connection.failed`, `connection.timeout`), `Refused` (`session.no-common-protocol`,
        `peer.changed`, `negotiation.rejected`, …), and the errors of discovery, verification and negotiators.
        """
        from .sessions import opening, roles

        name = opening.PeerName.of(url, discover)
        self._begin_warming()
        request = roles.SessionRequest(topic, tuple(protocols), peer, requirement, natural, role)
        opened = await self._opener.open(name, request, within=timeout)
        try:
            yield opened.session
            await opened.finish()
        finally:
            await opened.end()

    def peer(
        self,
        address: str,
        *,
        topic: str = "",
        protocols: Sequence[str] = (),
        requirement: Requirement | None = None,
        peer: str = "",
        role: str = "",
        timeout: float | None = None,
    ) -> Peer:
        """Return a long-lived handle for calls to one agent. It opens sessions, replaces broken ones, and repeats calls that may
        be repeated (`sessions.peer`). Nothing is sent yet. Close it, or use `async with`.

        `address`: a URL, a domain, a DID, or the URL of a description. The others as in `connect`. Raises `Malformed`
        (`agent.offer`) and `Refused` (`agent.no-negotiator`).
        """
        from .network.transport.connection import Backoff
        from .sessions import opening, roles
        from .sessions.peer import Peer, SessionPool

        name = opening.PeerName.parse(address)
        request = roles.SessionRequest(topic, tuple(protocols), peer, requirement, False, role)
        if name.is_url:
            request.check(self._context)
        pool = SessionPool(self._context, self._opener, name, request, self.config.peers, timeout)
        self._pools.add(pool)
        return Peer(pool, backoff=Backoff(attempts=self.config.peers.attempts), on_close=self._pools.discard)

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
        """Open a session as `connect` does, over an open connection of any transport. The agreement is remembered by the address
        of the connection. After a failed negotiation the next session proposes the document that a person chose."""
        from .sessions import lifecycle, roles

        async def dial(for_hello: bool) -> Connection:
            return self._endpoint.sealed(connection) if for_hello else connection

        request = roles.SessionRequest(topic, tuple(protocols), peer, requirement, natural, role)
        return lifecycle.run_initiator(self._context, self.flow, dial, connection.address, request, again=False)

    async def dial(self, url: str) -> Connection:
        """Open a connection to a URL without end-to-end encryption, for `flow`. Raises `Malformed`, `Unavailable`."""
        return await self._endpoint.dial(url, repeat=False)

    def _begin_warming(self) -> None:
        """Start workers while the network answers. An error is left to the session's own worker, which raises it."""
        from .assembly import warm

        if self._warming is None:
            self._warming = asyncio.create_task(warm(self._context.ports.runtime))
