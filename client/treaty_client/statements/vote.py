"""Vote and vouch: make the next ballot or vouch of a DID, send it, and check that it was logged.

A ballot is a weak order: tiers of document hashes and `none`, best first. It carries the newest checkpoint that the voter has
seen, so every vote is also a witness of the log.

A vouch states in public that one principal trusts another. Trust flows only along vouches. A vouch counts after both principals
agreed in a few different epochs. It fades unless it is renewed by vouching again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from treaty_consensus.canonical import parse_digest
from treaty_consensus.codes import BallotCode, StatementCode
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, NotFound, Refused
from treaty_consensus.kinds import NONE, Ballot, Vouch
from treaty_consensus.statement import Statement
from treaty_io.identity import Identity

from ..protocols.log_head import LogHead
from ..protocols.stamping import Delivery, Stamping, deliver
from ..protocols.verification.topic import TopicProtocol, TopicView
from ..registries.api import RegistryClient


@dataclass(frozen=True)
class Vote:
    """A ballot that was sent. `epoch`: the open one, in which it counts."""

    statement: Statement
    ballot: Ballot
    epoch: int
    delivery: Delivery


def parse_tiers(arguments: Sequence[str], topic: TopicView) -> tuple[tuple[str, ...], ...]:
    """Return the tiers of command-line words: each word is one tier, commas tie. A choice is a protocol's URI, a document's
    hash, or `none`.

    `topic`: the proved hashes of URIs.

    Raises `ballot.tiers`: `NotFound` for a protocol that is not in the topic, `Refused` for one that its publisher took back.
    """
    hashes = {protocol.uri: protocol.hash for protocol in (*topic.taken_back, *topic.protocols)}
    usable = {protocol.hash for protocol in topic.protocols}
    withdrawn = {protocol.hash: protocol for protocol in topic.taken_back if protocol.hash not in usable}
    return tuple(tuple(_choice(word, hashes, withdrawn) for word in tier.split(",")) for tier in arguments)


async def vote(
    client: RegistryClient,
    head: LogHead,
    identity: Identity,
    topic: str,
    tiers: Iterable[Iterable[str]],
    *,
    origin: str,
    now: int,
    stamping: Stamping | None = None,
) -> Vote:
    """Send a ballot. `tiers`: document hashes and `none`, as `parse_tiers` returns them; no tiers withdraw the ballot. `now`:
    Unix seconds. `stamping`: the witnesses that stamp the ballot first.

    Raises `Malformed` for impossible tiers, the errors of the registry (`statement.previous` when the same DID votes elsewhere
    at the same time), and the errors of `LogHead.observe` and `deliver`.
    """
    # Refreshed first: the ballot carries the newest checkpoint.
    seen = await head.refresh()
    # The registry's word is enough: a wrong number only makes the log refuse the ballot.
    position = await client.next_ballot(topic, identity.did)
    ballot = Ballot(topic, position.seq, tuple(tuple(tier) for tier in tiers), seen.note.decode("utf-8"))
    statement = identity.statement(ballot, log=origin, issued=now)
    return Vote(statement, ballot, position.epoch, await deliver(statement, head, stamping))


def _choice(word: str, hashes: Mapping[str, str], withdrawn: Mapping[str, TopicProtocol]) -> str:
    if word == NONE:
        return word
    try:
        document = hashes.get(word) or parse_digest(word.removeprefix("sha256:"))
    except Malformed as error:
        raise NotFound(
            BallotCode.TIERS,
            f"{word[:200]!r} is not a protocol of this topic.",
            fix="Vote for a protocol's URI, a document's hash, or none.",
        ) from error
    if (protocol := withdrawn.get(document)) is not None:
        raise Refused(BallotCode.TIERS, protocol.withdrawal, fix="Leave it off the ballot.")
    return document


@dataclass(frozen=True)
class Vouched:
    """A vouch that was sent. `epoch`: the open one."""

    statement: Statement
    vouch: Vouch
    epoch: int
    delivery: Delivery


async def vouch(
    client: RegistryClient,
    head: LogHead,
    identity: Identity,
    to: str,
    *,
    withdrawn: bool,
    origin: str,
    now: int,
    stamping: Stamping | None = None,
) -> Vouched:
    """Vouch for the principal of `to`, or withdraw the vouch. `now`: Unix seconds. `stamping`: as of `vote`.

    Raises `NotFound` (`statement.no-target`) when there is no vouch to withdraw, the errors of the registry
    (`statement.previous` when the same DID vouches elsewhere at the same time), and the errors of `deliver`.
    """
    parse_did(to)
    # As for ballots, a wrong number only makes the log refuse the vouch.
    standing = await client.vouches(identity.did)
    if withdrawn and to not in {entry.to for entry in standing.vouches}:
        raise NotFound(
            StatementCode.NO_TARGET, f"{identity.did} does not vouch for {to}.", fix="List its vouches: treaty vouches"
        )
    body = Vouch(to, standing.seq, withdrawn)
    statement = identity.statement(body, log=origin, issued=now)
    return Vouched(statement, body, standing.epoch, await deliver(statement, head, stamping))
