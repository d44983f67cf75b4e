"""How a session begins: what an agent's Hello says, and what its machine may do.

A source says, in order of preference: the hash of what was agreed on with this address before, if its code is here and was
verified recently enough, or was negotiated; candidate URIs, the topic's consensus first, then what an agent that was discovered
lists; and, if it came with a requirement, that it would negotiate.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, NotFound, Refused

from ..discovery.candidates import candidates
from ..discovery.reading import AgentDescription
from ..fetch import Candidates
from ..meta.actions import Action
from ..meta.hello import (
    FIX_ERROR_NEGOTIATION,
    MAX_CANDIDATES,
    NATURAL_LANGUAGE_NEGOTIATION,
    NATURAL_LANGUAGE_PROTOCOL,
    REPORT_COSIGNATURE,
    TEST_CASES_NEGOTIATION,
    VERIFICATION_PROTOCOL,
    Hello,
    HelloType,
)
from ..meta.machine import Machine
from ..meta.recording import Recorder
from ..negotiation.negotiator import Requirement
from .agreements import Remembered
from .household import Household
from .ports import SpokenProtocol
from .provision import withdraw_contradicted

NEGOTIATING = (VERIFICATION_PROTOCOL, NATURAL_LANGUAGE_NEGOTIATION, TEST_CASES_NEGOTIATION, FIX_ERROR_NEGOTIATION)
"""The capabilities that take a negotiator."""


@dataclass(frozen=True)
class Wish:
    """What an application connects for. `topic` or `protocols` (URIs, best first), a `requirement` to negotiate by where those
    lead nowhere, or nothing but `natural` language. `peer`: the DID that has to answer, or "". `described`: what the other agent
    says of itself, where it was discovered."""

    topic: str = ""
    protocols: tuple[str, ...] = ()
    peer: str = ""
    requirement: Requirement | None = None
    natural: bool = False
    described: AgentDescription | None = None

    def check(self, household: Household) -> None:
        """Raises `Malformed` (`agent.offer`) when it is not one, `Refused` (`agent.no-negotiator`) when it cannot be had."""
        named = bool(self.topic) + bool(self.protocols)
        if named > 1 or (self.natural and (named or self.requirement)) or not (named or self.requirement or self.natural):
            raise Malformed(
                "agent.offer",
                "Connect about a topic or by protocols, with or without a requirement; by a requirement; or in natural language.",
            )
        if self.requirement is not None and household.negotiators is None and not named:
            raise Refused(
                "agent.no-negotiator",
                "A requirement is negotiated, and no language model or other negotiator is configured.",
                fix="Give the agent a model: set TREATY_MODEL_URL, Agent(…, negotiators=…). Or name a topic or protocols.",
            )

    @property
    def key(self) -> str:
        """Under which an agreement about it is remembered: the topic, or what stands for the requirement."""
        if self.topic or self.protocols or self.requirement is None:
            return self.topic
        wanted = self.requirement
        return f"requirement:{canonical.hex_digest(canonical.dumps([wanted.text, wanted.input, wanted.output, wanted.topic]))}"


@dataclass(frozen=True)
class Offer:
    """What a source says first, and to whom ("" for whoever answers). `remembered` and `known` come together or not at all."""

    candidates: tuple[str, ...] = ()
    peer: str = ""
    remembered: Remembered | None = None
    known: SpokenProtocol | None = None


async def make_offer(household: Household, address: str, wish: Wish) -> Offer:
    """What to say first at an address; the network is asked only where nothing is remembered. Raises `TreatyError`."""
    wish.check(household)
    if wish.natural:
        return Offer(peer=wish.peer)
    remembered = household.agreements.get(address, wish.key)
    if remembered and wish.peer in ("", remembered.did) and (not wish.protocols or remembered.uri in wish.protocols):
        known = household.ports.protocols.cached(remembered.hash) or await asyncio.to_thread(
            household.negotiated.get, remembered.hash
        )
        if known is not None:
            return Offer(wish.protocols or remembered.candidates, remembered.did, remembered, known)
    return Offer((await _candidates(household, wish))[:MAX_CANDIDATES], wish.peer)


async def _candidates(household: Household, wish: Wish) -> tuple[str, ...]:
    if not wish.topic:
        return wish.protocols
    negotiable = wish.requirement is not None and household.negotiators is not None
    try:
        published = await household.ports.protocols.candidates(wish.topic)
    except NotFound:
        published = Candidates()
    if not published.uris and not negotiable:
        raise NotFound(
            "agent.no-candidates",
            f"No protocol is published about {wish.topic}.",
            fix="Name another topic, publish one, or connect with a requirement to negotiate by.",
        )
    if wish.described is None or not published.uris:
        return published.uris
    return candidates(wish.described, published.uris, consensus=published.consensus)


def open_source(
    household: Household, wish: Wish, offer: Offer, recorder: Recorder | None, *, now: float
) -> tuple[Machine, list[Action]]:
    """The machine of a session that this agent begins, and its first actions."""
    negotiates = wish.requirement is not None and household.negotiators is not None
    return Machine.source(
        _hello(household, "sourceHello", offer, negotiates=negotiates, converses=wish.natural),
        now=now,
        timeouts=household.timeouts,
        limits=household.limits,
        known_uri=offer.remembered.uri if offer.remembered else "",
        negotiates=negotiates,
        wants_tests=negotiates,
        natural=wish.natural,
        recorder=recorder,
    )


def open_destination(household: Household, recorder: Recorder | None, *, now: float) -> Machine:
    """The machine of a session that somebody else begins."""
    withdraw_contradicted(household)
    negotiates = household.negotiators is not None
    return Machine.destination(
        _hello(household, "destinationHello", Offer(), negotiates=negotiates, converses=False),
        now=now,
        timeouts=household.timeouts,
        limits=household.limits,
        provides=household.provided(),
        negotiates=negotiates,
        recorder=recorder,
    )


def _hello(household: Household, type: HelloType, offer: Offer, *, negotiates: bool, converses: bool) -> Hello:
    """This agent's Hello; a destination's is completed by the machine."""
    capabilities = [
        *([REPORT_COSIGNATURE] if household.policy.report else []),
        *([NATURAL_LANGUAGE_PROTOCOL] if converses or household.answerer else []),
        *(NEGOTIATING if negotiates else []),
    ]
    return Hello(
        type=type,
        message_id=secrets.token_urlsafe(12),
        session_id=secrets.token_urlsafe(12),
        source_did=household.identity.did,
        destination_did=offer.peer,
        capabilities=tuple(capabilities),
        random=secrets.token_urlsafe(24),
        key_id=household.identity.key_id,
        used_protocol_hash=offer.remembered.hash if offer.remembered else None,
        candidate_protocols=offer.candidates,
    )
