"""Implement one session of the flow profile: its handler, its calls, its terms and its adaptation.

A connection may have several sessions. When one changes its protocol, a new handler replaces the former, and calls are reissued.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.flow_profile.actions import Agreed
from treaty_anp.flow_profile.adaptation import Adaptation
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused
from treaty_consensus.errors import Refused, TreatyError
from treaty_handler import Return, Value
from treaty_io.abandonable import abandonable
from treaty_io.codes import FlowCode
from treaty_io.errors import session_over
from treaty_io.identity import UNNAMED, PeerIdentity, ProvedPeer

from ..reports.cosignature import CosignatureExchange
from ..reports.report_rules import refusal_code
from .agreements import Profile
from .call_context import CallOrigin
from .calls import CallingSession, CallTable, Phase
from .handler_host import HostedHandler
from .interfaces import SessionEvent, SessionTimeouts, SpokenProtocol, Step
from .middleware import CallPipeline
from .session import ReportParties, not_in_profile

MAX_AGREED_TIME = 3600.0
"""The longest time, in seconds, that an agreed `responseTimeout` may let a caller wait: that of a session."""


class SessionPort(Protocol):
    """The functions that a session uses from its connection. `resumed`: whether a remembered agreement was used. `pipeline`: the
    way of the agent's calls."""

    resumed: bool
    pipeline: CallPipeline

    @property
    def is_initiator(self) -> bool:
        """Whether this side opened the connection."""

    @property
    def peer(self) -> str:
        """The DID that signs all received messages."""

    @property
    def backlog(self) -> int:
        """The bytes that wait to be sent on the connection."""

    def post(self, step: Step) -> None:
        """Run a step in the connection's task."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the steps."""

    async def wait_writable(self) -> None:
        """Wait until a caller may send more."""

    async def send(self, session_id: str, data: bytes, action: str = "", metadata: CallMetadata | None = None) -> None:
        """Send a handler's bytes in a session. `action`: of a message in the JSON form. `metadata`: of the call."""

    async def end(self, session_id: str, error: TreatyError | None) -> None:
        """End one session; with an error, end the connection."""

    async def change(self, session_id: str, parameters: Mapping[str, Any] | None, protocol: str) -> None:
        """Begin to change a session. `FlowSession.end_change` reports the outcome."""

    def adapt(self, session_id: str) -> None:
        """Check whether the session should change, after an answered call."""

    def messages_sent(self) -> int:
        """Return the number of messages that were sent on the connection."""

    def can_report(self, session_id: str) -> bool:
        """Return whether both sides agreed to co-sign reports on a session."""

    async def send_report(self, session_id: str, message: ReportCosignature) -> None:
        """Send a message about a report."""

    async def report_parties(self, session_id: str) -> ReportParties:
        """Return the parties of a report. Raises `Refused` (`report.*`)."""

    async def cosign(
        self, protocol: SpokenProtocol | None, parties: ReportParties, proposal: ReportProposed, *, spoke: bool
    ) -> ReportCosignature:
        """Return the answer to a proposed report. Never raises."""

    def record_event(self, protocol: str, name: str) -> SessionEvent:
        """Report an event to the observer."""

    def transcript(self) -> bytes:
        """Return the transcript of the connection so far."""

    async def wait_closed(self) -> None:
        """Wait until the connection is closed, if its machine has ended."""


class HandlerLine:
    """Connect one handler to its session (`HandlerPort`). It is disconnected when another handler replaces this one."""

    def __init__(self, port: SessionPort, session: FlowSession) -> None:
        """Begin connected."""
        self._port, self._session = port, session
        self.connected = True

    @property
    def backlog(self) -> int:
        return self._port.backlog

    def post(self, step: Step) -> None:
        self._port.post(partial(self._if_connected, step))

    def origin(self) -> CallOrigin:
        return self._session.origin()

    async def send(self, payload: bytes, *, early: bool, metadata: CallMetadata | None = None) -> None:
        await self.send_named(payload, "", metadata)

    async def send_named(self, payload: bytes, action: str, metadata: CallMetadata | None) -> None:
        """Send an application message with an action, the handler's stream."""
        if self.connected:
            await self._port.send(self._session.id, payload, action, metadata)

    async def wait_writable(self) -> None:
        await self._port.wait_writable()

    def item(self, call: str, value: Value) -> None:
        if self.connected:
            self._session.calls.item(call, value)

    def answer(self, call: str, outcome: Return | TreatyError) -> None:
        if self.connected:
            self._session.calls.answered(call, outcome)

    async def end(self, error: TreatyError | None) -> None:
        if self.connected:
            await self._port.end(self._session.id, error)

    async def _if_connected(self, step: Step) -> None:
        if self.connected:
            await step()


@dataclass
class ActiveHandler:
    """A handler, its protocol and its line to the session."""

    host: HostedHandler
    protocol: SpokenProtocol
    line: HandlerLine


class FlowSession(CallingSession):
    """Implements `SessionBackend`. For one event loop."""

    profile: Profile = "flow"
    document = ""

    def __init__(
        self, port: SessionPort, id: str, adaptation: Adaptation, timeouts: SessionTimeouts, timeline: list[SessionEvent]
    ) -> None:
        """Begin without a handler. `timeline`: the events of the connection so far."""
        self.id, self.adaptation = id, adaptation
        self.agreed = Agreed("")
        self.expires_at = 0
        self.active: ActiveHandler | None = None
        self.timeline, self.messages_received = timeline, 0
        self.changing: asyncio.Future[None] | None = None
        self._port, self._timeouts = port, timeouts
        self._error: TreatyError | None = None
        self._is_retired, self._over = False, asyncio.Event()
        self.pipeline = port.pipeline
        self.calls = CallTable(self)
        self._reports = CosignatureExchange(
            lambda message: port.post(partial(port.send_report, id, message)), self._cosign, timeouts.report
        )

    @property
    def is_initiator(self) -> bool:
        return self._port.is_initiator

    @property
    def peer(self) -> PeerIdentity:
        # Each message is verified by the keys of that DID.
        return ProvedPeer(self._port.peer) if self._port.peer else UNNAMED

    @property
    def spoken(self) -> SpokenProtocol | None:
        return self.active.protocol if self.active else None

    @property
    def protocol_id(self) -> str:
        return self.agreed.protocol

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.agreed.parameters

    @property
    def role(self) -> str:
        return self.active.host.role.name if self.active else ""

    @property
    def resumed(self) -> bool:
        return self._port.resumed

    @property
    def is_running(self) -> bool:
        return self._error is None and self.active is not None and self.active.host.is_open

    @property
    def can_report(self) -> bool:
        return self._port.can_report(self.id)

    def origin(self) -> CallOrigin:
        """Return what the calls of the session have in common."""
        uri, parameters = self.spoken.uri if self.spoken else "", MappingProxyType(self.parameters)
        return CallOrigin(self.peer, uri, self.role, self.id, parameters, self.is_initiator)

    def transcript(self) -> bytes:
        return self._port.transcript()

    def check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_retired:
            raise session_over()

    def record_event(self, name: str) -> None:
        self.timeline.append(self._port.record_event(self.active.protocol.uri if self.active else "", name))

    async def report_parties(self) -> ReportParties:
        return await self._port.report_parties(self.id)

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
        if self.changing is not None:
            raise Refused(FlowCode.CHANGING, "This session is being changed already.", fix="Wait for the outcome.")
        # One change at a time: two would compete for the same session.
        self.changing = abandonable()
        self._port.post(partial(self._port.change, self.id, parameters, protocol))
        await self.changing

    def retire(self) -> None:
        if self._error is None and not self._is_retired:
            self._is_retired = True
            self.calls.end(session_over())
            self._port.post(self._retire)

    async def _retire(self) -> None:
        if self.is_running and self.active is not None:
            await self.active.host.retire()
            # Beside the steps: a business function may ignore its cancellation, and the report must not wait for it.
            self._port.spawn(self.active.host.close())

    async def close(self) -> None:
        if self._error is None:
            # In the task of the connection, because a step may be using the handler now.
            self._port.post(self.leave)
        await self._over.wait()
        # The last session of a connection ends it, and the caller may stop the event loop next.
        await self._port.wait_closed()

    # Called by the connection, in its own task

    async def activate(
        self, prepared: ActiveHandler, agreed: Agreed, expires_at: int, carry: Callable[[], Awaitable[None]] | None
    ) -> None:
        """Open the handler of a session that is ready. `carry`: called after the former handler is closed and before the new one
        opens."""
        former, self.active = self.active, prepared
        self.agreed, self.expires_at = agreed, expires_at
        # Disconnected first: late effects of the former handler must not reach the session.
        if former is not None:
            former.line.connected = False
            await former.host.close()
            if carry is not None:
                await carry()
        await prepared.host.open()
        self.record_event("sandbox")
        self.record_event("changed" if former else "running")
        await self.calls.issue()
        self.end_change(None)

    def update(self, agreed: Agreed, expires_at: int) -> None:
        """Continue the same protocol with new parameters."""
        self.agreed, self.expires_at = agreed, expires_at
        self.record_event("changed")
        self.end_change(None)

    def end_change(self, error: TreatyError | None) -> None:
        """End a renegotiation, successfully or with an error."""
        waiting, self.changing = self.changing, None
        if waiting is not None and not waiting.done():
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)

    async def received(self, data: bytes, action: str, metadata: CallMetadata | None) -> None:
        """Give the peer's bytes to the handler. `action`: of a message in the JSON form, else "". `metadata`: of the call."""
        if self.active is not None:
            self.messages_received += 1
            await self.active.host.received(data, stream=action, metadata=metadata)

    def served(self, seconds: float, succeeded: bool) -> None:
        """Record the outcome of a call of either side, and check whether the session should change."""
        self.adaptation.record(seconds, succeeded)
        self._port.adapt(self.id)

    def report_received(self, message: ReportCosignature) -> None:
        """Handle a message about a report. Raises `Refused` (`meta.unexpected`) for an answer without a proposal."""
        self._reports.take(message)

    async def leave(self) -> None:
        """Let the handler say goodbye, and end the session."""
        if self.is_running and self.active is not None:
            await self.active.host.say_goodbye()
        await self._port.end(self.id, None)

    def end(self, error: TreatyError | None) -> None:
        """Fail everything that waits for the session. `close_handler` follows."""
        if self._error is not None:
            return
        # Set first: callers that wake up must find the session closed.
        self._error = error or session_over()
        self.end_change(self._error)
        self._reports.end(self._error)
        self.calls.end(self._error)
        self.record_event("end")

    async def close_handler(self) -> None:
        """Close the handler, in bounded time."""
        if self.active is not None:
            self.active.line.connected = False
            # The session has ended, so an error of the handler changes nothing.
            with suppress(TreatyError):
                await self.active.host.close()
        self._over.set()

    async def _cosign(self, proposal: ReportProposed) -> ReportCosignature:
        try:
            parties = await self.report_parties()
        except TreatyError as error:
            return ReportRefused(refusal_code(error))
        spoke = (self.calls.replies if self.is_initiator else self.messages_received) > 0
        return await self._port.cosign(self.spoken, parties, proposal, spoke=spoke)

    # Called by the table of the calls

    @property
    def handler(self) -> HostedHandler | None:
        return self.active.host if self.active else None

    @property
    def phase(self) -> Phase:
        return Phase.WAITING if self._error else Phase.RUNNING

    def own_origin(self) -> CallOrigin:
        return self.origin()

    def messages_sent(self) -> int:
        return self._port.messages_sent()

    def post(self, step: Step) -> None:
        self._port.post(step)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._port.spawn(work)

    async def wait_writable(self) -> None:
        await self._port.wait_writable()

    def replied(self) -> None:
        self.record_event("first reply")

    def time_limit(self, operation: str) -> float:
        """Return the seconds that a call may wait: the agreed `responseTimeout` (milliseconds), else the operation's own time."""
        agreed = self.agreed.parameters.get("responseTimeout")
        # The peer proposed the value, so it is checked and capped.
        if isinstance(agreed, int | float) and not isinstance(agreed, bool) and agreed > 0:
            return min(agreed / 1000, MAX_AGREED_TIME)
        known = self.active.host.role.calls.get(operation) if self.active else None
        return (known.timeout if known else self._timeouts.operation) + self._timeouts.answer
