"""A client of registries: fetch and verify protocols, publish and vote, audit and watch a log. It runs no agent.

registries   the HTTP API, the trusted registries, the memory of seen leaves
protocols    fetch a protocol after ten checks, and keep it
statements   publish, vote, vouch, grant, rotate keys
authoring    projects of new protocols
audit        mirror a log and recompute its decisions
watching     follow a log
policy       what an agent accepts
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treaty_io.extras import lazy_names

if TYPE_CHECKING:
    from .audit.auditor import AuditOptions as AuditOptions
    from .audit.auditor import AuditReport as AuditReport
    from .audit.mirror import Mirror as Mirror
    from .policy import Policy as Policy
    from .protocols.fetch import Fetcher as Fetcher
    from .protocols.local import LocalProtocols as LocalProtocols
    from .protocols.project import Project as Project
    from .protocols.project import load_project as load_project
    from .protocols.store import Lockfile as Lockfile
    from .protocols.store import Store as Store
    from .protocols.verification.ten_steps import verify_bundle as verify_bundle
    from .registries.api import RegistryClient as RegistryClient
    from .registries.trust import TrustedRegistries as TrustedRegistries
    from .registries.trust import TrustedRegistry as TrustedRegistry
    from .statements.publish import Published as Published
    from .statements.publish import Publisher as Publisher
    from .statements.vote import Vote as Vote
    from .watching.watcher import Watcher as Watcher
else:
    # At their first use: each program needs a few of them.
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".audit.auditor": "AuditOptions AuditReport",
            ".audit.mirror": "Mirror",
            ".policy": "Policy",
            ".protocols.fetch": "Fetcher",
            ".protocols.local": "LocalProtocols",
            ".protocols.project": "Project load_project",
            ".protocols.store": "Lockfile Store",
            ".protocols.verification.ten_steps": "verify_bundle",
            ".registries.api": "RegistryClient",
            ".registries.trust": "TrustedRegistries TrustedRegistry",
            ".statements.publish": "Published Publisher",
            ".statements.vote": "Vote",
            ".watching.watcher": "Watcher",
        },
    )
