"""Hold the protocols that an agent provides, with their functions, and those that it offers functions for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from treaty_anp.flow_profile.capabilities import ProtocolRegistry
from treaty_anp.hello_profile.documents import parse_candidate
from treaty_anp.hello_profile.hello import UNAVAILABLE
from treaty_anp.hello_profile.machine import Provided
from treaty_consensus import canonical
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import Role

from .activity import CallCounts
from .agreements import NegotiatedProtocol, NegotiatedProtocols, is_negotiated
from .arrivals import OnSession, ServedSessions
from .handler_hosts import RESPONDER, HostRequest
from .interfaces import Capacity, SpokenProtocol
from .operations import Functions, OfferedFunctions, check_functions, check_signatures, choose_role


class ServedProtocols:
    """The protocols of one agent, as the side that other agents connect to. For one event loop.

    `services`: by protocol URI.
    `unserved`: the errors of the provided protocols that are not served, by URI.
    `offers`: the functions for protocols that will be negotiated.
    `flow_offers`: the protocols that the agent speaks in the flow profile.
    `arrivals`: the sessions that other agents opened.
    `max_age`: seconds after which the proofs of a protocol are too old.
    `is_providing`: whether protocols were loaded for serving; later ones are loaded when they are registered.
    `renewal`: the next time to verify protocols again.
    `changed`: called after each change of the served protocols.
    """

    def __init__(self, capacity: Capacity, negotiated: NegotiatedProtocols, max_age: int, calls: CallCounts) -> None:
        """Serve nothing yet. `negotiated`: the protocols that this agent may speak although none provides them. `calls`: counts
        this agent's calls."""
        self.services: dict[str, Service] = {}
        self.unserved: dict[str, TreatyError] = {}
        self.offers, self.flow_offers = OfferedFunctions(capacity), ProtocolRegistry()
        self.arrivals = ServedSessions(self._on_session, calls)
        self.max_age, self.is_providing = max_age, False
        self.renewal: asyncio.TimerHandle | None = None
        self.changed: list[Callable[[], None]] = []
        self._capacity, self._negotiated, self._without_functions = capacity, negotiated, Service()
        self._servable: tuple[tuple[int, int], dict[str, NegotiatedProtocol]] = ((-1, 0), {})

    @property
    def ready(self) -> dict[str, SpokenProtocol]:
        """The provided protocols that can be spoken now, by URI."""
        return {uri: service.protocol for uri, service in self.services.items() if service.protocol is not None}

    @property
    def functions(self) -> list[Functions]:
        """The functions of all services, and those for negotiated protocols."""
        return [*(service.functions for service in self.services.values()), self.offers.functions]

    @cached_property
    def preloads(self) -> asyncio.Semaphore:
        """Held while a handler is loaded before it is served."""
        return asyncio.Semaphore(self._capacity.preloads)

    def provided_service(self, uri: str) -> Service:
        """Return the service of a protocol that this agent provides, a new one the first time."""
        return self.services.setdefault(uri, Service(Functions(self._capacity)))

    def note_change(self) -> None:
        """Tell the listeners that other protocols are served now."""
        for listener in self.changed:
            listener()

    def stop_renewing(self) -> None:
        """Verify no protocol again."""
        if self.renewal is not None:
            self.renewal.cancel()

    def is_fresh(self, protocol: SpokenProtocol) -> bool:
        """Return whether the proofs of this protocol are recent enough."""
        return protocol.age(int(time.time())) <= self.max_age

    def is_served(self, service: Service, uri: str) -> bool:
        """Return whether this service of a protocol is still provided, and ready. Ask after each wait for a registry."""
        return self.services.get(uri) is service and service.protocol is not None

    def provided(self) -> dict[str, Provided]:
        """Return the protocols that a responder may choose from now: the provided ones, and the negotiated ones whose
        functions are still offered. A provided one that cannot be verified now is marked."""
        away = {uri: UNAVAILABLE for uri, service in self.services.items() if service.is_away}
        published = {uri: self._provided(protocol) for uri, protocol in self.ready.items()}
        # Without a role: each side's model chose names of its own, so the two cannot be compared.
        negotiated = {uri: Provided(protocol.hash, True) for uri, protocol in self.negotiated.items()}
        return negotiated | away | published

    @property
    def negotiated(self) -> Mapping[str, NegotiatedProtocol]:
        """The negotiated protocols whose functions are offered, by their URIs or local names. A published one is served as if it
        were provided: by the offered functions, and by this agent's own code for the same document."""
        # Cached, because each Hello asks, and the check goes through all negotiated protocols.
        state = (self._negotiated.changes, len(self.offers.capabilities))
        if self._servable[0] != state:
            servable = [protocol for protocol in self._negotiated.all() if self._can_serve(protocol)]
            self._servable = (state, {protocol.uri: protocol for protocol in servable})
        return self._servable[1]

    @property
    def published(self) -> list[NegotiatedProtocol]:
        """The negotiated protocols that are published, and that no function is registered for by `provides`."""
        return [each for uri, each in self.negotiated.items() if each.published and uri not in self.services]

    def served_text(self, text: str) -> NegotiatedProtocol | None:
        """Return the negotiated protocol that answers a proposal without a model: one with the same text, else a published one
        about the same topic; None if there is none."""
        served = list(self.negotiated.values())
        if not served:
            return None
        try:
            document, topic = canonical.hex_digest(text.encode()), parse_candidate(text).topic
        except TreatyError:  # the judgement of the text says why
            return None
        same = next((protocol for protocol in served if protocol.hash == document), None)
        about = [protocol for protocol in served if protocol.published and protocol.topic == topic != ""]
        return same or (about[0] if about else None)

    def service(self, protocol: SpokenProtocol, serving: Functions | None = None) -> Service:
        """Return this side's functions for a protocol. `serving`: those of one session, instead of the agent's."""
        if serving is not None:
            return Service(serving)
        if is_negotiated(protocol):
            return Service(self.offers.functions, None, None, protocol)
        return self.services.get(protocol.uri) or self._without_functions

    def choose(self, protocol: SpokenProtocol, request: HostRequest) -> tuple[Role, Functions]:
        """Return this side's role and functions for a session. Raises `Refused` (`session.role`), `NotFound`
        (`agent.function`), `Malformed` (`agent.function-kind`, `agent.function-signature`)."""
        service, manifest = self.service(protocol, request.serving), protocol.package.manifest
        name = request.role or service.role
        role = choose_role(manifest, is_initiator=request.is_initiator, name=name, peer_role=request.peer_role)
        check_functions(service.functions, role, protocol.uri)
        # Those that the agent provides were compared with the manifest when the protocol was loaded (`provision`).
        if request.serving is not None:
            check_signatures(service.functions, role, protocol.uri)
        return role, service.functions

    def _can_serve(self, protocol: SpokenProtocol) -> bool:
        try:
            self.choose(protocol, RESPONDER)
        except TreatyError:
            return False
        return True

    def _provided(self, protocol: SpokenProtocol) -> Provided:
        """Return a served protocol for the machine, with the roles that its present handler has."""
        provided = Provided(protocol.hash, self.is_fresh(protocol))
        try:
            role, _ = self.choose(protocol, RESPONDER)
        except TreatyError:
            return provided  # a newer handler has other roles; the session that loads it says so
        peers = tuple(other.name for other in protocol.package.manifest.roles.values() if role.fits(other))
        return provided._replace(role=role.name, peer_roles=peers)

    def _on_session(self, uri: str) -> OnSession | None:
        service = self.services.get(uri)
        return service.on_session if service is not None else None


@dataclass
class Service:
    """A protocol that an agent provides, or whose operations it serves as the initiator.

    `on_session`: called with each session that another agent opens.
    `protocol`: None while it is not served.
    `flow_ids`: the ids under which the flow profile offers it, by its aliases.
    `attempts`: the task that loads it.
    `tried`: done after the first of those attempts.
    `is_away`: whether its registry did not answer when it was asked last.
    `again`: set to try at once, because a function was registered.
    """

    functions: Functions = field(default_factory=Functions)
    role: str | None = None
    on_session: OnSession | None = None
    protocol: SpokenProtocol | None = None
    flow_ids: list[str] = field(default_factory=list)
    attempts: asyncio.Task[None] | None = None
    tried: asyncio.Future[None] | None = None
    is_away: bool = False
    again: asyncio.Event = field(default_factory=asyncio.Event)

    async def is_changed_within(self, seconds: float) -> bool:
        """Wait until `again` is set, and clear it; return False if that does not happen in time."""
        try:
            async with asyncio.timeout(seconds):
                await self.again.wait()
        except TimeoutError:
            return False
        self.again.clear()
        return True
