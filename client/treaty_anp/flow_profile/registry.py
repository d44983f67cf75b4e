"""Keep the protocols that an agent speaks in the flow profile: ids, capabilities, metrics and terms (the protocol registry).

registry.add(ProtocolOffer("anp:protocol:product-info:1.1", capabilities=("query",), preference=0.9,
                           parameters={"maxMessageSize": Range(1024, 1_048_576)}))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from treaty_consensus.errors import Conflict, Malformed, TooLarge
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io.codes import FlowCode

from .parameters import Rule
from .payloads import MAX_PROTOCOLS, Metrics, ProtocolId, Supported, parse_protocol_id
from .terms import check_kept


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
            raise TooLarge(FlowCode.OFFERS, f"An agent speaks at most {MAX_PROTOCOLS} protocols in this profile.")
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
