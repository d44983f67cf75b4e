"""Connect an agent to the world: the trusted registries over the network, and the sandbox."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..identity import Identity
from ..network.did_documents import DidResolver
from ..network.egress import EgressGuard
from ..network.hosts import Network
from ..policy import Policy
from ..protocols.fetch import Fetcher
from ..sandbox.interface import Runtime
from ..statements.report import RegistryLog
from .agreements import AgreementCache
from .context import Ports
from .endpoint import PeerDocuments
from .flow_context import PolicyNames
from .reporting import RegistryPublisher


def network_ports(
    identity: Identity,
    network: Network,
    policy: Policy,
    runtime: Runtime,
    agreements: AgreementCache,
    *,
    home: Path,
    origin: str,
    timeout: float,
) -> Ports:
    """Return the ports of an agent. `origin`: of the registry where it publishes. `timeout`: seconds for an exchange with a
    registry. Nothing is sent yet."""
    fetcher = Fetcher(home, policy, network, timeout=timeout)
    return Ports(
        protocols=fetcher,
        runtime=runtime,
        log_of=partial(RegistryLog, fetcher, EgressGuard(network)),
        publisher=RegistryPublisher(identity, fetcher, origin, network),
        resolver=DidResolver(PeerDocuments(network, agreements, secp256k1=policy.accept_secp256k1).fetch),
        names=partial(PolicyNames, fetcher),
    )
