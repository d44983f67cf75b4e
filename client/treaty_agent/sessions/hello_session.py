"""Implement the interface of a Hello session for its application and its agent."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from treaty_anp.hello_profile import commands
from treaty_anp.hello_profile.actions import Action, Agreement
from treaty_anp.hello_profile.hello import FIX_ERROR_NEGOTIATION, REPORT_COSIGNATURE
from treaty_anp.hello_profile.machine import HelloState, Machine
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed
from treaty_anp.transcript import TranscriptRecorder
from treaty_consensus.errors import Refused, TreatyError
from treaty_io.codes import ClientReportCode
from treaty_io.errors import session_over
from treaty_io.identity import UNNAMED, ClaimedPeer, PeerIdentity

from ..negotiators.documents import Fetch
from ..negotiators.negotiator import Implementation, Negotiator
from ..reports.cosignature import CosignatureExchange
from ..reports.report_rules import negotiation_id
from ..transport.parting import SessionParting
from .agreements import Profile, is_negotiated
from .call_context import CallOrigin
from .calls import CallTable, Phase
from .code import CodeLoader
from .handler_host import HandlerPort, HostedHandler
from .interfaces import SessionEvent, SessionTimeouts, SpokenProtocol, Step
from .middleware import CallPipeline
from .negotiation import Answerer, Negotiation, PeerRequests, TextChannel
from .operations import OperationHandlers
from .session import ReportParties, not_in_profile
from .wire import Wire


class SessionRole(Protocol):
    """The agent's part in one session, as initiator or responder. `roles.InitiatorRole` and `roles.ResponderRole` implement it.
    `pipeline`: the way of the agent's calls. `opening`: the document that a person wrote to propose first, or "". `documents`:
    fetches the base of a proposed text."""

    timeouts: SessionTimeouts
    negotiator: Negotiator | None
    answerer: Answerer | None
    pipeline: CallPipeline
    opening: str
    documents: Fetch

    async def admit(self) -> None:
        """Wait until the session may be opened. Raises `Unavailable` (`session.busy`)."""

    def end_opening(self) -> None:
        """Let the next session be opened, if this one was admitted. Later calls do nothing."""

    def is_approved(self, document: str) -> bool:
        """Return whether a person approved a document."""

    def may_negotiate(self) -> bool:
        """Return whether this agent can negotiate now. Called for each proposal of the peer."""

    def end_negotiation(self) -> None:
        """Note the end of the negotiation, if there was one."""

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


class HelloSession(ABC):
    """Implement `SessionBackend` with the parts of a session; `hello_run.HelloRun` drives them."""

    profile: Profile = "hello"
    protocol_id = ""
    expires_at = 0

    machine: Machine
    wire: Wire
    calls: CallTable
    code: CodeLoader
    negotiation: Negotiation
    requests: PeerRequests
    text: TextChannel
    timeline: list[SessionEvent]
    messages_received: int
    running: asyncio.Future[None]
    closed: asyncio.Event
    _role: SessionRole
    _reports: CosignatureExchange
    _recorder: TranscriptRecorder | None
    _early: tuple[SpokenProtocol, ClaimedPeer] | None
    _started: float
    _left_without_hello: bool
    _is_retired = False
    parting: SessionParting | None

    @abstractmethod
    def now(self) -> float:
        """Return the machine's time."""

    @abstractmethod
    def leave(self) -> None:
        """Request the end of the session."""

    @abstractmethod
    def post(self, step: Step) -> None:
        """Run a step in the connection's task, after all earlier steps."""

    @abstractmethod
    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the steps."""

    @abstractmethod
    def _speaking(self) -> Iterable[HostedHandler]:
        """Return the handlers that are open in a running session."""

    @abstractmethod
    def _apply(self, command: commands.Command) -> list[Action]:
        """Give the machine a command."""

    @abstractmethod
    async def _tell(self, actions: list[Action]) -> None:
        """Perform actions from any task, then raise the error if they ended the session."""

    @property
    def is_initiator(self) -> bool:
        return self.machine.is_initiator

    @property
    def id(self) -> str:
        return self.machine.own.session_id

    @property
    def peer(self) -> PeerIdentity:
        if self.machine.peer is None:
            return UNNAMED
        said, proof = self.machine.peer.source_did, self.wire.proof
        # A Hello may leave its sender out; then only the transport can know it.
        return proof if proof is not None and said in ("", proof.did) else ClaimedPeer(said)

    @property
    def spoken(self) -> SpokenProtocol | None:
        return self.code.protocol

    @property
    def document(self) -> str:
        return self.code.document

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {}

    @property
    def role(self) -> str:
        return self.code.handler.role.name if self.code.handler else ""

    @property
    def resumed(self) -> bool:
        agreement = self.machine.agreement
        return agreement is not None and agreement.confirmed

    @property
    def is_running(self) -> bool:
        return self.machine.state is HelloState.RUNNING

    @property
    def was_running(self) -> bool:
        """Whether both sides were ready at some time."""
        return self.running.done() and self.running.exception() is None

    @property
    def met_no_hello(self) -> bool:
        """Whether the peer does not speak the Hello profile: it answered in the flow profile, or closed without a reason of this
        profile."""
        return self.machine.peer is None and self._left_without_hello

    @property
    def can_report(self) -> bool:
        return self.machine.both_list(REPORT_COSIGNATURE)

    def origin(self) -> CallOrigin:
        """Return what the calls of the session have in common."""
        # A remembered agreement gives calls before the peer's Hello their protocol, so that its middleware applies.
        early = self._early or (None, UNNAMED)
        protocol, handler = self.code.protocol or early[0], self.code.handler
        return CallOrigin(
            peer=early[1] if self.machine.peer is None else self.peer,
            protocol=protocol.uri if protocol else "",
            role=handler.role.name if handler else "",
            session=self.id,
            is_initiator=self.is_initiator,
        )

    def _phase(self) -> Phase:
        phases = {HelloState.HELLO: Phase.EARLY, HelloState.RUNNING: Phase.RUNNING}
        return phases.get(self.machine.state, Phase.WAITING)

    def _may_report_fault(self) -> bool:
        negotiated = self.code.protocol is not None and is_negotiated(self.code.protocol)
        again = self.requests.reported < self.machine.limits.fix_rounds
        return negotiated and again and self.machine.both_list(FIX_ERROR_NEGOTIATION)

    def _call_time(self, operation: str) -> float:
        """Return the seconds that a call may wait: the operation's own time, and the time for the handshake, repairs and the
        answer."""
        timeouts, limits, code = self._role.timeouts, self.machine.limits, self.code
        known = code.handler.role.calls.get(operation) if code.handler else None
        before = 0.0 if self.machine.state is HelloState.RUNNING else timeouts.hello + timeouts.code
        if self._role.negotiator is not None and not self.was_running:  # the peer may have lost the remembered hash
            before += timeouts.reply * (limits.rounds + limits.test_rounds)
        mending = timeouts.reply + timeouts.code if code.protocol is not None and is_negotiated(code.protocol) else 0.0
        return before + mending + (known.timeout if known else timeouts.operation) + timeouts.answer

    @property
    def error(self) -> TreatyError:
        """The error that ended the session. A failure of this side's negotiator is preferred to the text that the peer
        received."""
        # A session that ended normally has no error, but a call after its end needs one.
        ended = self.parting or self.machine.error or session_over()
        return self.negotiation.failure if self.negotiation.failure and self.machine.error else ended

    def transcript(self) -> bytes:
        return self._recorder.transcript() if self._recorder else b""

    def check_open(self) -> None:
        if self.machine.is_final or self._is_retired:
            raise self.error

    def record_event(self, name: str) -> None:
        event = SessionEvent(name, self.now() - self._started)
        self.timeline.append(event)
        self._role.observe(self.peer.did, self.code.protocol.uri if self.code.protocol else "", event)

    async def report_parties(self) -> ReportParties:
        own, peer = self.machine.own, self.machine.peer
        if peer is None or own.key_id is None or peer.key_id is None:
            raise Refused(ClientReportCode.OTHER, "A report needs a key of each side, named in the Hellos.")
        initiator, responder = (own, peer) if self.machine.is_initiator else (peer, own)
        return ReportParties(own.key_id, peer.key_id, negotiation_id(initiator, responder))

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        if self.machine.is_final:
            raise self.error
        return await self._reports.propose(proposal)

    async def say(self, text: str) -> None:
        await self.wire.wait_writable()
        await self._tell(self._apply(commands.Say(text)))

    def heard(self) -> AsyncIterator[str]:
        return self.text.heard()

    async def ask(self, question: str) -> str:
        return await self.requests.ask(question)

    async def report_error(self, description: str) -> None:
        await self.requests.report_error(description)

    async def renegotiate(self, parameters: Mapping[str, Any] | None, protocol: str) -> None:
        raise not_in_profile("renegotiation", "Hello", "flow")

    def retire(self) -> None:
        if not self._is_retired:
            self._is_retired = True
            self.calls.end(self.error)
            self.requests.end(self.error)
            self.text.end()
            self.post(self._retire)

    async def _retire(self) -> None:
        for handler in self._speaking():
            await handler.retire()
            # Beside the steps: a business function may ignore its cancellation, and the report must not wait for it.
            self.spawn(handler.close())

    async def close(self) -> None:
        self.leave()
        await self.closed.wait()
