"""Describe this side's protocols to the peer, and collect the peer's description (the protocol registry, the capability manager).

In one step, `supportedProtocols` has all details. In two steps, after a request for a summary, it has ids, versions and
preferences first; then each side sends the details of the ids that the other one names in `requestDetails`.

The registry keeps the protocols that an agent speaks in the flow profile: ids, capabilities, metrics and terms.

registry.add(ProtocolOffer("anp:protocol:product-info:1.1", capabilities=("query",), preference=0.9,
                           parameters={"maxMessageSize": Range(1024, 1_048_576)}))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from treaty_consensus.errors import Conflict, Malformed, TooLarge, TreatyError
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import FlowCode

from .errors import ErrorCode, error_of
from .parameters import Rule, check_kept
from .payloads import MAX_PROTOCOLS, CapabilitiesExchange, ContextInfo, Metrics, ProtocolId, Supported, parse_protocol_id


@dataclass(frozen=True)
class FlowRequest:
    """The request of an initiator.

    `protocols`: ids; empty for all of the registry. `required`: capabilities that the protocol must have. `requirements`: those
    of the task (`dataVolume`, `timeConstraint`, `securityLevel`, …). `summary`: exchange capabilities in two steps.
    `simplified`: exchange none, and propose the first protocol at once. `role`: this side's role in the protocol, or "".
    """

    purpose: str
    protocols: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    requirements: Mapping[str, str] = field(default_factory=dict)
    summary: bool = False
    simplified: bool = False
    role: str = ""


@dataclass
class PeerCapabilities:
    """The peer's description so far."""

    protocols: dict[str, Supported] = field(default_factory=dict)
    context: ContextInfo = field(default_factory=ContextInfo)
    requirements: dict[str, str] = field(default_factory=dict)

    def learn(self, exchange: CapabilitiesExchange) -> None:
        """Add a message to the description. Details complete a summary and never remove an entry."""
        for entry in exchange.supported_protocols:
            earlier = self.protocols.get(entry.id)
            # A later summary must not remove the details that an earlier message gave.
            if earlier is None or earlier.capabilities is None or entry.capabilities is not None:
                self.protocols[entry.id] = entry
        self.context = exchange.context_info or self.context
        self.requirements.update(exchange.task_requirements or {})

    def lacking(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return the ids for which only a summary is known."""
        return tuple(id for id in ids if self.protocols[id].capabilities is None)


class CapabilityManager:
    """Describe the offers of a registry. `context`: this side's context; replace it when it changes."""

    def __init__(self, registry: ProtocolRegistry, context: ContextInfo | None = None) -> None:
        """Use a registry, which is read anew for each message."""
        self.registry = registry
        self.context = context or ContextInfo()

    def describe(self, ids: Iterable[str] = (), *, summary: bool = False) -> tuple[Supported, ...]:
        """Describe the offers with these ids, or all offers."""
        requested = set(ids)
        return tuple(offer.supported(summary=summary) for offer in self.registry if not requested or offer.id in requested)

    def exchange(
        self,
        ids: Iterable[str] = (),
        *,
        summary: bool = False,
        requirements: Mapping[str, str] | None = None,
        request: tuple[str, ...] = (),
        context: ContextInfo | None = None,
    ) -> CapabilitiesExchange:
        """Make a message about these ids, or all ids. `request`: the ids whose details the other side should send. `context`:
        instead of this side's."""
        context = context or self.context
        return CapabilitiesExchange(
            supported_protocols=self.describe(ids, summary=summary),
            # An empty context says nothing, so it is left out: messages are small.
            context_info=context if context != ContextInfo() else None,
            task_requirements=dict(requirements) if requirements else None,
            request_details=request,
        )

    def details(self, ids: Iterable[str]) -> CapabilitiesExchange:
        """Make the answer to `requestDetails`. Unknown ids are skipped."""
        # The peer may ask for ids that were removed meanwhile.
        own_ids = [id for id in ids if self.registry.get(id)]
        return CapabilitiesExchange(supported_protocols=self.describe(own_ids) if own_ids else ())

    def common(self, peer: PeerCapabilities, ids: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the common ids in this side's order. Raises the errors of `check_common` if there are none."""
        own = [offer.id for offer in self.registry if not ids or offer.id in ids]
        check_common(own, peer.protocols)
        return tuple(id for id in own if id in peer.protocols)


def check_common(own: Collection[str], theirs: Collection[str]) -> None:
    """Check that two sides have an id in common. Raises `Refused`: `flow.version-conflict` if they have a name in common, else
    `session.no-common-protocol`."""
    if any(id in theirs for id in own):
        return
    names = {_name(id) for id in own} & {_name(id) for id in theirs} - {""}
    if names:
        raise error_of(ErrorCode.VERSION_CONFLICT, f"Both sides speak {sorted(names)[0]}, in other versions.")
    raise error_of(ErrorCode.NO_COMMON_PROTOCOL, "The two sides speak no protocol in common.")


def _name(id: str) -> str:
    """Return the name in an id, "" for a text of another form."""
    try:
        return parse_protocol_id(id).name
    except TreatyError:
        return ""


@dataclass(frozen=True)
class ProtocolOffer:
    """A protocol that this side speaks. Raises `Malformed` for invalid values.

    `preference`: from 0 to 1. `parameters`, `extensions`: the rules for agreed values, by name. `uri`: the protocol of this id,
    if the application fixes it; otherwise the policy chooses.
    """

    id: str
    capabilities: Sequence[str] = ()
    preference: float = 0.5
    metrics: Metrics = field(default_factory=Metrics)
    parameters: Mapping[str, Rule] = field(default_factory=dict)
    extensions: Mapping[str, Rule] = field(default_factory=dict)
    uri: str = ""

    def __post_init__(self) -> None:
        parse_protocol_id(self.id)
        if self.uri:
            parse_protocol_uri(self.uri)
        if not 0 <= self.preference <= 1:
            raise Malformed(FlowCode.OFFER, "A preference must be a number from 0 to 1.")
        check_kept(self.parameters)

    @property
    def parsed(self) -> ProtocolId:
        """Return the parts of the id."""
        return parse_protocol_id(self.id)

    def supported(self, *, summary: bool = False) -> Supported:
        """Return the description for the peer."""
        if summary:
            return Supported(self.id, self.parsed.version, None, self.preference)
        return Supported(self.id, self.parsed.version, tuple(self.capabilities), self.preference, self.metrics)


class ProtocolRegistry:
    """The offers of one agent, in the order of their addition. For one event loop. It may change between negotiations."""

    def __init__(self) -> None:
        """Start empty."""
        self._offers: dict[str, ProtocolOffer] = {}

    def add(self, offer: ProtocolOffer) -> None:
        """Add an offer. Raises `Conflict` (`flow.offer`) if the id is taken, and `TooLarge` beyond the cap."""
        if offer.id in self._offers:
            raise Conflict(FlowCode.OFFER, f"{offer.id} is registered already.", fix="Remove it first.")
        # All are described in one message.
        if len(self._offers) >= MAX_PROTOCOLS:
            raise TooLarge(FlowCode.OFFER, f"An agent speaks at most {MAX_PROTOCOLS} protocols in this profile.")
        self._offers[offer.id] = offer

    def remove(self, id: str) -> None:
        """Remove an offer. Running sessions continue."""
        self._offers.pop(id, None)

    def get(self, id: str) -> ProtocolOffer | None:
        """Return the offer with this id, or None."""
        return self._offers.get(id)

    def __iter__(self) -> Iterator[ProtocolOffer]:
        # A copy, because the application may change the registry between two steps.
        return iter(tuple(self._offers.values()))

    def __len__(self) -> int:
        return len(self._offers)
