"""Read how a DID votes: its standing ballots, and what its reports imply beside each of them.

The numbers are for the DID's owner, who is told when both disagree (`treaty vote --check`). The election counts principals, and
computes from the log alone; here the newest reports of one DID are read, without the weights of its counterparties.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from treaty_client.audit.decision import Transcript
from treaty_client.registries.replies import UseInfo, VoteInfo, VotingInfo
from treaty_consensus import statement
from treaty_consensus.did import parse_did
from treaty_consensus.election.ballot import Implied, implied_ballots
from treaty_consensus.election.report import Pair, Tally
from treaty_consensus.errors import Gone, NotFound
from treaty_consensus.kinds import NONE, Parameters, Report

from ..catalogue.agents import AgentQueries, read_tiers
from ..readable import Head, ReadableLog
from ..storage.stored_leaf import restored
from .topics import VOUCHES, ElectionQueries, check_topic

if TYPE_CHECKING:
    from asyncpg import Record as Row

MAX_TOPICS = 32
"""Ballots that are told, the newest."""
MAX_REPORTS = 1_024
_MAX_CAST = 64  # ballots of one topic in which the start of its ranking is looked for
_MAX_VOUCHES = 1_024
_REMEMBERED = 256  # transcripts, of which only the lines are kept

_STANDING = "select topic from ballots where did = $1 and ended is null order by index desc limit $2"
_CAST = """
select b.tiers, coalesce(d.epoch + 1, 0) as epoch from ballots b
left join lateral (select epoch from decisions where index < b.index order by index desc limit 1) d on true
where (b.topic, b.did) = ($1, $2) order by b.index desc limit $3
"""
_REPORTS = """
select l.leaf from (select index from authors where did = $1 and kind = 'report' order by index desc limit $2) a
join leaves l using (index) order by l.index
"""
_TRANSCRIPT = "select transcript from decisions where topic = $1 order by index desc limit 1"


class _Said(NamedTuple):
    """An agreed report of the DID."""

    topic: str
    epoch: int
    other: str
    document: str


class VotingQueries:
    """Reads how DIDs vote. Safe for concurrent use on one event loop."""

    def __init__(self, registry: ReadableLog, elections: ElectionQueries) -> None:
        self._registry = registry
        self._elections = elections
        self._names = AgentQueries(registry.pool)
        # Transcripts never change.
        self._lines: OrderedDict[bytes, Mapping[str, str]] = OrderedDict()

    async def voting(self, did: str, topic: str, head: Head) -> VotingInfo:
        """Return the newest standing ballots of a DID, or what it says in one topic. Raises `Malformed`."""
        if topic:
            check_topic(topic)
        parse_did(did)
        pool = self._registry.pool
        log, standing, leaves = await asyncio.gather(
            self._elections.log(head), pool.fetch(_STANDING, did, MAX_TOPICS), pool.fetch(_REPORTS, did, MAX_REPORTS)
        )
        parameters = await self._elections.parameters(log.parameters)
        # Parsing a thousand statements would keep the event loop from all others.
        reports = await asyncio.to_thread(lambda: [*_agreed(did, [row["leaf"] for row in leaves])])
        if parameters is not None and parameters.reputation is not None:
            vouched = {_host(row["to"]) for row in await pool.fetch(VOUCHES, did, _MAX_VOUCHES)}
            reports = [report for report in reports if _host(report.other) in vouched]
        topics = [topic] if topic else [row["topic"] for row in standing]
        votes = [await self._vote(did, named, reports, log.epoch, parameters) for named in topics]
        named = {choice for vote in votes for tier in vote.tiers or () for choice in tier if choice != NONE}
        named |= {document for vote in votes for document in (*vote.first, *(vote.use.hashes if vote.use else ()))}
        names = await self._names.names(sorted(named))
        return VotingInfo(
            did=did,
            epoch=log.epoch,
            electorate=log.electorate,
            horizon_epochs=parameters.horizon_epochs if parameters else 0,
            renews=parameters is not None and not parameters.is_v2,
            votes=votes,
            names={document: entry.uri for document, entry in names.items()},
        )

    async def _vote(
        self, did: str, topic: str, statements: Sequence[_Said], epoch: int, parameters: Parameters | None
    ) -> VoteInfo:
        cast = await self._registry.pool.fetch(_CAST, topic, did, _MAX_CAST)
        lines = await self._lines_of(topic)
        tiers = read_tiers(cast[0]["tiers"]) if cast else []
        memory = 0
        if parameters is not None:
            memory = parameters.horizon_epochs * (parameters.memory_horizons or 1)
        recent = [report for report in statements if report.topic == topic and report.epoch > epoch - memory]
        first = sorted({lines.get(choice, choice) for choice in tiers[0]} - {NONE}) if tiers else []
        # A count over up to a thousand reports for each epoch would keep the event loop from all others.
        use = await asyncio.to_thread(_use, did, recent, lines)
        if not tiers:
            return VoteInfo(topic, None, [], None, None, use)
        return VoteInfo(topic, tiers, first, cast[0]["epoch"], _since(cast), use)

    async def _lines_of(self, topic: str) -> Mapping[str, str]:
        """Return document → the document that its line speaks, by the newest decision of a topic."""
        digest = await self._registry.pool.fetchval(_TRANSCRIPT, topic)
        if digest is None:
            return {}
        if digest in self._lines:
            self._lines.move_to_end(digest)
            return self._lines[digest]
        try:
            transcript = msgspec.json.decode(await self._registry.blob(digest.hex()), type=Transcript)
        # Withdrawn meanwhile, or damaged: each document is taken for a line.
        except (NotFound, Gone, msgspec.MsgspecError):
            return {}
        lines = self._lines[digest] = {document: candidate.hash for document, candidate in transcript.spoken.items()}
        if len(self._lines) > _REMEMBERED:
            self._lines.popitem(last=False)
        return lines


def _agreed(did: str, leaves: Iterable[bytes]) -> Iterable[_Said]:
    for leaf in leaves:
        report = statement.understand(restored(leaf))
        body, others = report.body, [author.text for author in report.authors if author.text != did]
        if isinstance(body, Report) and body.outcome == "agreed" and others:
            yield _Said(body.topic, body.epoch, others[0], body.document)


def _use(did: str, statements: Sequence[_Said], lines: Mapping[str, str]) -> UseInfo | None:
    """Return what reports imply, by the rule of the election. `statements`: in the order of the log."""
    pairs: defaultdict[str, dict[Pair, int]] = defaultdict(dict)
    newest: dict[str, str] = {}
    implied: dict[str, Implied] = {}
    for epoch, reports in groupby(statements, key=lambda report: report.epoch):
        first: dict[str, str] = {}
        for report in reports:
            # Of each pair the first report of an epoch counts.
            first.setdefault(report.other, lines.get(report.document, report.document))
        for other, line in first.items():
            pairs[line][Pair.of(did, other)] = epoch
        newest |= first
        # Epoch by epoch, because a tie keeps what was named before.
        implied = implied_ballots(Tally.of(pairs), None, implied, epoch)
    use = implied.get(did)
    if use is None:
        return None
    return UseInfo([*use.favourites], sum(line in use.favourites for line in newest.values()), use.since, use.reported)


def _since(cast: Sequence[Row]) -> int:
    """Return the epoch in which a ranking began that did not change since. `cast`: the ballots, the newest first."""
    ranking, since = _ranking(cast[0]), cast[0]["epoch"]
    for row in cast:
        if _ranking(row) != ranking:
            break
        since = row["epoch"]
    return int(since)


def _ranking(row: Row) -> list[list[str]]:
    return [sorted(tier) for tier in read_tiers(row["tiers"])]


def _host(did: str) -> str:
    """Return the domain of a DID, and a did:key as it is. A vouch is for a principal, which has several DIDs."""
    parsed = parse_did(did)
    return parsed.host or did
