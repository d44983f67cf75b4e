"""The two sides of a session, as the agent stands behind them: what each resolves, runs, remembers and signs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from treaty_consensus.errors import NotFound, Refused, TreatyError
from treaty_consensus.handler import Role
from treaty_consensus.protocol import parse_protocol_uri

from ..identity import Identity
from ..meta.actions import Agreement
from ..meta.machine import Provided
from ..meta.messages import ReportCosignature, ReportProposed, ReportRefused
from ..policy import Policy
from ..reports.reporter import LogOf, Reporter
from ..reports.rules import SessionFacts, negotiation_id, refusal_code
from .agreements import Agreements, Remembered
from .driver import SessionDriver
from .hosting import HandlerHost, Situation
from .operations import Functions, choose_role
from .ports import ProtocolSource, Runtime, SpokenProtocol
from .store import SessionStore
from .timing import SessionEvent, SessionTimeouts

_log = logging.getLogger(__name__)


class AgentEvent(NamedTuple):
    """A session's event, for a narrator. `side`: `source` or `destination`, this agent's; `peer`, `protocol`: "" until known."""

    side: str
    peer: str
    protocol: str
    name: str
    seconds: float


@dataclass(frozen=True)
class Ports:
    """What an agent stands on. `log_of`: the log of an origin, for reports."""

    protocols: ProtocolSource
    runtime: Runtime
    log_of: LogOf


@dataclass
class Service:
    """A protocol that an agent provides, or whose operations at the calling side it serves. `protocol` is None until fetched."""

    functions: Functions = field(default_factory=Functions)
    role: str | None = None
    protocol: SpokenProtocol | None = None


@dataclass(frozen=True)
class Household:
    """What all sessions of an agent share. `services`: by protocol URI."""

    identity: Identity
    home: Path
    policy: Policy
    timeouts: SessionTimeouts
    ports: Ports
    agreements: Agreements
    reporter: Reporter
    services: dict[str, Service]
    on_event: Callable[[AgentEvent], None] | None

    def is_fresh(self, protocol: SpokenProtocol) -> bool:
        """Whether what verified this protocol is young enough for the policy."""
        return protocol.age(int(time.time())) <= self.policy.max_age

    def provided(self) -> dict[str, Provided]:
        """What a destination may choose from now."""
        known = {uri: service.protocol for uri, service in self.services.items() if service.protocol is not None}
        return {uri: Provided(protocol.hash, self.is_fresh(protocol)) for uri, protocol in known.items()}


class _Side:
    """What both sides do alike. `calling`: whether this side's role is the one with calls; `role`: the one its caller named."""

    def __init__(self, household: Household, name: str, *, calling: bool, role: str | None = None) -> None:
        self.timeouts = household.timeouts
        self._household = household
        self._name, self._calling, self._role = name, calling, role

    async def host(self, driver: SessionDriver, protocol: SpokenProtocol, peer: str) -> HandlerHost:
        household = self._household
        service = household.services.get(protocol.uri) or Service()
        role = choose_role(protocol.package.manifest, calling=self._calling, wanted=self._role or service.role)
        check_functions(service, role, protocol.uri)
        local = household.identity.did
        store = SessionStore(household.home, wheel=protocol.package.digest, role=role.name, local=local, peer=peer)
        handler = await household.ports.runtime.open(protocol.package, role.name, local=local, peer=peer)
        return HandlerHost(handler, Situation(peer, role, self.timeouts.handler), service.functions, store, driver)

    async def cosign(self, driver: SessionDriver, proposal: ReportProposed) -> ReportCosignature:
        try:
            facts = session_facts(driver)
        except TreatyError as error:
            return ReportRefused(refusal_code(error))
        return await self._household.reporter.cosign(facts, proposal)

    def observe(self, driver: SessionDriver, event: SessionEvent) -> None:
        if self._household.on_event is None:
            return
        peer = driver.machine.peer.source_did if driver.machine.peer else ""
        uri = driver.protocol.uri if driver.protocol else ""
        try:
            self._household.on_event(AgentEvent(self._name, peer, uri, *event))
        except Exception:  # a narrator's fault is not the session's
            _log.exception("The observer of a session raised")

    def _remember(self, agreement: Remembered) -> None:
        try:
            self._household.agreements.remember(agreement)
        except OSError as error:  # costs the next session a longer handshake, and nothing else
            _log.warning("What was agreed on cannot be written down: %s", error)


class Source(_Side):
    """The side that connected to `address`, about `topic` or "", and offered `candidates`."""

    def __init__(self, household: Household, *, address: str, topic: str, candidates: tuple[str, ...], role: str | None) -> None:
        super().__init__(household, "source", calling=True, role=role)
        self._address, self._topic, self._candidates = address, topic, candidates

    async def resolve(self, agreement: Agreement) -> SpokenProtocol:
        return await self._household.ports.protocols.fetch(agreement.uri)

    def agreed(self, driver: SessionDriver) -> None:
        assert driver.machine.peer is not None
        assert driver.protocol is not None
        did, protocol = driver.machine.peer.source_did, driver.protocol
        self._remember(Remembered(self._address, self._topic, did, protocol.hash, protocol.uri, self._candidates))


class Destination(_Side):
    """The side that was connected to."""

    def __init__(self, household: Household) -> None:
        super().__init__(household, "destination", calling=False)

    async def resolve(self, agreement: Agreement) -> SpokenProtocol:
        """The protocol as it was verified when the door was opened; verified anew when that is too long ago."""
        service = self._household.services[agreement.uri]
        if service.protocol is None or not self._household.is_fresh(service.protocol):
            service.protocol = await self._household.ports.protocols.fetch(agreement.uri)
        return service.protocol

    def agreed(self, driver: SessionDriver) -> None:
        assert driver.machine.peer is not None
        assert driver.protocol is not None
        did, protocol = driver.machine.peer.source_did, driver.protocol
        self._remember(Remembered(did, protocol.topic, did, protocol.hash, protocol.uri, ()))


def check_functions(service: Service, role: Role, uri: str) -> None:
    """Raises `NotFound` (`agent.function-missing`) unless a function is registered for all that the role invokes."""
    missing = service.functions.missing(role.invokes)
    if missing:
        raise NotFound(
            "agent.function-missing",
            f"No function serves {', '.join(missing)} of {uri}.",
            fix="Register one of that name: @agent.provides(URI).",
        )


def session_facts(driver: SessionDriver) -> SessionFacts:
    """What this side knows of a session, for a report. Raises `Refused` (`report.*`) when that is not enough for one."""
    own, peer, protocol = driver.machine.own, driver.machine.peer, driver.protocol
    if peer is None or protocol is None or own.key_id is None or peer.key_id is None:
        raise Refused("report.key", "A report needs a key of each side, named in the Hellos.")
    source, destination = (own, peer) if driver.machine.is_source else (peer, own)
    return SessionFacts(
        own_key=own.key_id,
        peer_key=peer.key_id,
        log=parse_protocol_uri(protocol.uri).origin,
        nid=negotiation_id(source, destination),
        topic=protocol.topic,
        document=protocol.hash,
        spoke=(driver.replies if driver.machine.is_source else driver.messages_received) > 0,
    )
