"""Give the bytes of a WebSocket to its parser a few frames at a time.

The parser takes all that it is given in one step. 256 KiB, as much as is read at once, can be 43,000 frames without a payload,
which take it a quarter of a second. Their headers (RFC 6455 section 5.2) tell how many there are.
"""

from __future__ import annotations

_LENGTHS = {126: 2, 127: 8}
"""Bytes of a length that does not fit into the seven bits."""


class UnparsedFrames:
    """Bytes that were read and not parsed."""

    def __init__(self) -> None:
        self.held = bytearray()
        """The bytes. Add there those that were read."""
        self.are_waiting = False
        """Whether the last `take` left some, so that it must be called again."""
        # Bytes of the last frame that have not arrived. A payload does not wait here until it is complete.
        self._owed = 0

    def take(self, most: int) -> bytes:
        """Return and forget the next `most` frames, or as many as have a whole header. The payload of the last one may be
        incomplete."""
        held, end, frames = self.held, self._owed, 0
        while frames < most and len(held) >= end + 2:
            length, header = held[end + 1] & 0x7F, 6 if held[end + 1] & 0x80 else 2
            if more := _LENGTHS.get(length, 0):
                header += more
                length = int.from_bytes(held[end + 2 : end + 2 + more], "big")
                if len(held) < end + 2 + more:
                    break  # the rest of the header comes with the next bytes
            end += header + length
            frames += 1
        self._owed = max(0, end - len(held))
        taken = bytes(held[:end])
        del held[:end]
        self.are_waiting = frames == most and bool(held)
        return taken
