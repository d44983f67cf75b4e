"""Agents that hand off through a real broker, and messages for them."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import treaty_client
from treaty_handoff import Handling, HandoffAgent, Journal, Kind, Message, Outcome, PostgresBroker, RabbitBroker, Seal, build
from treaty_handoff.broker import Broker

FOLDER = Path(treaty_client.__file__).parents[2] / "protocols" / "handoff" / "1.0"
DATA: dict[Kind, dict[str, Any]] = {
    Kind.TASK_TRANSFER: {"objective": "Restore the connection.", "sub_tasks": [{"sub_task_id": "1", "description": "Look."}]},
    Kind.REQUEST_INFORMATION: {"requested_info_keys": ["level"]},
    Kind.PROVIDE_INFORMATION: {"information": {"level": "gold"}},
    Kind.ESCALATION: {
        "issue_category": "NETWORK_CONNECTIVITY",
        "severity": "HIGH",
        "customer_info": {"user_id": "john.doe@example.com", "name": "John Doe", "contact_number": "+1-555-123-4567"},
        "technical_details": {"symptoms": "The connection drops."},
    },
    Kind.NOTIFICATION: {"event": "LINE_RESTORED"},
    Kind.STATUS_UPDATE: {"status": "IN_PROGRESS", "progress": 50},
    Kind.APPROVAL_REQUEST: {"subject": "Replace the router?"},
}
"""Valid data of each kind."""


def example() -> Message:
    """Return the example of document.md."""
    match = re.search(r"(?s)```json example\n(.*?)```", (FOLDER / "document.md").read_text(encoding="utf-8"))
    assert match is not None
    return json.loads(match[1])  # type: ignore[no-any-return]


def changed(path: str, value: object) -> Message:
    """Return the example with one member set, by its dotted path; `...` removes it."""
    message = example()
    *parents, name = path.split(".")
    place = message
    for parent in parents:
        place = place[int(parent)] if isinstance(place, list) else place[parent]
    if value is ...:
        del place[name]
    else:
        place[name] = value
    return message


class World:
    """Agents of one test, with one database for their journals and one broker. `now`: their clock, which only the test moves."""

    def __init__(self, stack: AsyncExitStack, url: str, connect: Callable[[], Any], seal: Seal | None) -> None:
        self._stack, self.url, self._connect, self.seal = stack, url, connect, seal
        # Queues of RabbitMQ outlive a test, so that each test has names of its own.
        self._suffix = uuid.uuid4().hex[:8]
        self.shift = timedelta()
        self.journals: dict[str, Journal] = {}

    def clock(self) -> datetime:
        return datetime.now(UTC) + self.shift

    def name(self, name: str) -> str:
        """Return the name of an agent or group in this test."""
        return f"{name}.{self._suffix}"

    async def broker(self) -> Broker:
        """A connection to the broker."""
        return await self._stack.enter_async_context(self._connect())

    async def agent(self, name: str, *, groups: tuple[str, ...] = (), **settings: Any) -> HandoffAgent:
        """An agent that does not run yet."""
        full = self.name(name)
        if full not in self.journals:
            self.journals[full] = await self._stack.enter_async_context(Journal.open(self.url, full, seal=self.seal))
        shared = [self.name(group) for group in groups]
        settings = {"clock": self.clock, "retry_after": 0.05, **settings}
        return HandoffAgent(full, self.journals[full], await self.broker(), groups=shared, **settings)

    async def run(self, *agents: HandoffAgent) -> None:
        """Run agents until the test ends."""
        for agent in agents:
            await self._stack.enter_async_context(agent.running())

    def message(self, kind: Kind, sender: str, recipient: str, **parts: Any) -> Message:
        """A message of a kind, with valid data unless given."""
        data = parts.pop("data", DATA[kind])
        parts = {"task": "task-1", "state": "OPEN", "now": self.clock(), **parts}
        return build(kind, data, sender=self.name(sender), recipient=self.name(recipient), **parts)


@asynccontextmanager
async def world(url: str, rabbit: str | None, *, seal: Seal | None = None) -> AsyncIterator[World]:
    """Open a world. `rabbit`: the URL of a RabbitMQ; None for the queues of PostgreSQL in the database at `url`."""

    def connect() -> Any:
        return PostgresBroker.open(url, lease=2) if rabbit is None else RabbitBroker.open(rabbit)

    async with AsyncExitStack() as stack:
        yield World(stack, url, connect, seal)


class Inbox:
    """Takes messages and keeps them: the simplest application. `outcome`: its answer to each."""

    def __init__(self, agent: HandoffAgent, *kinds: Kind, outcome: Outcome | None = None) -> None:
        self.messages: list[Message] = []
        self.outcome = outcome
        self._news = asyncio.Event()
        agent.handles(*(kinds or tuple(Kind)))(self._take)

    async def _take(self, handling: Handling) -> Outcome | None:
        self.messages.append(handling.message)
        self._news.set()
        return self.outcome

    async def wait(self, count: int = 1) -> list[Message]:
        """Wait for as many messages."""
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                self._news.clear()
                await self._news.wait()
        return self.messages

    @property
    def statuses(self) -> list[str]:
        """The statuses that were reported."""
        return [message["payload"]["data"].get("status", "") for message in self.messages]


async def until(condition: Callable[[], Any], *, seconds: float = 60) -> None:
    """Wait until a condition holds; it may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.02)


async def drained(world: World, name: str = "desk") -> bool:
    """Whether the outbox of an agent is empty."""
    return await world.journals[world.name(name)].waiting() == 0


def shown(message: Mapping[str, Any]) -> tuple[str, str]:
    """The kind and the sender of a message, without the test's suffix."""
    return message["payload"]["handoff_type"], message["metadata"]["sender_id"].partition(".")[0]
