"""The rules of an environment: it has members, gives them the messages that are addressed to them, and keeps a history."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from treaty_handler import Value

from .load import Load
from .memory import Memory
from .message import TO_ALL, Message

MAX_MEMBERS = 256
PARTS = 2
"""A member may publish one of so many parts of a recipient's room in a round: it alone takes no room of all others."""


_LOADS = ("waiting", "published")


class Full(Exception):
    """There is no room for the message, which was not published. Its text is the reason."""


@dataclass(slots=True)
class Membership:
    """A member as its environment sees it.

    `address`: its class. `shares`: it lets others have this class. `waiting`: the messages that it was given since it last
    looked, as an argument of its next action. `published`: those that it published in this round. `is_busy`: it says that it has
    something to do. `is_running`: it works on this round.
    """

    name: str
    address: str
    shares: bool = False
    waiting: Load = field(default_factory=Load)
    published: Load = field(default_factory=Load)
    is_busy: bool = False
    is_running: bool = False

    @property
    def addresses(self) -> frozenset[str]:
        """Return what a message can name to reach it: its class and its name."""
        return frozenset({self.address, self.name})

    @property
    def is_idle(self) -> bool:
        """Return whether it has no news, nothing to do and nothing buffered (rule 8)."""
        return not (self.is_running or self.is_busy or self.waiting.messages)

    def receives(self, message: Message) -> bool:
        """Return whether a message is addressed to it, its own included (rules 2, 4 and 5)."""
        return TO_ALL in message.send_to or not self.addresses.isdisjoint(message.send_to)


class Delivery(NamedTuple):
    """`receivers`: the names of the members that were given a message, in the order in which they joined. `missed`: the number of
    those that had no room for it."""

    receivers: list[str]
    missed: int


class Environment:
    """The members by name, in the order in which they joined, and the history."""

    def __init__(self, history: Memory | None = None) -> None:
        self.members: dict[str, Membership] = {}
        self.history = Memory() if history is None else history

    def join(self, name: str, address: str, *, shares: bool) -> str:
        """Add a member. `shares`: others that do so too may have its class. Return "" or the reason for which it cannot join."""
        if len(self.members) >= MAX_MEMBERS:
            return f"The environment has {MAX_MEMBERS} members already."
        # Two members of one name would share its messages; and a name that is a class of others would take theirs.
        if any(name in other.addresses or address == other.name for other in self.members.values()):
            return "Another member has this name or this class."
        # What is sent to a class goes to all members that have it, and each of them speaks in its name.
        if any(address == other.address and not (shares and other.shares) for other in self.members.values()):
            return "Another member has this class, and the two do not share it."
        self.members[name] = Membership(name, address, shares)
        return ""

    def leave(self, name: str) -> None:
        """Remove a member with all that waits for it."""
        self.members.pop(name, None)

    def publish(self, message: Message, author: str = "") -> Delivery:
        """Give a message to the members that it is addressed to, and record it. For none, warn (rule 5).

        `author`: the member that publishes it; "" for the user. Raises `Full`; then nothing has changed.
        """
        addressed = [member for member in self.members.values() if member.receives(message)]
        size = message.size
        if author and not self.members[author].published.has_room(size, PARTS):
            raise Full("This member published too much in this round.")
        receivers = [member for member in addressed if member.waiting.has_room(size)]
        if addressed and not receivers:
            raise Full("Too many messages wait for each recipient.")
        for member in receivers:
            member.waiting.add(size)
        if author:
            self.members[author].published.add(size)
        self.history.add(message)
        return Delivery([member.name for member in receivers], len(addressed) - len(receivers))

    def begin_round(self) -> list[str]:
        """Begin a round: the members that are not idle look at what waits for them, all at once (rule 9). Return their names."""
        running = [member for member in self.members.values() if not member.is_idle]
        for member in self.members.values():
            member.published = Load()
        for member in running:
            member.is_running, member.waiting = True, Load()
        return [member.name for member in running]

    def rest(self, name: str, *, is_busy: bool) -> None:
        """Record that a member has finished its part of the round. `is_busy`: it has something left to do."""
        self.members[name].is_running = False
        self.members[name].is_busy = is_busy

    @property
    def is_running(self) -> bool:
        """Return whether a round is not over."""
        return any(member.is_running for member in self.members.values())

    @property
    def is_idle(self) -> bool:
        """Return whether all members are (rule 8)."""
        return all(member.is_idle for member in self.members.values())

    def to_value(self) -> dict[str, Value]:
        """Return the state as a JSON value, for a snapshot."""
        return {"members": [asdict(member) for member in self.members.values()], "history": self.history.to_value()}

    @classmethod
    def from_value(cls, value: dict[str, Value]) -> Environment:
        """Return the environment of `to_value`."""
        environment = cls()
        members = [Membership(**{**member, **{name: Load(**member[name]) for name in _LOADS}}) for member in value["members"]]
        environment.members = {member.name: member for member in members}
        environment.history = Memory.from_value(value["history"])
        return environment
