"""A blob store in memory, which all processes of a history share. It keeps what was put."""

from __future__ import annotations

from collections.abc import Callable

from treaty_consensus.codes import BlobCode
from treaty_consensus.errors import NotFound


class Blobs:
    """The bytes by their digests."""

    room = None

    def __init__(self) -> None:
        self._bytes: dict[str, bytes] = {}

    def read(self, sha256: str) -> bytes:
        """Return bytes. Raises `NotFound`."""
        if sha256 not in self._bytes:
            raise NotFound(BlobCode.MISSING, f"The bytes of the blob {sha256} are not here.")
        return self._bytes[sha256]

    def reader(self) -> Callable[[str], bytes]:
        """Return `read`, as a function for threads."""
        return self.read

    async def put(self, sha256: str, data: bytes) -> None:
        """Store bytes."""
        self._bytes[sha256] = data

    async def get(self, sha256: str) -> bytes | None:
        """Return bytes, or None."""
        return self._bytes.get(sha256)
