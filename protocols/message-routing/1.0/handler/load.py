"""The bounds of messages that wait or travel together, as an argument or a result of one operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .message import Message, Size

MAX_MESSAGES = 256
MAX_BYTES = 1024 * 1024
# An operation's arguments have at most 20,000 values.
MAX_VALUES = 16_000


@dataclass(slots=True)
class Load:
    """The size of some messages."""

    messages: int = 0
    bytes: int = 0
    values: int = 0

    def add(self, size: Size) -> bool:
        """Count a message of this size. Return False, and do not count it, if there is no room."""
        if not self.has_room(size):
            return False
        self.messages += 1
        self.bytes += size.bytes
        self.values += size.values
        return True

    def has_room(self, size: Size, parts: int = 1) -> bool:
        """Return whether a message of this size can be added. `parts`: into one of so many equal parts of the room."""
        return (
            self.messages < MAX_MESSAGES // parts
            and self.bytes + size.bytes <= MAX_BYTES // parts
            and self.values + size.values <= MAX_VALUES // parts
        )


class Buffer:
    """Messages that wait, in the order in which they came."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._load = Load()
        for message in messages:
            self.put(message)

    @property
    def load(self) -> Load:
        """Return a copy of the size of all."""
        return replace(self._load)

    def put(self, message: Message) -> bool:
        """Add a message. Return False if there is no room for it."""
        if not self._load.add(message.size):
            return False
        self._messages.append(message)
        return True

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)


def fitting(messages: Iterable[Message], count: int) -> list[Message]:
    """Return the first messages that fit into one result, at most `count`."""
    load, batch = Load(), list[Message]()
    for message in messages:
        if len(batch) == count or not load.add(message.size):
            break
        batch.append(message)
    return batch
