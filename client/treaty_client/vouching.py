"""Vouching: standing, in public, for another principal; the only thing that trust flows along.

A vouch counts once the two agreed in a few different epochs, and fades unless it is renewed: vouching again renews it.
"""

from __future__ import annotations

from dataclasses import dataclass

from treaty_consensus.did import parse_did
from treaty_consensus.errors import NotFound
from treaty_consensus.kinds import Vouch
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import Statement

from .identity import Identity
from .registries.api import RegistryClient
from .registries.head import LogHead


@dataclass(frozen=True)
class Vouched:
    """A vouch that is in the log. `epoch`: the open one; `receipt` was checked."""

    statement: Statement
    vouch: Vouch
    epoch: int
    receipt: Receipt


async def vouch(
    client: RegistryClient, head: LogHead, identity: Identity, to: str, *, withdrawn: bool, origin: str, now: int
) -> Vouched:
    """Vouch for whoever `to` speaks for, or, `withdrawn`, no longer. `now`: Unix seconds.

    Raises `NotFound` (`vouch.none`) when there is nothing to withdraw, what the registry refuses with (`vouch.seq` when the same
    DID vouches elsewhere just now), and as `LogHead.accept_receipt`.
    """
    parse_did(to)
    standing = await client.vouches(identity.did)
    if withdrawn and to not in {made.to for made in standing.vouches}:
        raise NotFound("vouch.none", f"{identity.did} does not vouch for {to}.", fix="See whom it vouches for: treaty vouches")
    body = Vouch(to, standing.seq, withdrawn)
    statement = identity.statement(body, log=origin, issued=now)
    receipt = await head.accept_receipt(await client.submit(statement), statement)
    return Vouched(statement, body, standing.epoch, receipt)
