"""Connections that pass everything on, for tests that change or note a part of it."""

from __future__ import annotations

from collections.abc import Callable

from treaty_agent.transport.connection import Connection, unwatched


class ConnectionWrapper:
    """A connection over another one. A subclass changes what it needs to."""

    def __init__(self, inner: Connection, address: str = "", *, peer: str | None = None) -> None:
        """`address`, `peer`: those of `inner` unless given."""
        self.inner, self.address = inner, address or inner.address
        self.peer = inner.peer if peer is None else peer

    @property
    def backlog(self) -> int:
        return self.inner.backlog

    def watch(self, wake: Callable[[], None]) -> None:
        self.inner.watch(wake)

    def send(self, message: str | bytes) -> None:
        self.inner.send(message)

    def receive(self) -> str | bytes | None:
        return self.inner.receive()

    async def close(self, reason: str = "") -> None:
        await self.inner.close(reason)


class NotingConnection(ConnectionWrapper):
    """A connection that notes what goes over it, in order: `>` sent, `<` received."""

    def __init__(self, inner: Connection, address: str = "", *, peer: str | None = None) -> None:
        super().__init__(inner, address, peer=peer)
        self.seen: list[tuple[str, str | bytes]] = []

    def send(self, message: str | bytes) -> None:
        self.seen.append((">", message))
        super().send(message)

    def receive(self) -> str | bytes | None:
        message = super().receive()
        if message is not None:
            self.seen.append(("<", message))
        return message


class StallingConnection(NotingConnection):
    """A connection that hands nothing over while it is shut."""

    def __init__(self, inner: Connection, address: str = "", *, peer: str | None = None) -> None:
        super().__init__(inner, address, peer=peer)
        self._waiting: list[str | bytes] | None = None
        self._wake: Callable[[], None] = unwatched

    @property
    def backlog(self) -> int:
        return sum(map(len, self._waiting or ()))

    def watch(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        super().watch(wake)

    def send(self, message: str | bytes) -> None:
        if self._waiting is None:
            super().send(message)
        else:
            self._waiting.append(message)

    def shut(self) -> None:
        self._waiting = []

    def open(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for message in waiting:
            super().send(message)
        self._wake()
