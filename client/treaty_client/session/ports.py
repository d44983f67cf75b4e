"""What a session needs of others, as small interfaces: where protocols come from, where handlers run, what its agent does for
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from treaty_consensus.handler import HandlerPackage
from treaty_handler import Effect, Event

from ..fetch import Candidates
from ..meta.actions import Agreement
from ..meta.messages import ReportCosignature, ReportProposed
from ..negotiation.negotiator import Negotiator
from ..project import Project
from .conversation import Answerer
from .escalation import Approvals
from .timing import SessionEvent, SessionTimeouts

if TYPE_CHECKING:
    from .driver import SessionDriver
    from .hosting import Business, Driver, HandlerHost


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
        """The topic it was published under."""

    @property
    def package(self) -> HandlerPackage:
        """The handler."""

    def age(self, now: int) -> int:
        """Seconds, at Unix time `now`, since what the verification rests on was fresh."""


class ProtocolSource(Protocol):
    """Where verified protocols come from; `fetch.Fetcher` is one. Safe for concurrent use on one event loop."""

    async def fetch(self, uri: str) -> SpokenProtocol:
        """The protocol of a URI, verified by all steps under the policy, now or at most `Policy.max_age` ago. Raises
        `TreatyError`; then nothing of it is kept."""

    def cached(self, document_hash: str) -> SpokenProtocol | None:
        """A protocol that was verified at most `Policy.max_age` ago and is kept; None when there is none. No network."""

    def holds(self, uri: str) -> bool:
        """Whether that URI was fetched, and nothing that was learned since contradicts it; its age does not matter. No network,
        and cheap enough to be asked for each session."""

    async def document(self, uri: str) -> bytes:
        """What is published under a URI, proved by the log; whether a handler of it may run does not matter. Raises
        `TreatyError`."""

    async def candidates(self, topic: str) -> Candidates:
        """What to offer for a topic. Raises `TreatyError`."""

    async def aclose(self) -> None:
        """Close its connections."""


class ProtocolPublisher(Protocol):
    """Publishes what was negotiated; `publishing.RegistryPublisher` is one."""

    async def publish(self, project: Project) -> str:
        """Publish a project in this agent's own namespace, with a new version if that one is taken; its URI. Safe to repeat.
        Raises
        `TreatyError`."""


class RunningHandler(Protocol):
    """One session of a handler, its effects already judged by the handler's manifest."""

    async def handle(self, event: Event) -> Sequence[Effect]:
        """Deliver one event; returns what may be done because of it, in order.

        Raises `TreatyError`: with code `operation.arguments`, `operation.result`, `session.operation` or `session.busy` for an
        event that the local application got wrong, after which the session stands as before; with any other it is over.
        """

    async def close(self) -> None:
        """End it. Takes bounded time, may come at any time, never raises."""


class Runtime(Protocol):
    """Where handlers run; `runtime.SandboxRuntime` is one. For one event loop."""

    async def warm(self) -> None:
        """Be ready for the next `open`. Raises `Unavailable` where handlers cannot run at all."""

    async def rehearse(self, package: HandlerPackage, *, local: str) -> None:
        """Load a handler once and drop it: what would go wrong goes wrong now, and what can be kept of the loading is kept.
        Raises
        `TreatyError`."""

    async def open(self, package: HandlerPackage, role: str, *, local: str, peer: str) -> RunningHandler:
        """A new session in `role` between two DIDs, in a place that no other session shares. Its first event is to be `Opened`.
        Raises `TreatyError`."""

    async def close(self) -> None:
        """End all that it runs."""


class Side(Protocol):
    """What the agent does for a session of its own; `sides.Source` and `sides.Destination` are the two."""

    @property
    def timeouts(self) -> SessionTimeouts:
        """How long everything may take."""

    @property
    def negotiator(self) -> Negotiator | None:
        """The session's own, if anybody negotiates."""

    @property
    def approvals(self) -> Approvals:
        """Documents that a person approved of."""

    @property
    def opening(self) -> str:
        """The document to propose first, where a person wrote one; else ""."""

    @property
    def answerer(self) -> Answerer | None:
        """Who answers natural language, if anybody does."""

    def may_negotiate(self) -> bool:
        """Whether there is time to negotiate; asked whenever the peer proposes."""

    def negotiated(self) -> None:
        """The negotiation is over, if there was one."""

    async def resolve(self, agreement: Agreement) -> SpokenProtocol:
        """The protocol that was agreed on, by its URI or its hash. Raises `TreatyError`."""

    def document(self, protocol: SpokenProtocol) -> str:
        """The text of a negotiated protocol that is kept here. Raises `TreatyError`."""

    async def host(self, driver: SessionDriver, protocol: SpokenProtocol, peer: str) -> HandlerHost:
        """A handler for it, to speak with that DID. Raises `TreatyError`."""

    async def host_under_test(self, driver: Driver, protocol: SpokenProtocol, peer: str, business: Business) -> HandlerHost:
        """A handler for it that meets no application and keeps nothing. Raises `TreatyError`."""

    async def agreed(self, driver: SessionDriver) -> None:
        """The session runs."""

    async def cosign(self, driver: SessionDriver, proposal: ReportProposed) -> ReportCosignature:
        """The answer to a proposed report. Never raises."""

    def observe(self, driver: SessionDriver, event: SessionEvent) -> None:
        """Something happened."""
