"""The protocol registry of one agent: what it speaks, under which ids, how well, and on which terms.

registry.add(Offer("anp:protocol:product-info:1.1", capabilities=("query",), preference=0.9,
                   parameters={"maxMessageSize": Range(1024, 1_048_576)}))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from treaty_consensus.errors import Conflict, Malformed, TooLarge
from treaty_consensus.protocol import parse_protocol_uri

from .identifiers import ProtocolId, parse_protocol_id
from .parameters import Rule
from .payloads import MAX_PROTOCOLS, Metrics, Supported


@dataclass(frozen=True)
class Offer:
    """One protocol that this side speaks. Raises `Malformed` on an impossible one.

    `preference`: from 0 to 1. `parameters`, `extensions`: what may be agreed on, by name. `uri`: the protocol that this id means
    here, if its owner decides that instead of the policy.
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
            raise Malformed("flow.offer", "A preference is a number from 0 to 1.")

    @property
    def parsed(self) -> ProtocolId:
        """The id's parts."""
        return parse_protocol_id(self.id)

    def supported(self, *, summary: bool = False) -> Supported:
        """What the other side is told of it."""
        if summary:
            return Supported(self.id, self.parsed.version, None, self.preference)
        return Supported(self.id, self.parsed.version, tuple(self.capabilities), self.preference, self.metrics)


class ProtocolRegistry:
    """The offers of one agent, in the order in which they were added. For one event loop; may change between negotiations."""

    def __init__(self) -> None:
        """Empty."""
        self._offers: dict[str, Offer] = {}

    def add(self, offer: Offer) -> None:
        """Speak this protocol from now on. Raises `Conflict` (`flow.offer`) when the id is taken, `TooLarge` beyond the cap."""
        if offer.id in self._offers:
            raise Conflict("flow.offer", f"{offer.id} is registered already.", fix="Remove it first.")
        if len(self._offers) >= MAX_PROTOCOLS:
            raise TooLarge("flow.offers", f"An agent speaks at most {MAX_PROTOCOLS} protocols in this profile.")
        self._offers[offer.id] = offer

    def remove(self, id: str) -> None:
        """Speak it no longer; sessions that run go on."""
        self._offers.pop(id, None)

    def get(self, id: str) -> Offer | None:
        """The offer of that id."""
        return self._offers.get(id)

    def __iter__(self) -> Iterator[Offer]:
        return iter(tuple(self._offers.values()))

    def __len__(self) -> int:
        return len(self._offers)
