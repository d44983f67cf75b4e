"""A memory of messages without duplicates (rule 7): the history of an environment, and what a member has seen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from treaty_handler import Value

from .message import Message, complete

MAX_MESSAGES = 1_000
MAX_BYTES = 1024 * 1024
"""The bytes and values that a host keeps for a session: 1 MiB and 1,024. So it has room for a whole history."""


class Memory:
    """The last messages, oldest first, each once. `forgotten`: the number of older ones that were given up for the room. `most`,
    `most_bytes`: the room; a session has no more."""

    def __init__(
        self, messages: Iterable[Message] = (), forgotten: int = 0, *, most: int = MAX_MESSAGES, most_bytes: int = MAX_BYTES
    ) -> None:
        self.forgotten, self._most, self._most_bytes = forgotten, most, most_bytes
        self._messages: dict[bytes, Message] = {message.key: message for message in messages}
        self._size = sum(map(len, self._messages))

    def add(self, message: Message) -> bool:
        """Keep a message. Return False for one that is equal in all fields to a message that is kept already."""
        key = message.key
        if key in self._messages:
            return False
        self._messages[key] = message
        self._size += len(key)
        while len(self._messages) > self._most or self._size > self._most_bytes:
            oldest = next(iter(self._messages))
            del self._messages[oldest]
            self._size -= len(oldest)
            self.forgotten += 1
        return True

    @property
    def total(self) -> int:
        """Return the number of messages that were ever kept."""
        return self.forgotten + len(self)

    def caused_by(self, causes: Collection[str]) -> list[Message]:
        """Return the messages with one of these causes; all for none."""
        return [message for message in self if not causes or message.cause_by in causes]

    def __contains__(self, message: Message) -> bool:
        return message.key in self._messages

    def __iter__(self) -> Iterator[Message]:
        return iter(tuple(self._messages.values()))

    def __len__(self) -> int:
        return len(self._messages)

    def newest(self, count: int) -> Memory:
        """Return a memory of the last messages alone."""
        forgotten = max(len(self) - count, 0)
        return Memory(list(self)[forgotten:], self.forgotten + forgotten)

    def to_value(self) -> list[Value]:
        """Return the memory as a JSON value, for a snapshot."""
        return [self.forgotten, [message.to_value() for message in self]]

    @classmethod
    def from_value(cls, value: Sequence[Value]) -> Memory:
        """Return the memory of `to_value`."""
        return cls((complete(message, str) for message in value[1]), value[0])
