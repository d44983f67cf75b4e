"""Connect and listen: the transports of an agent, the authentication of peers, and the choice of the profile.

An outgoing connection uses any transport by its URL. HTTP requests are signed. End-to-end encryption follows the policy. One port
receives WebSocket and HTTP, and serves the documents by which others discover the agent. HTTP requests must be signed. The first
message of a connection decides the profile:

    {"type": "meta-protocol", …}      the flow profile, if the agent offers a protocol in it and does not require encryption
    a sourceHello                     the Hello profile, plain or encrypted, as the Hello and the policy require
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

from treaty_anp.e2ee.accepted_hellos import AcceptedHellos
from treaty_anp.flow_profile.messages import is_flow
from treaty_consensus.did import Did
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.codes import SessionCode
from treaty_io.errors import PeerUnavailable
from treaty_io.identity import Identity
from treaty_io.network.did_documents import DidDocument, fetch_did_document
from treaty_io.network.egress import EgressGuard, lookups, strangers_network
from treaty_io.network.hosts import Network
from treaty_io.network.turns import asking_for

from ..authentication.nonces import NonceMemory
from ..authentication.request_signing import RequestSigner, RequestVerifier
from ..discovery.documents import AgentFacts, OfferedProtocol, describe, description_url, service_entry
from ..transport import reconnect
from ..transport.agora import AgoraProtocol
from ..transport.application import Application, Door, Intake, StaticDocument
from ..transport.connection import Connection, next_message
from ..transport.parting import SessionParting
from ..transport.secure import SecureConnection
from .agreements import AgreementCache
from .connection_loop import part
from .context import AgentContext
from .flow_context import DidKeys, FlowDependencies, FlowSettings
from .flow_manager import MetaProtocolManager
from .interfaces import AgentEvent
from .lifecycle import run_responder
from .reporting import RegistryPublisher

_T = TypeVar("_T")

_DID_KEY = (
    "Peers that fetch DID documents, such as servers of the ANP SDK, refuse its requests over HTTP: a did:key has none. "
    "For these peers use the DID of a domain: treaty identity new DOMAIN."
)
_UNPROVED = "Check this machine's clock, and the document of this agent's DID."


class AgentEndpoint:
    """The endpoint of one agent. For one event loop; call `aclose` at the end. `flow`: the agent's negotiations in the flow
    profile."""

    def __init__(self, context: AgentContext, network: Network, flow: FlowSettings) -> None:
        """Open no connection yet."""
        self._context, self._network = context, network
        self._signer = RequestSigner(context.identity, legacy=context.policy.send_didwba)
        self._open = ExitStack()
        self._intake = Intake()
        ports, identity = context.ports, context.identity
        keys = DidKeys(context.keys, flow.resolvers)
        dependencies = FlowDependencies(
            ports.names(self._pinned),
            context.hosts,
            flow,
            timeouts=context.timeouts,
            observe=lambda role, peer, protocol, event: context.record_event(AgentEvent(role, peer, protocol, *event)),
            reports=context.policy.report,
            recorder=lambda: context.memory.recorder("flow"),
            keep_transcript=context.memory.keep_transcript,
            key_ids=keys.named,
            cosign=lambda protocol, parties, proposal, spoke: context.reports.cosign(protocol, parties, proposal, spoke=spoke),
            arrivals=context.served.arrivals,
            connections=context.work.connections,
        )
        self._accepted = AcceptedHellos()
        self.flow = MetaProtocolManager(identity, keys, dependencies, home=context.home, registry=context.served.flow_offers)

    def go_on_as(self, identity: Identity) -> None:
        """Sign with a rotated key from now on, and serve its DID document. Open sessions keep the former key."""
        context = self._context
        context.identity = self._signer.identity = self.flow.identity = context.reports.reporter.identity = identity
        if isinstance(context.ports.publisher, RegistryPublisher):
            context.ports.publisher.identity = identity
        context.served.note_change()

    async def drain(self) -> None:
        """Take no further sessions, and end those of other agents when their calls are answered. See `Agent.drain`."""
        # First: a peer that is sent away must not come back to this process.
        self._intake.close()
        await part(self._context.work.connections.answered, SessionCode.DRAINING, self._context.timeouts.drain)

    async def aclose(self) -> None:
        """End the sessions of the flow profile, and release the resources of `application`."""
        await self.flow.aclose()
        self._open.close()

    # Out

    async def dial(self, url: str, *, untrusted: bool = False, repeat: bool = True) -> Connection:
        """Open a connection to an address, without encryption. `untrusted`: the address comes from a stranger and must be public.
        `repeat`: a WebSocket that is lost before an answer is opened again, and the same messages are sent again.

        Raises `Malformed` (`network.url`), `PeerUnavailable` (`connection.failed`), `Refused` (`connection.refused`), and for
        an untrusted address the errors of `strangers_network`.
        """
        if self._context.ports.dial is not None:
            return await self._context.ports.dial(url)
        # A stranger's address must be public, else it could reach services of this machine or its network.
        try:
            network = await strangers_network(self._network, url) if untrusted else self._network
        except Unavailable as error:
            raise PeerUnavailable(error.code, error.message, fix=error.fix) from error
        unproved = _DID_KEY if self._context.identity.parsed.method == "key" else _UNPROVED
        return await reconnect.connect(url, network, sign=self._signer.headers, unproved=unproved, repeat=repeat)

    def sealed(self, connection: Connection) -> Connection:
        """Wrap a connection with the encryption that the policy requires, for a Hello of this agent."""
        policy, identity = self._context.policy, self._context.identity
        if policy.encryption == "off":
            return connection
        resolve, required = self._context.ports.resolver.document, policy.encryption == "required"
        return SecureConnection.source(connection, identity, resolve=resolve, required=required)

    # In

    async def enter(self, connection: Connection) -> None:
        """Serve one connection of any transport until it ends."""
        if self._intake.is_closed:
            await connection.close(SessionParting(SessionCode.DRAINING, 0).reason)
            return
        with asking_for(connection.address.rpartition(":")[0]):  # the fair queue counts fetches of DID documents for this host
            await self._enter(connection)

    async def _enter(self, connection: Connection) -> None:
        policy = self._context.policy
        if policy.encryption != "required" and len(self.flow.registry) > 0:
            # A connection that sends nothing must not hold a place for ever.
            try:
                # The profile is not known yet, so the shorter of both waits holds.
                async with asyncio.timeout(min(self._context.timeouts.hello, self.flow.settings.timeouts.first)):
                    first = await next_message(connection)
            except TimeoutError:
                return await connection.close(SessionCode.REPLY_TIMEOUT)
            except TreatyError:
                return await connection.close()
            if self._intake.is_closed:  # while this waited; `drain` does not know the connection yet
                return await connection.close(SessionParting(SessionCode.DRAINING, 0).reason)
            if isinstance(first, str) and is_flow(first):
                return await self.flow.accept(connection, first=first)
            connection = _PutBack(connection, first)
        if policy.encryption != "off":
            resolve, required = self._context.ports.resolver.document, policy.encryption == "required"
            identity, accepted = self._context.identity, self._accepted
            connection = SecureConnection.destination(connection, identity, resolve=resolve, required=required, accepted=accepted)
        return await run_responder(self._context, self.flow, connection)

    @asynccontextmanager
    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        public: Sequence[str],
        name: str,
        description: str,
        doors: Sequence[Door],
        documents: Mapping[str, StaticDocument],
    ) -> AsyncIterator[int]:
        """Serve connections, and yield the port. See `Agent.listen`."""
        from ..transport import listener  # a web server, which an agent that only connects does not need

        served: dict[str, StaticDocument] = {}
        agora: dict[str, AgoraProtocol] = {}
        with self._renewing(agora, self._agora), self._verifying(f"{host}-{port}" if port else "") as verifier:
            async with listener.listen(
                self.enter,
                host,
                port,
                tls=tls,
                max_connections=self._context.capacity.sessions,
                # The documents are filled below, when the port is known.
                documents=served,
                agora=agora,
                authenticate=verifier.verify,
                challenge=verifier.challenge,
                intake=self._intake,
                doors=doors,
            ) as bound:
                scheme = "https" if tls else "http"
                here = tuple(f"{scheme}://{place}:{bound}" for place in dict.fromkeys((_in_url(host), "127.0.0.1", "localhost")))
                verifier.audiences = tuple(map(_audience, public)) or here
                with self._renewing(served, lambda: {**documents, **self._documents(public, name, description, doors)}):
                    yield bound

    def application(
        self,
        *,
        public: Sequence[str],
        name: str,
        description: str,
        doors: Sequence[Door],
        documents: Mapping[str, StaticDocument],
    ) -> Application:
        """Return an ASGI application that serves connections. See `Agent.asgi`."""
        verifier = self._open.enter_context(self._verifying(public[0]))
        verifier.audiences = tuple(map(_audience, public))
        served: dict[str, StaticDocument] = {}
        agora: dict[str, AgoraProtocol] = {}
        self._open.enter_context(
            self._renewing(served, lambda: {**documents, **self._documents(public, name, description, doors)})
        )
        self._open.enter_context(self._renewing(agora, self._agora))
        return Application(
            self.enter,
            max_connections=self._context.capacity.sessions,
            documents=served,
            agora=agora,
            authenticate=verifier.verify,
            challenge=verifier.challenge,
            intake=self._intake,
            drain=self.drain,
            doors=doors,
        )

    def _pinned(self, id: str) -> str:
        """Return the URI that the owner registered with an id of the flow profile, or ""."""
        offer = self.flow.registry.get(id)
        return offer.uri if offer is not None else ""

    @contextmanager
    def _verifying(self, name: str) -> Iterator[RequestVerifier]:
        """Verify the requests to one listener. `name`: the file that remembers used nonces. "" for a random port: its nonces
        need no file, because no later listener has the same audience."""
        # The nonces survive a restart: a replay must be detected after it, too.
        with tempfile.TemporaryDirectory() as temporary:
            path = self._context.home / "nonces" / quote(name, safe="") if name else Path(temporary, "nonces")
            memory = NonceMemory(path)
            try:
                yield RequestVerifier(self._context.ports.resolver, memory, legacy=self._context.policy.accept_didwba)
            finally:
                memory.close()

    @contextmanager
    def _renewing(self, documents: dict[str, _T], make: Callable[[], dict[str, _T]]) -> Iterator[None]:
        """Keep a table of the served protocols up to date for the time of the block: they may change, or the key."""

        def fill() -> None:
            made_documents = make()
            documents.clear()
            documents.update(made_documents)

        fill()
        self._context.served.changed.append(fill)
        try:
            yield
        finally:
            self._context.served.changed.remove(fill)

    def _agora(self) -> dict[str, AgoraProtocol]:
        """Return the served protocols by the names that Agora has for them."""
        served = self._context.served
        provided = served.provided()
        found = {}
        for uri, protocol in served.ready.items():
            role = protocol.package.manifest.roles.get(provided[uri].role)
            if role is not None and protocol.document:
                digest = hashlib.sha1(protocol.document, usedforsecurity=False).digest()
                found[base64.b64encode(digest).decode()] = AgoraProtocol(uri, role.peer)
        return found

    def _documents(self, public: Sequence[str], name: str, description: str, doors: Sequence[Door]) -> dict[str, StaticDocument]:
        """Return the documents for discovery; none without a public address."""
        if not public:
            return {}
        served = self._context.served
        provided, loaded = served.provided(), [(served.services[uri], protocol) for uri, protocol in served.ready.items()]
        offered = tuple(
            OfferedProtocol(
                protocol.uri,
                protocol.hash,
                protocol.topic,
                operations=service.functions.names,
                role=provided[protocol.uri].role,
            )
            for service, protocol in loaded
        ) + tuple(
            OfferedProtocol(protocol.uri, protocol.hash, protocol.topic, operations=served.offers.functions.names)
            for protocol in served.published
        )
        identity = self._context.identity
        in_card = tuple(door for door in doors if door.card)
        facts = AgentFacts(identity.did, tuple(public), offered, name, description, doors=in_card)
        if identity.parsed.method == "key":
            return describe(facts, signer=identity)
        document = identity.did_document(services=[service_entry(identity.did, description_url(facts))])
        return describe(facts, document, signer=identity)


class PeerDocuments:
    """Fetch the DID documents of peers, for a `DidResolver`. For one event loop.

    A stranger may name any host, and many DIDs of one host. So requests for strangers are limited for each host, in a fair queue
    (`treaty_io.network.egress`). A peer that this agent connected to and agreed with does not wait in this queue.
    """

    def __init__(self, network: Network, agreements: AgreementCache, *, secp256k1: bool = False) -> None:
        """Send nothing yet. `secp256k1`: also read keys of this curve."""
        self._agreements, self._secp256k1 = agreements, secp256k1
        # Partners have no interval between requests: strangers must not delay them.
        self._partners = EgressGuard(network, other_ports=True, interval=0)
        self._strangers = EgressGuard(network, lookup=lookups(), other_ports=True)

    async def fetch(self, did: Did) -> DidDocument:
        """Return the document of a DID. Raises the errors of `fetch_did_document`."""
        guard = self._partners if self._agreements.knows(did.text) else self._strangers
        return await fetch_did_document(did, guard, secp256k1=self._secp256k1)


class _PutBack:
    """A connection whose first message was already read."""

    def __init__(self, inner: Connection, first: str | bytes) -> None:
        self._inner = inner
        self._first: str | bytes | None = first

    @property
    def address(self) -> str:
        return self._inner.address

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def backlog(self) -> int:
        return self._inner.backlog

    def watch(self, wake: Callable[[], None]) -> None:
        self._inner.watch(wake)

    def send(self, message: str | bytes) -> None:
        self._inner.send(message)

    def receive(self) -> str | bytes | None:
        if self._first is None:
            return self._inner.receive()
        first, self._first = self._first, None
        return first

    async def close(self, reason: str = "") -> None:
        await self._inner.close(reason)


def _in_url(host: str) -> str:
    """Return a host name or IP address in the form of a URL."""
    return f"[{host}]" if ":" in host else host


def _audience(address: str) -> str:
    """Return the http(s) URL that requests to this address sign as their audience."""
    parts = urlsplit(address)
    return parts._replace(scheme={"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)).geturl()
