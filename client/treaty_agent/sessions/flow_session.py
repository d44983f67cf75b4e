"""Implement one session of the flow profile: its handler, its calls, its terms and its adaptation.

A connection may have several sessions. When one changes its protocol, a new handler replaces the former, and calls are reissued.

A session whose calls are slow or fail should change: `treaty_anp.flow_profile.adaptation` chooses the change. Only an initiator
may negotiate it. A responder reports low resources instead, and the initiator then takes its next step. For example, a shop whose
functions become slow gets smaller chunks and more time for its answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec import structs

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.flow_profile import commands
from treaty_anp.flow_profile import parameters as rules
from treaty_anp.flow_profile.actions import Agreed, Ready
from treaty_anp.flow_profile.adaptation import Change
from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_anp.flow_profile.initiator import Initiator
from treaty_anp.flow_profile.payloads import ContextInfo, Level
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused
from treaty_consensus.errors import Refused, TreatyError
from treaty_handler import Return, Value
from treaty_io.abandonable import abandonable
from treaty_io.codes import ClientReportCode, FlowCode
from treaty_io.errors import session_over
from treaty_io.identity import UNNAMED, PeerIdentity
from treaty_io.line_limit import limited_logger

from ..reports.cosignature import CosignatureExchange
from ..reports.report_rules import refusal_code
from .agreements import Profile
from .call_context import CallOrigin
from .calls import CallingSession, CallTable, Phase
from .flow_context import host_request
from .flow_core import FlowCore
from .handler_host import HostedHandler
from .handler_hosts import HostRequest
from .interfaces import SpokenProtocol, Step
from .session import ReportParties, not_in_profile

MAX_AGREED_TIME = 3600.0
"""The longest time, in seconds, that an agreed `responseTimeout` may let a caller wait: that of a session."""
LOW: Level = "low"
_log = limited_logger(__name__)


class HandlerLine:
    """Connect one handler to its session (`HandlerPort`), until another handler replaces it."""

    def __init__(self, core: FlowCore, session: FlowSession) -> None:
        """Begin connected."""
        self._core, self._session, self.timer = core, session, core.loop.timer
        self._connected = True

    def disconnect(self) -> None:
        """Drop all further effects of the handler."""
        self._connected = False

    @property
    def backlog(self) -> int:
        return self._core.loop.backlog

    def post(self, step: Step) -> None:
        self._core.loop.post(partial(self._if_connected, step))

    def origin(self) -> CallOrigin:
        return self._session.origin()

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        await self.send_named(payload, "", metadata)

    async def send_named(self, payload: bytes, action: str, metadata: CallMetadata | None) -> None:
        """Send an application message with an action, the handler's stream."""
        if self._connected:
            self._session.has_sent = True
            await self._core.command(commands.SendData(self._session.id, payload, action, metadata))

    async def wait_writable(self) -> None:
        await self._core.loop.wait_writable()

    def served_call(self) -> None:
        if self._connected:
            self._session.calls.served()

    def item(self, call: str, value: Value) -> None:
        if self._connected:
            self._session.calls.item(call, value)

    def answer(self, call: str, outcome: Return | TreatyError, *, silent: bool = False) -> None:
        if self._connected:
            self._session.calls.answered(call, outcome, silent=silent)

    async def end(self, error: TreatyError | None) -> None:
        if self._connected:
            await self._session.finish(error)

    async def _if_connected(self, step: Step) -> None:
        if self._connected:
            await step()


@dataclass(frozen=True)
class ActiveHandler:
    """A handler, its protocol and its line to the session."""

    host: HostedHandler
    protocol: SpokenProtocol
    line: HandlerLine

    async def close(self) -> None:
        """Close the handler, in bounded time. Raises its error."""
        # Disconnected first: late effects must not reach the session.
        self.line.disconnect()
        await self.host.close()


class FlowSession(CallingSession):
    """Implements `SessionBackend`. For one event loop. `resumed`: a remembered agreement was used."""

    profile: Profile = "flow"
    document = ""

    def __init__(self, core: FlowCore, id: str) -> None:
        """Begin without a handler."""
        settings = core.dependencies.settings
        self.id, self.pipeline, self.timer = id, core.dependencies.hosts.pipeline, core.loop.timer
        self.agreed, self.expires_at, self.resumed = Agreed(""), 0, False
        self.timeline, self.messages_received, self.has_sent = list(core.timeline), 0, False
        self._core, self._timeouts = core, core.dependencies.timeouts
        self._adaptation = settings.adaptation(settings.thresholds)
        # The handler that runs, and the one that is ready to replace it.
        self._active: ActiveHandler | None = None
        self._prepared: ActiveHandler | None = None
        self._changing: asyncio.Future[None] | None = None
        self._error: TreatyError | None = None
        self._is_retired, self._closed = False, asyncio.Event()
        self.calls = CallTable(self)
        self._reports = CosignatureExchange(self._send_report, self._cosign, self._timeouts.report)

    # The interface of a session to its application

    @property
    def is_initiator(self) -> bool:
        return self._core.is_initiator

    @property
    def peer(self) -> PeerIdentity:
        return self._core.peer if self._core.machine.peer else UNNAMED

    @property
    def spoken(self) -> SpokenProtocol | None:
        return self._active.protocol if self._active else None

    @property
    def protocol_id(self) -> str:
        return self.agreed.protocol

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.agreed.parameters

    @property
    def role(self) -> str:
        return self._active.host.role.name if self._active else ""

    @property
    def is_running(self) -> bool:
        return self._error is None and self._active is not None and self._active.host.is_open

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self._error is not None

    @property
    def can_report(self) -> bool:
        sessions = self._core.machine.sessions
        return self.id in sessions and sessions.get(self.id).reports

    def origin(self) -> CallOrigin:
        """Return what the calls of the session have in common."""
        uri, parameters = self.spoken.uri if self.spoken else "", MappingProxyType(self.parameters)
        return CallOrigin(self.peer, uri, self.role, self.id, parameters, self.is_initiator)

    def transcript(self) -> bytes:
        return self._core.transcript()

    def check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_retired:
            raise session_over()

    def record_event(self, name: str) -> None:
        self.timeline.append(self._core.report_event(name, self._active.protocol.uri if self._active else ""))

    async def report_parties(self) -> ReportParties:
        return await self._core.report_parties(self.id)

    async def propose(self, proposal: ReportProposed) -> ReportCosignature:
        if self._error is not None:
            raise self._error
        return await self._reports.propose(proposal)

    async def say(self, text: str) -> None:
        raise not_in_profile("natural language", "flow", "Hello")

    def heard(self) -> AsyncIterator[str]:
        raise not_in_profile("natural language", "flow", "Hello")

    async def ask(self, question: str) -> str:
        raise not_in_profile("questions to a negotiator", "flow", "Hello")

    async def report_error(self, description: str) -> None:
        raise not_in_profile("repair of code", "flow", "Hello")

    async def renegotiate(self, parameters: Mapping[str, Any] | None = None, protocol: str = "") -> None:
        self.check_open()
        if self._changing is not None:
            raise Refused(FlowCode.CHANGING, "This session is being changed already.", fix="Wait for the outcome.")
        # One change at a time: two would compete for the same session.
        self._changing = abandonable()
        self.post(partial(self._change, commands.Renegotiate(self.id, parameters, protocol)))
        await self._changing

    async def _change(self, command: commands.Renegotiate) -> None:
        try:
            actions = self._core.machine.apply(command, self._core.loop.now())
        except TreatyError as error:
            self.end_change(error)
        else:
            await self._core.loop.perform(actions)

    def retire(self) -> None:
        if self._error is None and not self._is_retired:
            self._is_retired = True
            self.calls.end(session_over())
            self.post(self._retire)

    async def _retire(self) -> None:
        if self.is_running and self._active is not None:
            await self._active.host.retire()
            # Beside the steps: a business function may ignore its cancellation, and the report must not wait for it.
            self.spawn(self._active.host.close())

    async def close(self) -> None:
        if self._error is None:
            # In the task of the connection, because a step may be using the handler now.
            self.post(self._leave)
        await self._closed.wait()
        # The last session of a connection ends it, and the caller may stop the event loop next.
        if self._core.machine.is_final:
            await self._core.loop.closed.wait()

    async def _leave(self) -> None:
        """Let the handler say goodbye, and end the session."""
        if self.is_running and self._active is not None:
            await self._active.host.say_goodbye()
        await self.finish(None)

    # Called by the connection, in its own task

    async def prepare(self, protocol: SpokenProtocol, agreed: Agreed) -> bool:
        """Start a handler for an agreement; it waits for `begin`. Return whether the session still needs it. Raises
        `TreatyError`."""
        line = HandlerLine(self._core, self)
        request = structs.replace(self._request(agreed), send_named=line.send_named, on_served=self.served)
        host = await self._core.dependencies.hosts.host(line, protocol, request)
        # The session or its connection ended while the handler started; no one else would close it.
        if self._core.machine.is_final or self.is_over:
            await host.close()
            return False
        self._prepared = ActiveHandler(host, protocol, line)
        return True

    async def begin(self, ready: Ready) -> None:
        """Run, or continue with new terms: open the handler that was started for them, or keep the present one."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            former_terms, self.agreed, self.expires_at = self.agreed.parameters, ready.agreed, ready.expires_at
            # A renewal alone tells the handler nothing new.
            if self._active is not None and not rules.json_equal(former_terms, ready.agreed.parameters):
                await self._active.host.renegotiated(ready.agreed.parameters)
            self.record_event("changed")
            self.end_change(None)
            return
        machine, previous = self._core.machine, self._active
        if isinstance(machine, Initiator) and previous is None:
            self.resumed = machine.shortcut is not None and machine.shortcut.confirmed
        self._active, self.agreed, self.expires_at = prepared, ready.agreed, ready.expires_at
        if previous is not None:
            await previous.close()
            # Before the new handler opens, which reads its state then.
            await self._core.dependencies.hosts.carry(previous.protocol, prepared.protocol, self._request(ready.agreed))
        await prepared.host.open()
        self.record_event("sandbox")
        self.record_event("changed" if previous else "running")
        await self.calls.issue()
        self.end_change(None)
        self._core.dependencies.arrivals.begin(self)

    def _request(self, agreed: Agreed) -> HostRequest:
        return host_request(self._core.wanted, self._core.peer, agreed)

    def end_change(self, error: TreatyError | None) -> None:
        """End a renegotiation, successfully or with an error."""
        waiting, self._changing = self._changing, None
        if waiting is not None and not waiting.done():
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)

    async def received(self, data: bytes, action: str, metadata: CallMetadata | None) -> None:
        """Give the peer's bytes to the handler. `action`: of a message in the JSON form, else "". `metadata`: of the call."""
        if self._active is not None:
            self.messages_received += 1
            await self._active.host.received(data, stream=action, metadata=metadata)

    def report_received(self, message: ReportCosignature) -> None:
        """Handle a message about a report. Raises `Refused` (`meta.message`) for an answer without a proposal."""
        self._reports.take(message)

    async def finish(self, error: TreatyError | None) -> None:
        """End the session; with an error, end the connection."""
        if error is not None:
            await self._core.loop.perform(self._core.machine.fail(error))
        else:
            await self._core.command(commands.EndSession(self.id))
        await self.end_and_close(error)

    async def end_and_close(self, error: TreatyError | None) -> None:
        """End the session, which the machine has ended, and close its handler."""
        self.end(error)
        self._core.dependencies.arrivals.end(self)
        await self.close_handlers()

    def end(self, error: TreatyError | None) -> None:
        """Fail everything that waits for the session. `close_handlers` follows."""
        if self._error is not None:
            return
        # Set first: callers that wake up must find the session closed.
        self._error = error or session_over()
        self.end_change(self._error)
        self._reports.end(self._error)
        self.calls.end(self._error)
        self.record_event("end")

    async def close_handlers(self) -> None:
        """Close the handlers, in bounded time. Safe to repeat."""
        if self._closed.is_set():
            return
        for handler in (self._active, self._prepared):
            if handler is not None:
                # The session has ended, so an error of the handler changes nothing.
                with suppress(TreatyError):
                    await handler.close()
        self._closed.set()

    # Reports

    def _send_report(self, message: ReportCosignature) -> None:
        self.post(partial(self._core.command, commands.SendReport(self.id, message)))

    async def _cosign(self, proposal: ReportProposed) -> ReportCosignature:
        cosign = self._core.dependencies.cosign
        try:
            parties = await self.report_parties()
        except TreatyError as error:
            return ReportRefused(refusal_code(error))
        if cosign is None:
            return ReportRefused(ClientReportCode.NOT_CHECKED)
        has_spoken = self.calls.work > 0 if self.is_initiator else self.messages_received > 0 or self.has_sent
        return await cosign(self.spoken, parties, proposal, has_spoken)

    # Adaptation

    def peer_changed(self) -> None:
        """React to the responder's report of its situation: low resources lead to the next step; with others this side asks for
        its preferred parameters again, which the responder may admit now."""
        machine, offer = self._core.machine, self._offer()
        if not isinstance(machine, Initiator) or offer is None or self._changing is not None:
            return
        if machine.peer_capabilities.context.resource_availability == LOW:
            change = self._adaptation.step("slow", self._core.seconds(), offer, self.parameters, self._ranking())
            if change is not None:
                self.record_event("adapting: peer")
                self._begin_change(change)
        elif offer.parameters:
            try:
                parameters = rules.preferred(rules.kept(offer.parameters, encrypted=machine.encrypted))
            except rules.Unsupported:
                return
            self._begin_change(Change("slow", parameters=parameters))

    def _adapt(self) -> None:
        """Take the next step if the last calls make it necessary."""
        machine, offer = self._core.machine, self._offer()
        if self.is_over or offer is None or self._changing is not None:
            return
        change = self._adaptation.next_change(self._core.seconds(), offer, self.parameters, self._ranking())
        if change is None:
            return
        self.record_event(f"adapting: {change.finding}")
        if isinstance(machine, Initiator):
            self._begin_change(change)
        else:
            situation = machine.capabilities.context
            context = ContextInfo(LOW, situation.connection_type, situation.preferences)
            self.post(partial(self._core.command, commands.TellContext(context)))

    def _begin_change(self, change: Change) -> None:
        # In a task: the step that made the finding must not wait for the peer.
        self.spawn(self._negotiate(change))

    async def _negotiate(self, change: Change) -> None:
        try:
            await self.renegotiate(change.parameters, change.protocol)
        except TreatyError as error:  # the session goes on as it was; the next finding comes after a pause
            _log.info("The session with %s could not be changed: %s", self.peer, error)

    def _offer(self) -> ProtocolOffer | None:
        return self._core.machine.capabilities.registry.get(self.agreed.protocol)

    def _ranking(self) -> list[str]:
        machine = self._core.machine
        return [evaluation.id for evaluation in machine.ranking] if isinstance(machine, Initiator) else []

    # Called by the table of the calls

    @property
    def handler(self) -> HostedHandler | None:
        return self._active.host if self._active else None

    @property
    def phase(self) -> Phase:
        return Phase.WAITING if self._error else Phase.RUNNING

    def own_origin(self) -> CallOrigin:
        return self.origin()

    def messages_sent(self) -> int:
        return self._core.loop.messages_sent()

    def post(self, step: Step) -> None:
        self._core.loop.post(step)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._core.loop.spawn(work)

    async def wait_writable(self) -> None:
        await self._core.loop.wait_writable()

    def replied(self) -> None:
        self.record_event("first reply")

    def served(self, seconds: float, succeeded: bool) -> None:
        """Record the outcome of a call of either side, and check whether the session should change."""
        self._adaptation.record(seconds, succeeded)
        self._adapt()

    def time_limit(self, operation: str) -> float:
        """Return the seconds that a call may wait: the agreed `responseTimeout` (milliseconds), else the operation's own time."""
        agreed = self.agreed.parameters.get("responseTimeout")
        # The peer proposed the value, so it is checked and capped.
        if isinstance(agreed, int | float) and not isinstance(agreed, bool) and agreed > 0:
            return min(agreed / 1000, MAX_AGREED_TIME)
        described = self._active.host.role.calls.get(operation) if self._active else None
        return (described.timeout if described else self._timeouts.operation) + self._timeouts.answer
