"""Voting: composing the next ballot of a DID in a topic, sending it, and checking that it was logged.

A ballot is a weak order: tiers of document hashes and `none`, best first. It carries the newest checkpoint that the voter has
seen, so that every vote is also a witness of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treaty_consensus.canonical import parse_digest
from treaty_consensus.errors import Malformed, NotFound
from treaty_consensus.kinds import NONE, Ballot
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import Statement

from .identity import Identity
from .registries.api import RegistryClient
from .registries.head import LogHead
from .verification.topic import TopicView


@dataclass(frozen=True)
class Vote:
    """A ballot that is in the log. `epoch`: the open one, in which it counts; `receipt` was checked."""

    statement: Statement
    ballot: Ballot
    epoch: int
    receipt: Receipt


def parse_tiers(arguments: Sequence[str], topic: TopicView) -> tuple[tuple[str, ...], ...]:
    """Tiers from words: each one a tier, commas tie. A choice is a protocol's URI, a document's hash, or `none`.

    `topic` says, proved, which hash a URI has. Raises `NotFound` (`vote.choice`) for a protocol that is not in the topic.
    """
    hashes = {protocol.uri: protocol.hash for protocol in topic.protocols}
    return tuple(tuple(_choice(word, hashes) for word in tier.split(",")) for tier in arguments)


async def vote(
    client: RegistryClient,
    head: LogHead,
    identity: Identity,
    topic: str,
    tiers: Iterable[Iterable[str]],
    *,
    origin: str,
    now: int,
) -> Vote:
    """Vote. `tiers`: document hashes and `none`, as `parse_tiers` gives them; no tiers withdraw the ballot. `now`: Unix seconds.

    Raises `Malformed` on impossible tiers, what the registry refuses with (`ballot.seq` when the same DID votes elsewhere just
    now), and as `LogHead.observe` and `LogHead.accept_receipt`.
    """
    seen = await head.refresh()
    position = await client.next_ballot(topic, identity.did)
    ballot = Ballot(topic, position.seq, tuple(tuple(tier) for tier in tiers), seen.note.decode("utf-8"))
    statement = identity.statement(ballot, log=origin, issued=now)
    receipt = await head.accept_receipt(await client.submit(statement), statement)
    return Vote(statement, ballot, position.epoch, receipt)


def _choice(word: str, hashes: dict[str, str]) -> str:
    if word == NONE or word in hashes:
        return hashes.get(word, word)
    try:
        return parse_digest(word.removeprefix("sha256:"))
    except Malformed as error:
        raise NotFound(
            "vote.choice",
            f"{word[:200]!r} is no protocol of this topic.",
            fix="Vote for a protocol's URI, a document's hash, or none.",
        ) from error
