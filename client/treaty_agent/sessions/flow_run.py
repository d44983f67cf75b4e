"""Drive one connection of the flow profile: its machine, its signed messages, and the handlers of its sessions.

Long work (evaluating, fetching, starting a handler) runs beside the steps, so running sessions continue meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

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
from treaty_anp.flow_profile.processor import MessageProcessor, Now
from treaty_anp.flow_profile.responder import Responder
from treaty_anp.flow_profile.states import FlowState
from treaty_anp.flow_profile.strategy import Evaluation
from treaty_anp.transcript import TranscriptRecorder
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unauthorized, Unavailable
from treaty_io.abandonable import abandonable
from treaty_io.codes import EgressCode, FlowCode, SessionCode
from treaty_io.errors import PeerUnavailable, session_over
from treaty_io.line_limit import limited_logger

from ..transport.connection import Connection
from .calls import CallTable
from .connection_loop import INTERNAL, ConnectionLoop
from .flow_context import FlowDependencies
from .flow_core import FlowCore
from .flow_session import FlowSession
from .handler_host import HostedHandler
from .handler_hosts import RESPONDER, HostRequest
from .interfaces import SpokenProtocol

_log = limited_logger(__name__)


class MetaProtocolNegotiator(ConnectionLoop[Action, Now]):
    """One connection, made by a manager. `agreed`: done when the first negotiation has ended. `failed_talks`: the transcript of a
    connection without a session, once it has ended. `was_cut`: the connection was lost, without a reason, before the first
    message of the peer, so that it may be tried again."""

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
        """Send nothing yet. `first`: a message that was received already. `wanted`: this side's role and functions. `recorder`:
        that of the machine."""
        super().__init__(connection, machine, dependencies.timeouts, dependencies.clock, first=first)
        self.machine, self.recorder = machine, recorder
        self.agreed: asyncio.Future[None] = abandonable()
        self.failed_talks = b""
        self._processor, self._dependencies = processor, dependencies
        self._core = FlowCore(self, machine, processor, dependencies, wanted, recorder)
        self._sessions: dict[str, FlowSession] = {}
        self._loaded: dict[str, SpokenProtocol] = {}
        self._met = self._has_run = self.was_cut = False

    @property
    def is_initiator(self) -> bool:
        """Whether this side opened the connection."""
        return self._core.is_initiator

    @property
    def peer(self) -> str:
        """The DID that signs all received messages; "" before the first one."""
        return self.machine.peer

    @property
    def sessions(self) -> dict[str, FlowSession]:
        """The sessions that are not over, by their ids."""
        return {id: session for id, session in self._sessions.items() if not session.is_over}

    async def tell_context(self) -> None:
        """Send the manager's situation to the initiator, as a step."""
        await self._core.command(commands.TellContext())

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
            late = PeerUnavailable(EgressCode.UNREACHABLE, "The keys of the other side could not be fetched in time.")
            await self.perform(self.machine.fail(late))
        except (Malformed, TooLarge, Refused, Unauthorized, Unavailable) as error:
            if is_told(error):
                await self._core.command(commands.Unverified(error, *claimed(message)))
            else:
                await self.perform(self.machine.fail(error))
        else:
            if not self._met:
                self._met = True
                self._core.record_event("hello")
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

    def _due(self) -> float:
        return asyncio.get_running_loop().time() + self.machine.deadline - self._core.seconds()

    def _speaking(self) -> Iterable[HostedHandler]:
        return [session.handler for session in self._sessions.values() if session.is_running and session.handler]

    def _on_lost(self) -> None:
        for session in self._sessions.values():
            session.end(self.parting or self.machine.error)

    def _call_tables(self) -> Iterable[CallTable]:
        return [session.calls for session in self.sessions.values()]

    def _after_step(self) -> None:
        # Sessions end themselves. A peer may open and end any number of them, so the ended ones are forgotten.
        if not self.machine.is_final:
            self._sessions = self.sessions
        if self.agreed.done():
            return
        if self.machine.state is FlowState.RUNNING and not self.machine.tracks:
            self.agreed.set_result(None)
        elif self.machine.is_final:
            self.agreed.set_exception(self.machine.error or session_over())

    # Actions

    async def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendMessage(message):
                    self.wire.send(self._processor.seal(message, self.now()))
                case Evaluate(ids):
                    self.spawn(self._evaluate(ids))
                case LoadProtocol(protocol, digest):
                    self.spawn(self._load(protocol, digest))
                case Host():
                    self.spawn(self._host(action))
                case Ready():
                    await self._ready(action)
                case DeliverData(session_id, data, name, metadata):
                    if (session := self._open(session_id)) is not None:
                        await session.received(data, name, metadata)
                case ReportReceived(session_id, report):
                    if (session := self._open(session_id)) is not None:
                        session.report_received(report)
                case RenegotiationFailed(session_id, error):
                    if (session := self._open(session_id)) is not None:
                        session.end_change(error)
                case PeerChanged():
                    for session in self.sessions.values():
                        session.peer_changed()
                case SessionEnded(session_id, error):
                    if (session := self._open(session_id)) is not None:
                        await session.end_and_close(error)
                case NegotiationEnded():
                    self.wake()  # the loop checks `is_final` after a step; a shared session sends beside the steps

    def _open(self, session_id: str) -> FlowSession | None:
        """Return a session that is not over, or None."""
        session = self._sessions.get(session_id)
        return None if session is None or session.is_over else session

    async def _evaluate(self, ids: tuple[str, ...]) -> None:
        """Evaluate protocols, all at once, and rank them. An id without a meaning here does not match."""
        evaluations = await asyncio.gather(*map(self._evaluate_one, ids))
        try:
            ranked = self._dependencies.settings.strategy.rank([one for one in evaluations if one])
        except Exception:  # the owner's strategy may raise anything
            _log.exception("Ranking the protocols failed")
            ranked = []
        self.post(partial(self._core.command, commands.Evaluated(ranked)))

    async def _evaluate_one(self, id: str) -> Evaluation | None:
        machine = self.machine
        assert isinstance(machine, Initiator)
        offer = machine.capabilities.registry.get(id)
        if offer is None:
            return None
        theirs, strategy = machine.peer_capabilities, self._dependencies.settings.strategy
        try:
            evaluation = strategy.evaluate(
                offer.supported(), theirs.protocols[id], machine.goal, machine.capabilities.context, theirs
            )
            if evaluation is None:
                return None
            async with asyncio.timeout(self._dependencies.settings.timeouts.work):
                located = await self._dependencies.names.locate(id)
        except (TreatyError, TimeoutError) as error:
            _log.info("%s is left out: %s", id, error)
            return None
        except Exception:  # the owner's strategy may raise anything
            _log.exception("Evaluating %s failed", id)
            return None
        return Evaluation(**{**vars(evaluation), "uri": located.uri, "digest": located.digest})

    async def _load(self, id: str, digest: str) -> None:
        names = self._dependencies.names

        async def fetch() -> SpokenProtocol:
            return await names.fetch(id, await names.locate(id, digest))

        protocol = await self._work(fetch(), partial(commands.LoadFailed, id))
        if protocol is not None:
            self._loaded[id] = protocol
            self._core.record_event("verified", protocol.uri)
            self.post(partial(self._core.command, commands.Loaded(id, protocol.uri, protocol.hash)))

    async def _host(self, action: Host) -> None:
        id = action.session_id
        session = self._open(id) or FlowSession(self._core, id)
        starting = session.prepare(self._loaded[action.agreed.protocol], action.agreed)
        if await self._work(starting, partial(commands.HostFailed, id)):
            self._sessions.setdefault(id, session)
            self.post(partial(self._core.command, commands.Hosted(id)))

    async def _ready(self, ready: Ready) -> None:
        self._has_run = True
        await self._sessions[ready.session_id].begin(ready)

    async def _work(self, work: Coroutine[Any, Any, Any], failed: Callable[[TreatyError], commands.Command]) -> Any:
        """Run work in bounded time. Report a failure to the machine, and return None."""
        try:
            async with asyncio.timeout(self._dependencies.settings.timeouts.work):
                return await work
        except TreatyError as caught:
            error = caught
        except TimeoutError:
            error = Unavailable(SessionCode.CODE_TIMEOUT, "This side's code was not ready in time.")
        except Exception:
            _log.exception("Getting a protocol ready failed")
            error = Unavailable(SessionCode.INTERNAL, INTERNAL)
        self.post(partial(self._core.command, failed(error)))
        return None

    # The end

    def _end(self) -> None:
        for session in self._sessions.values():
            session.end(self.machine.error)
            self._dependencies.arrivals.end(session)
        if not self._has_run:
            self.failed_talks = self._core.transcript()
            self._core.record_event("end")

    async def _close_parts(self) -> None:
        # After the wire, which still sends the last messages of the handlers. All at once: one handler that closes slowly must
        # not delay the others.
        await asyncio.gather(*(session.close_handlers() for session in self._sessions.values()))
