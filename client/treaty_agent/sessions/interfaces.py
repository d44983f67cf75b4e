"""Define the interfaces that sessions use, and all timeouts of a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from treaty_anp.hello_profile.machine import Timeouts
from treaty_client.protocols.project import Project
from treaty_client.protocols.topics import Candidates
from treaty_consensus.handler import HandlerPackage
from treaty_io.network.did_documents import DidResolver
from treaty_sandbox.interface import Runtime

from ..negotiators.negotiator import RoleName
from ..reports.report import LogOf
from ..transport.connection import Connection

CANCELLING_TIME = 10.0
"""Seconds for cancelled work to close what it opened."""
Step: TypeAlias = Callable[[], Awaitable[None]]
"""A function to run in a connection's task."""
Answerer: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Return the answer to a text. Arguments: the text, the DID of its author. "" for no answer."""
Lookup: TypeAlias = Callable[[str], Awaitable[Mapping[str, bytes] | Sequence[bytes]]]
"""Return the Ed25519 keys of a DID under `authentication`: 32 bytes each, by DID URL or as a list. Raises `TreatyError`."""


@dataclass(frozen=True)
class SessionTimeouts(Timeouts):
    """All timeouts of a session, in seconds.

    `send`: for a peer that takes nothing of what waits for it.
    `handler`: for a handler to process one event.
    `answer`: beyond the timeout of an operation, for the handler to report that it is over.
    `report`: for a co-signature, and for a session to get one after its application has left.
    `operation`: for an operation without a known timeout.
    `connect`: for opening a session, where no person and no negotiation decides how long that takes.
    `registry`: for one exchange with a registry, beside the time for its bytes.
    `close`: for the reports and publications of former sessions when the agent is closed.
    `provide`: for the other provided protocols, once one of them is ready.
    `drain`: for calls under way when the agent stops.
    """

    send: float = 30.0
    handler: float = 10.0
    answer: float = 5.0
    report: float = 10.0
    operation: float = 60.0
    connect: float = 30.0
    registry: float = 10.0
    close: float = 10.0
    # Enough for proofs of the store and handlers that load. What takes longer must not keep the port closed: it is served later.
    provide: float = 1.0
    # Supervisors kill a process that does not end: after 10 seconds (Docker), 30 (Kubernetes) or 90 (systemd).
    drain: float = 10.0


PATIENT = SessionTimeouts(code=120.0, reply=120.0)
"""For an agent that negotiates: a model takes longer to write a handler than a download."""


@dataclass(frozen=True)
class Capacity:
    """How much an agent does at once.

    `sessions`: connections that it serves, of all transports together; a further one gets 503. One network gets at most half.
    `openings`: sessions that are being opened: with one address by this agent, and of all peers together. Others wait.
    `wait`: seconds that a peer's session waits for that, and a function for its turn. Then it is refused and was not begun.
    `negotiations`: sessions of other initiators in which it negotiates. `preloads`: handlers that are loaded at the start.
    `functions`: functions of requests and events that run for one session; others wait. `streams`: streams that a session
    provides; a further one fails with 503. `threads`: functions without `async` that run for one protocol; one network gets at
    most half, and others wait. `members`: of a session in a shared role; one network
    gets at most half. `lingering`: own sessions that wait for their report after the application has left; a further one ends
    without one.
    """

    sessions: int = 10_000
    # Each may start a sandbox, and both sides wait at most `timeouts.code` for both.
    openings: int = 16
    wait: float = 8.0  # less than the 10 seconds that an initiator waits for a Hello
    negotiations: int = 8  # each uses paid time of a model, and strangers start them
    preloads: int = 4  # a handler that hangs until its time is up must not hold up all others
    lingering: int = 64  # each holds a connection at both sides, for up to `timeouts.report`
    functions: int = 16  # a peer must not start any number
    # Beside `functions`: streams that last for hours must not keep requests from running. As many again may be stopped whose
    # `finally` blocks still run. Without that bound a peer could start any number of them, by cancelling each.
    streams: int = 64
    threads: int = 32
    # Each message to all members is an effect for each, and an event has at most 4,096 effects.
    members: int = 512


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


class AgentEvent(NamedTuple):
    """An event of a session, for an observer.

    `role`: this agent's role, `initiator` or `responder`.
    `peer`, `protocol`: "" until they are known.

    `name`, `seconds`: as in `SessionEvent`.

    Three events happen outside of sessions: `unserved`, when a provided protocol failed, `served`, when it works again or was
    provided later, and `revoked`, when a protocol that is served or spoken was taken back by its publisher.

    Each call that is over is an event `call in` (of the peer) or `call out` (of this side), with its own `seconds` and three more
    fields. `operation`: its name. `status`: `ok`, `cancelled`, the code of its error, such as `operation.404`, or the name of
    another exception. `trace_id`: the same at both sides; a claim of the caller.

    Each failure of a business function that this side should know is an event with an `OperationCode` as its name and its status,
    such as `operation.uncaught` (`operation_errors`), the name of the operation and the trace id of the log's line.
    """

    role: RoleName
    peer: str
    protocol: str
    name: str
    seconds: float
    operation: str = ""
    status: str = ""
    trace_id: str = ""


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
    def document(self) -> bytes:
        """The document; b"" where it is not kept."""

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

    async def renew(self, uri: str) -> SpokenProtocol:
        """Return the protocol of a URI, verified now. Raises as `fetch`."""

    def cached(self, document_hash: str) -> SpokenProtocol | None:
        """Return a stored protocol that was verified at most `Policy.max_age` ago, else None. No network."""

    def holds(self, uri: str) -> bool:
        """Return whether that URI was fetched and no later fact contradicts it, at any age. No network, and fast."""

    async def document(self, uri: str) -> bytes:
        """Return the published document of a URI, proved by the log, even if its handler may not run. Raises `TreatyError`."""

    async def candidates(self, topic: str, *, fresh: bool = False) -> Candidates:
        """Return the protocols to offer for a topic. `fresh`: ask for them now, also if some are stored. Raises `TreatyError`."""

    async def aclose(self) -> None:
        """Close all connections."""


class ProtocolPublisher(Protocol):
    """Publish negotiated protocols; `reporting.RegistryPublisher` implements it."""

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


@dataclass(frozen=True)
class Ports:
    """The interfaces to the world outside of the sessions.

    `log_of`: return the log of an origin, for reports.
    `publisher`: publish negotiated protocols.
    `resolver`: find DID documents.
    `names`: make the `FlowNames` from the URIs that the agent's owner registered with ids.
    `dial`: open a connection to a URL, instead of the network's transports.
    `has_weight`: return whether a DID has weight in the electorate of the agent's registry. Raises `TreatyError`.
    """

    protocols: ProtocolSource
    runtime: Runtime
    log_of: LogOf
    publisher: ProtocolPublisher
    resolver: DidResolver
    names: Callable[[Callable[[str], str]], FlowNames]
    dial: Callable[[str], Awaitable[Connection]] | None = None
    has_weight: Callable[[str], Awaitable[bool]] | None = None
