"""Application messages that have to wait until the session runs."""

from __future__ import annotations


class Waiting:
    """Messages in their order, at most so many and so many bytes."""

    def __init__(self, *, frames: int, size: int) -> None:
        self._max_frames, self._max_size = frames, size
        self._messages: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._size

    @property
    def is_full(self) -> bool:
        """Whether one more is too many. The one that fills it may go beyond the bytes."""
        return len(self._messages) >= self._max_frames or self._size >= self._max_size

    def put(self, message: bytes) -> None:
        """Keep one more; see first whether it is full."""
        self._messages.append(message)
        self._size += len(message)

    def take(self) -> list[bytes]:
        """All of them; afterwards there are none."""
        messages, self._messages, self._size = self._messages, [], 0
        return messages
