"""Tell the peers that left something of value before they cost money from strangers.

A deposit is a report that the peer and this agent both signed, or a vouch path: weight in the electorate of the agent's registry.
Both need a proof of the DID of a domain. An answer of a registry is kept for an hour. A registry that does not answer makes no
deposit.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from treaty_consensus.errors import TreatyError
from treaty_io.identity import ProvedPeer
from treaty_io.line_limit import limited_logger
from treaty_io.network.turns import Turns

from ..reports.report import Reporter

LIFETIME = 3600.0
"""Seconds."""
# Strangers choose their DIDs. The oldest answers are dropped.
MAX_KNOWN = 1024
_log = limited_logger(__name__)


class Deposits:
    """For one event loop. `has_weight`: asks the registry about a DID; None without a registry."""

    def __init__(
        self,
        reporter: Reporter,
        has_weight: Callable[[str], Awaitable[bool]] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet."""
        self._reporter, self._has_weight, self._clock = reporter, has_weight, clock
        self._known: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        # A flood of new DIDs must not become a flood of requests to the registry.
        self._turns = Turns(interval=1.0, burst=16, patience=5.0)

    async def has(self, peer: ProvedPeer) -> bool:
        """Return whether a peer has a deposit. Never raises."""
        # Keys are free, so each of any number could have a report of its own.
        if peer.did.startswith("did:key:"):
            return False
        try:
            return await asyncio.to_thread(self._reporter.has_signed_with, peer.did) or await self._is_vouched(peer.did)
        except TreatyError as error:
            _log.info("Whether %s has a deposit is not known: %s", peer, error)
            return False

    async def _is_vouched(self, did: str) -> bool:
        until, is_vouched = self._known.get(did, (0.0, False))
        if self._has_weight is None or self._clock() < until:
            return is_vouched
        await self._turns.take("deposits", str(id(asyncio.current_task())))
        is_vouched = await self._has_weight(did)
        self._known[did] = self._clock() + LIFETIME, is_vouched
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return is_vouched
