"""DID documents of peers, who name their DIDs themselves.

A stranger may name any host, and many DIDs of it: so for strangers a host is asked once a second, and who comes a little too
early waits for its turn. Whom this agent connected to and agreed with is not a stranger, and is not kept out by those who are.
"""

from __future__ import annotations

import asyncio

from treaty_consensus.did import Did
from treaty_consensus.errors import Unavailable

from ..network.egress import EgressGuard, lookups
from ..network.hosts import Network
from ..network.resolver import DidDocument, fetch_did_document
from .agreements import Agreements

INTERVAL = 1.0
"""Seconds between two requests to one host that strangers cause."""
TURNS = 2
"""How often somebody waits for that."""


class Acquaintances:
    """Fetches DID documents for a `DidResolver`. For one event loop."""

    def __init__(self, network: Network, agreements: Agreements) -> None:
        """Asks nobody."""
        self._agreements = agreements
        self._partners = EgressGuard(network, other_ports=True, interval=0)
        self._strangers = EgressGuard(network, lookup=lookups(), other_ports=True, interval=INTERVAL)

    async def fetch(self, did: Did) -> DidDocument:
        """The document of a DID. Raises what `fetch_did_document` raises."""
        if self._agreements.knows(did.text):
            return await fetch_did_document(did, self._partners)
        for _ in range(TURNS):
            try:
                return await fetch_did_document(did, self._strangers)
            except Unavailable as error:
                if error.code != "egress.host-interval":
                    raise
                await asyncio.sleep(INTERVAL)
        return await fetch_did_document(did, self._strangers)
