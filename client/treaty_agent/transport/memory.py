"""Connect two agents in one process, for tests and for agents that share an event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import TooLarge
from treaty_io.codes import FrameCode

from .connection import ConnectionLost, unwatched


@dataclass
class _Pipe:
    """One direction. `closed`: the reason, or None while it is open. `read`, `written`: wake the two ends."""

    messages: deque[str | bytes] = field(default_factory=deque)
    size: int = 0
    closed: str | None = None
    read: Callable[[], None] = unwatched
    written: Callable[[], None] = unwatched


class MemoryConnection:
    """One end of a pair; see `Connection` for the contract. The backlog is what the other end has not received."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, address: str, peer: str = "") -> None:
        """`peer`: the DID that the other end is known to have, or ""."""
        self._incoming, self._outgoing, self._address, self._peer = incoming, outgoing, address, peer

    @property
    def address(self) -> str:
        return self._address

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def backlog(self) -> int:
        return 0 if self._outgoing.closed is not None else self._outgoing.size

    def watch(self, wake: Callable[[], None]) -> None:
        self._incoming.read = self._outgoing.written = wake

    def send(self, message: str | bytes) -> None:
        pipe = self._outgoing
        if len(message) > MAX_FRAME:
            raise TooLarge(FrameCode.TOO_LARGE, f"A message has at most {MAX_FRAME} bytes.")
        if pipe.closed is not None:
            raise ConnectionLost(pipe.closed)
        pipe.messages.append(message)
        pipe.size += len(message)
        pipe.read()

    def receive(self) -> str | bytes | None:
        pipe = self._incoming
        if not pipe.messages:
            if pipe.closed is not None:
                raise ConnectionLost(pipe.closed)
            return None
        message = pipe.messages.popleft()
        pipe.size -= len(message)
        pipe.written()
        return message

    async def close(self, reason: str = "") -> None:
        if self._outgoing.closed is not None:
            return
        self._outgoing.closed = self._incoming.closed = reason
        for wake in (self._outgoing.read, self._incoming.written, self._incoming.read):
            wake()

    async def leave(self) -> None:
        """Close the connection because this agent stops."""
        await self.close()


def pair(*, source: str = "", address: str = "memory:source") -> tuple[MemoryConnection, MemoryConnection]:
    """Return two connected ends. `source`, `address`: the DID and the address of the first end, as the second one knows them."""
    there, back = _Pipe(), _Pipe()
    return MemoryConnection(back, there, "memory:destination"), MemoryConnection(there, back, address, source)
