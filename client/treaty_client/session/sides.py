"""The two sides of a session, as the agent stands behind them: what each resolves, runs, remembers and signs."""

from __future__ import annotations

import asyncio
import logging

from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.protocol import parse_protocol_uri

from ..meta.actions import Agreement
from ..meta.messages import ReportCosignature, ReportProposed, ReportRefused
from ..negotiation import negotiator as negotiation
from ..negotiation.negotiator import Negotiator, Negotiators, Requirement, SideName
from ..reports.rules import SessionFacts, negotiation_id, refusal_code
from .agreements import Remembered
from .driver import SessionDriver
from .hosting import Business, Driver, HandlerHost, Keeping, Situation
from .household import AgentEvent, Household
from .negotiated import NegotiatedProtocol, is_negotiated
from .opening import Offer, Wish
from .ports import SpokenProtocol
from .provision import withdraw
from .store import SessionStore
from .timing import SessionEvent
from .trial import Nothing

MAX_NEGOTIATIONS = 8
"""Sessions that others began in which an agent negotiates at once."""

_log = logging.getLogger(__name__)


class _Side:
    """What both sides do alike. `calling`: whether this side's role is the one with calls; `role`: the one its caller named."""

    def __init__(self, household: Household, name: SideName, *, calling: bool, role: str = "", opening: str = "") -> None:
        self.timeouts, self.approvals, self.answerer = household.timeouts, household.approvals, household.answerer
        self.opening = opening
        self.negotiator: Negotiator | None = None
        self._household = household
        self._name, self._calling, self._role = name, calling, role

    def may_negotiate(self) -> bool:
        return True

    def negotiated(self) -> None:
        pass

    def document(self, protocol: SpokenProtocol) -> str:
        return self._household.negotiated.document(protocol.hash)

    async def host(self, driver: SessionDriver, protocol: SpokenProtocol, peer: str) -> HandlerHost:
        household = self._household
        role = household.role(protocol, calling=self._calling, wanted=self._role)
        store = SessionStore(
            household.home, wheel=protocol.package.digest, role=role.name, local=household.identity.did, peer=peer
        )
        return await self._host(driver, protocol, peer, household.service(protocol).functions, store)

    async def host_under_test(self, driver: Driver, protocol: SpokenProtocol, peer: str, business: Business) -> HandlerHost:
        return await self._host(driver, protocol, peer, business, Nothing())

    async def cosign(self, driver: SessionDriver, proposal: ReportProposed) -> ReportCosignature:
        try:
            facts = session_facts(self._household, driver)
        except TreatyError as error:
            return ReportRefused(refusal_code(error))
        return await self._household.reporter.cosign(facts, proposal)

    def observe(self, driver: SessionDriver, event: SessionEvent) -> None:
        peer = driver.machine.peer.source_did if driver.machine.peer else ""
        uri = driver.code.protocol.uri if driver.code.protocol else ""
        self._household.tell(AgentEvent(self._name, peer, uri, *event))

    def _open_negotiator(self, negotiators: Negotiators, peer: str, requirement: Requirement | None) -> Negotiator:
        own, offers, documents = self._household.identity.did, self._household.offers, self._household.ports.protocols.document
        return negotiators.open(negotiation.Situation(self._name, own, peer, requirement, offers.capabilities, documents))

    async def _host(self, driver: Driver, protocol: SpokenProtocol, peer: str, business: Business, store: Keeping) -> HandlerHost:
        role = self._household.role(protocol, calling=self._calling, wanted=self._role)
        local = self._household.identity.did
        handler = await self._household.ports.runtime.open(protocol.package, role.name, local=local, peer=peer)
        return HandlerHost(handler, Situation(peer, role, self.timeouts.handler), business, store, driver)

    async def _keep(self, driver: SessionDriver, agreement: Remembered) -> None:
        """Write down what was agreed on. Where that fails, it costs the next session a longer handshake, and nothing else."""
        protocol, written = driver.code.protocol, driver.code.take_written()
        try:
            if isinstance(protocol, NegotiatedProtocol) and written is not None:
                await asyncio.to_thread(self._household.negotiated.keep, protocol, written)
            self._household.agreements.remember(agreement)
        except (OSError, TreatyError) as error:
            _log.warning("What was agreed on cannot be written down: %s", error)


class Source(_Side):
    """The side that connected to `address`, with a `wish` and an `offer`. `opening`: what a person wants to be proposed, or
    ""."""

    def __init__(
        self, household: Household, *, address: str, wish: Wish, offer: Offer, role: str = "", opening: str = ""
    ) -> None:
        super().__init__(household, "source", calling=True, role=role, opening=opening)
        self._address, self._wish, self._candidates = address, wish, offer.candidates
        if household.negotiators is not None and wish.requirement is not None:
            self.negotiator = self._open_negotiator(household.negotiators, offer.peer, wish.requirement)

    async def resolve(self, agreement: Agreement) -> SpokenProtocol:
        return await self._household.ports.protocols.fetch(agreement.uri)

    async def agreed(self, driver: SessionDriver) -> None:
        peer, protocol = driver.machine.peer, driver.code.protocol
        if peer is not None and protocol is not None:
            known = (self._address, self._wish.key, peer.source_did, protocol.hash, protocol.uri, self._candidates)
            await self._keep(driver, Remembered(*known))


class Destination(_Side):
    """The side that was connected to."""

    def __init__(self, household: Household, peer: str) -> None:
        """`peer`: the DID that the transport proved, or ""."""
        super().__init__(household, "destination", calling=False)
        self._negotiates = False
        if household.negotiators is not None:
            self.negotiator = self._open_negotiator(household.negotiators, peer, None)

    def may_negotiate(self) -> bool:
        """Strangers cost a model's time: only so many negotiate at once."""
        if not self._negotiates and self._household.negotiations < MAX_NEGOTIATIONS:
            self._household.negotiations += 1
            self._negotiates = True
        return self._negotiates

    def negotiated(self) -> None:
        if self._negotiates:
            self._household.negotiations -= 1
            self._negotiates = False

    async def resolve(self, agreement: Agreement) -> SpokenProtocol:
        """The protocol as its source has it now: it asks the registry when the last verification is too long ago or something
        learned since contradicts it. What it refuses is withdrawn."""
        service = self._household.services.get(agreement.uri)
        if service is None:
            negotiated = self._household.negotiated.get(agreement.protocol_hash or "")
            if negotiated is None:
                raise Refused("session.protocol", f"{agreement.uri} is no longer provided here.")
            return negotiated
        if service.protocol is None:
            raise Refused("session.protocol", f"{agreement.uri} is not provided here at present.")
        try:
            service.protocol = await self._household.ports.protocols.fetch(agreement.uri)
        except Unavailable:  # says nothing against the protocol: the next session asks again
            raise
        except TreatyError as error:
            withdraw(self._household, agreement.uri, error)
            raise
        return service.protocol

    async def agreed(self, driver: SessionDriver) -> None:
        peer, protocol = driver.machine.peer, driver.code.protocol
        if peer is not None and protocol is not None:
            did = peer.source_did
            await self._keep(driver, Remembered(did, protocol.topic, did, protocol.hash, protocol.uri, ()))


def session_facts(household: Household, driver: SessionDriver) -> SessionFacts:
    """What this side knows of a session, for a report; of what was negotiated, to the registry of its agent. Raises `Refused`
    (`report.*`) when that is not enough for one."""
    own, peer, protocol = driver.machine.own, driver.machine.peer, driver.code.protocol
    if peer is None or protocol is None or own.key_id is None or peer.key_id is None:
        raise Refused("report.key", "A report needs a key of each side, named in the Hellos.")
    source, destination = (own, peer) if driver.machine.is_source else (peer, own)
    return SessionFacts(
        own_key=own.key_id,
        peer_key=peer.key_id,
        log=household.registry if is_negotiated(protocol) else parse_protocol_uri(protocol.uri).origin,
        nid=negotiation_id(source, destination),
        topic=protocol.topic,
        document=protocol.hash,
        spoke=(driver.calls.replies if driver.machine.is_source else driver.messages_received) > 0,
    )
