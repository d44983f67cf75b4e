"""Let the messages of one peer wait for the turns of its network, before the event loop does any work for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .rounds import Rounds

HEAVY = 4 * 1024
"""Bytes from which a message takes the whole share of its network in a round: the work for it may take milliseconds."""


class MessageTurns:
    """The turns of one connection. For one event loop."""

    def __init__(self, rounds: Rounds, network: str) -> None:
        """`network`: of the peer. "" is one network of all peers without an address."""
        self._rounds, self._network = rounds, network
        self._turn: asyncio.Future[None] | None = None
        self._wake: Callable[[], None]

    def others(self) -> MessageTurns:
        """Return turns of the same network, in which the connection may wait for other work at the same time."""
        return MessageTurns(self._rounds, self._network)

    async def take(self, size: int) -> None:
        """Wait until a message of this size may be handled. Cancelling a call gives the turn to the next one."""
        weight = self._rounds.share if size > HEAVY else 1
        if not self._rounds.take(self._network, weight):
            await self._rounds.wait(self._network, weight)

    def take_now(self, size: int, wake: Callable[[], None]) -> bool:
        """Return whether a message of this size may be handled now.

        On False `wake` is called when it may; ask again then, with the same message. A connection may be closed instead: the turn
        that it does not use delays the others of its network by this one message.
        """
        if self._turn is not None and self._turn.done():
            self._turn = None
            return True
        self._wake = wake
        if self._turn is None:
            weight = self._rounds.share if size > HEAVY else 1
            if self._rounds.take(self._network, weight):
                return True
            # One place in the line, however often the caller asks.
            self._turn = self._rounds.wait(self._network, weight)
            self._turn.add_done_callback(self._granted)
        return False

    def _granted(self, _: asyncio.Future[None]) -> None:
        self._wake()
