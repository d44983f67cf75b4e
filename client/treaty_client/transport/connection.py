"""The port every transport implements: whole messages, text or binary, in order, between two agents."""

from __future__ import annotations

from typing import Protocol

from treaty_consensus.errors import Unavailable


class ConnectionLost(Unavailable):
    """The connection is closed. `reason`: what the other side gave for it (a machine code, foreign text), or ""."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("connection.lost", "The connection to the other agent is closed.")
        self.reason = reason


class ConnectionFailed(Unavailable):
    """There is no connection (`connection.failed`). `again`: whether the same attempt may succeed soon: nobody listened, the
    network failed, the agent was busy; a certificate or an answer that is not an agent's will be the same next time."""

    def __init__(self, url: str, *, again: bool) -> None:
        fix = "See whether the agent runs there; try again later."
        super().__init__("connection.failed", f"No agent answers at {url[:120]}.", fix=fix)
        self.again = again


class Connection(Protocol):
    """An open connection to one peer.

    One task sends and one receives; `close` may come from any task, any number of times. Nothing is durable: a message that was
    sent may never arrive. Each message has at most `frame.MAX_FRAME` bytes; a peer that sends a larger one loses the connection.
    """

    @property
    def address(self) -> str:
        """Where the peer is, for logs."""

    @property
    def peer(self) -> str:
        """The DID that the transport proved, by an HTTP signature or the E2EE handshake; "" where it proves none, or none yet. A
        Hello that claims another is refused."""

    async def send(self, message: str | bytes) -> None:
        """Send one message; waits while the peer is slow to read. Raises `ConnectionLost`, and `ConnectionFailed` where the first
        message opens the connection."""

    async def receive(self) -> str | bytes:
        """The next message. What is not received is not read from the network either, beyond a few messages. Cancelling it loses
        nothing. Raises `ConnectionLost`, after all messages that arrived before."""

    async def close(self, reason: str = "") -> None:
        """Close, telling the peer a `reason` (ASCII, at most 120 characters; "" for a normal end). Takes bounded time, and does
        not wait for what was sent to be read. Never raises."""
