"""Build bundles: one document with everything needed to check a protocol, or a topic's candidates, offline.

docs/specification/bundles.md, "The bundle", specifies the format and the leaves. For example, the bundle of a protocol at
some head:

    {"uri": URI, "checkpoint": NOTE, "leaves": [{"index": 0, "leaf": BYTES, "proof": [HASH, …]}, …], "blobs": {SHA256: BYTES, …}}

A decision depends on the whole log and not on a few leaves. So a reader trusts the operator for it, and for the
time that it sets.

A client compares later bundles with earlier ones (`treaty_client.protocols.verification.completeness`). The bundle itself must
show why an item is missing from a list. A reader that has seen a larger log than this node's gets no consistency proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treaty_consensus import statement
from treaty_consensus.canonical import b64encode, hex_digest
from treaty_consensus.codes import ProtocolCode, TopicCode
from treaty_consensus.did import parse_did
from treaty_consensus.errors import NotFound
from treaty_consensus.kinds import Decision
from treaty_consensus.protocol import parse_protocol_uri

from ..catalogue.queries import fetch_handlers
from ..catalogue.resources import Bundle, BundleLeaf
from ..log.changes import elected
from ..readable import Head, ReadableLog
from ..storage.stored_leaf import restored
from .topics import check_topic

if TYPE_CHECKING:
    from asyncpg import Record as Row

    from ..storage.postgres import AnyConnection

# Any agent can publish in a topic, and a reader accepts at most 1,024 leaves.
MAX_TOPIC_PROTOCOLS = 64

# `union`, not `union all`: several documents of a topic may share a base.
_CHAIN = """
with recursive chain as (
  select uri, base, namespace, publisher, index from protocols where uri = any($1) and index < $2
  union
  select p.uri, p.base, p.namespace, p.publisher, p.index from chain join protocols p on p.uri = chain.base
)
select * from chain
"""
_STATUSES = """
select distinct on (uri, publisher, wheel) index, publisher, wheel from statuses
where uri = any($1) and index < $2 order by uri, publisher, wheel, index desc
"""
# For each guest the grant on which its publish rests, and the newest of the pair, which replaces older ones for readers: two of
# any number, so that an owner cannot make the bundles of a topic too large.
_GRANTS = """
select distinct g.owner, g.index, used.index as publish
from unnest($1::text[], $2::text[], $3::bigint[]) as used (namespace, publisher, index)
cross join lateral (
  (select owner, index from grants where (namespace, grantee) = (used.namespace, used.publisher) and index < used.index
   order by index desc limit 1)
  union
  (select owner, index from grants where (namespace, grantee) = (used.namespace, used.publisher) and index < $4
   order by index desc limit 1)
) g
"""
_DECISION = """
select d.index, d.transcript, p.index as parameters from decisions d join parameters p on p.statement = d.parameters
where d.topic = $1 and d.index < $2 order by d.index desc limit 1
"""
# A new tenure waits 30 days by the log's clock, so the reader needs the statement that set it.
_CLOCK = """
select distinct c.index, i.did from unnest($1::bigint[]) as judged (index)
cross join lateral (select index from clock where index < judged.index order by index desc limit 1) c
left join identities i on i.index = c.index
"""
_DECIDED = """
select l.leaf from decisions d join leaves l on l.index = d.index
where d.topic = $1 and d.index < $2 order by d.index desc limit 1
"""
# First the protocols of the decision, oldest first, so that new publishes cannot push them out.
_TOPIC = """
select uri from (
  (select uri, 0 as "group", index as place from protocols
   where topic = $1 and index < $2 and document = any($4) order by index limit $3)
  union all
  (select uri, 1, -index from protocols where topic = $1 and index < $2 order by index desc limit $3)
) chosen order by "group", place
"""

# The newest report of each speaker: the others are counted in the transcript of the decision.
_REPORTS = """
select distinct index from speakers where topic = $1 and document = $2 and index < $3 order by index desc limit $4
"""
MAX_REPORTS = 256
MAX_LEAVES = 1024
"""A reader accepts no more leaves. Reports whose agents have too many identities are left out."""

_SERVED = "select sha256 from blobs where sha256 = any($1) and withdrawn is null"


@dataclass
class Plan:
    """The contents of the bundle of a protocol (`uri`) or a topic at `head`. `subjects`: what it depends on (`log.changes`)."""

    head: Head
    uri: str | None = None
    topic: str | None = None
    leaves: set[int] = field(default_factory=set)
    blobs: list[str] = field(default_factory=list)
    reports: list[int] | None = None
    subjects: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Return the number of leaves at its head."""
        return self.head.size


async def protocol_plan(registry: ReadableLog, head: Head, uri: str) -> Plan:
    """Plan the bundle of a version. Raises `NotFound`, or `Malformed` when `uri` is not a protocol's URI."""
    plan = Plan(head, uri=uri)
    async with registry.pool.acquire() as connection:
        row = await connection.fetchrow(
            "select document, card, topic from protocols where uri = $1 and index < $2", uri, head.size
        )
        if row is None:
            parse_protocol_uri(uri)
            raise NotFound(ProtocolCode.UNKNOWN, f"{uri} is not published here.", fix="Search: treaty search WORDS")
        plan.blobs += [row["document"].hex(), row["card"].hex()]
        handlers = await fetch_handlers(connection, [uri], head.size)
        plan.blobs += [handler["bundle"].hex() for handler in handlers]
        await _add_publishes(connection, plan, [uri], handlers)
        await _add_statuses(connection, plan, [uri], handlers)
        await _add_foundation(connection, plan, row["topic"])
    return plan


async def evidence_plan(registry: ReadableLog, head: Head, uri: str) -> Plan:
    """Plan the bundle of a version with the newest report of each agent that agreed on its document, and their identities. Raises
    as `protocol_plan`."""
    plan = await protocol_plan(registry, head, uri)
    async with registry.pool.acquire() as connection:
        row = await connection.fetchrow("select topic, document from protocols where uri = $1", uri)
        assert row is not None, "it is planned"
        indexes = [
            each["index"] for each in await connection.fetch(_REPORTS, row["topic"], row["document"], head.size, MAX_REPORTS)
        ]
        leaves = await registry.leaves(indexes, head)
        authors = {index: {did.text for did in statement.understand(leaves[index]).authors} for index in indexes}
        identities = await connection.fetch(
            "select did, index from identities where did = any($1) and index < $2", [*set().union(*authors.values())], head.size
        )
    plan.reports = []
    for index in indexes:
        own = {each["index"] for each in identities if each["did"] in authors[index]}
        if len(plan.leaves | own) + len(plan.reports) < MAX_LEAVES:
            plan.leaves |= own
            plan.reports.append(index)
    return plan


async def topic_plan(registry: ReadableLog, head: Head, topic: str) -> Plan:
    """Plan the bundle of a topic's candidates. Raises as `protocol_plan`."""
    check_topic(topic)
    plan = Plan(head, topic=topic, subjects={topic})
    async with registry.pool.acquire() as connection:
        named = await _named(connection, topic, head.size)
        rows = await connection.fetch(_TOPIC, topic, head.size, MAX_TOPIC_PROTOCOLS, named)
        uris = list(dict.fromkeys(row["uri"] for row in rows))[:MAX_TOPIC_PROTOCOLS]
        if not uris:
            raise NotFound(TopicCode.UNKNOWN, f"Nothing is published in the topic {topic} here.", fix="List them: treaty topics")
        await _add_publishes(connection, plan, uris, [])
        await _add_statuses(connection, plan, uris, [])
        await _add_foundation(connection, plan, topic)
    return plan


async def _named(connection: AnyConnection, topic: str, size: int) -> list[bytes]:
    """Return the documents that the newest decision at this size names.

    They are read from its leaf, so that a reader of the bundle finds the same ones. The tables may be of a later epoch, and also
    keep the results of earlier epochs.
    """
    leaf = await connection.fetchval(_DECIDED, topic, size)
    body = statement.understand(restored(leaf)).body if leaf is not None else None
    states = body.states if isinstance(body, Decision) else ()
    return [bytes.fromhex(document) for document, state in states if state != "published"]


async def assemble(registry: ReadableLog, plan: Plan) -> Bundle:
    """Make the bundle, without a consistency proof."""
    # Every reader needs the rotations before the checkpoint, to know by which keys it is signed.
    rotations = {term.since - 1 for term in registry.keys.below(plan.size).terms if term.since}
    indexes, reports = sorted(plan.leaves | rotations), sorted(plan.reports or ())
    leaves = await registry.leaves([*indexes, *reports], plan.head)
    # All proofs are at one head, so one checkpoint covers them.
    proofs = await registry.inclusion([*indexes, *reports], plan.head)

    def bundled(index: int) -> BundleLeaf:
        return BundleLeaf(index, b64encode(leaves[index]), [*map(b64encode, proofs[index])])

    contents = await asyncio.gather(*map(registry.blobs.get, plan.blobs))
    # A blob that was withdrawn meanwhile is absent, as if it had been withdrawn before.
    blobs = {digest: b64encode(data) for digest, data in zip(plan.blobs, contents, strict=True) if data is not None}
    blobs[hex_digest(registry.trusted_root)] = b64encode(registry.trusted_root)
    return Bundle(
        checkpoint=plan.head.note.decode(),
        leaves=[*map(bundled, indexes)],
        blobs=blobs,
        uri=plan.uri,
        topic=plan.topic,
        reports=None if plan.reports is None else [*map(bundled, reports)],
    )


async def _add_publishes(connection: AnyConnection, plan: Plan, uris: list[str], handlers: list[Row]) -> None:
    """Add the publishes of `uris`, of their bases and of these handlers, with the grants, identities and times that they depend
    on."""
    chain = await connection.fetch(_CHAIN, uris, plan.size)
    publishes = [(row["publisher"], row["index"]) for row in (*chain, *handlers)]
    plan.leaves |= {index for _, index in publishes}
    plan.subjects |= {row["uri"] for row in chain}
    dids = {publisher for publisher, _ in publishes}
    guests = [row for row in chain if not _owns(row["publisher"], row["namespace"])]
    if guests:
        used = [[row[name] for row in guests] for name in ("namespace", "publisher", "index")]
        for grant in await connection.fetch(_GRANTS, *used, plan.size):
            plan.leaves.add(grant["index"])
            dids.add(grant["owner"])
            # The wait of a new tenure is the owner's too.
            publishes.append((grant["owner"], grant["publish"]))
    tenures = await _add_identities(connection, plan, dids)
    # A publisher in a later tenure: its 30 days are judged by the clock before its leaf.
    heirs = [
        index
        for publisher, index in publishes
        if any(did == publisher and since < index and tenure > 1 for did, since, tenure in tenures)
    ]
    for clock in await connection.fetch(_CLOCK, heirs) if heirs else []:
        plan.leaves.add(clock["index"])
        if clock["did"] is not None:
            await _add_identities(connection, plan, [clock["did"]])


async def _add_identities(connection: AnyConnection, plan: Plan, dids: Iterable[str]) -> list[tuple[str, int, int]]:
    named = list(dids)
    plan.subjects |= {*named}
    rows = await connection.fetch(
        "select did, index, tenure from identities where did = any($1) and index < $2", named, plan.size
    )
    plan.leaves |= {row["index"] for row in rows}
    return [(row["did"], row["index"], row["tenure"]) for row in rows]


async def _add_statuses(connection: AnyConnection, plan: Plan, uris: list[str], handlers: list[Row]) -> None:
    subjects = {(handler["publisher"], handler["wheel"]) for handler in handlers}
    for row in await connection.fetch(_STATUSES, uris, plan.size):
        if row["wheel"] is None or (row["publisher"], row["wheel"]) in subjects:
            plan.leaves.add(row["index"])


async def _add_foundation(connection: AnyConnection, plan: Plan, topic: str) -> None:
    """Add the genesis, the parameters and the topic's newest decision; and remove withdrawn blobs."""
    plan.subjects.add(elected(topic))
    plan.leaves.add(0)
    parameters = await connection.fetchval("select max(index) from parameters where index < $1", plan.size)
    plan.leaves |= {parameters} if parameters is not None else set()
    decision = await connection.fetchrow(_DECISION, topic, plan.size)
    if decision is not None:
        plan.leaves |= {decision["index"], decision["parameters"]}
        plan.blobs.append(decision["transcript"].hex())
    # Withdrawn bytes are not served, also not inside a bundle.
    served = await connection.fetch(_SERVED, [bytes.fromhex(digest) for digest in plan.blobs])
    plan.blobs = sorted(row["sha256"].hex() for row in served)


def _owns(publisher: str, namespace: str) -> bool:
    did = parse_did(publisher)
    # A DID with a port has no namespace of its own: the host without the port may have another owner.
    return did.port is None and did.namespace == namespace
