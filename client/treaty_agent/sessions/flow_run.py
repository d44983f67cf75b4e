"""Drive one connection of the flow profile: its machine, its signed messages, and the handlers of its sessions.

Long work (evaluating, fetching, starting a handler) runs beside the steps, so running sessions continue meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from treaty_anp.call_metadata import CallMetadata
from treaty_anp.flow_profile import commands
from treaty_anp.flow_profile.actions import (
    Action,
    DeliverData,
    Evaluate,
    Host,
    LoadProtocol,
    NegotiationEnded,
    PeerChanged,
    Ready,
    RenegotiationFailed,
    ReportReceived,
    SendMessage,
    SessionEnded,
)
from treaty_anp.flow_profile.errors import is_told
from treaty_anp.flow_profile.initiator import Initiator
from treaty_anp.flow_profile.messages import MAX_APPLICATION, MAX_MESSAGE, claimed
from treaty_anp.flow_profile.payloads import ContextInfo
from treaty_anp.flow_profile.processor import MessageProcessor, Now
from treaty_anp.flow_profile.responder import Responder
from treaty_anp.flow_profile.states import FlowState
from treaty_anp.flow_profile.strategy import Evaluation
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused
from treaty_anp.transcript import TranscriptRecorder
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_io.abandonable import abandonable
from treaty_io.codes import ClientReportCode, FlowCode, SessionCode
from treaty_io.errors import session_over
from treaty_io.identity import ProvedPeer
from treaty_io.line_limit import limited_logger

from ..reports.report_rules import flow_negotiation_id
from ..transport.connection import Connection
from .calls import CallTable
from .connection_loop import ConnectionLoop
from .flow_adaptation import SessionAdapter
from .flow_context import FlowDependencies, host_request
from .flow_session import ActiveHandler, FlowSession, HandlerLine
from .handler_host import HostedHandler
from .handler_hosts import RESPONDER, HostRequest
from .interfaces import SessionEvent, SpokenProtocol
from .session import ReportParties
from .wire import INTERNAL

_log = limited_logger(__name__)


class MetaProtocolNegotiator(ConnectionLoop[Action, Now]):
    """One connection, made by a manager. Implements `SessionPort`. `agreed`: done when the first negotiation has ended.
    `failed_talks`: the transcript of a connection without a session, once it has ended. `was_cut`: the connection was lost,
    without a reason, before the first message of the peer, so that it may be tried again."""

    def __init__(
        self,
        connection: Connection,
        machine: Initiator | Responder,
        processor: MessageProcessor,
        dependencies: FlowDependencies,
        *,
        first: str | None = None,
        wanted: HostRequest = RESPONDER,
        recorder: TranscriptRecorder | None = None,
    ) -> None:
        """Send nothing yet. `first`: a message that was received already. `wanted`: this side's role and functions."""
        super().__init__(connection, machine, dependencies.timeouts, dependencies.clock, first=first)
        self.machine, self.sessions = machine, dict[str, FlowSession]()
        self.agreed: asyncio.Future[None] = abandonable()
        self.timeline: list[SessionEvent] = []
        self.resumed, self.pipeline = False, dependencies.hosts.pipeline
        self.recorder = machine.recorder = recorder
        self.failed_talks = b""
        self._processor, self._dependencies, self._wanted = processor, dependencies, wanted
        self._loaded: dict[str, SpokenProtocol] = {}
        self._prepared: dict[str, ActiveHandler] = {}
        self._over: list[FlowSession] = []
        self._met = self._has_run = self.was_cut = False
        self._adapter = SessionAdapter(
            machine,
            self.sessions,
            seconds=self._seconds,
            spawn=self.spawn,
            tell=lambda context: self.post(partial(self.tell_context, context)),
        )
        self._started = dependencies.clock().seconds

    # Called by sessions

    @property
    def is_initiator(self) -> bool:
        return isinstance(self.machine, Initiator)

    @property
    def peer(self) -> str:
        return self.machine.peer

    def can_report(self, session_id: str) -> bool:
        return session_id in self.machine.sessions and self.machine.sessions.get(session_id).reports

    @property
    def backlog(self) -> int:
        return self.wire.backlog

    async def wait_writable(self) -> None:
        await self.wire.wait_writable()

    async def send(self, session_id: str, data: bytes, action: str = "", metadata: CallMetadata | None = None) -> None:
        await self._command(commands.SendData(session_id, data, action, metadata))

    async def end(self, session_id: str, error: TreatyError | None) -> None:
        session = self.sessions.pop(session_id, None)
        if error is not None:
            await self.perform(self.machine.fail(error))
        else:
            await self._command(commands.EndSession(session_id))
        if session is not None:
            await self._end_session(session, error)

    async def change(self, session_id: str, parameters: Mapping[str, Any] | None, protocol: str) -> None:
        """Renegotiate a session, as a step."""
        try:
            actions = self.machine.apply(commands.Renegotiate(session_id, parameters, protocol), self.now())
        except TreatyError as error:
            if session_id in self.sessions:
                self.sessions[session_id].end_change(error)
        else:
            await self.perform(actions)

    def adapt(self, session_id: str) -> None:
        self._adapter.check(session_id)

    async def send_report(self, session_id: str, message: ReportCosignature) -> None:
        """Send a message about a report, as a step."""
        await self._command(commands.SendReport(session_id, message))

    async def report_parties(self, session_id: str) -> ReportParties:
        """Return the keys and the nid. Each side chose one of the two ids in it with new random bits."""
        session, key = self.machine.sessions.get(session_id), self._processor.peer_key
        if key is None or self._dependencies.key_ids is None:
            raise Refused(ClientReportCode.OTHER, "A report needs a key of each side.")
        known = await self._dependencies.key_ids(self.peer)
        peer_key = next((id for id, value in known.items() if value == key), None)
        if peer_key is None:
            raise Refused(ClientReportCode.OTHER, f"The key by which {self.peer} signs has no id.")
        local = self.machine.local
        initiator, responder = (local, self.peer) if self.is_initiator else (self.peer, local)
        nid = flow_negotiation_id(initiator, responder, session_id, session.acknowledgment)
        return ReportParties(self._processor.identity.key_id, peer_key, nid)

    async def cosign(
        self, protocol: SpokenProtocol | None, parties: ReportParties, proposal: ReportProposed, *, spoke: bool
    ) -> ReportCosignature:
        if self._dependencies.cosign is None:
            return ReportRefused(ClientReportCode.NOT_CHECKED)
        return await self._dependencies.cosign(protocol, parties, proposal, spoke)

    def record_event(self, protocol: str, name: str) -> SessionEvent:
        event = SessionEvent(name, self._seconds() - self._started)
        self._dependencies.observe("initiator" if self.is_initiator else "responder", self.peer, protocol, event)
        return event

    def transcript(self) -> bytes:
        return self.recorder.transcript() if self.recorder else b""

    async def wait_closed(self) -> None:
        if self.machine.is_final:
            await self.closed.wait()

    async def tell_context(self, context: ContextInfo | None = None) -> None:
        """Send a situation to the initiator, as a step; by default that of the manager."""
        await self._command(commands.TellContext(context))

    # Steps

    async def _begin(self) -> None:
        await self.perform(self.machine.start(self.now()))

    async def _received(self, message: str | bytes) -> None:
        try:
            if isinstance(message, bytes):
                raise Malformed(FlowCode.MESSAGE, "Messages of the flow profile are text; a binary message came.")
            # Before a session runs only messages of the negotiation may come, which are small.
            limit = MAX_APPLICATION if self.machine.state is FlowState.RUNNING else MAX_MESSAGE
            # The keys may lie on a host of the peer, which may be slow on purpose.
            async with asyncio.timeout(self._dependencies.settings.timeouts.work):
                opened = await self._processor.open(message, self.now(), limit=limit)
        except TimeoutError:
            late = Unauthorized(FlowCode.KEYS, "The keys of the other side could not be fetched in time.")
            await self._command(commands.Unverified(late, *claimed(message)))
        except (Malformed, TooLarge, Refused, Unauthorized, Unavailable) as error:
            if is_told(error):
                await self._command(commands.Unverified(error, *claimed(message)))
            else:
                await self.perform(self.machine.fail(error))
        else:
            if not self._met:
                self._met = True
                self._record("hello")
            await self.perform(self.machine.receive(opened, self.now()))

    async def _lost(self, reason: str) -> None:
        self.was_cut = not (self._met or reason)
        await super()._lost(reason)

    async def _leave(self) -> None:
        for handler in self._speaking():
            await handler.say_goodbye()
        await self.perform(self.machine.close())

    def _encoded(self, actions: Sequence[Action]) -> Iterable[str | bytes]:
        for action in actions:
            if isinstance(action, SendMessage):
                yield self._processor.seal(action.message, self.now())

    def _seconds(self) -> float:
        return self.now().seconds

    def _speaking(self) -> Iterable[HostedHandler]:
        return [session.active.host for session in self.sessions.values() if session.is_running and session.active]

    def _on_lost(self) -> None:
        for session in self.sessions.values():
            session.end(self.parting or self.machine.error)

    def _call_tables(self) -> Iterable[CallTable]:
        return [session.calls for session in self.sessions.values()]

    def _after_step(self) -> None:
        if self.agreed.done():
            return
        if self.machine.state is FlowState.RUNNING and not self.machine.tracks:
            self.agreed.set_result(None)
        elif self.machine.is_final:
            self.agreed.set_exception(self.machine.error or session_over())

    # Actions

    async def _command(self, command: commands.Command) -> None:
        await self.perform(self.machine.apply(command, self.now()))

    async def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendMessage(message):
                    self.wire.enqueue(self._processor.seal(message, self.now()))
                case Evaluate(ids):
                    self.spawn(self._evaluate(ids))
                case LoadProtocol(protocol, digest):
                    self.spawn(self._load(protocol, digest))
                case Host():
                    self.spawn(self._host(action))
                case Ready():
                    await self._ready(action)
                case DeliverData(session_id, data, said, metadata) if session_id in self.sessions:
                    await self.sessions[session_id].received(data, said, metadata)
                case ReportReceived(session_id, report) if session_id in self.sessions:
                    self.sessions[session_id].report_received(report)
                case RenegotiationFailed(session_id, error) if session_id in self.sessions:
                    self.sessions[session_id].end_change(error)
                case PeerChanged():
                    self._adapter.peer_changed()
                case SessionEnded(session_id, error):
                    session = self.sessions.pop(session_id, None)
                    if session is not None:
                        await self._end_session(session, error)
                case NegotiationEnded():
                    self.wire.wake()  # the loop checks `is_final` after a step; a shared session sends beside the steps

    async def _evaluate(self, ids: tuple[str, ...]) -> None:
        """Evaluate protocols, all at once, and rank them. An id without a meaning here does not match."""
        found = await asyncio.gather(*map(self._evaluate_one, ids))
        try:
            ranked = self._dependencies.settings.strategy.rank([one for one in found if one])
        except Exception:  # the owner's strategy may raise anything
            _log.exception("Ranking the protocols failed")
            ranked = []
        self.post(partial(self._command, commands.Evaluated(ranked)))

    async def _evaluate_one(self, id: str) -> Evaluation | None:
        machine = self.machine
        assert isinstance(machine, Initiator)
        offer = machine.capabilities.registry.get(id)
        if offer is None:
            return None
        context, strategy = machine.capabilities.context, self._dependencies.settings.strategy
        try:
            judged = strategy.evaluate(offer.supported(), machine.known.protocols[id], machine.goal, context, machine.known)
            if judged is None:
                return None
            async with asyncio.timeout(self._dependencies.settings.timeouts.work):
                located = await self._dependencies.names.locate(id)
        except (TreatyError, TimeoutError) as error:
            _log.info("%s is left out: %s", id, error)
            return None
        except Exception:  # the owner's strategy may raise anything
            _log.exception("Evaluating %s failed", id)
            return None
        return Evaluation(**{**vars(judged), "uri": located.uri, "digest": located.digest})

    async def _load(self, id: str, digest: str) -> None:
        names = self._dependencies.names

        async def fetch() -> SpokenProtocol:
            return await names.fetch(id, await names.locate(id, digest))

        protocol = await self._work(fetch(), partial(commands.LoadFailed, id))
        if protocol is not None:
            self._loaded[id] = protocol
            self._record("verified", protocol.uri)
            self.post(partial(self._command, commands.Loaded(id, protocol.uri, protocol.hash)))

    async def _host(self, wanted: Host) -> None:
        id = wanted.session_id
        settings = self._dependencies.settings
        adaptation = settings.adaptation(settings.thresholds)
        session = self.sessions.get(id) or FlowSession(self, id, adaptation, self._timeouts, list(self.timeline))
        protocol, line = self._loaded[wanted.agreed.protocol], HandlerLine(self, session)
        request = host_request(self._wanted, ProvedPeer(self.peer), wanted.agreed)
        request = replace(request, send_named=line.send_named, on_served=session.served)
        starting = self._dependencies.hosts.host(line, protocol, request)
        host = await self._work(starting, partial(commands.HostFailed, id))
        if host is not None:
            # The connection ended while the handler started; no one else would close it.
            if self.machine.is_final:
                await host.close()
                return
            self.sessions.setdefault(id, session)
            self._prepared[id] = ActiveHandler(host, protocol, line)
            self.post(partial(self._command, commands.Hosted(id)))

    async def _ready(self, ready: Ready) -> None:
        session, prepared = self.sessions[ready.session_id], self._prepared.pop(ready.session_id, None)
        if prepared is None:
            session.update(ready.agreed, ready.expires_at)
            return
        if isinstance(self.machine, Initiator) and session.active is None:
            self.resumed = self.machine.shortcut is not None and self.machine.shortcut.confirmed
        self._has_run = True
        former = session.spoken
        request = host_request(self._wanted, ProvedPeer(self.peer), ready.agreed)
        carry = partial(self._dependencies.hosts.carry, former, prepared.protocol, request) if former else None
        await session.activate(prepared, ready.agreed, ready.expires_at, carry)
        self._dependencies.arrivals.begin(session)

    async def _work(self, work: Coroutine[Any, Any, Any], failed: Callable[[TreatyError], commands.Command]) -> Any:
        """Run work in bounded time. Report a failure to the machine, and return None."""
        try:
            async with asyncio.timeout(self._dependencies.settings.timeouts.work):
                return await work
        except TreatyError as caught:
            error = caught
        except TimeoutError:
            error = Unavailable(FlowCode.WORK, "This side's code was not ready in time.")
        except Exception:
            _log.exception("Getting a protocol ready failed")
            error = Unavailable(SessionCode.INTERNAL, INTERNAL)
        self.post(partial(self._command, failed(error)))
        return None

    async def _end_session(self, session: FlowSession, error: TreatyError | None) -> None:
        session.end(error)
        self._dependencies.arrivals.end(session)
        await session.close_handler()

    def _record(self, name: str, protocol: str = "") -> None:
        """Record an event before the session exists."""
        self.timeline.append(self.record_event(protocol, name))

    # The end

    def _end(self) -> None:
        # Kept for `_close_parts`: handlers are closed after the wire, which still sends their last messages.
        self._over = list(self.sessions.values())
        self.sessions.clear()
        for session in self._over:
            session.end(self.machine.error)
            self._dependencies.arrivals.end(session)
        if not self._has_run:
            self.failed_talks = self.transcript()
            self._record("end")

    async def _close_parts(self) -> None:
        prepared = [handler.host.close() for handler in self._prepared.values()]
        # All at once: one handler that closes slowly must not delay the others. The connection is over, so errors change nothing.
        with suppress(TreatyError):
            await asyncio.gather(*(session.close_handler() for session in self._over), *prepared)
