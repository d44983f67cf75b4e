"""DID documents of peers, who name their DIDs themselves.

A stranger may name any host, and many DIDs of it: so for strangers a host is asked so often and not more, in a fair queue
(`network.egress`). Whom this agent connected to and agreed with is not a stranger, and does not wait for those who are.
"""

from __future__ import annotations

from treaty_consensus.did import Did

from ..network.egress import EgressGuard, lookups
from ..network.hosts import Network
from ..network.resolver import DidDocument, fetch_did_document
from .agreements import Agreements


class Acquaintances:
    """Fetches DID documents for a `DidResolver`. For one event loop."""

    def __init__(self, network: Network, agreements: Agreements) -> None:
        """Asks nobody."""
        self._agreements = agreements
        self._partners = EgressGuard(network, other_ports=True, interval=0)
        self._strangers = EgressGuard(network, lookup=lookups(), other_ports=True)

    async def fetch(self, did: Did) -> DidDocument:
        """The document of a DID. Raises what `fetch_did_document` raises."""
        if self._agreements.knows(did.text):
            return await fetch_did_document(did, self._partners)
        return await fetch_did_document(did, self._strangers)
