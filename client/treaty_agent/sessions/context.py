"""Hold the data that all sessions of an agent share: identity, provided protocols with their functions, offers and memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from treaty_anp.flow_profile.capabilities import ProtocolRegistry
from treaty_anp.hello_profile.hello import UNAVAILABLE
from treaty_anp.hello_profile.machine import Limits, Provided
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused
from treaty_anp.transcript import TranscriptRecorder
from treaty_client.policy import Policy
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import Role
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io import durable
from treaty_io.afterwards import Afterwards
from treaty_io.codes import ClientReportCode
from treaty_io.identity import Identity
from treaty_io.line_limit import limited_logger
from treaty_io.places import Places
from treaty_sandbox.interface import Runtime

from ..negotiators.negotiator import Negotiators, RoleName
from ..reports.report import Reporter
from ..reports.report_rules import SessionFacts, refusal_code
from .activity import Activity, AgentMetrics
from .agreements import URN, AgreementCache, NegotiatedProtocols, Profile, is_negotiated
from .arrivals import OnSession, ServedSessions
from .connection_loop import OpenConnections
from .escalation import Approvals, EscalationLimiter, OnEscalation
from .handler_hosts import RESPONDER, HandlerHosts, HostRequest
from .interfaces import AgentEvent, Capacity, Ports, SessionTimeouts, SpokenProtocol
from .middleware import Call, CallPipeline
from .negotiation import Answerer
from .operation_errors import FunctionFault
from .operations import Functions, OfferedFunctions, check_functions, check_signatures, choose_role
from .session import ReportParties

MAX_TALKS = 1024 * 1024
"""Bytes of a transcript that is kept only for an escalation."""

_T = TypeVar("_T")
_log = limited_logger(__name__)


@dataclass
class AgentContext:
    """The shared data of one agent.

    `afterwards`: the writes that no session waits for.
    `registry`: the origin where negotiated protocols are published and reported.
    `worker_wait`: seconds that an event may wait for a worker, beside the time of its handler.
    `services`: by protocol URI.
    `unserved`: the errors of the provided protocols that are not served, by URI.
    `offers`: the functions for protocols that will be negotiated.
    `flow_offers`: the protocols that the agent speaks in the flow profile.
    `transcripts`: the folder for recorded sessions, or None.
    `openings`: the document that a person wants to propose next, by address and request.
    `flow_openings`: the same in the flow profile: an id or URI.
    `activity`: the counts of `metrics`.
    `connections`: those that are open now.
    `is_providing`: whether protocols were loaded for serving; later ones are loaded when they are registered.
    `renewal`: the next time to verify protocols again.
    `changed`: called after each change of the served protocols.
    """

    identity: Identity
    registry: str
    home: Path
    policy: Policy
    timeouts: SessionTimeouts
    limits: Limits
    capacity: Capacity
    ports: Ports
    agreements: AgreementCache
    reporter: Reporter
    negotiated: NegotiatedProtocols
    approvals: Approvals
    afterwards: Afterwards
    worker_wait: float = 0.0
    negotiators: Negotiators | None = None
    on_escalation: OnEscalation | None = None
    on_event: Callable[[AgentEvent], None] | None = None
    transcripts: Path | None = None
    answerer: Answerer | None = None
    services: dict[str, Service] = field(default_factory=dict)
    unserved: dict[str, TreatyError] = field(default_factory=dict)
    offers: OfferedFunctions = field(init=False)
    flow_offers: ProtocolRegistry = field(default_factory=ProtocolRegistry)
    openings: dict[tuple[str, str], str] = field(default_factory=dict)
    flow_openings: dict[tuple[str, str], str] = field(default_factory=dict)
    connections: OpenConnections = field(default_factory=OpenConnections)
    escalations: EscalationLimiter = field(default_factory=EscalationLimiter)
    negotiations: int = 0
    arrivals: ServedSessions = field(init=False)
    activity: Activity = field(default_factory=Activity)
    is_providing: bool = False
    renewal: asyncio.TimerHandle | None = None
    changed: list[Callable[[], None]] = field(default_factory=list)
    _servable: tuple[tuple[int, int], dict[str, Provided]] = ((-1, 0), {})
    _is_warm: bool = False
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _finishing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.arrivals = ServedSessions(self._on_session)
        self.offers = OfferedFunctions(self.capacity)

    @cached_property
    def preloads(self) -> asyncio.Semaphore:
        """Held while a handler is loaded before it is served."""
        return asyncio.Semaphore(self.capacity.preloads)

    @cached_property
    def lingering(self) -> asyncio.Semaphore:
        """Held by a session that its application has left, while its report is settled."""
        return asyncio.Semaphore(self.capacity.lingering)

    @cached_property
    def admissions(self) -> Places:
        """The sessions of other initiators that are being opened."""
        return Places(self.capacity.openings)

    @cached_property
    def hosts(self) -> HandlerHosts:
        """The factory for the handlers of all sessions."""
        own = self.identity.did
        return HandlerHosts(
            own,
            self.home,
            self.ports.runtime,
            self.served,
            handler_time=self.timeouts.handler,
            worker_wait=self.worker_wait,
            capacity=self.capacity,
            activity=self.activity,
            pipeline=self.pipeline,
            on_fault=self._record_fault,
        )

    @cached_property
    def pipeline(self) -> CallPipeline:
        """The way of all calls: middleware, log lines and events."""
        return CallPipeline(self._record_call)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a task beside all sessions. `close` cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def finish_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task after its session. `finish` waits for it."""
        task = self.spawn(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    def provided_service(self, uri: str) -> Service:
        """Return the service of a protocol that this agent provides, a new one the first time."""
        return self.services.setdefault(uri, Service(Functions(self.capacity)))

    def metrics(self, *, waiting: int) -> AgentMetrics:
        """Return what this agent does now. `waiting`: sessions of this agent that wait to be opened."""
        functions = [service.functions.threads for service in (*self.services.values(), Service(self.offers.functions))]
        return AgentMetrics(
            sessions_in=self.activity.sessions[False],
            sessions_out=self.activity.sessions[True],
            opening=self.admissions.taken,
            sessions_waiting=self.admissions.waiting + waiting,
            calls=self.activity.calls.snapshot(),
            functions=self.activity.functions.snapshot(),
            threads=sum(threads.taken for threads in functions),
            threads_waiting=sum(threads.waiting for threads in functions),
            workers=self.ports.runtime.metrics(),
            reports_waiting=self.reporter.waiting,
        )

    def warm(self) -> None:
        """Start workers in the background, once. An error is left to the session's own worker, which raises it."""
        if not self._is_warm:
            self._is_warm = True
            self.spawn(_warm(self.ports.runtime))

    def prepare_report(self, protocol: str = "", peer: str = "") -> None:
        """Read the facts for a report with a peer in the background, if the policy allows reports. `protocol`: its URI, if it is
        known."""
        if self.policy.report:
            self.spawn(self.reporter.prepare(self.report_log(protocol), peer))

    def report_log(self, protocol: str) -> str:
        """Return the origin of the log that gets the reports on a protocol, by its URI. A negotiated one, and one that is not
        known, are reported to the agent's own registry."""
        is_elsewhere = protocol and not protocol.startswith(URN)
        return parse_protocol_uri(protocol).origin if is_elsewhere else self.registry

    def note_change(self) -> None:
        """Tell the listeners that other protocols are served now."""
        for listener in self.changed:
            listener()

    def record_event(self, event: AgentEvent) -> None:
        """Report an event to the observer. An exception of the observer is only logged."""
        if event.name in ("hello", "running"):
            self.prepare_report(event.protocol, event.peer)
        if self.on_event is None:
            return
        try:
            self.on_event(event)
        except Exception:
            _log.exception("The observer of an agent raised")

    async def finish(self) -> None:
        """Wait for the work that sessions left: their ends, publications, and the submissions that are due. At most
        `timeouts.close`. A report that is not signed then, and a publication, are left to the next session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeouts.close):
                while self._finishing:
                    await asyncio.wait(self._finishing)
                await self.reporter.finish()

    def _record_call(self, call: Call, status: str, seconds: float) -> None:
        if self.on_event is not None:
            context = call.context
            role: RoleName = "initiator" if call.is_initiator else "responder"
            about = AgentEvent(role, context.peer.did, context.protocol, f"call {call.direction}", seconds)
            self.record_event(about._replace(operation=call.operation, status=status, trace_id=context.trace.trace_id))

    def _record_fault(self, protocol: SpokenProtocol, request: HostRequest, fault: FunctionFault) -> None:
        role: RoleName = "initiator" if request.is_initiator else "responder"
        event = AgentEvent(role, fault.peer or request.peer.did, protocol.uri, fault.code, 0.0)
        self.record_event(event._replace(operation=fault.operation, status=fault.code, trace_id=fault.trace_id))

    async def close(self) -> None:
        """Close everything that sessions share. Pending reports stay in the outbox for the next process."""
        if self.renewal is not None:
            self.renewal.cancel()
        # Tasks first: they use the reporter and the runtime that are closed below.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.reporter.close()
        # Before the runtime: the handlers of shared sessions keep what they have to keep.
        await self.hosts.close()
        if self.negotiators is not None:
            await self.negotiators.aclose()
        await self.ports.runtime.close()
        await self.ports.protocols.aclose()
        await self.afterwards.aclose()
        for service in (*self.services.values(), Service(self.offers.functions)):
            service.functions.close()

    def is_fresh(self, protocol: SpokenProtocol) -> bool:
        """Return whether the proofs of this protocol are recent enough for the policy."""
        return protocol.age(int(time.time())) <= self.policy.max_age

    def is_served(self, service: Service, uri: str) -> bool:
        """Return whether this service of a protocol is still provided, and ready. Ask after each wait for a registry."""
        return self.services.get(uri) is service and service.protocol is not None

    def provided(self) -> dict[str, Provided]:
        """Return the protocols that a responder may choose from now: the provided ones, and the negotiated ones whose
        functions are still offered. A provided one that cannot be verified now is marked."""
        away = {uri: UNAVAILABLE for uri, service in self.services.items() if service.is_away}
        known = {uri: service.protocol for uri, service in self.services.items() if service.protocol is not None}
        published = {uri: self._provided(protocol) for uri, protocol in known.items()}
        # Cached, because each Hello asks, and the check goes through all negotiated protocols.
        state = (self.negotiated.changes, len(self.offers.capabilities))
        if self._servable[0] != state:
            servable = [protocol for protocol in self.negotiated.all() if self._can_serve(protocol)]
            self._servable = (state, {protocol.uri: Provided(protocol.hash, True) for protocol in servable})
        return away | published | self._servable[1]

    def service(self, protocol: SpokenProtocol, serving: Functions | None = None) -> Service:
        """Return this side's functions for a protocol. `serving`: those of one session, instead of the agent's."""
        if serving is not None:
            return Service(serving)
        if is_negotiated(protocol):
            return Service(self.offers.functions, None, None, protocol)
        return self.services.get(protocol.uri) or Service()

    def served(self, protocol: SpokenProtocol, request: HostRequest) -> tuple[Role, Functions]:
        """Return this side's role and functions for a session. Raises `Refused` (`session.role`), `NotFound`
        (`agent.function-missing`), `Malformed` (`agent.function`)."""
        service, manifest = self.service(protocol, request.serving), protocol.package.manifest
        wanted = request.role or service.role
        found = choose_role(manifest, is_initiator=request.is_initiator, wanted=wanted, peer_role=request.peer_role)
        check_functions(service.functions, found, protocol.uri)
        # Those that the agent provides were compared with the manifest when the protocol was loaded (`provision`).
        if request.serving is not None:
            check_signatures(service.functions, found, protocol.uri)
        return found, service.functions

    async def keys(self, did: str) -> Mapping[str, bytes]:
        """Return the keys that a DID signs with now. Raises the errors of the resolver."""
        return (await self.ports.resolver.resolve(parse_did(did))).keys

    # Transcripts

    def recorder(self, profile: Profile) -> TranscriptRecorder | None:
        """Return a recorder for a connection, or None. Record everything if transcripts are kept, and only negotiations if
        they are escalated."""
        if self.transcripts is not None:
            return TranscriptRecorder(profile)
        if self.on_escalation is not None:
            return TranscriptRecorder(profile, limit=MAX_TALKS, only_talks=True)
        return None

    async def keep_transcript(self, is_initiator: bool, name: str, recorder: TranscriptRecorder | None) -> None:
        """Write the transcript as ROLE-NAME.jsonl if transcripts are kept, and close the recorder. `name`: chosen by this
        side, so that the peer controls no part of a file's name."""
        if recorder is None:
            return
        # Closed before the write: a write error must not keep the memory.
        data = recorder.transcript()
        recorder.close()
        if self.transcripts is None:
            return
        try:
            path = self.transcripts / f"{'initiator' if is_initiator else 'responder'}-{name}.jsonl"
            # In a thread, because the write waits for the disk. 0600: transcripts hold business data.
            await asyncio.to_thread(durable.write, path, data, mode=0o600)
        except OSError as error:
            _log.warning("A transcript cannot be written: %s", error)

    # Reports

    def session_facts(self, protocol: SpokenProtocol | None, parties: ReportParties, *, spoke: bool) -> SessionFacts:
        """Return the facts of a session for a report. A negotiated protocol is reported to the agent's own registry. Raises
        `Refused` (`report.other`) without a protocol."""
        if protocol is None:
            raise Refused(ClientReportCode.OTHER, "A session without a protocol cannot be reported.")
        log = self.report_log(protocol.uri)
        return SessionFacts(parties.own_key, parties.peer_key, log, parties.nid, protocol.topic, protocol.hash, spoke)

    async def cosign(
        self, protocol: SpokenProtocol | None, parties: ReportParties, proposal: ReportProposed, *, spoke: bool
    ) -> ReportCosignature:
        """Return the answer to a proposed report. Never raises."""
        try:
            facts = self.session_facts(protocol, parties, spoke=spoke)
        except TreatyError as error:
            return ReportRefused(refusal_code(error))
        return await self.reporter.cosign(facts, proposal)

    def _can_serve(self, protocol: SpokenProtocol) -> bool:
        try:
            self.served(protocol, RESPONDER)
        except TreatyError:
            return False
        return True

    def _provided(self, protocol: SpokenProtocol) -> Provided:
        """Return a served protocol for the machine, with the roles that its present handler has."""
        known = Provided(protocol.hash, self.is_fresh(protocol))
        try:
            role, _ = self.served(protocol, RESPONDER)
        except TreatyError:
            return known  # a newer handler has other roles; the session that loads it says so
        peers = tuple(other.name for other in protocol.package.manifest.roles.values() if role.fits(other))
        return known._replace(role=role.name, peer_roles=peers)

    def _on_session(self, uri: str) -> OnSession | None:
        service = self.services.get(uri)
        return service.on_session if service is not None else None


async def _warm(runtime: Runtime) -> None:
    with suppress(TreatyError):
        await runtime.warm()


@dataclass
class Service:
    """A protocol that an agent provides, or whose operations it serves as the initiator.

    `on_session`: called with each session that another agent opens.
    `protocol`: None while it is not served.
    `flow_ids`: the ids under which the flow profile offers it, by its aliases.
    `attempts`: the task that loads it.
    `tried`: done after the first of those attempts.
    `is_away`: whether its registry did not answer when it was asked last.
    `again`: set to try at once, because a function was registered.
    """

    functions: Functions = field(default_factory=Functions)
    role: str | None = None
    on_session: OnSession | None = None
    protocol: SpokenProtocol | None = None
    flow_ids: list[str] = field(default_factory=list)
    attempts: asyncio.Task[None] | None = None
    tried: asyncio.Future[None] | None = None
    is_away: bool = False
    again: asyncio.Event = field(default_factory=asyncio.Event)

    async def is_changed_within(self, seconds: float) -> bool:
        """Wait until `again` is set, and clear it; return False if that does not happen in time."""
        try:
            async with asyncio.timeout(seconds):
                await self.again.wait()
        except TimeoutError:
            return False
        self.again.clear()
        return True
