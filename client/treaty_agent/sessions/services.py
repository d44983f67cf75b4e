"""The protocols that an agent provides, with their functions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from .arrivals import OnSession
from .interfaces import SpokenProtocol
from .operations import Functions


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
