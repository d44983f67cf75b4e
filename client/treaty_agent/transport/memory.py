"""Connect two agents in one process, with the back-pressure of a real connection."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from treaty_anp.frame import MAX_FRAME
from treaty_consensus.errors import TooLarge
from treaty_io.codes import FrameCode

from .connection import Connection, ConnectionLost

CAPACITY = 8
"""Undelivered messages in one direction before `send` waits."""


@dataclass
class _Pipe:
    """One direction. `closed`: the reason, or None while it is open."""

    messages: deque[str | bytes] = field(default_factory=deque)
    closed: str | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class MemoryConnection:
    """One end of a pair; see `Connection` for the contract."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, address: str, peer: str = "") -> None:
        """`peer`: the DID that the other end is known to have, or ""."""
        self._incoming, self._outgoing, self._address, self._peer = incoming, outgoing, address, peer

    @property
    def address(self) -> str:
        return self._address

    @property
    def peer(self) -> str:
        return self._peer

    async def send(self, message: str | bytes) -> None:
        if len(message) > MAX_FRAME:
            raise TooLarge(FrameCode.TOO_LARGE, f"A message has at most {MAX_FRAME} bytes.")
        pipe = self._outgoing
        async with pipe.changed:
            await pipe.changed.wait_for(lambda: pipe.closed is not None or len(pipe.messages) < CAPACITY)
            if pipe.closed is not None:
                raise ConnectionLost(pipe.closed)
            pipe.messages.append(message)
            pipe.changed.notify_all()

    async def receive(self) -> str | bytes:
        pipe = self._incoming
        async with pipe.changed:
            await pipe.changed.wait_for(lambda: pipe.closed is not None or bool(pipe.messages))
            if not pipe.messages:
                raise ConnectionLost(pipe.closed or "")
            message = pipe.messages.popleft()
            pipe.changed.notify_all()
            return message

    async def close(self, reason: str = "") -> None:
        for pipe in (self._outgoing, self._incoming):
            async with pipe.changed:
                pipe.closed = reason if pipe.closed is None else pipe.closed
                pipe.changed.notify_all()


def pair(*, source: str = "") -> tuple[Connection, Connection]:
    """Return two connected ends. `source`: the DID of the first end, as the second one knows it."""
    there, back = _Pipe(), _Pipe()
    return MemoryConnection(back, there, "memory:destination"), MemoryConnection(there, back, "memory:source", source)
