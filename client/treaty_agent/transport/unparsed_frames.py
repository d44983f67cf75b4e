"""Give the bytes of a WebSocket to its parser a few frames at a time.

The parser takes all that it is given in one step. 256 KiB, as much as is read at once, can be 43,000 frames without a payload,
which take it a quarter of a second. Their headers (RFC 6455 section 5.2) tell how many there are.
"""

from __future__ import annotations

FRAMES = 64
"""Frames that are parsed in one step."""
_LENGTHS = {126: 2, 127: 8}
"""Bytes of a length that does not fit into the seven bits."""


class UnparsedFrames:
    """Bytes that were read and not parsed."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        # Bytes of the last frame that have not arrived. A payload does not wait here until it is complete.
        self._owed = 0

    @property
    def is_waiting(self) -> bool:
        """Whether `take` would return another frame."""
        return self._size_at(0) is not None

    def add(self, data: bytes) -> None:
        """Keep bytes that were read."""
        self._bytes += data

    def take(self) -> bytes:
        """Return and forget the next `FRAMES` frames, or as many as have a whole header. The payload of the last one may be
        incomplete."""
        end, held = self._owed, len(self._bytes)
        for _ in range(FRAMES):
            size = self._size_at(end)
            if size is None:  # the rest of its header comes with the next bytes
                break
            end += size
        taken = bytes(self._bytes[:end])
        del self._bytes[:end]
        self._owed = max(0, end - held)
        return taken

    def _size_at(self, start: int) -> int | None:
        """Return the bytes of the frame that begins there, or None if its header is not complete."""
        head = self._bytes[start : start + 14]
        if len(head) < 2:
            return None
        length, header = head[1] & 0x7F, 6 if head[1] & 0x80 else 2
        if more := _LENGTHS.get(length, 0):
            if len(head) < 2 + more:
                return None
            length, header = int.from_bytes(head[2 : 2 + more], "big"), header + more
        return header + length
