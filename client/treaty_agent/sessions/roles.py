"""Implement the two roles of a Hello session for the agent: first message, protocol, handler, memory and reports.

An initiator offers three things in its Hello, in this order of preference. First the hash of the former agreement with this
address, if its code is here and was negotiated or verified recently enough. Then candidate URIs: the topic's consensus, then the
protocols that a discovered agent lists. Last, with a requirement, the willingness to negotiate.

`SessionRequest` is the purpose of a session that this agent opens, and the protocols that it names.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from treaty_anp.discovery.parsing import AgentDescription
from treaty_anp.flow_profile.payloads import PREFIX
from treaty_anp.hello_profile.actions import Action, Agreement
from treaty_anp.hello_profile.core import no_room
from treaty_anp.hello_profile.hello import (
    CALL_CONTEXT,
    FIX_ERROR_NEGOTIATION,
    FLOW_PROFILE,
    GREASE_PREFIX,
    MAX_CANDIDATES,
    NATURAL_LANGUAGE_NEGOTIATION,
    NATURAL_LANGUAGE_PROTOCOL,
    PROTOCOL_PUBLISHED,
    REPORT_COSIGNATURE,
    TEST_CASES_NEGOTIATION,
    VERIFICATION_PROTOCOL,
    Hello,
    HelloType,
)
from treaty_anp.hello_profile.machine import Machine
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed
from treaty_anp.recording import Recorder
from treaty_client.protocols.topics import Candidates
from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, NotFound, Refused, TreatyError, Unavailable
from treaty_consensus.handler import HandlerPackage
from treaty_io.codes import AgentCode, SessionCode
from treaty_io.identity import PeerIdentity, ProvedPeer
from treaty_io.line_limit import limited_logger
from treaty_io.places import asker

from ..discovery.client import candidates
from ..negotiators.documents import BaseCache
from ..negotiators.handler_check import complete_cases
from ..negotiators.negotiator import (
    Implementation,
    NegotiationContext,
    Negotiator,
    Negotiators,
    Payer,
    Requirement,
    RoleName,
)
from ..negotiators.test_cases import Case, TestCase
from .agreements import AgreementRecord, NegotiatedProtocol, is_negotiated
from .context import AgentContext
from .handler_context import HandlerPort
from .handler_host import HostedHandler
from .handler_hosts import HostRequest
from .hello_core import SessionRole
from .interfaces import AgentEvent, SessionEvent, SpokenProtocol
from .operations import Functions, OperationHandlers
from .provision import withdraw, withdraw_contradicted
from .session import ReportParties

NEGOTIATING = (
    VERIFICATION_PROTOCOL,
    NATURAL_LANGUAGE_NEGOTIATION,
    TEST_CASES_NEGOTIATION,
    FIX_ERROR_NEGOTIATION,
    PROTOCOL_PUBLISHED,
)
"""The capabilities that need a negotiator."""

_log = limited_logger(__name__)


class HelloOffer(msgspec.Struct, frozen=True):
    """The content of an initiator's Hello. `peer`: the DID that must answer, or "" for any. `roles`: this side's role by URI,
    where it is known. `remembered` and `known` are both set or both None."""

    candidates: tuple[str, ...] = ()
    peer: str = ""
    roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    remembered: AgreementRecord | None = None
    known: SpokenProtocol | None = None


async def make_offer(context: AgentContext, address: str, request: SessionRequest) -> HelloOffer:
    """Return the offer for an address. Use the network only if nothing is remembered. Raises `TreatyError`."""
    request.check(context)
    if request.natural:
        return HelloOffer(peer=request.did)
    remembered = context.memory.agreements.get(address, request.key)
    if remembered and remembered.profile == "hello" and _still_wanted(remembered, request):
        cached_protocol = context.ports.protocols.cached(remembered.hash) or await asyncio.to_thread(
            context.memory.negotiated.get, remembered.hash
        )
        if cached_protocol is not None:
            uris = request.protocols or remembered.candidates
            roles = _roles(uris, request.role)
            if remembered.role and not is_negotiated(cached_protocol):
                roles[remembered.uri] = remembered.role
            return HelloOffer(uris, remembered.did, roles, remembered, cached_protocol)
    named = [name for name in await candidate_uris(context, request) if not name.startswith(PREFIX)]
    uris = tuple(named[:MAX_CANDIDATES])
    return HelloOffer(uris, request.did, _roles(uris, request.role))


def _roles(uris: tuple[str, ...], role: str) -> dict[str, str]:
    """Return the wanted role by URI. Without one it follows from the manifest, which is read after the Hellos."""
    return dict.fromkeys(uris, role) if role else {}


def _still_wanted(remembered: AgreementRecord, request: SessionRequest) -> bool:
    named = not request.protocols or remembered.uri in request.protocols
    return request.did in ("", remembered.did) and request.role in ("", remembered.role) and named


def initiator_machine(
    context: AgentContext, request: SessionRequest, offer: HelloOffer, recorder: Recorder | None, *, switches: bool, now: float
) -> tuple[Machine, list[Action]]:
    """Return the machine of a session that this agent begins, and its first actions. `switches`: this side would continue in the
    flow profile."""
    negotiates = request.requirement is not None and context.negotiators is not None
    return Machine.initiator(
        _hello(context, "sourceHello", offer, negotiates=negotiates, converses=request.natural, switches=switches),
        now=now,
        timeouts=context.timeouts,
        limits=context.limits,
        known_uri=offer.remembered.uri if offer.remembered else "",
        known_reader=offer.remembered is not None and offer.remembered.is_reader,
        negotiates=negotiates,
        wants_tests=negotiates,
        natural=request.natural,
        recorder=recorder,
    )


def responder_machine(context: AgentContext, recorder: Recorder | None, *, now: float) -> Machine:
    """Return the machine of a session that another agent begins."""
    # Checked at each Hello: a revocation must not wait for a restart.
    withdraw_contradicted(context)
    negotiates = context.negotiators is not None
    return Machine.responder(
        _hello(
            context,
            "destinationHello",
            HelloOffer(),
            negotiates=negotiates,
            converses=False,
            switches=len(context.served.flow_offers) > 0,
        ),
        now=now,
        timeouts=context.timeouts,
        limits=context.limits,
        provides=context.served.provided(),
        negotiates=negotiates,
        recorder=recorder,
    )


async def serve_published(context: AgentContext, document_hash: str, uri: str) -> None:
    """Serve a negotiated protocol at the URI where a peer says it is published, if a trusted registry has the same document
    there. The first URI stays for as long as that holds for it: no peer renames a protocol that others look for. Never raises."""
    negotiated, documents = context.memory.negotiated, context.ports.protocols
    entry = negotiated.get(document_hash)
    if entry is None or entry.published == uri:
        return
    try:
        if entry.published and canonical.hex_digest(await documents.document(entry.published)) == document_hash:
            return
        if canonical.hex_digest(await documents.document(uri)) != document_hash:
            _log.warning("%s has another document than the one that was negotiated, so it is not served.", uri)
            return
        await asyncio.to_thread(negotiated.published, entry, uri)
    except (TreatyError, OSError) as error:
        _log.warning("%s is not served: %s", uri, error)
        return
    context.served.note_change()
    context.record_event(AgentEvent("responder", "", uri, "served", 0.0))


def _hello(
    context: AgentContext, type: HelloType, offer: HelloOffer, *, negotiates: bool, converses: bool, switches: bool
) -> Hello:
    """Return this agent's Hello. The machine completes the Hello of a responder."""
    drawn = secrets.token_urlsafe(54)
    capabilities = [
        *([REPORT_COSIGNATURE] if context.policy.report else []),
        *([NATURAL_LANGUAGE_PROTOCOL] if converses or context.answerer else []),
        *(NEGOTIATING if negotiates else []),
        *([FLOW_PROFILE] if switches else []),
        CALL_CONTEXT,
        f"{GREASE_PREFIX}{drawn[64:]}",
    ]
    return Hello(
        type=type,
        message_id=drawn[:16],
        session_id=drawn[16:32],
        source_did=context.identity.did,
        destination_did=offer.peer,
        capabilities=tuple(capabilities),
        random=drawn[32:64],
        key_id=context.identity.key_id,
        used_protocol_hash=offer.remembered.hash if offer.remembered else None,
        candidate_protocols=offer.candidates,
        candidate_roles=offer.roles,
    )


class _Role(SessionRole):
    """The common part of both roles."""

    def __init__(self, context: AgentContext, name: RoleName, *, opening: str = "") -> None:
        self.timeouts, self.answerer, self.opening = context.timeouts, context.answerer, opening
        self.negotiator: Negotiator | None = None
        self.pipeline, self.is_observed = context.pipeline, context.is_observed
        self.documents = BaseCache(context.ports.protocols.document).fetch
        self._context, self._name = context, name
        self._is_initiator = name == "initiator"
        self._spoken_as = ""

    async def admit(self) -> None:
        pass

    def end_opening(self) -> None:
        pass

    def is_approved(self, document: str) -> bool:
        return document in self._context.memory.approvals

    async def open_negotiator(self, peer: PeerIdentity) -> Negotiator | None:
        return self.negotiator

    def begin_negotiation(self) -> None:
        pass

    def end_negotiation(self, *, failed: bool | None) -> None:
        pass

    def served_text(self, document: str) -> NegotiatedProtocol | None:
        return None

    async def published_code(self, document: str, uri: str) -> SpokenProtocol | None:
        return None

    def held_protocol(self, agreement: Agreement) -> SpokenProtocol | None:
        return None

    def learn_uri(self, protocol: SpokenProtocol | None, uri: str) -> None:
        if isinstance(protocol, NegotiatedProtocol):
            self._context.work.finish_later(serve_published(self._context, protocol.hash, uri))

    def document(self, protocol: SpokenProtocol) -> str:
        return self._context.memory.negotiated.document(protocol.hash)

    async def host(
        self,
        port: HandlerPort,
        protocol: SpokenProtocol,
        peer: PeerIdentity,
        peer_role: str,
        answers: OperationHandlers | None = None,
    ) -> HostedHandler:
        host_request = HostRequest(peer, self._is_initiator, peer_role=peer_role, answers=answers)
        host = await self._context.hosts.host(port, protocol, self._completed(host_request, protocol))
        self._spoken_as = host.role.name
        return host

    async def complete_cases(self, package: HandlerPackage, cases: Sequence[Case]) -> tuple[TestCase, ...]:
        return await complete_cases(self._context.ports.runtime, package, cases)

    def _completed(self, request: HostRequest, protocol: SpokenProtocol) -> HostRequest:
        """Return the request for a handler with the role and the functions that this side wants in a protocol."""
        return request

    async def cosign(
        self, protocol: SpokenProtocol | None, parties: ReportParties, proposal: ReportProposed, *, spoke: bool
    ) -> ReportCosignature:
        return await self._context.reports.cosign(protocol, parties, proposal, spoke=spoke)

    def observe(self, peer: str, protocol: str, event: SessionEvent) -> None:
        self._context.record_event(AgentEvent(self._name, peer, protocol, *event))

    def _open_negotiator(
        self, negotiators: Negotiators, peer: str, requirement: Requirement | None = None, payer: Payer | None = None
    ) -> Negotiator:
        own, offers = self._context.identity.did, self._context.served.offers
        about = NegotiationContext(self._name, own, peer, requirement, offers.capabilities, self.documents, self._written, payer)
        return negotiators.open(about)

    async def _written(self, document: str) -> Implementation | None:
        digest = canonical.hex_digest(document.encode())
        try:
            return await asyncio.to_thread(self._context.memory.negotiated.written, digest)
        except OSError as error:  # then it is written again
            _log.warning("The code for %s cannot be read: %s", digest, error)
            return None

    async def _keep(self, record: AgreementRecord | None, protocol: SpokenProtocol, written: Implementation | None) -> None:
        """Write an agreement, if there is a peer to remember, and the code. A failure only makes the next handshake longer."""
        try:
            # Code first: a crash then leaves code without an agreement, which is harmless.
            if isinstance(protocol, NegotiatedProtocol) and written is not None:
                await asyncio.to_thread(self._context.memory.negotiated.keep, protocol, written)
            if record is not None:
                self._context.memory.agreements.remember(record)
        except (OSError, TreatyError) as error:
            _log.warning("An agreement cannot be written: %s", error)


class InitiatorRole(_Role):
    """The role of the agent that connected to `address`. `opening`: a person's proposal, or ""."""

    def __init__(
        self, context: AgentContext, *, address: str, request: SessionRequest, offer: HelloOffer, opening: str = ""
    ) -> None:
        super().__init__(context, "initiator", opening=opening)
        self._address, self._request, self._offer = address, request, offer
        if context.negotiators is not None and request.requirement is not None:
            self.negotiator = self._open_negotiator(context.negotiators, offer.peer, request.requirement)

    async def resolve(self, agreement: Agreement) -> SpokenProtocol:
        return await self._context.ports.protocols.fetch(agreement.uri)

    async def published_code(self, document: str, uri: str) -> SpokenProtocol | None:
        if not uri:
            return None
        try:
            protocol = await self._context.ports.protocols.fetch(uri)
        except TreatyError as error:
            _log.info("%s, which the other side speaks, is not run here: %s", uri, error)
            return None
        return protocol if protocol.hash == canonical.hex_digest(document.encode()) else None

    async def keep_agreement(
        self, peer: PeerIdentity, protocol: SpokenProtocol, written: Implementation | None, *, is_reader: bool
    ) -> None:
        named = (self._address, self._request.key, peer.did, protocol.hash, protocol.uri, self._offer.candidates)
        await self._keep(AgreementRecord(*named, is_reader=is_reader, role=self._spoken_as), protocol, written)

    def _completed(self, request: HostRequest, protocol: SpokenProtocol) -> HostRequest:
        role, remembered = self._request.role, self._offer.remembered
        if remembered is not None and remembered.hash == protocol.hash:
            role = role or remembered.role
        return msgspec.structs.replace(request, role=role, serving=self._request.serving)


class ResponderRole(_Role):
    """The role of the agent that accepted the connection."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context, "responder")
        self._negotiates = False
        self._asker: str | None = None
        self._payer: Payer | None = None
        # The tasks of the session run for the network that opened the connection.
        self._network = asker.get()

    async def admit(self) -> None:
        try:
            self._asker = await self._context.work.admissions.take(self._context.capacity.wait)
        except TimeoutError as error:
            raise no_room() from error

    def end_opening(self) -> None:
        if self._asker is not None:
            self._context.work.admissions.give_back(self._asker)
            self._asker = None

    async def open_negotiator(self, peer: PeerIdentity) -> Negotiator | None:
        if self.negotiator is None and self._context.negotiators is not None:
            # Now and not before: with encryption the peer proves its DID by its Hello.
            proof = peer if isinstance(peer, ProvedPeer) else None
            has_deposit = proof is not None and await self._context.deposits.has(proof)
            self._payer = Payer(proof, self._network, has_deposit)
            self.negotiator = self._open_negotiator(self._context.negotiators, peer.did, payer=self._payer)
        return self.negotiator

    def begin_negotiation(self) -> None:
        # Counted once for each session, however many proposals it has.
        if not self._negotiates and self._payer is not None:
            self._context.work.negotiations.begin(self._payer)
            self._negotiates = True

    def end_negotiation(self, *, failed: bool | None) -> None:
        if self._negotiates and self._payer is not None:
            self._context.work.negotiations.end(self._payer, failed=failed)
            self._negotiates = False

    def served_text(self, document: str) -> NegotiatedProtocol | None:
        return self._context.served.served_text(document)

    def held_protocol(self, agreement: Agreement) -> SpokenProtocol | None:
        service = self._context.served.services.get(agreement.uri)
        protocol = service.protocol if service is not None else None
        if protocol is None or protocol.hash != agreement.protocol_hash or not protocol.package.is_declarative:
            return None
        # As `resolve` would ask: the Hello may have come long after `responder_machine` has looked.
        holds = self._context.served.is_fresh(protocol) and self._context.ports.protocols.holds(protocol.uri)
        return protocol if holds else None

    async def resolve(self, agreement: Agreement) -> SpokenProtocol:
        """Return the protocol in its present state. The source asks the registry again if the last verification is too old or a
        later fact contradicts it. A refused protocol is withdrawn."""
        service = self._context.served.services.get(agreement.uri)
        if service is None:
            negotiated = self._context.memory.negotiated.get(agreement.protocol_hash or "")
            if negotiated is None:
                raise Refused(SessionCode.PROTOCOL, f"{agreement.uri} is no longer provided here.")
            return negotiated
        if service.protocol is None:
            raise Refused(SessionCode.PROTOCOL, f"{agreement.uri} is not provided here at present.")
        try:
            protocol = await self._context.ports.protocols.fetch(agreement.uri)
        except Unavailable:  # no fact against the protocol: the next session asks again
            raise
        except TreatyError as error:
            if self._context.served.is_served(service, agreement.uri):
                withdraw(self._context, agreement.uri, error)
            raise
        # It may have been withdrawn or taken back during the request. This answer is older than that.
        if not self._context.served.is_served(service, agreement.uri):
            raise Refused(SessionCode.PROTOCOL, f"{agreement.uri} is not provided here any more.")
        service.protocol = protocol
        return protocol

    async def keep_agreement(
        self, peer: PeerIdentity, protocol: SpokenProtocol, written: Implementation | None, *, is_reader: bool
    ) -> None:
        # A peer that does not name itself may offer the hash again; it needs no record.
        record = AgreementRecord(peer.did, protocol.topic, peer.did, protocol.hash, protocol.uri, ()) if peer.did else None
        await self._keep(record, protocol, written)


@dataclass(frozen=True)
class SessionRequest:
    """The purpose of a connection: a `topic` or `protocols`, a `requirement`, or only `natural` language.

    `protocols`: URIs and ids, best first.
    `requirement`: negotiate by it if topic and protocols lead to no agreement.
    `did`: of the agent that must answer, or "".
    `role`: this side's role in the protocol, or "" for the only one.
    `serving`: the functions that the peer may call in the session, or None for those that the agent provides.
    `described`: the description of a discovered agent.
    """

    topic: str = ""
    protocols: tuple[str, ...] = ()
    did: str = ""
    requirement: Requirement | None = None
    natural: bool = False
    role: str = ""
    serving: Functions | None = None
    described: AgentDescription | None = None

    def check(self, context: AgentContext) -> None:
        """Raise `Malformed` (`agent.call`) for an impossible combination, `Refused` (`agent.settings`) for a requirement
        without a negotiator."""
        named = bool(self.topic) + bool(self.protocols)
        if named > 1 or (self.natural and (named or self.requirement)) or not (named or self.requirement or self.natural):
            raise Malformed(
                AgentCode.CALL,
                "Connect about a topic or by protocols, with or without a requirement; by a requirement; or in natural language.",
            )
        if self.requirement is not None and context.negotiators is None and not named:
            raise Refused(
                AgentCode.SETTINGS,
                "A requirement needs a negotiator, and this agent has neither a language model nor another negotiator.",
                fix="Give the agent a model: set TREATY_MODEL_URL, Agent(…, negotiators=…). Or name a topic or protocols.",
            )

    def close(self) -> None:
        """Release the functions of the session, without waiting for those that run."""
        if self.serving is not None:
            self.serving.close()

    @cached_property
    def key(self) -> str:
        """The key under which its agreement is remembered: the topic, or a digest of all that was asked for."""
        if self.protocols:
            # Two protocols of one peer are two agreements: one may not replace the other.
            return f"protocols:{canonical.hex_digest(canonical.dumps(list(self.protocols)))}"
        if self.topic or self.requirement is None:
            return self.topic
        requirement = self.requirement
        members = [requirement.text, requirement.input, requirement.output, requirement.topic]
        return f"requirement:{canonical.hex_digest(canonical.dumps(members))}"


async def candidate_uris(context: AgentContext, request: SessionRequest) -> tuple[str, ...]:
    """Return the protocols that a request names, best first. Raises `NotFound` (`agent.no-candidates`),
    `TreatyError`."""
    negotiable = request.requirement is not None and context.negotiators is not None
    if not request.topic:
        return request.protocols or (await _published_before(context, request.requirement) if negotiable else ())
    try:
        published = await context.ports.protocols.candidates(request.topic)
    except NotFound:
        published = Candidates()
    if not published.uris and published.taken_back and not negotiable:
        raise NotFound(
            AgentCode.NO_CANDIDATES,
            f"Every protocol about {request.topic} was taken back: {' '.join(published.taken_back[:MAX_CANDIDATES])}",
            fix="Name a successor by its URI, or ask the publisher.",
        )
    if not published.uris and not negotiable:
        raise NotFound(
            AgentCode.NO_CANDIDATES,
            f"No protocol is published about {request.topic}.",
            fix="Name another topic, publish one, or connect with a requirement to negotiate by.",
        )
    if request.described is None or not published.uris:
        return published.uris
    return candidates(request.described, published.uris, consensus=published.consensus, role=request.role)


# Each costs a fetch the first time.
_MAX_BEFORE = 4


async def _published_before(context: AgentContext, requirement: Requirement | None) -> tuple[str, ...]:
    """Return the protocols about the topic of a requirement that this side may run: a published one needs no model. Only those,
    because a selected one that may not be run would end the session. Never raises."""
    if requirement is None or not requirement.topic:
        return ()
    protocols = context.ports.protocols
    try:
        named = (await protocols.candidates(requirement.topic)).uris[:_MAX_BEFORE]
    except TreatyError:  # without them the two sides negotiate
        return ()
    fetched = await asyncio.gather(*(protocols.fetch(uri) for uri in named), return_exceptions=True)
    return tuple(uri for uri, protocol in zip(named, fetched, strict=True) if not isinstance(protocol, BaseException))
