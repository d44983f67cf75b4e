"""The capability manager: what the other side is told of this one's protocols, and what is known of its own.

In one step: `supportedProtocols` with everything. In two, where a summary was asked for: first ids, versions and preferences;
then each side tells the rest of those ids alone that the other one names in `requestDetails`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from treaty_consensus.errors import TreatyError

from .errors import ErrorCode, error_of
from .identifiers import parse_protocol_id
from .payloads import CapabilitiesExchange, ContextInfo, Supported
from .registry import ProtocolRegistry


@dataclass(frozen=True)
class Goal:
    """What an initiator wants. `protocols`: ids, or none for all that the registry has; `required`: capabilities that the
    protocol must have; `requirements`: of the task (`dataVolume`, `timeConstraint`, `securityLevel`, …); `summary`:
    capabilities are exchanged in two steps; `simplified`: not at all, the first protocol is proposed at once."""

    purpose: str
    protocols: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    requirements: Mapping[str, str] = field(default_factory=dict)
    summary: bool = False
    simplified: bool = False


@dataclass
class Peer:
    """What the other side said of itself so far."""

    protocols: dict[str, Supported] = field(default_factory=dict)
    context: ContextInfo = field(default_factory=ContextInfo)
    requirements: dict[str, str] = field(default_factory=dict)

    def learn(self, told: CapabilitiesExchange) -> None:
        """Take in a message; details complete a summary, and never take anything back."""
        for entry in told.supported_protocols:
            known = self.protocols.get(entry.id)
            if known is None or known.capabilities is None or entry.capabilities is not None:
                self.protocols[entry.id] = entry
        self.context = told.context_info or self.context
        self.requirements.update(told.task_requirements or {})

    def lacking(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Those of the ids that only a summary is known of."""
        return tuple(id for id in ids if self.protocols[id].capabilities is None)


class CapabilityManager:
    """What is told of the offers in a registry. `context`: this side's situation; replace it when it changes."""

    def __init__(self, registry: ProtocolRegistry, context: ContextInfo | None = None) -> None:
        """Reads the registry anew for each message."""
        self.registry = registry
        self.context = context or ContextInfo()

    def describe(self, ids: Iterable[str] = (), *, summary: bool = False) -> tuple[Supported, ...]:
        """The offers of these ids, or all."""
        wanted = set(ids)
        return tuple(offer.supported(summary=summary) for offer in self.registry if not wanted or offer.id in wanted)

    def exchange(
        self,
        ids: Iterable[str] = (),
        *,
        summary: bool = False,
        requirements: Mapping[str, str] | None = None,
        request: tuple[str, ...] = (),
    ) -> CapabilitiesExchange:
        """A message about these ids, or all of them. `request`: whose details the other side shall tell."""
        return CapabilitiesExchange(
            supported_protocols=self.describe(ids, summary=summary),
            context_info=self.context if self.context != ContextInfo() else None,
            task_requirements=dict(requirements) if requirements else None,
            request_details=request,
        )

    def details(self, ids: Iterable[str]) -> CapabilitiesExchange:
        """The answer to `requestDetails`; ids that are not spoken here are passed over."""
        known = [id for id in ids if self.registry.get(id)]
        return CapabilitiesExchange(supported_protocols=self.describe(known) if known else ())

    def common(self, peer: Peer, wanted: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The ids that both speak, in this side's order. Raises the error that tells why there are none."""
        own = [offer.id for offer in self.registry if not wanted or offer.id in wanted]
        found = tuple(id for id in own if id in peer.protocols)
        if not found:
            raise nothing_in_common(own, peer.protocols)
        return found


def nothing_in_common(own: Iterable[str], theirs: Iterable[str]) -> TreatyError:
    """The error when no id is on both sides: a conflict of versions if a name is."""
    names = {parse_protocol_id(id).name for id in own} & {parse_protocol_id(id).name for id in theirs}
    if names:
        return error_of(ErrorCode.VERSION_CONFLICT, f"Both sides speak {sorted(names)[0]}, in other versions.")
    return error_of(ErrorCode.NO_COMMON_PROTOCOL, "The two sides speak no protocol in common.")
