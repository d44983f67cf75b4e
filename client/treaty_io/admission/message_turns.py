"""Let the messages of one peer wait for the turns of its network, before the event loop does any work for them."""

from __future__ import annotations

from .rounds import Rounds

HEAVY = 4 * 1024
"""Bytes from which a message takes the whole share of its network in a round: the work for it may take milliseconds."""


class MessageTurns:
    """The turns of one connection. For one event loop."""

    def __init__(self, rounds: Rounds, network: str) -> None:
        """`network`: of the peer. "" is one network of all peers without an address."""
        self._rounds, self._network = rounds, network

    async def take(self, size: int) -> None:
        """Wait until a message of this size may be handled. Cancelling a call gives the turn to the next one."""
        weight = self._rounds.share if size > HEAVY else 1
        if not self._rounds.take(self._network, weight):
            await self._rounds.wait(self._network, weight)
