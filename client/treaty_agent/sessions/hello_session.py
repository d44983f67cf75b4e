"""Run one session of the Hello profile: the machine, and the parts that perform its actions.

    core          what the parts share               requests      questions and error reports to the peer
    code          the protocol and its handler       text          natural language
    calls         the application's calls            reports       co-signatures
    negotiation   the negotiator                     conformance   the agreed test cases

The core is below the parts, and the session above them. Parts that most sessions never use are made when first needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.flow_profile.messages import is_flow, sender_of
from treaty_anp.hello_profile import commands
from treaty_anp.hello_profile.actions import (
    Action,
    Answered,
    Consider,
    ConsiderError,
    ConsiderTests,
    Deliver,
    DeliverText,
    DeliverVerification,
    Draft,
    DraftTests,
    Ended,
    ErrorRejected,
    Load,
    Meta,
    Published,
    Question,
    Running,
    SendBinary,
    SendText,
    SwitchProfile,
    Test,
)
from treaty_anp.hello_profile.hello import CALL_CONTEXT, FIX_ERROR_NEGOTIATION, REPORT_COSIGNATURE, TEST_CASES_NEGOTIATION
from treaty_anp.hello_profile.machine import HelloState, Machine
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused
from treaty_anp.transcript import TranscriptRecorder
from treaty_consensus.codes import ReportCode
from treaty_consensus.errors import Refused, TreatyError
from treaty_handler import Return, Value
from treaty_io import tracing
from treaty_io.abandonable import abandonable
from treaty_io.codes import HelloCode, SessionCode
from treaty_io.identity import UNNAMED, ClaimedPeer, PeerIdentity

from ..reports.cosignature import CosignatureExchange
from ..reports.report_rules import negotiation_id, refusal_code
from ..transport.connection import Connection
from ..transport.secure import SecureConnection
from .agreements import Profile, is_negotiated
from .call_context import CallOrigin
from .calls import CallingSession, CallTable, Phase
from .code import CodeLoader
from .conformance import ConformanceRun
from .connection_loop import ConnectionLoop
from .handler_host import HostedHandler
from .hello_core import HelloCore, SessionRole
from .interfaces import SpokenProtocol
from .negotiation import Negotiation, PeerRequests, TextChannel
from .session import ReportParties, not_in_profile

_HELLO_REASONS = ("hello.", "secure.", "session.")
"""Prefixes of the codes with which a peer of this profile refuses a Hello."""
_PHASES = {HelloState.HELLO: Phase.EARLY, HelloState.RUNNING: Phase.RUNNING}


class HelloSession(ConnectionLoop[Action, float], CallingSession):
    """A session of the Hello profile. Implements `SessionBackend` and `HandlerPort`.

    `early`: the protocol and the peer of a remembered agreement, if its hash is offered.
    `running`: done when both sides are ready.
    `flow_sender`: the DID of a peer that answered the Hello in the flow profile, or "".
    """

    profile: Profile = "hello"
    protocol_id = ""
    expires_at = 0

    # Of the class until they change: most sessions never set them, and an idle one is small.
    flow_sender, _left_without_hello = "", False
    # True while the agreement is not written, because tests may still fail.
    _owes_memory = False
    _conformance: ConformanceRun | None = None
    _text: TextChannel | None = None
    _reports: CosignatureExchange | None = None

    def __init__(
        self,
        connection: Connection,
        machine: Machine,
        opening: list[Action],
        role: SessionRole,
        *,
        recorder: TranscriptRecorder | None = None,
        early: tuple[SpokenProtocol, ClaimedPeer] | None = None,
    ) -> None:
        """Send nothing yet. `opening`: the first actions of the machine."""
        super().__init__(connection, machine, role.timeouts, asyncio.get_running_loop().time)
        self.machine, self.pipeline = machine, role.pipeline
        self.messages_received, self._has_sent = 0, False
        self.running: asyncio.Future[None] = abandonable()
        tracing.watch(self.running, "handshake", treaty_profile="hello", treaty_initiator=machine.is_initiator)
        self._role, self._recorder, self._opening, self._early = role, recorder, opening, early
        self._core = HelloCore(self, machine, role)
        self.timeline = self._core.timeline
        self.calls = CallTable(self)
        self.negotiation = Negotiation(self._core)
        self._requests = PeerRequests(self._core)
        self._code = CodeLoader(self._core, self, self.negotiation, self.calls)

    # The interface of a session to its application

    @property
    def is_initiator(self) -> bool:
        return self.machine.is_initiator

    @property
    def id(self) -> str:
        return self.machine.own.session_id

    @property
    def peer(self) -> PeerIdentity:
        return self._core.peer

    @property
    def spoken(self) -> SpokenProtocol | None:
        return self._core.protocol

    @property
    def document(self) -> str:
        return self._core.document

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {}

    @property
    def role(self) -> str:
        return self._core.handler.role.name if self._core.handler else ""

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

    @property
    def error(self) -> TreatyError:
        """The error that ended the session, else that of a call after its end."""
        return self._core.error

    def transcript(self) -> bytes:
        return self._recorder.transcript() if self._recorder else b""

    def check_open(self) -> None:
        self._core.check_open()

    def record_event(self, name: str) -> None:
        self._core.record_event(name)

    async def report_parties(self) -> ReportParties:
        own, peer = self.machine.own, self.machine.peer
        if peer is None or own.key_id is None or peer.key_id is None:
            raise Refused(ReportCode.OTHER, "A report needs a key of each side, named in the Hellos.")
        initiator, responder = (own, peer) if self.machine.is_initiator else (peer, own)
        return ReportParties(own.key_id, peer.key_id, negotiation_id(initiator, responder))

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        if self.machine.is_final:
            raise self.error
        return await self._exchange().propose(proposal)

    async def say(self, text: str) -> None:
        await self._channel().say(text)

    def heard(self) -> AsyncIterator[str]:
        return self._channel().heard()

    async def ask(self, question: str) -> str:
        return await self._requests.ask(question)

    async def report_error(self, description: str) -> None:
        await self._requests.report_error(description)

    async def renegotiate(self, parameters: Mapping[str, Any] | None, protocol: str) -> None:
        raise not_in_profile("renegotiation", "Hello", "flow")

    def tell_published(self, uri: str) -> None:
        """Tell the peer where the protocol of the session is published; nothing for ""."""
        if uri and not self.machine.is_final:
            self.post(partial(self._core.command, commands.TellPublished(uri)))

    def retire(self) -> None:
        if not self._core.is_retired:
            self._core.is_retired = True
            self.calls.end(self.error)
            self._requests.end(self.error)
            if self._text is not None:
                self._text.end()
            self.post(self._retire)

    async def _retire(self) -> None:
        for handler in self._speaking():
            await handler.retire()
            # Beside the steps: a business function may ignore its cancellation, and the report must not wait for it.
            self.spawn(handler.close())

    async def close(self) -> None:
        self.leave()
        await self.closed.wait()

    # Called by the table of the calls

    @property
    def handler(self) -> HostedHandler | None:
        return self._core.handler

    @property
    def phase(self) -> Phase:
        return _PHASES.get(self.machine.state, Phase.WAITING)

    @property
    def is_reissued(self) -> bool:
        return self.was_running

    def own_origin(self) -> CallOrigin:
        return self.origin()

    def replied(self) -> None:
        self._core.record_event("first reply")

    def served(self, seconds: float, succeeded: bool) -> None:
        """Nothing follows from the time of a call in this profile."""

    def may_report_fault(self) -> bool:
        negotiated = self._core.protocol is not None and is_negotiated(self._core.protocol)
        again = self._requests.reported < self.machine.limits.fix_rounds
        return negotiated and again and self.machine.both_list(FIX_ERROR_NEGOTIATION)

    def time_limit(self, operation: str) -> float:
        """Return the seconds that a call may wait: the operation's own time, and the time for the handshake, repairs and the
        answer."""
        timeouts, limits, core = self._role.timeouts, self.machine.limits, self._core
        declared = core.handler.role.calls.get(operation) if core.handler else None
        before = 0.0 if self.machine.state is HelloState.RUNNING else timeouts.hello + timeouts.code
        if self._role.negotiator is not None and not self.was_running:  # the peer may have lost the remembered hash
            before += timeouts.reply * (limits.rounds + limits.test_rounds)
        mending = timeouts.reply + timeouts.code if core.protocol is not None and is_negotiated(core.protocol) else 0.0
        return before + mending + (declared.timeout if declared else timeouts.operation) + timeouts.answer

    # Called by the handler's host

    def origin(self) -> CallOrigin:
        """Return what the calls of the session have in common."""
        # A remembered agreement gives calls before the peer's Hello their protocol, so that its middleware applies.
        early = self._early or (None, UNNAMED)
        protocol, handler = self._core.protocol or early[0], self._core.handler
        return CallOrigin(
            peer=early[1] if self.machine.peer is None else self.peer,
            protocol=protocol.uri if protocol else "",
            role=handler.role.name if handler else "",
            session=self.id,
            is_initiator=self.is_initiator,
        )

    def served_call(self) -> None:
        self.calls.served()

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        self._has_sent = True
        await self._core.command(commands.Send(payload, early, metadata))

    def item(self, call: str, value: Value) -> None:
        self.calls.item(call, value)

    def answer(self, call: str, outcome: Return | TreatyError, *, silent: bool = False) -> None:
        self.calls.answered(call, outcome, silent=silent)

    async def end(self, error: TreatyError | None) -> None:
        await self.perform(self.machine.close() if error is None else self.machine.fail(error))

    # Parts that most sessions never use

    def _channel(self) -> TextChannel:
        if self._text is None:
            self._text = TextChannel(self._core)
            if self.machine.is_final or self._core.is_retired:
                self._text.end()
        return self._text

    def _exchange(self) -> CosignatureExchange:
        if self._reports is None:
            self._reports = CosignatureExchange(self._send_report, self._cosign, self._role.timeouts.report)
        return self._reports

    def _send_report(self, message: ReportCosignature) -> None:
        self.post(partial(self._core.command, commands.SendMeta(message)))

    async def _cosign(self, proposal: ReportProposed) -> ReportCosignature:
        try:
            parties = await self.report_parties()
        except TreatyError as error:
            return ReportRefused(refusal_code(error))
        spoke = self.calls.work > 0 if self.is_initiator else self.messages_received > 0 or self._has_sent
        return await self._role.cosign(self._core.protocol, parties, proposal, spoke=spoke)

    # Steps

    async def _begin(self) -> None:
        await self.perform(self._opening)
        # With encryption the peer proves its DID by its Hello. The handler waits for that: what it stored with a proved peer is
        # only for proofs. Nothing is lost, because early data wait for the keys.
        if not isinstance(self.wire.connection, SecureConnection):
            await self._begin_early()

    async def _begin_early(self) -> None:
        """Start the handler of a remembered agreement before the agreement is confirmed."""
        if self._early is not None and self._core.protocol is None:
            protocol, expected = self._early
            await self._code.begin_early(protocol, self.wire.proof or expected)

    async def _received(self, message: str | bytes) -> None:
        met = self.machine.peer is not None
        if not met and self.is_initiator and is_flow(message):
            self.flow_sender, self._left_without_hello = sender_of(message), True
            raise Refused(SessionCode.PROFILE, "The other side answered the Hello in the flow profile.")
        if not met:
            # After the Hello came, and before it is answered: a silent peer takes no place, and a refused one may come again.
            await self._role.admit()
            await self._begin_early()
        actions = self.machine.receive(message, self.now())
        if not met and not any(isinstance(action, Load) for action in actions):
            self._role.end_opening()  # a negotiation lasts for minutes, and needs no worker before its end
        if not met and self.machine.peer is not None:
            proof = self.wire.proof
            if proof is not None and proof != self.peer:
                raise Refused(HelloCode.DESTINATION, f"The Hello is from {self.peer}, and the connection from {proof}.")
            self._core.record_event("hello")
            if self._role.answerer is not None:
                self.spawn(self._channel().answer(self._role.answerer))
        await self.perform(actions)
        if self._requests.awaits_repair and self.machine.state is HelloState.AGREED:
            await self._code.retire()  # the peer repairs its code; the conversation so far is void

    async def _lost(self, reason: str) -> None:
        self._left_without_hello = not reason.startswith(_HELLO_REASONS)
        await super()._lost(reason)

    def _on_lost(self) -> None:
        # Before the handler is informed: its answer to the loss is no answer of the peer.
        self.calls.end(self.error)

    async def _leave(self) -> None:
        for handler in self._speaking():
            await handler.say_goodbye()
        await self.perform(self.machine.close())

    def _encoded(self, actions: Sequence[Action]) -> Iterable[str | bytes]:
        for action in actions:
            if isinstance(action, SendText | SendBinary):
                yield action.text if isinstance(action, SendText) else action.data

    def _due(self) -> float:
        return self.machine.deadlines.next

    def _speaking(self) -> Iterable[HostedHandler]:
        handler = self._core.handler
        return [handler] if handler is not None and handler.is_open and self.machine.state is HelloState.RUNNING else []

    def _call_tables(self) -> Iterable[CallTable]:
        return (self.calls,)

    def _may_read(self) -> bool:
        return self._text is None or self._text.is_readable

    # Actions

    async def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendText(text=message) | SendBinary(data=message):
                    self.wire.send(message)
                case Draft() | Consider() | DraftTests() | ConsiderTests() | ConsiderError() | Question():
                    self.negotiation.take(action)
                case Load(agreement, error):
                    if self._conformance is not None:
                        await self._conformance.end()
                    await self._code.load(agreement, error)
                case Test(test_cases):
                    if self._requests.awaits_repair:
                        await self._resume_code()
                    self._core.record_event("testing")
                    if self._conformance is None:
                        self._conformance = ConformanceRun(self._core, self._code, self.negotiation, self._requests)
                    await self._conformance.begin(test_cases)
                case ErrorRejected(reason):
                    await self._fault_denied(reason)
                case Running():
                    await self._run()
                case Deliver(payload, metadata):
                    await self._deliver(payload, metadata)
                case DeliverVerification(payload):
                    if self._conformance is not None:  # else the tests have not begun
                        await self._conformance.received(payload)
                case DeliverText(text):
                    self._channel().take(text)
                case Answered(message_id, text):
                    self._requests.answered(message_id, text)
                case Meta(message):
                    self._exchange().take(message)
                case Published(uri):
                    self._core.told_uri = uri
                    self._role.learn_uri(self._core.protocol, uri)
                case SwitchProfile():
                    self.release()
                case Ended():
                    self.wake()  # the loop checks `is_final` after a step; a shared session sends beside the steps

    async def _run(self) -> None:
        """Let application messages flow: for the first time, or again after tests or a repair."""
        if self._requests.awaits_repair:
            await self._resume_code()
        self._role.end_negotiation(failed=False)
        if not self.running.done():
            self._core.record_event("running")
        # Code that fails the tests must not be remembered for the next session.
        if self._may_come_to_nothing():
            self._owes_memory = True
        else:
            await self._keep_agreement()
        if not self.running.done():
            self.running.set_result(None)
        await self.calls.issue()

    def _may_come_to_nothing(self) -> bool:
        """Return whether tests may still show a fault in the new code: a responder runs before it knows the result of the
        initiator's tests."""
        return self._code.is_new and not self.machine.is_initiator and self.machine.both_list(TEST_CASES_NEGOTIATION)

    async def _pay_memory(self) -> None:
        self._owes_memory = False
        await self._keep_agreement()

    async def _keep_agreement(self) -> None:
        if self._core.protocol is not None:
            written, is_reader = self._code.take_written(), self.machine.both_list(CALL_CONTEXT)
            await self._role.keep_agreement(self.peer, self._core.protocol, written, is_reader=is_reader)

    async def _resume_code(self) -> None:
        """Begin a new conversation on this side after the peer's repair."""
        self._core.record_event("repaired")
        self._requests.accept_fault()
        if self._core.handler is None:
            await self._code.restart()

    async def _fault_denied(self, reason: str) -> None:
        error = self._requests.deny_fault(reason)
        if self.machine.state is not HelloState.RUNNING:  # the tests fail, and neither side admits the fault
            await self._fail(error)

    async def _deliver(self, payload: bytes, metadata: CallMetadata | None) -> None:
        if self._conformance is not None:
            await self._conformance.end()
        if self._owes_memory:
            await self._pay_memory()
        if self._core.handler is not None and not self.machine.is_final:
            self.messages_received += 1
            await self._core.handler.received(payload, metadata=metadata)

    # The end

    def _end(self) -> None:
        self._role.end_opening()
        self._role.end_negotiation(failed=None if self._core.is_own_failure else True)
        if self._reports is not None:
            self._reports.end(self.error)
        self._requests.end(self.error)
        self.calls.end(self.error)
        if self._text is not None:
            self._text.end()
        if not self.running.done():
            self.running.set_exception(self.error)
        if not self.is_released:
            self._core.record_event("end")

    async def _close_parts(self) -> None:
        # After a failed session the new code is not remembered.
        if self._owes_memory and self.machine.error is None:
            await self._pay_memory()
        parts = [self._code.retire()]
        if self._conformance is not None:
            parts.append(self._conformance.end())
        if self._role.negotiator is not None:
            parts.append(self._role.negotiator.aclose())
        with suppress(TreatyError):
            await (asyncio.gather(*parts) if len(parts) > 1 else parts[0])
