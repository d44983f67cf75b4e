"""Define the interfaces that sessions use, and all timeouts of a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from treaty_consensus.handler import HandlerPackage

from ..anp.hello_profile.machine import Timeouts
from ..protocols.project import Project
from ..protocols.topics import Candidates

CANCELLING_TIME = 10.0
"""Seconds for cancelled work to close what it opened."""
Step: TypeAlias = Callable[[], Awaitable[None]]
"""A function to run in a connection's task."""
Lookup: TypeAlias = Callable[[str], Awaitable[Mapping[str, bytes] | Sequence[bytes]]]
"""Return the Ed25519 keys of a DID under `authentication`: 32 bytes each, by DID URL or as a list. Raises `TreatyError`."""


@dataclass(frozen=True)
class SessionTimeouts(Timeouts):
    """All timeouts of a session, in seconds.

    `send`: for the peer to read one message.
    `flush`: for the peer to read the last messages.
    `handler`: for a handler to process one event.
    `answer`: beyond the timeout of an operation, for the handler to report that it is over.
    `report`: for a co-signature.
    `operation`: for an operation without a known timeout.
    `connect`: for opening a session, where no person and no negotiation decides how long that takes.
    `registry`: for one exchange with a registry, beside the time for its bytes.
    `finish`: for a co-signature under way when a session ends.
    `close`: for publishing under way when the agent is closed.
    `provide`: for the other provided protocols, once one of them is ready.
    """

    send: float = 30.0
    flush: float = 3.0
    handler: float = 10.0
    answer: float = 5.0
    report: float = 10.0
    operation: float = 60.0
    connect: float = 30.0
    registry: float = 10.0
    # The application waits for it. A responder answers in half of it, or refuses.
    finish: float = 0.8
    close: float = 10.0
    # Enough for two requests and a handler that loads in about a second. A slow registry must not keep the port closed.
    provide: float = 5.0


PATIENT = SessionTimeouts(code=120.0, reply=120.0)
"""For an agent that negotiates: a model takes longer to write a handler than a download."""


@dataclass(frozen=True)
class Capacity:
    """How much an agent does at once. `sessions`: connections that it serves, of all transports together; a further one gets 503.
    `negotiations`: sessions of other initiators in which it negotiates. `preloads`: handlers that are loaded at the start."""

    sessions: int = 10_000
    negotiations: int = 8  # each uses paid time of a model, and strangers start them
    preloads: int = 4  # a handler that hangs until its time is up must not hold up all others


@dataclass(frozen=True)
class PeerSettings:
    """How a `Peer` keeps its sessions. `sessions`: at the same time; a further one is opened only when a session refuses more
    calls. `attempts`: of one call. `lifetime`: seconds after which a session gets no new calls, and is replaced."""

    sessions: int = 1
    attempts: int = 8  # with the pauses of `Backoff`, about the time of a restart
    lifetime: float = 3600.0  # a new session sees a revocation, and makes the report of a new epoch


class SessionEvent(NamedTuple):
    """An event of a session, and its time in seconds since the session began.

    Names: `hello` (the peer's), `negotiating`, `verified` (all steps) or `written` (the code), `sandbox`, `testing`,
    `tests passed over` (agreed test cases that cannot be read), `running`, `first reply`, `repaired`, `adapting: FINDING`,
    `changed` (other terms), `published`, `reported`, `end`.
    """

    name: str
    seconds: float


class SpokenProtocol(Protocol):
    """A verified protocol with the handler that may run for it; `verification.VerifiedProtocol` is one."""

    @property
    def uri(self) -> str:
        """The protocol's URI."""

    @property
    def hash(self) -> str:
        """The document's SHA-256."""

    @property
    def topic(self) -> str:
        """The topic under which it was published."""

    @property
    def package(self) -> HandlerPackage:
        """The handler."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """The foreign names that its publish statement claims."""

    def age(self, now: int) -> int:
        """Return the seconds, at Unix time `now`, since its proofs were fresh."""


class ProtocolSource(Protocol):
    """The source of verified protocols; `fetch.Fetcher` implements it. Safe for concurrent use on one event loop."""

    async def fetch(self, uri: str) -> SpokenProtocol:
        """Return the protocol of a URI, verified by all steps under the policy, now or at most `Policy.max_age` ago. Raises
        `TreatyError` and keeps nothing of the protocol."""

    def cached(self, document_hash: str) -> SpokenProtocol | None:
        """Return a stored protocol that was verified at most `Policy.max_age` ago, else None. No network."""

    def holds(self, uri: str) -> bool:
        """Return whether that URI was fetched and no later fact contradicts it, at any age. No network, and fast."""

    async def document(self, uri: str) -> bytes:
        """Return the published document of a URI, proved by the log, even if its handler may not run. Raises `TreatyError`."""

    async def candidates(self, topic: str, *, fresh: bool = False) -> Candidates:
        """Return the protocols to offer for a topic. `fresh`: ask for them now, whatever is stored. Raises `TreatyError`."""

    async def aclose(self) -> None:
        """Close all connections."""


class ProtocolPublisher(Protocol):
    """Publish negotiated protocols; `lifecycle.RegistryPublisher` implements it."""

    async def publish(self, project: Project) -> str:
        """Publish a project in this agent's own namespace, with a new version if that version exists. Return its URI. Safe to
        repeat. Raises `TreatyError`."""


@dataclass(frozen=True)
class Located:
    """The protocol that an id of the flow profile means here. `digest`: the document's SHA-256 if it is known before the
    fetch, else ""."""

    uri: str
    digest: str = ""


class FlowNames(Protocol):
    """Turn ids of the flow profile into verified protocols; `flow_context.PolicyNames` implements it. Safe for concurrent use
    on one event loop."""

    async def locate(self, id: str, digest: str = "") -> Located:
        """Return the protocol of an id, as the owner or the policy defines it. `digest`: the document that the peer named; the
        protocol must have it. Raises `TreatyError`."""

    async def fetch(self, id: str, located: Located) -> SpokenProtocol:
        """Return the protocol with its claim to the id, verified by all steps. Raises `TreatyError`."""
