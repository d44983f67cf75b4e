"""Connect an agent to the world: the trusted registries over the network, and the sandbox."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

from ..identity import Identity
from ..network.did_documents import DidResolver
from ..network.egress import EgressGuard
from ..network.hosts import Network
from ..policy import Policy
from ..protocols.fetch import Fetcher
from ..sandbox.bubblewrap import SandboxLimits
from ..sandbox.passivation import Passivation
from ..sandbox.runtime import SandboxRuntime
from ..statements.report import RegistryLog
from .agreements import AgreementCache
from .context import Ports
from .endpoint import PeerDocuments
from .flow_context import PolicyNames
from .reporting import RegistryPublisher


class PortSettings(Protocol):
    """The part of the configuration that ports need; `AgentConfig` has it."""

    @property
    def policy(self) -> Policy:
        """Whose code runs, and the proofs that are needed."""

    @property
    def workers(self) -> Passivation:
        """How sessions share workers."""

    @property
    def sandbox(self) -> SandboxLimits:
        """The memory and time of a worker."""


def network_ports(
    identity: Identity,
    network: Network,
    settings: PortSettings,
    home: Path,
    origin: str,
    agreements: AgreementCache,
    timeout: float,
) -> Ports:
    """Return the ports of an agent. `origin`: of the registry where it publishes. `timeout`: seconds for an exchange with a
    registry. Nothing is sent yet."""
    policy = settings.policy
    fetcher = Fetcher(home, policy, network, timeout=timeout)
    return Ports(
        protocols=fetcher,
        runtime=SandboxRuntime(home, policy.isolation, settings.workers, settings.sandbox),
        log_of=partial(RegistryLog, fetcher, EgressGuard(network)),
        publisher=RegistryPublisher(identity, fetcher, origin, network),
        resolver=DidResolver(PeerDocuments(network, agreements, secp256k1=policy.accept_secp256k1).fetch),
        names=partial(PolicyNames, fetcher),
    )
