"""The environment of one process, with the names of the source."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

from .handler.in_process import Team
from .handler.member import Member
from .handler.memory import Memory
from .message import Message, received
from .role import Role, published_by_action

MAX_MESSAGES, MAX_BYTES = 100_000, 64 * 1024 * 1024
"""Messages and their bytes in a history, and in the memory of a role, unless the environment says so. A session keeps less."""


class Context(SimpleNamespace):
    """Settings that the roles of an environment share."""


class Environment:
    """Roles, and the messages between them. For one event loop. `roles`: by name."""

    def __init__(self, context: Context | None = None, *, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        """Have no roles. `max_messages`, `max_bytes`: the room for the history, and for the messages that each role has seen."""
        self.context = context or Context()
        self.roles: dict[str, Role] = {}
        self._room = max_messages, max_bytes
        self._team, self._members = Team(self._memory()), dict[str, Member]()

    def add_roles(self, roles: Iterable[Role]) -> None:
        """Add roles. Raises `ValueError` for a name that is another's name or class, and for a role without actions."""
        for role in roles:
            self.add_role(role)

    def add_role(self, role: Role) -> None:
        """Add a role. Raises as `add_roles`."""
        kind = type(role).__name__
        name = role.name or f"{kind}-{sum(type(other).__name__ == kind for other in self.roles.values()) + 1}"
        member = Member(name, kind, role.flow, role.rc.watch, memory=self._memory())
        self._team.add(member, role)
        role.name, role.rc.env, self.roles[name], self._members[name] = name, self, role, member

    def publish_message(self, message: Message, peekable: bool = True) -> bool:
        """Publish a message of the user, or of the role whose action runs now: that goes out when the action is done. Return
        True. Raises `ValueError` for a message with faults, and `handler.environment.Full`."""
        if not published_by_action(message):
            self._team.publish(message.to_draft())
        return True

    async def run(self, k: int = 1) -> None:
        """Run `k` rounds: in each the roles that have news react, all at once. Raises an `ExceptionGroup` after a round."""
        for _ in range(k):
            await self._team.run()

    @property
    def is_idle(self) -> bool:
        """Return whether no role has anything to do."""
        return self._team.is_idle

    @property
    def messages(self) -> list[Message]:
        """Return the messages that were published, oldest first. Where older ones are gone, the first one says how many."""
        return _shown(self._team.history)

    @property
    def history(self) -> str:
        """Return the messages as text, a line each."""
        return "".join(f"\n{message.role}: {message.instruct_content or message.content}" for message in self.messages)

    async def recall(self, role: Role) -> list[Message]:
        """Return the messages that a role has seen, oldest first."""
        return _shown(self._members[role.name].memory)

    def _memory(self) -> Memory:
        return Memory(most=self._room[0], most_bytes=self._room[1])


def _shown(memory: Memory) -> list[Message]:
    return received((message.to_value() for message in memory), memory.forgotten)
