"""The ways in and out of an agent: transports, who is at the other end, which profile it speaks.

Out: any transport by its URL, HTTP requests signed; end-to-end encryption as the policy says. In: one port for WebSocket, HTTP
and the documents by which others discover the agent; over HTTP a request has to be signed. What a connection's first message is
decides the profile:

    {"type": "meta-protocol", …}      the flow profile, where the agent offers something in it and does not insist on encryption
    a sourceHello                     the Hello profile: plain, or with end-to-end encryption, as the Hello and the policy say
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

from treaty_consensus.errors import TreatyError

from ..authentication.nonces import NonceMemory
from ..authentication.signer import RequestSigner
from ..authentication.verifier import RequestVerifier
from ..discovery.documents import AgentFacts, OfferedProtocol, describe, description_url, service_entry
from ..flow.hosts import HandlerHosts
from ..flow.manager import MetaProtocolManager
from ..flow.messages import is_flow
from ..flow.names import DidKeys
from ..flow.ports import FlowSettings, Surroundings
from ..network.egress import strangers_network
from ..network.hosts import Network
from ..network.turns import asking_for
from ..transport import listener, reconnect
from ..transport.application import Application, Document
from ..transport.connection import Connection
from ..transport.secure import SecureConnection
from . import meeting
from .household import Household

MAX_SESSIONS = 10_000
"""Sessions that are served at once."""


class Doors:
    """One agent's. For one event loop; `aclose` it. `flow`: the agent's negotiations in the flow profile."""

    def __init__(self, household: Household, network: Network, flow: FlowSettings) -> None:
        """Opens nothing."""
        self._household, self._network = household, network
        self._signer = RequestSigner(household.identity, legacy=household.policy.send_didwba)
        self._open = ExitStack()
        ports, identity = household.ports, household.identity
        hosts = HandlerHosts(identity.did, household.home, ports.runtime, household.served)
        keys = DidKeys(household.keys, flow.resolvers)
        waits = household.timeouts
        around = Surroundings(ports.names(self._pinned), hosts, flow, send=waits.send, flush=waits.flush)
        self.flow = MetaProtocolManager(identity, keys, around, home=household.home)

    async def aclose(self) -> None:
        """End the flow profile's sessions, let go of what `application` needs."""
        await self.flow.aclose()
        self._open.close()

    # Out

    async def dial(self, url: str, *, hearsay: bool = False) -> Connection:
        """A connection to an address, in the clear. `hearsay`: a stranger named it, so it has to be public. Raises `Malformed`
        (`connection.url`), `Unavailable` (`connection.failed`), and of hearsay what `strangers_network` raises."""
        network = await strangers_network(self._network, url) if hearsay else self._network
        return await reconnect.connect(url, network, sign=self._signer.headers)

    def sealed(self, connection: Connection) -> Connection:
        """The same connection for a Hello of this agent, encrypted as the policy says."""
        policy, identity = self._household.policy, self._household.identity
        if policy.encryption == "off":
            return connection
        resolve, required = self._household.ports.resolver.document, policy.encryption == "required"
        return SecureConnection.source(connection, identity, resolve=resolve, required=required)

    # In

    async def enter(self, connection: Connection) -> None:
        """Serve one connection, whatever its transport, until it is over."""
        with asking_for(connection.address.rpartition(":")[0]):  # it names DIDs, whose documents are fetched
            await self._enter(connection)

    async def _enter(self, connection: Connection) -> None:
        policy = self._household.policy
        if policy.encryption != "required" and len(self.flow.registry) > 0:
            try:
                async with asyncio.timeout(self._household.timeouts.hello):
                    first = await connection.receive()
            except TimeoutError:
                return await connection.close("session.hello-timeout")
            except TreatyError:
                return await connection.close()
            if isinstance(first, str) and is_flow(first):
                return await self.flow.accept(connection, first=first)
            connection = _PutBack(connection, first)
        if policy.encryption != "off":
            resolve, required = self._household.ports.resolver.document, policy.encryption == "required"
            connection = SecureConnection.destination(connection, self._household.identity, resolve=resolve, required=required)
        return await meeting.serve(self._household, connection)

    @asynccontextmanager
    async def listen(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, public: Sequence[str], name: str, description: str
    ) -> AsyncIterator[int]:
        """Serve connections; yields the port. See `Agent.listen`."""
        documents: dict[str, Document] = {}
        with self._verifying(f"{host}-{port}" if port else "") as verifier:
            async with listener.listen(
                self.enter,
                host,
                port,
                tls=tls,
                max_connections=MAX_SESSIONS,
                documents=documents,
                authenticate=verifier.verify,
                challenge=verifier.challenge,
            ) as bound:
                scheme = "https" if tls else "http"
                here = tuple(f"{scheme}://{place}:{bound}" for place in dict.fromkeys((_in_url(host), "127.0.0.1", "localhost")))
                verifier.audiences = tuple(map(_audience, public)) or here
                documents |= self._documents(public, name, description)
                yield bound

    def application(self, *, public: Sequence[str], name: str, description: str) -> Application:
        """The same without a listener. See `Agent.asgi`."""
        verifier = self._open.enter_context(self._verifying(public[0]))
        verifier.audiences = tuple(map(_audience, public))
        return Application(
            self.enter,
            max_connections=MAX_SESSIONS,
            documents=self._documents(public, name, description),
            authenticate=verifier.verify,
            challenge=verifier.challenge,
        )

    def _pinned(self, id: str) -> str:
        """The URI that the owner registered with an id of the flow profile, or ""."""
        offer = self.flow.registry.get(id)
        return offer.uri if offer is not None else ""

    @contextmanager
    def _verifying(self, name: str) -> Iterator[RequestVerifier]:
        """Verifies the requests to one listener, whose signatures are remembered under a `name`; "" for one that comes but
        once, as nobody else will be asked at its port."""
        with tempfile.TemporaryDirectory() as temporary:
            path = self._household.home / "nonces" / quote(name, safe="") if name else Path(temporary, "nonces")
            memory = NonceMemory(path)
            try:
                yield RequestVerifier(self._household.ports.resolver, memory, legacy=self._household.policy.accept_didwba)
            finally:
                memory.close()

    def _documents(self, public: Sequence[str], name: str, description: str) -> dict[str, Document]:
        """What others read before they come; nothing, as long as nobody says under which address they do."""
        if not public:
            return {}
        known = [(service, service.protocol) for service in self._household.services.values() if service.protocol is not None]
        offered = tuple(
            OfferedProtocol(protocol.uri, protocol.hash, protocol.topic, operations=service.functions.names)
            for service, protocol in known
        )
        identity = self._household.identity
        facts = AgentFacts(identity.did, tuple(public), offered, name, description)
        if identity.parsed.method == "key":
            return describe(facts)
        return describe(facts, identity.did_document(services=[service_entry(identity.did, description_url(facts))]))


class _PutBack:
    """A connection whose first message was read already."""

    def __init__(self, inner: Connection, first: str | bytes) -> None:
        self._inner = inner
        self._first: str | bytes | None = first

    @property
    def address(self) -> str:
        return self._inner.address

    @property
    def peer(self) -> str:
        return self._inner.peer

    async def send(self, message: str | bytes) -> None:
        await self._inner.send(message)

    async def receive(self) -> str | bytes:
        if self._first is None:
            return await self._inner.receive()
        first, self._first = self._first, None
        return first

    async def close(self, reason: str = "") -> None:
        await self._inner.close(reason)


def _in_url(host: str) -> str:
    """A host name or IP address as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _audience(address: str) -> str:
    """The http(s) URL under which an address's host is asked."""
    parts = urlsplit(address)
    return parts._replace(scheme={"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)).geturl()
