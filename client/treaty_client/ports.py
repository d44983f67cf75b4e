"""Make the ports of an agent: trusted registries over the network, or protocols in folders; both with the sandbox."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NoReturn

from treaty_consensus.errors import Refused

from .codes import LocalCode
from .config import AgentConfig
from .identity import Identity
from .network.did_documents import DidResolver
from .network.egress import EgressGuard
from .network.hosts import Network
from .protocols.fetch import Fetcher
from .protocols.local import LocalProtocols
from .sandbox.interface import Runtime
from .sandbox.recorder import recorded
from .sandbox.runtime import SandboxRuntime
from .sessions.agreements import AgreementCache
from .sessions.context import Ports
from .sessions.endpoint import PeerDocuments
from .sessions.flow_context import LocalNames, PolicyNames
from .sessions.lifecycle import RegistryPublisher
from .statements.report import RegistryLog


def registry_ports(
    identity: Identity, home: Path, config: AgentConfig, network: Network, origin: str, agreements: AgreementCache
) -> Ports:
    """Return the ports of an agent whose protocols come from registries. `origin`: where it publishes and reports."""
    fetcher = Fetcher(home, config.policy, network)
    return Ports(
        protocols=fetcher,
        runtime=_sandbox(home, config),
        log_of=partial(RegistryLog, fetcher, EgressGuard(network)),
        publisher=RegistryPublisher(identity, fetcher, origin, network),
        resolver=_resolver(config, network, agreements),
        names=partial(PolicyNames, fetcher),
    )


def local_ports(
    protocols: LocalProtocols, home: Path, config: AgentConfig, network: Network, agreements: AgreementCache
) -> Ports:
    """Return the ports of an agent whose protocols are files of its owner."""
    return Ports(
        protocols=protocols,
        runtime=_sandbox(home, config),
        log_of=_no_log,
        publisher=protocols,
        resolver=_resolver(config, network, agreements),
        names=partial(LocalNames, protocols),
    )


def _sandbox(home: Path, config: AgentConfig) -> Runtime:
    return recorded(SandboxRuntime(home, config.policy.isolation, config.workers, config.sandbox), config.recordings)


def _resolver(config: AgentConfig, network: Network, agreements: AgreementCache) -> DidResolver:
    return DidResolver(PeerDocuments(network, agreements, secp256k1=config.policy.accept_secp256k1).fetch)


def _no_log(origin: str) -> NoReturn:
    """Stand for the log of an agent without a registry. Raises `Refused` (`local.no-registry`)."""
    raise Refused(LocalCode.NO_REGISTRY, "This agent has no registry, so its sessions are not reported.")
