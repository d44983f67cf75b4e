"""Define the interface `Connection` of all transports, its errors, and the backoff between attempts.

A transport carries whole messages, text or binary, in order, between two agents. See docs/specification/transports.md.

A connection never calls the session. It keeps what arrived, and wakes its owner, who takes it. So an owner that takes nothing
slows the peer down, and a transport needs no task for a message.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from treaty_io.codes import ConnectionCode
from treaty_io.codes.lookup import find_code
from treaty_io.errors import PeerUnavailable


class ConnectionLost(PeerUnavailable):
    """The connection is closed (`connection.lost`). `reason`: the peer's machine code (foreign text), or ""."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(ConnectionCode.LOST, "The connection to the other agent is closed.")
        self.reason = reason


class ConnectionFailed(PeerUnavailable):
    """The connection could not be opened (`connection.failed`).

    `again`: whether a retry may succeed. It may after a refused connection, a network failure or a busy agent. It cannot after a
    wrong certificate or an answer that is not an agent's.
    """

    def __init__(self, url: str, *, again: bool, code: str = "") -> None:
        """`code`: the reason of an agent that answers and takes no session now, or ""."""
        known_code = find_code(code)
        why = f"The agent at {url[:120]} takes no session now: {code}. {known_code.meaning if known_code else ''}".rstrip()
        fix = "Check that the agent runs there, and try again later."
        super().__init__(ConnectionCode.FAILED, why if code else f"No agent answers at {url[:120]}.", fix="" if code else fix)
        self.again, self.peer_code = again, code


class Connection(Protocol):
    """An open connection to one peer, for one event loop. Only `close` waits.

    One owner sends, receives and watches; a connection may pass from one owner to the next. A message that was sent may be lost.
    Each message has at most `frame.MAX_FRAME` bytes; a peer that sends a larger one loses the connection.
    """

    @property
    def address(self) -> str:
        """Return the peer's address, for logs."""

    @property
    def peer(self) -> str:
        """Return the DID that the transport proved, by an HTTP signature or the E2EE handshake; "" without a proof.

        A Hello that claims another DID is refused.
        """

    @property
    def backlog(self) -> int:
        """Return the bytes that were sent and that the transport has not handed over. The owner bounds them.

        0 says that everything is on its way: in the system's buffers, or at the peer.
        """

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever there may be more to receive, and when the backlog has fallen, in place of any earlier function.

        `wake` may be called from inside of `send` and `receive`, and without a reason. It only notes, and does not use the
        connection.
        """

    def send(self, message: str | bytes) -> None:
        """Send a message after all earlier ones. Never waits. Raises `ConnectionLost`."""

    def receive(self) -> str | bytes | None:
        """Return the next message that has arrived, or None.

        At most a few messages are read ahead from the network. After all messages that arrived before, raises `ConnectionLost`,
        or another `TreatyError` if this side ends the connection, which includes one that could not be opened.
        """

    async def close(self, reason: str = "") -> None:
        """Close the connection, and send the peer a `reason` (ASCII, at most 120 characters; "" for a normal end).

        What was sent before goes first, for a bounded time. Does not wait until the peer has read all messages. Never raises.
        Safe to repeat.
        """


def unwatched() -> None:
    """The function of a connection that nobody watches."""


async def next_message(connection: Connection) -> str | bytes:
    """Wait for the next message. Raises what `Connection.receive` raises. Cancelling a call loses no message."""
    while (message := connection.receive()) is None:
        arrived = asyncio.get_running_loop().create_future()
        connection.watch(partial(_settle, arrived))
        await arrived
    return message


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with full jitter and a bounded number of attempts.

    `attempts`: their number, the first included. Before the n-th retry there is a random pause between 0 and `first` × 2ⁿ⁻¹
    seconds, at most `most`, so that the clients of a restarted server do not all return at once. `within`: seconds for all
    retries together, pauses included, because an attempt at a silent host takes much longer than a refused one. `chance` and
    `sleep`: replaceable for tests.
    """

    attempts: int = 5
    first: float = 0.2
    most: float = 8.0
    within: float = 20.0
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def until(self) -> float:
        """Return the time when all retries must be over, by the event loop's clock, if the first attempt failed just now."""
        return asyncio.get_running_loop().time() + self.within

    async def pause(self, failures: int) -> bool:
        """Wait after this many failures in a row. Return False at once if no attempt is left."""
        if failures >= self.attempts:
            return False
        # 2 ** 64 is beyond every `most`; more would overflow.
        await self.sleep(self.chance() * min(self.most, self.first * 2 ** min(failures - 1, 64)))
        return True
