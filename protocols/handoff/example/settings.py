"""The parts that all processes share: names, keys, the database."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from treaty_agent import Identity
from treaty_handoff import HandoffAgent, Journal, Permissions, PostgresBroker, Seal, SenderGrant

DESK, SUPPORT, EXPERT, PERSON = (
    "customer_service_agent_001",
    "technical_support_agent_001",
    "level3_network_expert_001",
    "operations_manager",
)
SUPPORT_POOL, EXPERT_POOL = "technical_support_agent_pool", "level3_network_expert_agent_pool"
GROUPS = {SUPPORT: [SUPPORT_POOL], EXPERT: [EXPERT_POOL]}
FLOW, TASK = "flow-xyz-123", "task-abc-456"


@dataclass(frozen=True)
class Deployment:
    """A folder with an identity for each agent, the DIDs of all, and the key of the stored messages."""

    folder: Path
    url: str

    def prepare(self, key: bytes) -> None:
        """Write the files."""
        identities = {name: Identity.create() for name in (DESK, SUPPORT, EXPERT, PERSON)}
        for name, identity in identities.items():
            identity.save(self.folder / f"{name}.json")
        (self.folder / "senders.json").write_text(json.dumps({name: identity.did for name, identity in identities.items()}))
        (self.folder / "storage.key").write_bytes(key)

    @asynccontextmanager
    async def agent(self, name: str) -> AsyncIterator[tuple[HandoffAgent, Journal]]:
        """One agent with its journal, connected. It does not run yet."""
        identity = Identity.load(self.folder / f"{name}.json")
        senders = json.loads((self.folder / "senders.json").read_text())
        # A member of a group may answer for it.
        permissions = Permissions(
            {each: SenderGrant(did, groups=frozenset(GROUPS.get(each, ()))) for each, did in senders.items()}
        )
        seal = Seal((self.folder / "storage.key").read_bytes())
        async with Journal.open(self.url, name, seal=seal) as journal, PostgresBroker.open(self.url) as broker:
            agent = HandoffAgent(
                name,
                journal,
                broker,
                groups=GROUPS.get(name, []),
                identity=identity,
                permissions=permissions,
                escalates_to=[EXPERT_POOL] if name == SUPPORT else [],
            )
            yield agent, journal
