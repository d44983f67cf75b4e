"""What all sessions of an agent share: who it is, what it stands on, what it provides, offers and remembers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from treaty_consensus.did import parse_did
from treaty_consensus.errors import NotFound, TreatyError
from treaty_consensus.handler import Role

from ..flow.ports import Names
from ..identity import Identity
from ..meta.limits import Limits
from ..meta.machine import Provided
from ..negotiation.negotiator import Negotiators
from ..network.resolver import DidResolver
from ..policy import Policy
from ..reports.reporter import LogOf, Reporter
from .agreements import Agreements
from .business import Offers
from .conversation import Answerer
from .escalation import Approvals, OnEscalation, Pager
from .negotiated import NegotiatedProtocols, is_negotiated
from .operations import Functions, choose_role
from .ports import ProtocolPublisher, ProtocolSource, Runtime, SpokenProtocol
from .timing import SessionTimeouts

MAX_REHEARSALS = 4
"""Handlers that are loaded at once before they are served: one that hangs until its time is up must not hold all others."""

_log = logging.getLogger(__name__)


class AgentEvent(NamedTuple):
    """A session's event, for a narrator. `side`: `source` or `destination`, this agent's; `peer`, `protocol`: "" until known.

    Before there are sessions: `unserved`, a provided protocol that failed, and `served`, when it did not fail again."""

    side: str
    peer: str
    protocol: str
    name: str
    seconds: float


@dataclass(frozen=True)
class Ports:
    """What an agent stands on. `log_of`: the log of an origin, for reports. `publisher`: publishes what was negotiated.
    `resolver`: finds DID documents; `names`: says what the flow profile's ids mean, given the
    URIs that the agent's owner registered with them."""

    protocols: ProtocolSource
    runtime: Runtime
    log_of: LogOf
    publisher: ProtocolPublisher
    resolver: DidResolver
    names: Callable[[Callable[[str], str]], Names]


@dataclass
class Service:
    """A protocol that an agent provides, or whose operations at the calling side it serves. `protocol` is None while it is not
    served. `attempts`: what tries to get it ready; `tried`: done once the first of those attempts is over."""

    functions: Functions = field(default_factory=Functions)
    role: str | None = None
    protocol: SpokenProtocol | None = None
    attempts: asyncio.Task[None] | None = None
    tried: asyncio.Future[None] | None = None


@dataclass
class Household:
    """`registry`: the origin where negotiated protocols are published and reported. `services`: by protocol URI. `unserved`:
    what is wrong with those provided that are not served. `offers`: the functions for protocols yet to be negotiated.
    `transcripts`: where sessions are recorded, or None. `openings`: what a person wants to be proposed next, by address and what
    is wished for there."""

    identity: Identity
    registry: str
    home: Path
    policy: Policy
    timeouts: SessionTimeouts
    limits: Limits
    ports: Ports
    agreements: Agreements
    reporter: Reporter
    negotiated: NegotiatedProtocols
    approvals: Approvals
    negotiators: Negotiators | None = None
    on_escalation: OnEscalation | None = None
    on_event: Callable[[AgentEvent], None] | None = None
    transcripts: Path | None = None
    answerer: Answerer | None = None
    services: dict[str, Service] = field(default_factory=dict)
    unserved: dict[str, TreatyError] = field(default_factory=dict)
    offers: Offers = field(default_factory=Offers)
    openings: dict[tuple[str, str], str] = field(default_factory=dict)
    pager: Pager = field(default_factory=Pager)
    negotiations: int = 0
    rehearsals: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_REHEARSALS))
    _servable: tuple[tuple[int, int], dict[str, Provided]] = ((-1, 0), {})
    _chores: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, chore: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside all sessions, until `close` at most."""
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        return task

    def tell(self, event: AgentEvent) -> None:
        """Tell the observer, whose faults are not the agent's."""
        if self.on_event is None:
            return
        try:
            self.on_event(event)
        except Exception:
            _log.exception("The observer of an agent raised")

    async def close(self) -> None:
        """End what sessions share. Reports that wait for their time are left to the next process."""
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        await self.reporter.close()
        if self.negotiators is not None:
            await self.negotiators.aclose()
        await self.ports.runtime.close()
        await self.ports.protocols.aclose()
        for service in (*self.services.values(), Service(self.offers.functions)):
            service.functions.close()

    def is_fresh(self, protocol: SpokenProtocol) -> bool:
        """Whether what verified this protocol is young enough for the policy."""
        return protocol.age(int(time.time())) <= self.policy.max_age

    def provided(self) -> dict[str, Provided]:
        """What a destination may choose from now: what it provides, and what was negotiated for functions that it still
        offers."""
        known = {uri: service.protocol for uri, service in self.services.items() if service.protocol is not None}
        published = {uri: Provided(protocol.hash, self.is_fresh(protocol)) for uri, protocol in known.items()}
        state = (self.negotiated.changes, len(self.offers.capabilities))
        if self._servable[0] != state:
            servable = [protocol for protocol in self.negotiated.all() if self._can_serve(protocol)]
            self._servable = (state, {protocol.uri: Provided(protocol.hash, True) for protocol in servable})
        return published | self._servable[1]

    def service(self, protocol: SpokenProtocol) -> Service:
        """The functions that this side has for a protocol."""
        if is_negotiated(protocol):
            return Service(self.offers.functions, None, protocol)
        return self.services.get(protocol.uri) or Service()

    def role(self, protocol: SpokenProtocol, *, calling: bool, wanted: str = "") -> Role:
        """This side's role in a protocol. Raises `Refused` (`session.role`), `NotFound` (`agent.function-missing`)."""
        service = self.service(protocol)
        role = choose_role(protocol.package.manifest, calling=calling, wanted=wanted or service.role)
        check_functions(service, role, protocol.uri)
        return role

    def served(self, protocol: SpokenProtocol, *, calling: bool) -> tuple[Role, Functions]:
        """This side's role and functions. Raises as `role`."""
        return self.role(protocol, calling=calling), self.service(protocol).functions

    async def keys(self, did: str) -> Mapping[str, bytes]:
        """The keys by which a DID signs now. Raises what the resolver does."""
        return (await self.ports.resolver.resolve(parse_did(did))).keys

    def _can_serve(self, protocol: SpokenProtocol) -> bool:
        try:
            self.role(protocol, calling=False)
        except TreatyError:
            return False
        return True


def check_functions(service: Service, role: Role, uri: str) -> None:
    """Raises `NotFound` (`agent.function-missing`) unless a function is registered for all that the role invokes."""
    missing = service.functions.missing(role.invokes)
    if missing:
        raise NotFound(
            "agent.function-missing",
            f"No function serves {', '.join(missing)} of {uri}.",
            fix="Register one of that name: @agent.provides(URI), or @agent.offers for what is negotiated.",
        )
