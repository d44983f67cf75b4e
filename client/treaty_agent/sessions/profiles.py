"""Choose the profile of a connection, and translate a request for the flow profile.

1. Begin with the flow profile if the last agreement with the address used it, or if the request or the description of a
discovered agent names only ids `anp:protocol:NAME:VERSION`.
2. Else begin with the Hello profile. If both Hellos list `flowProfile` and have nothing else in common, continue in the flow
profile on the same connection. If the peer answers the Hello in the flow profile, or closes the connection without a Hello, try
the flow profile on a new connection.

The flow profile has no encryption of its own. If the policy allows encryption, the Hello always goes first, so that the flow
profile runs inside the encrypted connection. If the policy requires encryption, the flow profile is used in no other way.
"""

from __future__ import annotations

from collections.abc import Sequence

from treaty_anp.flow_profile.capabilities import FlowRequest, ProtocolOffer
from treaty_anp.flow_profile.payloads import MAX_PROTOCOLS, PREFIX
from treaty_consensus.errors import TreatyError
from treaty_io.line_limit import limited_logger

from .context import AgentContext
from .roles import SessionRequest, candidate_uris

MAX_PURPOSE = 256
_log = limited_logger(__name__)


def begins_with_flow(context: AgentContext, address: str, request: SessionRequest) -> bool:
    """Return whether the first message to an address belongs to the flow profile."""
    # The flow profile has neither encryption nor natural language.
    if context.policy.encryption != "off" or request.natural:
        return False
    remembered = context.memory.agreements.get(address, request.key)
    if remembered is not None:
        return remembered.profile == "flow"
    named = request.protocols or (request.described.uris if request.described is not None and not request.topic else ())
    return bool(named) and all(name.startswith(PREFIX) for name in named)


def may_speak_flow(context: AgentContext, request: SessionRequest) -> bool:
    """Return whether the flow profile can serve a request: it names published protocols, and does not negotiate another."""
    negotiates = request.requirement is not None and context.negotiators is not None
    return bool(request.topic or request.protocols) and not negotiates


def flow_peer(context: AgentContext, address: str, request: SessionRequest) -> str:
    """Return the DID to negotiate with at an address, "" if it is unknown."""
    remembered = context.memory.agreements.get(address, request.key)
    return request.did or (remembered.did if remembered is not None else "")


def flow_goal(request: SessionRequest, offers: Sequence[ProtocolOffer]) -> FlowRequest:
    """Return the request for the machine of the flow profile."""
    # A request for one protocol leaves no choice, so no capabilities are exchanged: two round trips instead of four.
    return FlowRequest((request.topic or offers[0].id)[:MAX_PURPOSE], simplified=len(offers) == 1, role=request.role)


async def flow_offers(context: AgentContext, request: SessionRequest, id: str = "") -> list[ProtocolOffer]:
    """Return the offers of a request in the flow profile, best first. They are the ids that it names. For a URI they are the ids
    that the owner registered with it, or those that its publish statement claims. A protocol that cannot be fetched is left out.

    `id`: an id or URI that a person named instead.

    Raises the errors of looking up a topic.
    """
    names = (id,) if id else await candidate_uris(context, request)
    offers: dict[str, ProtocolOffer] = {}
    for name in names[:MAX_PROTOCOLS]:
        for offer in await _offers_of(context, name):
            offers.setdefault(offer.id, offer)
    return list(offers.values())[:MAX_PROTOCOLS]


async def _offers_of(context: AgentContext, name: str) -> list[ProtocolOffer]:
    if name.startswith(PREFIX):
        try:
            return [context.served.flow_offers.get(name) or ProtocolOffer(name)]
        except TreatyError as error:
            _log.info("%s is left out: %s", name[:200], error)
            return []
    registered = [offer for offer in context.served.flow_offers if offer.uri == name]
    if registered:
        return registered
    try:
        protocol = await context.ports.protocols.fetch(name)
        return [ProtocolOffer(alias, uri=protocol.uri) for alias in protocol.aliases if alias.startswith(PREFIX)]
    except TreatyError as error:
        _log.info("%s is left out: %s", name, error)
        return []
