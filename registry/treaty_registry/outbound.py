"""The network through which a registry asks other hosts, as its settings describe it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from treaty_consensus.did import Did
from treaty_io.network.did_documents import DidDocument, fetch_did_document
from treaty_io.network.egress import EgressGuard
from treaty_io.network.hosts import Address, Network

from .domain_records import DomainRecords
from .settings import Settings

Resolve: TypeAlias = Callable[[Did], Awaitable[DidDocument]]
"""Fetch the document of a DID."""


def network_of(settings: Settings) -> Network:
    """Return the network of witnesses, nodes and DID documents."""
    return Network({host: Address(*address) for host, address in settings.resolve.items()}, settings.ca)


def guarded(settings: Settings) -> Resolve:
    """Return a function that fetches DID documents through the egress guard, and looks up the records of domains."""
    guard, records = EgressGuard(network_of(settings)), DomainRecords(settings.nameserver)

    async def resolve(did: Did) -> DidDocument:
        return await (records.resolve(did) if did.validated_by == "dns" else fetch_did_document(did, guard))

    return resolve
