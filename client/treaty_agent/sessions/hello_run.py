"""Drive one session of the Hello profile: the machine, and the parts that perform its actions.

    code          the protocol and its handler      requests      questions and error reports to the peer
    calls         the application's calls           text          natural language
    negotiation   the negotiator                    reports       co-signatures
    conformance   the agreed test cases

Each part gets a port: the few functions of the session that it uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

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
    Question,
    Running,
    SendBinary,
    SendText,
    SwitchProfile,
    Test,
)
from treaty_anp.hello_profile.hello import CALL_CONTEXT, FIX_ERROR_NEGOTIATION, TEST_CASES_NEGOTIATION, VERIFICATION_PROTOCOL
from treaty_anp.hello_profile.machine import HelloState, Machine
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused
from treaty_anp.transcript import TranscriptRecorder
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.printable import printable
from treaty_handler import Return, Value
from treaty_io import tracing
from treaty_io.abandonable import abandonable
from treaty_io.codes import NegotiationCode, SessionCode
from treaty_io.identity import ClaimedPeer

from ..reports.cosignature import CosignatureExchange
from ..reports.report_rules import refusal_code
from ..transport.connection import Connection
from ..transport.secure import SecureConnection
from .call_port import CallPort
from .calls import CallTable
from .code import CodeLoader, CodePort
from .conformance import ConformancePort, ConformanceRun
from .connection_loop import ConnectionLoop
from .handler_port import HandlerPort, HostedHandler
from .hello_session import HelloSession, SessionRole
from .interfaces import SessionEvent, SpokenProtocol
from .negotiation import Negotiation, NegotiationPort, PeerRequests, TextChannel
from .operations import OperationHandlers

_HELLO_REASONS = ("hello.", "secure.", "session.")
"""Prefixes of the codes with which a peer of this profile refuses a Hello."""


class HelloRun(ConnectionLoop[Action, float], HelloSession):
    """A session of the Hello profile. Implements `SessionBackend`. Other modules only read the public attributes.

    `early`: the protocol and the peer of a remembered agreement, if its hash is offered.
    `running`: done when both sides are ready.
    `flow_sender`: the DID of a peer that answered the Hello in the flow profile, or "".
    """

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
        self.machine = machine
        self.timeline: list[SessionEvent] = []
        self.messages_received = 0
        self.running: asyncio.Future[None] = abandonable()
        tracing.watch(self.running, "handshake", treaty_profile="hello", treaty_initiator=machine.is_initiator)
        self._role, self._recorder, self._opening, self._early = role, recorder, opening, early
        self.flow_sender, self._left_without_hello = "", False
        # True while the agreement is not written, because tests may still fail.
        self._owes_memory = False
        self._started = self.now()
        self.calls = CallTable(
            CallPort(
                post=self.post,
                spawn=self.spawn,
                wait_writable=self.wire.wait_writable,
                origin=self.origin,
                pipeline=role.pipeline,
                handler=lambda: self.code.handler,
                phase=self._phase,
                time_limit=self._call_time,
                is_reissued=lambda: self.was_running,
                sent=self.messages_sent,
                on_first_reply=partial(self.record_event, "first reply"),
                on_fault=self.report_error,
                may_report_fault=self._may_report_fault,
            )
        )
        self.requests = PeerRequests(self._apply, self._tell, self.check_open)
        self.negotiation = Negotiation(self._negotiation_port(), role.negotiator, opening=role.opening)
        self.code = CodeLoader(self._code_port())
        self.text = TextChannel(role.answerer, say=self.say, drained=self.wire.wake)
        self._conformance = ConformanceRun(self._conformance_port())
        self._reports = CosignatureExchange(
            lambda message: self.post(partial(self._command, commands.SendMeta(message))), self._cosign, role.timeouts.report
        )

    # Called by the handler's host

    @property
    def backlog(self) -> int:
        return self.wire.backlog

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        await self._command(commands.Send(payload, early, metadata))

    async def wait_writable(self) -> None:
        await self.wire.wait_writable()

    def item(self, call: str, value: Value) -> None:
        self.calls.item(call, value)

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
        self.calls.answered(call, outcome)

    async def end(self, error: TreatyError | None) -> None:
        await self.perform(self.machine.close() if error is None else self.machine.fail(error))

    # Ports of the parts

    def _code_port(self) -> CodePort:
        return CodePort(
            seconds=self._role.timeouts.code,
            peer=lambda: self.peer,
            is_over=lambda: self.machine.is_final,
            command=self._command,
            post=self.post,
            spawn=self.spawn,
            record_event=self.record_event,
            resolve=self._role.resolve,
            stored_document=self._role.document,
            implement=self.negotiation.implement,
            host=lambda protocol, peer: self._role.host(self, protocol, peer, self._peer_role),
            issue_calls=self.calls.issue,
        )

    def _negotiation_port(self) -> NegotiationPort:
        return NegotiationPort(
            apply=self._apply,
            perform=self.perform,
            post=self.post,
            spawn=self.spawn,
            record_event=self.record_event,
            document=lambda: self.code.document,
            is_approved=self._role.is_approved,
            may_negotiate=self._role.may_negotiate,
            documents=self._role.documents,
        )

    def _conformance_port(self) -> ConformancePort:
        return ConformancePort(
            is_initiator=self.machine.is_initiator,
            command=self._command,
            post=self.post,
            spawn=self.spawn,
            test=self.negotiation.test,
            adopt=self.code.adopt,
            host=self._host_under_test,
            on_wire=lambda: self.machine.both_list(VERIFICATION_PROTOCOL),
            report_fault=self._report_failing_tests,
            record_event=self.record_event,
        )

    async def _host_under_test(self, port: HandlerPort, answers: OperationHandlers) -> HostedHandler:
        assert self.code.protocol is not None
        async with asyncio.timeout(self._role.timeouts.code):
            return await self._role.host(port, self.code.protocol, self.peer, self._peer_role, answers)

    @property
    def _peer_role(self) -> str:
        return self.machine.agreement.peer_role if self.machine.agreement else ""

    def _apply(self, command: commands.Command) -> list[Action]:
        return self.machine.apply(command, self.now())

    async def _command(self, command: commands.Command) -> None:
        if isinstance(command, commands.CodeReady):
            self._role.end_opening()
        await self.perform(self._apply(command))

    async def _tell(self, actions: list[Action]) -> None:
        """Perform actions from any task, then raise the error if they ended the session."""
        await self.perform(actions)
        self.wire.wake()
        self.check_open()

    async def _report_failing_tests(self, description: str) -> None:
        """Report that the peer's code fails the tests. End the session if the peer cannot be asked to repair it."""
        if self.machine.both_list(FIX_ERROR_NEGOTIATION):
            await self.requests.begin_report(description)
        else:
            said = f"The other side's code fails the agreed test cases: {printable(description, 500)}"
            await self._fail(Refused(NegotiationCode.TESTS_FAILED, said))

    async def _cosign(self, proposal: ReportProposed) -> ReportCosignature:
        try:
            parties = await self.report_parties()
        except TreatyError as error:
            return ReportRefused(refusal_code(error))
        spoke = (self.calls.replies if self.is_initiator else self.messages_received) > 0
        return await self._role.cosign(self.code.protocol, parties, proposal, spoke=spoke)

    # Steps

    async def _begin(self) -> None:
        await self.perform(self._opening)
        # With encryption the peer proves its DID by its Hello. The handler waits for that: what it stored with a proved peer is
        # only for proofs. Nothing is lost, because early data wait for the keys.
        if not isinstance(self.wire.connection, SecureConnection):
            await self._begin_early()

    async def _begin_early(self) -> None:
        """Start the handler of a remembered agreement before the agreement is confirmed."""
        if self._early is not None and self.code.protocol is None:
            protocol, expected = self._early
            await self.code.begin_early(protocol, self.wire.proof or expected)

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
            if self.wire.proof not in (None, self.peer):
                raise Refused(SessionCode.PEER_DID, f"The Hello is from {self.peer}, and the connection from {self.wire.proof}.")
            self.record_event("hello")
            self.spawn(self.text.answer(self.peer.did))
        await self.perform(actions)
        if self.requests.awaits_repair and self.machine.state is HelloState.AGREED:
            await self.code.retire()  # the peer repairs its code; the conversation so far is void

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

    def _seconds(self) -> float:
        return self.now()

    def _speaking(self) -> Iterable[HostedHandler]:
        handler = self.code.handler
        return [handler] if handler is not None and handler.is_open and self.machine.state is HelloState.RUNNING else []

    def _call_tables(self) -> Iterable[CallTable]:
        return (self.calls,)

    def _may_read(self) -> bool:
        return self.text.is_readable

    # Actions

    async def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendText(text=message) | SendBinary(data=message):
                    self.wire.enqueue(message)
                case Draft() | Consider() | DraftTests() | ConsiderTests() | ConsiderError() | Question():
                    self.negotiation.take(action)
                case Load(agreement, error):
                    await self._conformance.end()
                    await self.code.load(agreement, error)
                case Test(test_cases):
                    await self._resume_code()
                    self.record_event("testing")
                    await self._conformance.begin(test_cases)
                case ErrorRejected(reason):
                    await self._fault_denied(reason)
                case Running():
                    await self._run()
                case Deliver(payload, metadata):
                    await self._deliver(payload, metadata)
                case DeliverVerification(payload):
                    await self._conformance.received(payload)
                case DeliverText(text):
                    self.text.take(text)
                case Answered(message_id, text):
                    self.requests.answered(message_id, text)
                case Meta(message):
                    self._reports.take(message)
                case SwitchProfile():
                    self.release()
                case Ended():
                    self.wire.wake()  # the loop checks `is_final` after a step; a shared session sends beside the steps

    async def _run(self) -> None:
        """Let application messages flow: for the first time, or again after tests or a repair."""
        await self._resume_code()
        self._role.end_negotiation()
        if not self.running.done():
            self.record_event("running")
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
        return self.code.is_new and not self.machine.is_initiator and self.machine.both_list(TEST_CASES_NEGOTIATION)

    async def _pay_memory(self) -> None:
        if self._owes_memory:
            self._owes_memory = False
            await self._keep_agreement()

    async def _keep_agreement(self) -> None:
        if self.code.protocol is not None:
            written, is_reader = self.code.take_written(), self.machine.both_list(CALL_CONTEXT)
            await self._role.keep_agreement(self.peer, self.code.protocol, written, is_reader=is_reader)

    async def _resume_code(self) -> None:
        """Begin a new conversation on this side after the peer's repair."""
        if self.requests.awaits_repair:
            self.record_event("repaired")
            self.requests.accept_fault()
            if self.code.handler is None:
                await self.code.restart()

    async def _fault_denied(self, reason: str) -> None:
        error = self.requests.deny_fault(reason)
        if self.machine.state is not HelloState.RUNNING:  # the tests fail, and neither side admits the fault
            await self._fail(error)

    async def _deliver(self, payload: bytes, metadata: CallMetadata | None) -> None:
        await self._conformance.end()
        await self._pay_memory()
        if self.code.handler is not None and not self.machine.is_final:
            self.messages_received += 1
            await self.code.handler.received(payload, metadata=metadata)

    # The end

    def _end(self) -> None:
        self._role.end_opening()
        self._role.end_negotiation()
        self._reports.end(self.error)
        self.requests.end(self.error)
        self.calls.end(self.error)
        self.text.end()
        if not self.running.done():
            self.running.set_exception(self.error)
        if not self.is_released:
            self.record_event("end")

    async def _close_parts(self) -> None:
        # After a failed session the new code is not remembered.
        if self.machine.error is None:
            await self._pay_memory()
        with suppress(TreatyError):
            await asyncio.gather(self.code.retire(), self._conformance.end(), self.negotiation.close())
