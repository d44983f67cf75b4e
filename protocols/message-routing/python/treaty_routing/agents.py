"""Roles and environments that are agents: the same `Role` joins an environment at another agent. `pip install '.[agent]'`.

    environment = AgentEnvironment(agent, URI)                                    # here
    async with join(Writer(name="Bob"), agent, "wss://lead.example", URI):        # there, at another agent
        …
    await environment.publish_message(Message("A poem about rain", send_to="Bob"))

A role publishes in its actions, here as in one process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from treaty_agent import Agent, Session

from .message import Message, any_to_str, received
from .role import Role, published_by_action


class JoinedEnvironment:
    """The environment of a role whose session leads to another agent."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def publish_message(self, message: Message) -> bool:
        """Publish a message when the action is done. Return True. Outside of an action, call `publish` of the session."""
        if not published_by_action(message):
            raise RuntimeError("A role at an agent publishes in its actions.")
        return True

    async def recall(self, role: Role) -> list[Message]:
        """Return the last 100 messages that the role has seen."""
        answer = await self._session.call("recall")
        return received(answer["messages"], answer["forgotten"])


@asynccontextmanager
async def join(role: Role, agent: Agent, address: str, protocol: str, **how: Any) -> AsyncIterator[Session]:
    """Be a member of the environment at an address until the block ends. The role needs a name. `protocol`: the URI of message
    routing. `how`: for `agent.connect`. Raises its errors, and `OperationError` 400, 403 or 409 where the environment refuses."""
    serving: list[Callable[..., Any]] = [role.act, role.think]
    async with agent.connect(address, protocols=[protocol], role="member", serving=serving, **how) as session:
        role.rc.env = JoinedEnvironment(session)
        about: dict[str, Any] = {"name": role.name, "address": any_to_str(role), "watch": sorted(role.rc.watch), "shared": True}
        transitions = {state: list(following) for state, following in role.flow.transitions.items()}
        await session.call("join", **about, transitions=transitions, maxActions=role.flow.limit)
        yield session


class AgentEnvironment:
    """The environment that an agent provides to the roles that join it. Its methods raise `OperationError`."""

    def __init__(self, agent: Agent, protocol: str) -> None:
        """Provide it, before the agent listens. `protocol`: the URI of message routing."""
        agent.on_session(protocol, role="environment")(_leave_to_the_handler)
        self._agent, self._protocol = agent, protocol

    async def publish_message(self, message: Message) -> None:
        """Publish a message of the user."""
        await self._call("publish", **message.to_draft())

    async def run(self, k: int = 1) -> list[dict[str, str]]:
        """Run up to `k` rounds, until all are idle. Return the roles that failed, each with `name` and `reason`."""
        return list((await self._call("run", rounds=k))["failures"])

    async def is_idle(self) -> bool:
        """Return whether no role has anything to do."""
        return bool((await self._call("readMembers"))["idle"])

    async def messages(self) -> list[Message]:
        """Return the messages that were published, oldest first. Where older ones are gone, the first one says how many."""
        page = await self._call("readHistory", start=0)
        values, forgotten = list(page["messages"]), page["forgotten"]
        while page["messages"]:
            page = await self._call("readHistory", start=forgotten + len(values))
            values += page["messages"]
        return received(values, forgotten)

    async def _call(self, operation: str, **arguments: Any) -> Any:
        return await self._agent.shared(self._protocol).call(operation, **arguments)


async def _leave_to_the_handler(session: Session) -> None:
    """The environment calls its one session, and none of its members'."""
