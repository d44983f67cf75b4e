"""Read the votes of a decision, those of earlier epochs, the former consensuses of a topic, and new reports."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from treaty_client.audit.decision import Turnout
from treaty_client.audit.reasons import ReportedPairs
from treaty_consensus.errors import Gone, NotFound
from treaty_consensus.kinds import Electorate, Parameters

from ..catalogue.agents import read_tiers
from ..readable import ReadableLog

if TYPE_CHECKING:
    from asyncpg import Record as Row

    from ..catalogue.standing import StandingQueries

MAX_EPOCHS = 12
"""Decisions whose votes are shown."""
MAX_PAIRS = 2_000
_MAX_DECISIONS = 1_000
_MAX_GRANTS = 1_024
_REMEMBERED = 2_048  # of less than 3 KiB each

_SUCCESSION = """
select consensus, min(epoch) as first, max(epoch) as last, max(index) as index from (
  select *, row_number() over (order by index) - row_number() over (partition by consensus order by index) as run
  from (select consensus, epoch, index from decisions where topic = $1 and index < $2 order by index desc limit $3) newest
) runs group by consensus, run order by index desc
"""
_EARLIER = """
select d.transcript from decisions d join blobs b on b.sha256 = d.transcript
where d.topic = $1 and d.index < $2 and b.withdrawn is null order by d.index desc limit $3
"""
# A root DID speaks for its own domain, and any other DID for its first grant. Without the suffix list a host of two labels is
# taken for a registrable domain; the page only shows ballots by it, and counts nothing.
_GRANTED = r"""
select g.namespace, g.grantee from grants g
where g.namespace = any($1) and g.ended is null and g.grantee !~ '^did:(wba|web):[^:%.]+\.[^:%.]+$'
and not exists (select from principals where principal = substring(g.grantee from '^did:(?:wba|web):([^:%]+)$'))
and not exists (
  select from grants e join principals p on p.principal = e.namespace
  where e.grantee = g.grantee and e.ended is null and e.index < g.index
)
order by g.index limit $2
"""
_VOTES = """
select v.did, b.tiers, s.document
from unnest($2::text[]) as v (did)
left join lateral (
  select tiers from ballots where topic = $1 and did = v.did and index < $3 order by index desc limit 1
) b on true
left join spoken s on (s.topic, s.did) = ($1, v.did)
"""
_NEWEST = """
select distinct on (topic) topic, transcript from decisions where topic = any($1) order by topic, index desc
"""
_PAIRS = "select document, first, second from pairs where topic = $1 and document = any($2::bytea[]) and epoch > $3 limit $4"


class ConsensusPeriod(NamedTuple):
    """Decisions in a row with the same consensus (None: without one). `first`, `last`: their epochs."""

    consensus: str | None
    first: int
    last: int


class EpochApprovals(NamedTuple):
    """The votes for each candidate at the end of an epoch, by the first document of its line. Weights are in units of 2^-32.

    `voters`, `roll`: the principals whose votes count, and all; None where the transcript does not say it. `pairs`: document →
    the pairs of principals whose co-signed reports on it count.
    """

    epoch: int
    total: int
    by_line: Mapping[str, int]
    voters: int | None = None
    roll: int | None = None
    pairs: Mapping[str, int] = MappingProxyType({})


class VoterChoice(NamedTuple):
    """A DID's ballot before a decision, and the document of the topic that it reported last. Either may be absent."""

    did: str
    tiers: Sequence[Sequence[str]] | None
    spoken: str | None


class _Counted(msgspec.Struct):
    hash: str
    approval: str
    pairs: int = 0
    line: str | None = None


class _Transcript(msgspec.Struct):
    """The parts of an earlier transcript that a chart shows."""

    epoch: int
    total: str
    candidates: list[_Counted]
    turnout: Turnout | None = None


class TopicHistory:
    """Reads the history of topics. Safe for concurrent use on one event loop."""

    def __init__(self, registry: ReadableLog, standings: StandingQueries) -> None:
        self._registry = registry
        self._pool = registry.pool
        self._standings = standings
        # Transcripts never change, and reading one costs more than all the rest of a page.
        self._approvals: OrderedDict[bytes, EpochApprovals] = OrderedDict()

    async def succession(self, topic: str, size: int) -> list[ConsensusPeriod]:
        """Return who was the consensus among the first `size` leaves, newest first, from the newest 1,000 decisions."""
        rows = await self._pool.fetch(_SUCCESSION, topic, size, _MAX_DECISIONS)
        return [ConsensusPeriod(row["consensus"].hex() if row["consensus"] else None, row["first"], row["last"]) for row in rows]

    async def approvals(self, topic: str, size: int) -> list[EpochApprovals]:
        """Return the votes for candidates at the newest decisions among the first `size` leaves, oldest first, without
        withdrawn transcripts."""
        rows = await self._pool.fetch(_EARLIER, topic, size, MAX_EPOCHS)
        curves = [await self._counted(row["transcript"]) for row in reversed(rows)]
        return [approvals for approvals in curves if approvals is not None]

    async def newest(self, topics: Sequence[str]) -> Mapping[str, EpochApprovals]:
        """Return topic → the votes at its newest decision, of a few topics. Withdrawn transcripts are left out."""
        rows = await self._pool.fetch(_NEWEST, list(topics))
        by_topic = {row["topic"]: await self._counted(row["transcript"]) for row in rows}
        return {topic: approvals for topic, approvals in by_topic.items() if approvals is not None}

    async def votes(
        self, topic: str, electorate: Electorate, principals: Sequence[str], size: int
    ) -> Mapping[str, list[VoterChoice]]:
        """Return principal → the votes of its DIDs, as they stood among the first `size` leaves."""
        speakers = {principal: [principal] for principal in principals}
        if electorate == "open":
            speakers = {name: [f"did:wba:{name}", f"did:web:{name}"] for name in principals}
            for row in await self._pool.fetch(_GRANTED, list(principals), _MAX_GRANTS):
                if row["grantee"] not in speakers[row["namespace"]]:
                    speakers[row["namespace"]].append(row["grantee"])
        dids = sorted({did for named in speakers.values() for did in named})
        votes = {row["did"]: _vote(row) for row in await self._pool.fetch(_VOTES, topic, dids, size)}
        return {name: [votes[did] for did in named if did in votes] for name, named in speakers.items()}

    async def pairs(self, topic: str, documents: Iterable[str], parameters: Parameters, epoch: int) -> ReportedPairs:
        """Return the pairs that reported these documents in the epochs that count. `epoch`: the open one."""
        digests = [bytes.fromhex(document) for document in documents]
        rows = await self._pool.fetch(_PAIRS, topic, digests, epoch - parameters.horizon_epochs, MAX_PAIRS + 1)
        pairs, idle = defaultdict[str, set[tuple[str, ...]]](set), defaultdict[str, int](int)
        for row in rows[:MAX_PAIRS]:
            pair = row["first"], row["second"]
            if any(did.startswith("did:key:") for did in pair):
                idle[row["document"].hex()] += 1
            else:
                pairs[row["document"].hex()].add(pair)
        agents_of = {document: frozenset(agents) for document, agents in pairs.items()}
        return ReportedPairs(agents_of, idle, parameters.candidate_pairs, is_whole=len(rows) <= MAX_PAIRS)

    async def parameters(self, statement: str) -> Parameters:
        """Return the parameters in a logged statement."""
        return await self._standings.parameters(statement)

    async def _counted(self, digest: bytes) -> EpochApprovals | None:
        cached = self._approvals.get(digest)
        if cached is not None:
            self._approvals.move_to_end(digest)
            return cached
        try:
            read = msgspec.json.decode(await self._registry.blob(digest.hex()), type=_Transcript)
        # Withdrawn meanwhile, or damaged: an audit tells the operator.
        except (NotFound, Gone, msgspec.MsgspecError):
            return None
        by_line = {entry.line or entry.hash: int(entry.approval) for entry in read.candidates}
        voters, roll = (read.turnout.votes[0], read.turnout.roll[0]) if read.turnout else (None, None)
        pairs = {entry.hash: entry.pairs for entry in read.candidates}
        approvals = self._approvals[digest] = EpochApprovals(read.epoch, int(read.total), by_line, voters, roll, pairs)
        if len(self._approvals) > _REMEMBERED:
            self._approvals.popitem(last=False)
        return approvals


def _vote(row: Row) -> VoterChoice:
    return VoterChoice(
        did=row["did"],
        tiers=None if row["tiers"] is None else read_tiers(row["tiers"]),
        spoken=None if row["document"] is None else row["document"].hex(),
    )
