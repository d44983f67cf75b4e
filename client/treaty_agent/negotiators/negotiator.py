"""Define the interface of a negotiator: a model, a script or a person that decides during a negotiation.

Each session has its own negotiator. A `Negotiators` makes it for the role and the peer; the session closes it. Its methods are
called one at a time, in the order of the wire, so the object may keep the whole history. The methods have no deadline of their
own: the timeouts of the session cancel them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from treaty_consensus.handler import HandlerPackage
from treaty_io.identity import ProvedPeer

from .documents import Fetch
from .language_model import Allowance

RoleName: TypeAlias = Literal["initiator", "responder"]


@dataclass(frozen=True)
class Requirement:
    """The requirement of the initiator, in the words of its owner. `topic`: where the result would be published, or ""."""

    text: str
    input: str = ""
    output: str = ""
    topic: str = ""


@dataclass(frozen=True)
class Capability:
    """A business function that the responder offers: its name, its description, and the JSON Schemas of its arguments (an object)
    and result."""

    name: str
    description: str
    arguments: Mapping[str, object]
    result: Mapping[str, object]


@dataclass(frozen=True)
class Payer:
    """The party to which the cost of a negotiation is counted.

    `peer`: the peer if it proved its DID. A claim has no share of its own.
    `network`: the network that it connects from.
    `has_deposit`: whether a co-signed report or a vouch path makes it more than a stranger: it then has a share apart from the
    strangers and from its network.
    """

    peer: ProvedPeer | None
    network: str
    has_deposit: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The names under which it is counted: its proved DID, and its network unless it has a deposit."""
        own = (self.peer.did,) if self.peer is not None else ()
        return own if own and self.has_deposit else (*own, f"network {self.network}")


@dataclass(frozen=True)
class ModelSpend:
    """The requests, tokens and seconds of a language model in the present period, and the allowance for them.

    `strangers`: the requests for peers without a deposit, and `strangers_allowed`, their bound.
    `renewed_in`: the seconds until a new period begins; None: never.
    """

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    allowance: Allowance | None = None
    strangers: int = 0
    strangers_allowed: int = 0
    renewed_in: float | None = None


@dataclass(frozen=True)
class NegotiationContext:
    """The situation of one negotiation.

    `role`, `local`, `peer`: this agent's role, its DID and the peer's DID.
    `requirement`: of the initiator.
    `capabilities`: of the responder.
    `documents`: fetches the base of a text that consists of changes, from trusted registries; without it such texts are refused.
    `written`: return the tested code that this agent keeps for a document, or None.
    `payer`: the party that began the negotiation; None for this agent's own application.
    """

    role: RoleName
    local: str
    peer: str
    requirement: Requirement | None = None
    capabilities: tuple[Capability, ...] = ()
    documents: Fetch | None = None
    written: Callable[[str], Awaitable[Implementation | None]] | None = None
    payer: Payer | None = None


@dataclass(frozen=True)
class Proposal:
    """Propose a text in full. `summary`: the changes since the peer's last proposal, "" in the first."""

    text: str
    summary: str = ""


@dataclass(frozen=True)
class Acceptance:
    """Accept the peer's last proposal."""


@dataclass(frozen=True)
class Rejection:
    """End the negotiation without an agreement. The peer receives `reason`."""

    reason: str


@dataclass(frozen=True)
class FaultAdmitted:
    """Admit that this side's code is at fault, and repair it."""


Verdict: TypeAlias = Acceptance | Rejection | Proposal


@dataclass(frozen=True)
class Implementation:
    """A handler for an agreed document that passed its test cases in the sandbox, with the files to publish it.

    `files`: a project folder as `treaty_client.protocols.project` reads it, path → content.
    `package`: the wheel built from it for `uri`, a placeholder until it is published.
    """

    uri: str
    topic: str
    package: HandlerPackage
    files: Mapping[str, bytes] = field(repr=False)


class Negotiator(Protocol):
    """The negotiator of one session. Every method may raise `TreatyError`, which ends the session: as rejected during proposals,
    else as failed. The owner may see its message; the peer never does."""

    async def draft(self) -> Proposal | Rejection:
        """Return the first proposal, from the requirement."""

    async def consider(self, document: str, summary: str, *, last: bool) -> Verdict:
        """Judge the peer's proposal. `last`: no further proposal is allowed."""

    async def implement(self, document: str, *, error: str = "") -> Implementation:
        """Write the handler for the agreed document. `error`: the fault of the former handler when this is a repair. The returned
        handler was tried in the sandbox: it loads, its two roles work together, and it passes the agreed test cases, if there are
        any."""

    async def draft_tests(self, document: str) -> Proposal | None:
        """Return test cases for the agreed document; None for none."""

    async def consider_tests(self, test_cases: str, summary: str, *, last: bool) -> Verdict:
        """Judge the peer's test cases."""

    async def test(self, test_cases: str) -> Implementation | str:
        """Run the agreed test cases against this side's code in the sandbox, and repair the code where it fails. Return the
        implementation that passes, repaired or not; else a description of the failure."""

    async def judge(self, description: str) -> FaultAdmitted | Rejection:
        """Judge the peer's report that this side's messages are wrong."""

    async def answer(self, question: str) -> str:
        """Answer a question of the peer about the negotiation."""

    async def aclose(self) -> None:
        """End all running work. Never raises."""


class Negotiators(Protocol):
    """Make negotiators for sessions; the argument of `Agent(negotiators=…)`. For one event loop."""

    def spent(self) -> ModelSpend:
        """Return the spend of the present period, for `Agent.metrics`; `ModelSpend()` without a model."""

    def open(self, situation: NegotiationContext) -> Negotiator:
        """Return a negotiator for one session."""

    async def aclose(self) -> None:
        """Close shared resources."""
