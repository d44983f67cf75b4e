"""The state of an agent, and the parts through which it acts: the registries over the network, and the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from treaty_consensus.errors import TreatyError
from treaty_consensus.extras import naming_extras

from .config import AgentConfig
from .identity import Identity
from .negotiators.negotiator import Negotiators
from .network.did_documents import DidResolver
from .network.egress import EgressGuard
from .network.hosts import Network
from .protocols.fetch import Fetcher
from .sandbox.interface import Runtime
from .sandbox.runtime import SandboxRuntime
from .sessions.agreements import AgreementCache, NegotiatedProtocols
from .sessions.context import AgentContext, AgentEvent, Ports
from .sessions.endpoint import PeerDocuments
from .sessions.escalation import Approvals, OnEscalation
from .sessions.flow_context import PolicyNames
from .sessions.interfaces import SessionTimeouts
from .sessions.lifecycle import RegistryPublisher
from .statements.report import RegistryLog, Reporter


def import_libraries() -> None:
    """Import Sigstore and the web server, before the first session does. Raises `Unavailable` (`system.extra`)."""
    with naming_extras():
        from .network.transport import listener  # noqa: F401
        from .statements import publish  # noqa: F401


def real_ports(
    identity: Identity, home: Path, config: AgentConfig, network: Network, origin: str, agreements: AgreementCache
) -> Ports:
    """Return the trusted registries, over the network, and the sandbox."""
    fetcher = Fetcher(home, config.policy, network)
    return Ports(
        protocols=fetcher,
        runtime=SandboxRuntime(home, config.policy.isolation, config.workers, config.sandbox),
        log_of=partial(RegistryLog, fetcher, EgressGuard(network)),
        publisher=RegistryPublisher(identity, fetcher, origin, network),
        resolver=DidResolver(PeerDocuments(network, agreements, secp256k1=config.policy.accept_secp256k1).fetch),
        names=partial(PolicyNames, fetcher),
    )


def make_context(
    identity: Identity,
    origin: str,
    home: Path,
    config: AgentConfig,
    timeouts: SessionTimeouts,
    network: Network,
    *,
    ports: Ports | None,
    negotiators: Negotiators | None,
    on_escalation: OnEscalation | None,
    on_event: Callable[[AgentEvent], None] | None,
) -> AgentContext:
    """Return the state that all sessions of an agent share. `origin`: of its registry. `ports`: None for the real ones."""
    policy, agreements = config.policy, AgreementCache(home)
    ports = ports or real_ports(identity, home, config, network, origin, agreements)
    return AgentContext(
        identity=identity,
        registry=origin,
        home=home,
        policy=policy,
        timeouts=timeouts,
        limits=config.limits,
        capacity=config.capacity,
        ports=ports,
        agreements=agreements,
        reporter=Reporter(identity, home, ports.log_of, delay=policy.report_delay),
        negotiated=NegotiatedProtocols(home),
        approvals=Approvals(home),
        negotiators=negotiators,
        on_escalation=on_escalation,
        on_event=on_event,
        transcripts=config.transcripts,
    )


async def warm(runtime: Runtime) -> None:
    """Start workers. An error is left to the session's own worker, which raises it."""
    with suppress(TreatyError):
        await runtime.warm()
