"""Hold what the parts of one Hello session share.

The parts (`code`, `negotiation`, `conformance`) hold the core and call its methods. The core knows no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treaty_anp.hello_profile import commands
from treaty_anp.hello_profile.actions import Action, Agreement
from treaty_anp.hello_profile.machine import Machine
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed
from treaty_consensus.errors import Origin, TreatyError, Unavailable
from treaty_consensus.handler import HandlerPackage
from treaty_io.errors import session_over
from treaty_io.identity import UNNAMED, ClaimedPeer, PeerIdentity

from ..negotiators.documents import Fetch
from ..negotiators.negotiator import Implementation, Negotiator
from ..negotiators.test_cases import Case, TestCase
from .agreements import NegotiatedProtocol
from .connection_loop import ConnectionLoop
from .handler_context import HandlerPort
from .handler_host import HostedHandler
from .interfaces import Answerer, SessionEvent, SessionTimeouts, SpokenProtocol
from .middleware import CallPipeline
from .operations import OperationHandlers
from .session import ReportParties


class SessionRole(Protocol):
    """The agent's part in one session, as initiator or responder. `roles.InitiatorRole` and `roles.ResponderRole` implement it.
    `is_observed`: whether `observe` leads to anything.
    `pipeline`: the way of the agent's calls. `opening`: the document that a person wrote to propose first, or "". `documents`:
    fetches the base of a proposed text."""

    timeouts: SessionTimeouts
    negotiator: Negotiator | None
    answerer: Answerer | None
    pipeline: CallPipeline
    is_observed: bool
    opening: str
    documents: Fetch

    async def admit(self) -> None:
        """Wait until the session may be opened. Raises `Unavailable` (`session.busy`)."""

    def end_opening(self) -> None:
        """Let the next session be opened, if this one was admitted. Later calls do nothing."""

    def is_approved(self, document: str) -> bool:
        """Return whether a person approved a document."""

    async def open_negotiator(self, peer: PeerIdentity) -> Negotiator | None:
        """Return the negotiator of this session, the same at each call; None without one."""

    def begin_negotiation(self) -> None:
        """Note that the negotiator works for the peer now, after `open_negotiator`. Called for each proposal and question. Raises
        `Unavailable` (`session.busy`)."""

    def end_negotiation(self, *, failed: bool | None) -> None:
        """Note the end of the negotiation, if there was one. `failed`: None if that was not the peer's fault."""

    def served_text(self, document: str) -> NegotiatedProtocol | None:
        """Return the protocol that answers a proposal without the negotiator, or None."""

    async def published_code(self, document: str, uri: str) -> SpokenProtocol | None:
        """Return the verified code of an agreed document that the peer says is published at `uri`, None if this side cannot run
        it. Never raises."""

    def learn_uri(self, protocol: SpokenProtocol | None, uri: str) -> None:
        """Note that the peer says that a negotiated protocol is published at `uri`, once its document was fetched and compared.
        Never raises."""

    def held_protocol(self, agreement: Agreement) -> SpokenProtocol | None:
        """Return the protocol of a confirmed hash where nothing needs a wait: its proof is young, and its handler is no process.
        Else None: `resolve` it."""

    async def resolve(self, agreement: Agreement) -> SpokenProtocol:
        """Return the protocol of an agreement, by its URI or its hash. Raises `TreatyError`."""

    def document(self, protocol: SpokenProtocol) -> str:
        """Return the stored text of a negotiated protocol. Raises `TreatyError`."""

    async def host(
        self,
        port: HandlerPort,
        protocol: SpokenProtocol,
        peer: PeerIdentity,
        peer_role: str,
        answers: OperationHandlers | None = None,
    ) -> HostedHandler:
        """Return a handler for a protocol and a peer; with `answers`, a handler under test. `peer_role`: the role that the peer
        says it has, or "". Raises `TreatyError`."""

    async def complete_cases(self, package: HandlerPackage, cases: Sequence[Case]) -> tuple[TestCase, ...]:
        """Return test cases with what their messages mean to this code. Raises `TreatyError`."""

    async def keep_agreement(
        self, peer: PeerIdentity, protocol: SpokenProtocol, written: Implementation | None, *, is_reader: bool
    ) -> None:
        """Remember the agreement of a running session, and the code that was written for it. `is_reader`: whether the peer reads
        the metadata of calls. Never raises."""

    async def cosign(
        self, protocol: SpokenProtocol | None, parties: ReportParties, proposal: ReportProposed, *, spoke: bool
    ) -> ReportCosignature:
        """Return the answer to a proposed report. Never raises."""

    def observe(self, peer: str, protocol: str, event: SessionEvent) -> None:
        """Report an event. `peer`, `protocol`: "" until they are known."""


class HelloCore:
    """One Hello session, as its parts know it. For one event loop.

    `loop`: runs the steps and the tasks of the session, and performs the machine's actions.
    `role`: this agent's part in the session.
    `protocol`, `handler`: the code of the present conversation. `CodeLoader` sets them.
    `agreed_text`: the text of the agreement, if this session negotiated it. `CodeLoader` sets it.
    `failure`: the first error of this side's negotiator. `Negotiation` sets it.
    `told_uri`: the last URI at which the peer says a document of this session is published, or "".
    `timeline`: the events so far.
    `is_retired`: whether the application has left the session.
    """

    def __init__(self, loop: ConnectionLoop[Action, float], machine: Machine, role: SessionRole) -> None:
        self.loop, self.machine, self.role = loop, machine, role
        self.protocol: SpokenProtocol | None = None
        self.handler: HostedHandler | None = None
        self.agreed_text = ""
        self.failure: TreatyError | None = None
        self.told_uri = ""
        self.timeline: list[SessionEvent] = []
        self.is_retired = False
        self._started = loop.now()
        self._claimed = UNNAMED

    @property
    def peer(self) -> PeerIdentity:
        """The peer that the transport proved, else the one that the Hello names."""
        if self.machine.peer is None:
            return UNNAMED
        if not self.loop.wire.connection.peer:
            if self._claimed.did != self.machine.peer.source_did:
                self._claimed = ClaimedPeer(self.machine.peer.source_did)
            return self._claimed
        named, proof = self.machine.peer.source_did, self.loop.wire.proof
        # A Hello may leave its sender out; then only the transport can know it.
        return proof if proof is not None and named in ("", proof.did) else ClaimedPeer(named)

    @property
    def peer_role(self) -> str:
        """The role that the peer says it has, or ""."""
        return self.machine.agreement.peer_role if self.machine.agreement else ""

    @property
    def document(self) -> str:
        """The agreed text of a negotiated protocol, "" for a published one."""
        if not self.agreed_text and isinstance(self.protocol, NegotiatedProtocol):
            self.agreed_text = self.role.document(self.protocol)
        return self.agreed_text

    @property
    def is_own_failure(self) -> bool:
        """Whether the session failed by this side's means: its model, its budget or its sandbox did not answer."""
        error = self.failure or self.machine.error
        return error is not None and not error.peer_code and isinstance(error, Unavailable) and error.origin is not Origin.PEER

    @property
    def error(self) -> TreatyError:
        """The error that ended the session. A failure of this side's negotiator is preferred to the text that the peer
        received."""
        # A session that ended normally has no error, but a call after its end needs one.
        ended = self.loop.parting or self.machine.error or session_over()
        return self.failure if self.failure and self.machine.error else ended

    def check_open(self) -> None:
        """Raise `error` if the session has ended for its application."""
        if self.machine.is_final or self.is_retired:
            raise self.error

    def apply(self, command: commands.Command) -> list[Action]:
        """Give the machine a command, and return its actions. Raises the errors of the command's class."""
        return self.machine.apply(command, self.loop.now())

    async def command(self, command: commands.Command) -> None:
        """Give the machine a command, and perform its actions. Raises the errors of the command's class."""
        await self.loop.perform(self.apply(command))

    async def tell(self, actions: list[Action]) -> None:
        """Perform actions from any task, then raise the error if they ended the session."""
        await self.loop.perform(actions)
        self.loop.wake()
        self.check_open()

    def record_event(self, name: str) -> None:
        """Add an event to the timeline, and report it."""
        event = SessionEvent(name, self.loop.now() - self._started)
        self.timeline.append(event)
        if self.role.is_observed:
            self.role.observe(self.peer.did, self.protocol.uri if self.protocol else "", event)
