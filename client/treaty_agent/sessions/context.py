"""Hold what all sessions of an agent share: its settings, what it serves, its memory, its reports and its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from treaty_anp.hello_profile.machine import Limits
from treaty_client.policy import Policy
from treaty_consensus.did import parse_did
from treaty_consensus.errors import TreatyError
from treaty_io.afterwards import Afterwards
from treaty_io.identity import Identity
from treaty_io.line_limit import limited_logger
from treaty_sandbox.interface import Runtime

from ..negotiators.negotiator import Negotiators, RoleName
from .activity import Activity, AgentMetrics
from .deposits import Deposits
from .escalation import OnEscalation
from .handler_hosts import HandlerHosts, HostRequest
from .interfaces import AgentEvent, Answerer, Capacity, Ports, SessionTimeouts, SpokenProtocol
from .middleware import Call, CallPipeline
from .operation_errors import FunctionFault
from .served_protocols import ServedProtocols
from .session_memory import SessionMemory
from .session_reports import SessionReports
from .session_work import SessionWork

_log = limited_logger(__name__)


@dataclass
class AgentContext:
    """What the sessions of one agent share.

    `served`: the protocols that it provides, with their functions.
    `memory`: agreements, negotiated protocols, approvals and transcripts.
    `reports`: of its sessions.
    `deposits`: of the peers that may cost money.
    `work`: its tasks and open connections.
    `afterwards`: the writes that no session waits for.
    `worker_wait`: seconds that an event may wait for a worker, beside the time of its handler.
    `activity`: the counts of `metrics`.
    """

    identity: Identity
    home: Path
    policy: Policy
    timeouts: SessionTimeouts
    limits: Limits
    capacity: Capacity
    ports: Ports
    served: ServedProtocols
    memory: SessionMemory
    reports: SessionReports
    deposits: Deposits
    work: SessionWork
    afterwards: Afterwards
    worker_wait: float = 0.0
    negotiators: Negotiators | None = None
    on_escalation: OnEscalation | None = None
    on_event: Callable[[AgentEvent], None] | None = None
    answerer: Answerer | None = None
    activity: Activity = field(default_factory=Activity)
    _is_warm: bool = False

    @cached_property
    def hosts(self) -> HandlerHosts:
        """The factory for the handlers of all sessions."""
        own = self.identity.did
        return HandlerHosts(
            own,
            self.home,
            self.ports.runtime,
            self.served.choose,
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

    @property
    def is_observed(self) -> bool:
        """Whether the events of sessions lead to anything: a report, or a call of the observer."""
        return self.on_event is not None or self.policy.report

    def metrics(self, *, waiting: int) -> AgentMetrics:
        """Return what this agent does now. `waiting`: sessions of this agent that wait to be opened."""
        threads, admissions = [functions.threads for functions in self.served.functions], self.work.admissions
        return AgentMetrics(
            sessions_in=self.activity.sessions[False],
            sessions_out=self.activity.sessions[True],
            opening=admissions.taken,
            sessions_waiting=admissions.waiting + waiting,
            calls=self.activity.calls.snapshot(),
            functions=self.activity.functions.snapshot(),
            threads=sum(each.taken for each in threads),
            threads_waiting=sum(each.waiting for each in threads),
            workers=self.ports.runtime.metrics(),
            reports_waiting=self.reports.reporter.waiting,
            protocols=len(self.served.ready) + len(self.served.published),
            negotiations=self.work.negotiations.taken,
            model=self.negotiators.spent() if self.negotiators is not None else None,
        )

    def warm(self) -> None:
        """Start workers in the background, once. An error is left to the session's own worker, which raises it."""
        if not self._is_warm:
            self._is_warm = True
            self.work.spawn(_warm(self.ports.runtime))

    def prepare_report(self, protocol: str = "", peer: str = "") -> None:
        """Read the facts for a report with a peer in the background, if the policy allows reports. `protocol`: its URI, if it is
        known."""
        if self.policy.report:
            self.work.spawn(self.reports.reporter.prepare(self.reports.log(protocol), peer))

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
                await self.work.finished()
                await self.reports.reporter.finish()

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
        self.served.stop_renewing()
        # Tasks first: they use the reporter and the runtime that are closed below.
        await self.work.cancel()
        await self.reports.reporter.close()
        # Before the runtime: the handlers of shared sessions keep what they have to keep.
        await self.hosts.close()
        if self.negotiators is not None:
            await self.negotiators.aclose()
        await self.ports.runtime.close()
        await self.ports.protocols.aclose()
        await self.afterwards.aclose()
        for functions in self.served.functions:
            functions.close()

    async def keys(self, did: str) -> Mapping[str, bytes]:
        """Return the keys that a DID signs with now. Raises the errors of the resolver."""
        return (await self.ports.resolver.resolve(parse_did(did))).keys


async def _warm(runtime: Runtime) -> None:
    with suppress(TreatyError):
        await runtime.warm()
