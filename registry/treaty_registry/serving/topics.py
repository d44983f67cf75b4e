"""Query the elections: topics, their candidates and newest decision, and the next ballot or vouch of a DID."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from treaty_client.registries.replies import (
    Clients,
    GrantInfo,
    Grants,
    NextBallot,
    Reach,
    TopicPage,
    TopicSummary,
    Vouches,
    VouchInfo,
)
from treaty_consensus import __version__, facts
from treaty_consensus.amendment import constitution_of
from treaty_consensus.canonical import b64encode
from treaty_consensus.codes import TopicCode
from treaty_consensus.did import Did, parse_did
from treaty_consensus.errors import Gone, Malformed, NotFound
from treaty_consensus.facts import BallotFact, ConstitutionFact, LogFact, VouchFact
from treaty_consensus.kinds import Parameters
from treaty_consensus.protocol import is_topic

from ..catalogue.lookup import Lookup
from ..catalogue.resources import Candidate, DecisionView, GreasedLogView, Topic
from ..catalogue.statuses import MAX_URIS, status_of
from ..log.tables import read_facts
from ..readable import Head, ReadableLog
from ..storage.stored_leaf import restored

if TYPE_CHECKING:
    from asyncpg import Record as Row

    from ..catalogue.standing import StandingQueries

# Any agent can publish, so each list is bounded: topics by pages, the others by their newest.
MAX_TOPICS = 500
MAX_NEWEST = 100
MAX_REACH = 12
"""Epochs whose reach is told."""
MAX_VOUCHES = 1024
_LEAST_CLIENT = "0.1.0"
"""The oldest release whose agents work with this registry (docs/specification/compatibility.md, "Releases")."""
MAX_GRANTS = 1024

_SUMMARIES = f"""
select t.topic, t.protocols, encode(d.consensus, 'hex') as consensus, d.epoch, s.uri, s.status, s.successor
from ({{chosen}}) t
left join lateral (select consensus, epoch from decisions where topic = t.topic order by index desc limit 1) d on true
left join lateral ({status_of("t.topic", "d.consensus")}) s on d.consensus is not null
order by t.topic
"""  # noqa: S608 (constants)
_TOPICS = _SUMMARIES.format(chosen="select topic, protocols from topics where topic > $1 order by topic limit $2")
# Under this word are the protocols in state consensus (`facets`), so the newest are found without a pass over all topics.
_ELECTED = _SUMMARIES.format(
    chosen="""
    select topic, protocols from topics where topic in (
      select topic from protocols where index in (
        select index from postings where word = '=state/consensus' order by place desc, index desc limit $1
      )
    )
    """
)
_CANDIDATES = f"""
with chosen as (
  select document from elections where topic = $1
  union
  select document from (select document from protocols where topic = $1 order by index desc limit $2) newest
)
select c.document, d.uris, d.title, e.state, coalesce(t.agreed, 0) as reports, s.uri, s.status, s.successor
from chosen c
cross join lateral (
  select array_agg(uri order by index) as uris, min(index) as index, (array_agg(title order by index))[1] as title
  from (select uri, index, title from protocols where topic = $1 and document = c.document order by index limit {MAX_URIS}) oldest
) d
cross join lateral ({status_of("$1", "c.document")}) s
left join elections e on (e.topic, e.document) = ($1, c.document)
left join tallies t on (t.topic, t.document) = ($1, c.document)
where d.index is not null
order by e.state is null, reports desc, d.index
"""  # noqa: S608 (constants)
_DECISION = """
select d.statement, d.index, d.epoch, d.transcript, l.leaf from decisions d join leaves l on l.index = d.index
where d.topic = $1 and d.index < $2 order by d.index desc limit 1
"""

_REACH = """
select epoch, able::text as able, pairs::text as pairs from rolls where pairs is not null order by epoch desc limit $1
"""

VOUCHES = """
select v.subject as "to", coalesce(d.epoch + 1, 0) as epoch, encode(l.statement, 'hex') as statement, v.index from (
  select * from vouches where author = $1 order by index desc limit $2
) v join leaves l using (index)
left join lateral (select epoch from decisions where index < v.index order by index desc limit 1) d on true
order by v.index desc
"""
"""The rows of `VouchInfo`: of a DID, in force, at most so many."""

GRANTS = """
select g.namespace, g.grantee as "to", g.owner as by, encode(l.statement, 'hex') as statement, g.index from (
  (select * from grants where namespace = $1 and ended is null order by index desc limit $3)
  union (select * from grants where grantee = $2 and ended is null order by index desc limit $3)
) g join leaves l on l.index = g.index order by g.index desc limit $3
"""
"""The rows of `GrantInfo`: of a namespace or to a DID, in force, at most so many."""


class _Votes(msgspec.Struct):
    hash: str
    support: str
    opposition: str


class _Transcript(msgspec.Struct):
    """The parts of a decision's transcript that a topic's page shows."""

    candidates: list[_Votes]
    pairwise: list[list[str]]


class ElectionQueries:
    """Reads the elections. Safe for concurrent use on one event loop."""

    def __init__(self, registry: ReadableLog, standings: StandingQueries) -> None:
        self._registry = registry
        self._pool = registry.pool
        self._standings = standings
        self._facts = Lookup(registry.pool, read_facts)

    async def topics(self, after: str, most: int = MAX_TOPICS) -> TopicPage:
        """Return at most `most` topics by name, starting after the topic `after` or at the first one. Raises `Malformed`."""
        if after:
            check_topic(after)
        rows = await self._pool.fetch(_TOPICS, after, most + 1)
        summaries = [TopicSummary(**row) for row in rows[:most]]
        return TopicPage(summaries, summaries[-1].topic if len(rows) > most else None)

    async def elected(self, most: int) -> list[TopicSummary]:
        """Return the topics of the `most` newest protocols that are a consensus, by name."""
        return [TopicSummary(**row) for row in await self._pool.fetch(_ELECTED, most)]

    async def topic(self, topic: str, head: Head) -> Topic:
        """Return a topic's election. Raises `NotFound`, or `Malformed` when `topic` cannot be a topic."""
        topic_answer = await self.election(topic, head)
        if topic_answer.decision is None:
            return topic_answer
        return msgspec.structs.replace(
            topic_answer, proof=(await self._registry.receipt(topic_answer.decision.statement)).decode()
        )

    async def election(self, topic: str, head: Head) -> Topic:
        """Return a topic's election without the receipt of its decision. Raises as `topic`."""
        check_topic(topic)
        rows, (log, parameters), decision = await asyncio.gather(self._documents(topic), self._log(), self._decision(topic, head))
        transcript = None
        if decision is not None and decision.transcript is not None:
            transcript = msgspec.json.decode(decision.transcript, type=_Transcript)
        return Topic(
            topic=topic,
            electorate=parameters.electorate if parameters else None,
            epoch=log.epoch,
            candidates=_candidates(rows, transcript),
            matrix=transcript.pairwise if transcript else None,
            decision=decision,
            proof=None,
        )

    async def candidates(self, topic: str) -> list[Candidate]:
        """Return the documents of a topic, without the weights of a decision. Raises as `topic`."""
        check_topic(topic)
        return _candidates(await self._documents(topic), None)

    async def voter(self, topic: str, did: str) -> NextBallot:
        """Return the sequence number and epoch of the next ballot of `did` in `topic`. Raises `Malformed`."""
        check_topic(topic)
        parse_did(did)
        # From the facts that admission reads, so that the next ballot has the number that it expects.
        last, (log, _) = await asyncio.gather(self._facts.get(f"ballot/{topic}/{did}"), self._log())
        return NextBallot(last.seq + 1 if isinstance(last, BallotFact) else 0, log.epoch)

    async def parameters(self, named: str | None) -> Parameters | None:
        """Return the parameters in a logged statement; None for none."""
        return None if named is None else await self._standings.parameters(named)

    async def vouches(self, did: str) -> Vouches:
        """Return the sequence number and epoch of the next vouch of `did`, and its newest vouches in force. Raises
        `Malformed`."""
        parse_did(did)
        last, (log, _), rows = await asyncio.gather(
            self._facts.get(f"vouch/{did}"), self._log(), self._pool.fetch(VOUCHES, did, MAX_VOUCHES)
        )
        return Vouches(last.seq + 1 if isinstance(last, VouchFact) else 0, log.epoch, [VouchInfo(**row) for row in rows])

    async def grants(self, did: str) -> Grants:
        """Return the newest grants in force of the namespace of `did` and to `did`. Raises `Malformed`."""
        rows = await self._pool.fetch(GRANTS, namespace_of(parse_did(did)), did, MAX_GRANTS)
        return Grants(did, [GrantInfo(**row) for row in rows])

    async def log(self, head: Head) -> GreasedLogView:
        """Return the log's name, keys, size, parameters and reach."""
        (log, parameters), constitution, reach = await asyncio.gather(
            self._log(), self._facts.get(facts.CONSTITUTION), self._pool.fetch(_REACH, MAX_REACH)
        )
        period = parameters.epoch_seconds if parameters else None
        registry = self._registry
        return GreasedLogView(
            origin=registry.origin,
            key=str(registry.log_key),
            clock_key=str(registry.clock_key),
            operator=registry.operator,
            electorate=parameters.electorate if parameters else None,
            parameters=log.parameters,
            constitution=constitution_of(parameters) if parameters else None,
            announced=log.announced,
            holds=constitution.holds if log.announced and isinstance(constitution, ConstitutionFact) else None,
            epoch=log.epoch,
            opened=log.opened,
            closes=None if period is None else log.opened + period,
            size=head.size,
            rotations=[term.since - 1 for term in registry.keys.below(head.size).terms if term.since],
            contact=registry.contact,
            clients=Clients(_LEAST_CLIENT, __version__),
            reach=[Reach(**row) for row in reach],
        )

    async def _documents(self, topic: str) -> list[Row]:
        rows = await self._pool.fetch(_CANDIDATES, topic, MAX_NEWEST)
        if not rows:
            raise NotFound(TopicCode.UNKNOWN, f"Nothing is published in the topic {topic} here.", fix="List them: treaty topics")
        return rows

    async def _log(self) -> tuple[LogFact, Parameters | None]:
        """Return the log's own fact, and the parameters in force."""
        log = await self._facts.get(facts.LOG)
        assert isinstance(log, LogFact), "a registry that is open has a genesis"
        return log, await self.parameters(log.parameters)

    async def _decision(self, topic: str, head: Head) -> DecisionView | None:
        row = await self._pool.fetchrow(_DECISION, topic, head.size)
        if row is None:
            return None
        try:
            transcript = msgspec.Raw(await self._registry.blob(row["transcript"].hex()))
        # The operator may withdraw a transcript. The decision is shown without it.
        except (NotFound, Gone):
            transcript = None
        return DecisionView(row["statement"].hex(), row["index"], row["epoch"], b64encode(restored(row["leaf"])), transcript)


def _candidates(rows: list[Row], transcript: _Transcript | None) -> list[Candidate]:
    votes = {entry.hash: entry for entry in transcript.candidates} if transcript else {}
    candidates = []
    for row in rows:
        digest = row["document"].hex()
        vote = votes.get(digest)
        candidates.append(
            Candidate(
                hash=digest,
                # The one that agents can fetch comes first.
                uris=[row["uri"], *(uri for uri in row["uris"] if uri != row["uri"])],
                title=row["title"],
                state=row["state"],
                status=row["status"],
                successor=row["successor"],
                reports=row["reports"],
                support=vote.support if vote else None,
                opposition=vote.opposition if vote else None,
            )
        )
    return candidates


def namespace_of(did: Did) -> str:
    """Return the namespace of a DID. One with a port has none: the empty one, which is of no DID."""
    return did.namespace if did.port is None else ""


def check_topic(topic: str) -> None:
    """Raise `Malformed` unless `topic` can be a topic."""
    if not is_topic(topic):
        raise Malformed(TopicCode.NAME, "A topic is one to four lower-case names joined by '/'.")
