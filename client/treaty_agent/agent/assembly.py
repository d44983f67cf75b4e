"""Assemble an agent from its parts: identity, protocols, network, sandbox, memory.

Protocols come from trusted registries over the network, or from folders. The module imports the libraries of a whole agent, so
`agent` imports it when the first agent is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from treaty_client.policy import Policy
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.local import LocalProtocols
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_consensus.errors import Refused
from treaty_io.afterwards import Afterwards
from treaty_io.codes import AgentCode
from treaty_io.extras import naming_extras
from treaty_io.identity import Identity
from treaty_io.network.did_documents import DidResolver
from treaty_io.network.egress import EgressGuard
from treaty_io.network.hosts import Network
from treaty_sandbox.interface import Runtime
from treaty_sandbox.isolation import at_least
from treaty_sandbox.recorder import recorded
from treaty_sandbox.runtime import SandboxRuntime

from ..config import AgentConfig, effective
from ..negotiators.negotiator import Negotiators
from ..reports.report import RegistryLog, Reporter
from ..sessions.activity import Activity
from ..sessions.agreements import AgreementCache, NegotiatedProtocols
from ..sessions.context import AgentContext
from ..sessions.deposits import Deposits
from ..sessions.endpoint import AgentEndpoint, PeerDocuments
from ..sessions.escalation import Approvals, OnEscalation
from ..sessions.flow_context import LocalNames, PolicyNames
from ..sessions.interfaces import AgentEvent, Ports, ProtocolSource
from ..sessions.opening import OnChangedPeer, SessionOpener
from ..sessions.reporting import RegistryPublisher
from ..sessions.served_protocols import ServedProtocols
from ..sessions.session_memory import SessionMemory
from ..sessions.session_reports import SessionReports
from ..sessions.session_work import SessionWork


class Parts(NamedTuple):
    """The parts of an agent. `config`: with its home and timeouts."""

    config: AgentConfig
    network: Network
    context: AgentContext
    endpoint: AgentEndpoint
    opener: SessionOpener


def import_libraries(protocols: ProtocolSource) -> None:
    """Import the web server and Sigstore, before the first session does. Raises `Unavailable` (`system.missing`)."""
    with naming_extras():
        from ..transport import listener  # noqa: F401

        # A third of the time of a start. Protocols of folders have no attestation to verify, and are not published.
        if not isinstance(protocols, LocalProtocols):
            from treaty_client.statements import publish  # noqa: F401


def assemble(
    identity: Identity,
    registry: str | LocalProtocols,
    config: AgentConfig | Policy | None,
    *,
    home: Path | None,
    network: Network | None,
    negotiators: Negotiators | None,
    on_escalation: OnEscalation | None,
    on_event: Callable[[AgentEvent], None] | None,
    on_changed_peer: OnChangedPeer | None,
    ports: Ports | None,
) -> Parts:
    """Make the parts of an agent. The arguments and the errors are those of `Agent`; an error changes nothing."""
    config, home, timeouts = effective(config, home, negotiates=negotiators is not None)
    network, policy = network or Network(), config.policy
    # Before anything is changed: a refused agent leaves no trace in its home.
    if negotiators is not None and policy.isolation == "none":
        raise Refused(
            AgentCode.SETTINGS,
            "Code of a negotiator runs only in a sandbox: no publisher vouches for it.",
            fix='Set isolation = "process" in the policy, or do without negotiators.',
        )
    afterwards = Afterwards()
    agreements = AgreementCache(home, afterwards)
    if isinstance(registry, LocalProtocols):
        origin, policy = registry.origin, replace(policy, report=False, publish=False)
        ports = ports or _local_ports(registry, home, config, network, agreements, afterwards)
    else:
        name = parse_registry_name(registry)
        TrustedRegistries(home).add(name)
        origin = name.origin
        ports = ports or _registry_ports(identity, home, config, network, origin, agreements, afterwards, timeouts.registry)
    activity, negotiated = Activity(), NegotiatedProtocols(home)
    reporter = Reporter(identity, home, ports.log_of, delay=policy.report_delay)
    context = AgentContext(
        identity=identity,
        home=home,
        policy=policy,
        timeouts=timeouts,
        limits=config.limits,
        capacity=config.capacity,
        ports=ports,
        served=ServedProtocols(config.capacity, negotiated, policy.max_age, activity.calls),
        memory=SessionMemory(agreements, negotiated, Approvals(home), config.transcripts, on_escalation is not None),
        reports=SessionReports(reporter, origin),
        deposits=Deposits(reporter, ports.has_weight),
        work=SessionWork(config.capacity),
        afterwards=afterwards,
        worker_wait=config.workers.wait,
        negotiators=negotiators,
        on_escalation=on_escalation,
        on_event=on_event,
        activity=activity,
    )
    endpoint = AgentEndpoint(context, network, config.flow)
    return Parts(config, network, context, endpoint, SessionOpener(context, endpoint, network, on_changed_peer))


def _registry_ports(
    identity: Identity,
    home: Path,
    config: AgentConfig,
    network: Network,
    origin: str,
    agreements: AgreementCache,
    afterwards: Afterwards,
    timeout: float,
) -> Ports:
    """Return the ports of an agent whose protocols come from registries. `origin`: where it publishes and reports.
    `timeout`: seconds for an exchange with a registry."""
    fetcher = Fetcher(home, config.policy, network, timeout=timeout, afterwards=afterwards)
    return Ports(
        protocols=fetcher,
        runtime=_sandbox(home, config, afterwards),
        log_of=partial(RegistryLog, fetcher, EgressGuard(network)),
        publisher=RegistryPublisher(identity, fetcher, origin, network),
        resolver=_resolver(config, network, agreements),
        names=partial(PolicyNames, fetcher),
        has_weight=partial(_has_weight, fetcher, origin),
    )


async def _has_weight(fetcher: Fetcher, origin: str, did: str) -> bool:
    """Return whether a DID has weight by vouches. In a development electorate each DID has some, so there it says nothing."""
    standing = await fetcher.client(origin).standing(did)
    return standing.electorate == "open" and standing.weight not in ("0", "")


def _local_ports(
    protocols: LocalProtocols,
    home: Path,
    config: AgentConfig,
    network: Network,
    agreements: AgreementCache,
    afterwards: Afterwards,
) -> Ports:
    """Return the ports of an agent whose protocols are files of its owner."""
    return Ports(
        protocols=protocols,
        runtime=_sandbox(home, config, afterwards),
        log_of=_no_log,
        publisher=protocols,
        resolver=_resolver(config, network, agreements),
        names=partial(LocalNames, protocols),
    )


def _sandbox(home: Path, config: AgentConfig, afterwards: Afterwards) -> Runtime:
    runtime = SandboxRuntime(home, at_least(config.policy.isolation), config.workers, config.sandbox, afterwards)
    return recorded(runtime, config.recordings)


def _resolver(config: AgentConfig, network: Network, agreements: AgreementCache) -> DidResolver:
    return DidResolver(PeerDocuments(network, agreements, secp256k1=config.policy.accept_secp256k1).fetch)


def _no_log(origin: str) -> NoReturn:
    """Stand for the log of an agent without a registry. Raises `Refused` (`agent.settings`)."""
    raise Refused(AgentCode.SETTINGS, "This agent has no registry, so its sessions are not reported.")
