"""Provide the agent's part of the flow profile: settings, the meaning of ids, and the keys of DIDs.

An id `anp:protocol:NAME:VERSION` has no owner. A publisher may claim it as an alias of a protocol (`publish`). A registry lists
such claims (`/resolve`) and chooses none. This module takes the first of:

1. the URI that the owner of this agent registered with the id,
2. a verified claim: an alias whose host is the publisher's domain (an `anp:` id has no host),
3. the claim of the first publisher in the policy's order that has one.

All other claims are refused. Two claims of one publisher are ambiguous, unless the other side names the document. The protocol is
then fetched with all ten checks. Its proven `publish` statement must contain the claim, by the author that the registry named.

The two sides may trust different publishers. So their messages carry the hash of the document (`machine.PROTOCOL_HASH`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from treaty_anp.flow_profile.actions import Agreed
from treaty_anp.flow_profile.adaptation import Adaptation, Thresholds
from treaty_anp.flow_profile.machine import INITIATOR_ROLE
from treaty_anp.flow_profile.payloads import ContextInfo
from treaty_anp.flow_profile.processor import Now
from treaty_anp.flow_profile.states import FlowLimits, FlowTimeouts
from treaty_anp.flow_profile.strategy import StrategyEngine
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed
from treaty_anp.transcript import TranscriptRecorder
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.local import LocalProtocol, LocalProtocols
from treaty_client.protocols.verification.records import VerifiedProtocol
from treaty_client.registries.replies import Match
from treaty_consensus.canonical import parse_digest
from treaty_consensus.codes import DidCode
from treaty_consensus.did import did_key_id, parse_did, public_key_of
from treaty_consensus.errors import Malformed, NotFound, Refused, Unavailable
from treaty_consensus.protocol import is_verified_alias, parse_protocol_uri
from treaty_io.codes import FlowCode, ResolveCode, SessionCode
from treaty_io.identity import ProvedPeer

from ..negotiators.negotiator import RoleName
from .arrivals import ServedSessions
from .connection_loop import OpenConnections
from .handler_hosts import HandlerHosts, HostRequest
from .interfaces import FlowNames, Located, Lookup, SessionEvent, SessionTimeouts, SpokenProtocol
from .session import ReportParties

Cosign = Callable[[SpokenProtocol | None, ReportParties, ReportProposed, bool], Awaitable[ReportCosignature]]
"""Answer a proposed report. Arguments: the session's protocol, its parties, the proposal, whether a message arrived."""


KeepTranscript = Callable[[bool, str, TranscriptRecorder | None], Awaitable[None]]
"""Write a transcript and close its recorder. Arguments: whether this side is the initiator, its name for it, the recorder."""


async def _keep_none(is_initiator: bool, name: str, recorder: TranscriptRecorder | None) -> None:
    """Keep no transcript."""


def system_clock() -> Now:
    """Return the time of this machine."""
    return Now(asyncio.get_running_loop().time(), time.time_ns() // 1_000_000)


DEFAULT_STRATEGY = StrategyEngine()
"""It has no state, so one object serves all settings, and equal settings are equal."""


@dataclass(frozen=True)
class FlowSettings:
    """The owner's choices for this profile.

    `thresholds`: when and how often a session is changed.
    `context`: this side's situation, until `MetaProtocolManager.tell` changes it.
    `shortcuts`: whether a former agreement is proposed at once (cached and predictive negotiation).
    `resolvers`: resolvers of DID methods beside did:key, did:wba and did:web, by method name, such as `anp`.
    `strategy`: scores and ranks the protocols that both sides speak.
    `adaptation`: makes the monitor of a session, which chooses its changes.
    """

    timeouts: FlowTimeouts = field(default_factory=FlowTimeouts)
    limits: FlowLimits = field(default_factory=FlowLimits)
    thresholds: Thresholds = field(default_factory=Thresholds)
    context: ContextInfo | None = None
    shortcuts: bool = True
    resolvers: Mapping[str, Lookup] = field(default_factory=dict)
    strategy: StrategyEngine = DEFAULT_STRATEGY
    adaptation: Callable[[Thresholds], Adaptation] = Adaptation


@dataclass(frozen=True)
class FlowDependencies:
    """The dependencies that all flow connections of an agent share.

    `observe`: called for each event with this side's role, the peer and the protocol.
    `reports`: whether this agent co-signs reports.
    `key_ids`: return the keys of a DID by their ids.
    `cosign`: see `Cosign`.
    `arrivals`: keeps the sessions that other agents began.
    `connections`: the open connections of the agent.
    """

    names: FlowNames
    hosts: HandlerHosts
    settings: FlowSettings = field(default_factory=FlowSettings)
    clock: Callable[[], Now] = system_clock
    timeouts: SessionTimeouts = field(default_factory=SessionTimeouts)
    observe: Callable[[RoleName, str, str, SessionEvent], None] = lambda role, peer, protocol, event: None
    reports: bool = False
    recorder: Callable[[], TranscriptRecorder | None] = lambda: None
    keep_transcript: KeepTranscript = _keep_none
    key_ids: Callable[[str], Awaitable[Mapping[str, bytes]]] | None = None
    cosign: Cosign | None = None
    arrivals: ServedSessions = field(default_factory=ServedSessions)
    connections: OpenConnections = field(default_factory=OpenConnections)


def host_request(request: HostRequest, peer: ProvedPeer, agreed: Agreed) -> HostRequest:
    """Return the request for the handler of an agreement. `request`: this side's role and functions."""
    peer_role = "" if request.is_initiator else str(agreed.extensions.get(INITIATOR_ROLE, ""))
    return structs.replace(request, peer=peer, parameters=agreed.parameters, peer_role=peer_role)


class LocalNames:
    """Find the meaning of ids among the protocols of this machine's folders."""

    def __init__(self, protocols: LocalProtocols, pins: Callable[[str], str] = lambda id: "") -> None:
        """Set the folders. `pins`: as for `PolicyNames`."""
        self._protocols, self._pins = protocols, pins

    async def locate(self, id: str, digest: str = "") -> Located:
        """Return the protocol of an id. Raises `NotFound` (`resolve.unknown`)."""
        pinned = self._pins(id)
        if pinned:
            return Located(pinned, digest)
        for uri in self._protocols.uris:
            protocol = await self._protocols.fetch(uri)
            if id in protocol.aliases and digest in ("", protocol.hash):
                return Located(uri, protocol.hash)
        fix = "Register the id with the URI of the protocol you mean."
        raise NotFound(ResolveCode.UNKNOWN, f"No folder of this agent claims the id {id[:200]}.", fix=fix)

    async def fetch(self, id: str, located: Located) -> LocalProtocol:
        """Return the protocol. Raises `NotFound` (`protocol.unknown`)."""
        return await self._protocols.fetch(located.uri)


class PolicyNames:
    """Find the meaning of ids with the registries and the policy of a fetcher."""

    def __init__(self, fetcher: Fetcher, pins: Callable[[str], str] = lambda id: "") -> None:
        """Set the fetcher. `pins`: return the URI that the owner registered with an id, or ""."""
        self._fetcher, self._pins = fetcher, pins

    async def locate(self, id: str, digest: str = "") -> Located:
        """Return the protocol of an id. Raises `NotFound` (`resolve.unknown`), `Refused` (`resolve.ambiguous`), `Malformed`,
        `Unavailable`."""
        # The digest comes from the peer, so its form is checked first.
        if digest:
            parse_digest(digest)
        # The owner's choice goes before any claim: no registry is asked.
        pinned = self._pins(id)
        if pinned:
            return Located(pinned, digest)
        claims = await self._claims(id)
        # The peer's digest selects among the claims; it never adds one.
        matches = [claim for claim in claims if digest in ("", claim.hash)]
        if not matches:
            raise NotFound(
                ResolveCode.UNKNOWN,
                f"No registry of the policy has a protocol that claims the id {id[:200]}"
                + (" and has the document that the other side named." if claims else "."),
                fix="Register the id with the URI of the protocol you mean.",
            )
        # Verified claims first, then the publishers in the policy's order.
        uris = next(filter(None, (self._of(matches, publisher) for publisher in (None, *self._fetcher.policy.publishers))), None)
        if uris is None:
            publishers = ", ".join(sorted({claim.publisher for claim in matches}))
            raise Refused(
                ResolveCode.AMBIGUOUS,
                f"{id} is claimed by {publishers}, and the policy does not name them.",
                fix="Allow a publisher that you trust (treaty policy allow DID), or register the id with a URI.",
            )
        if len(uris) > 1:
            raise Refused(
                ResolveCode.AMBIGUOUS,
                f"One publisher claims {id} for several protocols: {', '.join(sorted(uris))}.",
                fix="Register the id with the URI of the protocol you mean.",
            )
        (claim,) = uris.values()
        return Located(claim.uri, claim.hash)

    async def fetch(self, id: str, located: Located) -> VerifiedProtocol:
        """Return the verified protocol of an id. Raises the errors of `Fetcher.fetch`, and `Refused` (`resolve.ambiguous`,
        `session.hash-mismatch`)."""
        verified = await self._fetcher.fetch(located.uri)
        # The registry might have another document than the one that the two sides agreed on.
        if located.digest not in ("", verified.hash):
            raise Refused(SessionCode.HASH_MISMATCH, f"{located.uri} has another document than the one expected for {id}.")
        # A pinned URI needs no claim: the owner chose it.
        if self._pins(id) != located.uri and not self._holds(id, verified):
            raise Refused(
                ResolveCode.AMBIGUOUS, f"{verified.author}, the publisher of {verified.uri}, does not claim the id {id} for it."
            )
        return verified

    async def _claims(self, id: str) -> list[Match]:
        """Return all claims to the id at the registries that the policy admits."""
        claims: list[Match] = []
        failure: Unavailable | None = None
        for origin in self._fetcher.registries.all():
            if not self._fetcher.policy.admits_registry(origin):
                continue
            try:
                matches = await self._fetcher.client(origin).resolve(id)
            except NotFound:
                continue
            # One registry that is down must not hide the claims of the others.
            except Unavailable as error:
                failure = error
                continue
            # A registry may name only its own protocols: another origin has other keys.
            claims += [match for match in matches if match.by == "alias" and parse_protocol_uri(match.uri).origin == origin]
        if not claims and failure is not None:
            raise failure
        return claims

    def _of(self, claims: list[Match], publisher: str | None) -> dict[str, Match]:
        """Return the claims of one publisher, or with None the verified claims, by URI."""
        return {claim.uri: claim for claim in claims if (claim.verified if publisher is None else claim.publisher == publisher)}

    def _holds(self, id: str, verified: VerifiedProtocol) -> bool:
        """Return whether the author claims the id in the proven statement, and is verified or named in the policy."""
        if not is_verified_alias(id, parse_did(verified.author)) and verified.author not in self._fetcher.policy.publishers:
            return False
        return id in verified.aliases


class RequestedNames:
    """Add the ids of one request to other names. Implements `FlowNames`."""

    def __init__(self, names: FlowNames, hashes: Mapping[str, str]) -> None:
        """Set the names. `hashes`: id → URI, as the request defines them."""
        self._names, self._meant = names, hashes

    async def locate(self, id: str, digest: str = "") -> Located:
        return Located(self._meant[id], digest) if id in self._meant else await self._names.locate(id, digest)

    async def fetch(self, id: str, located: Located) -> SpokenProtocol:
        return await self._names.fetch(id, located)


class DidKeys:
    """Find the keys of a DID: did:key directly, did:wba and did:web by one resolver, each other method by its own. Implements
    `processor.Keys`."""

    def __init__(self, resolve: Lookup | None = None, methods: Mapping[str, Lookup] | None = None) -> None:
        """Set the resolvers. `resolve`: for did:wba and did:web. `methods`: method name → resolver, such as `anp`."""
        self._resolve, self._methods = resolve, dict(methods or {})

    async def __call__(self, did: str) -> Sequence[bytes]:
        """Return the keys of a DID. Raises `Refused` (`did.method`) for a method without a resolver, and the errors of the
        resolvers."""
        return _listed(await self._find(did))

    async def named(self, did: str) -> Mapping[str, bytes]:
        """Return the keys of a DID by their DID URLs; empty if the resolver does not give them. Raises the errors of
        `__call__`."""
        document = await self._find(did)
        return document if isinstance(document, Mapping) else {}

    async def _find(self, did: str) -> Mapping[str, bytes] | Sequence[bytes]:
        method = did.split(":")[1] if did.startswith("did:") else ""
        if method in self._methods:
            return await self._methods[method](did)
        parsed = parse_did(did) if method in ("key", "wba", "web") else None
        if parsed is not None and method == "key":
            key = public_key_of(parsed)
            return {did_key_id(key): key}
        if parsed is None or self._resolve is None:
            raise Refused(
                DidCode.METHOD,
                f"did:{method[:20]} cannot be resolved here.",
                fix="Give it a resolver: AgentConfig(flow=FlowSettings(resolvers={…})).",
            )
        return await self._resolve(did)


def _listed(keys: Mapping[str, bytes] | Sequence[bytes]) -> list[bytes]:
    methods = list(keys.values()) if isinstance(keys, Mapping) else list(keys)
    # A resolver belongs to the application, so its result is checked.
    if not all(len(key) == 32 for key in methods):
        raise Malformed(FlowCode.VERIFICATION, "An Ed25519 key has 32 bytes.")
    return methods
