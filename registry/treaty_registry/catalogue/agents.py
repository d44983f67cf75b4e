"""Query the acts of an agent: its statements, its ballots and the protocols it speaks. The tables are `projection.agents`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from asyncpg import Pool

# An agent may sign any number of statements, so each list shows its newest.
MAX_STATEMENTS = 30
MAX_BALLOTS = 12
MAX_SPOKEN = 15

_STATEMENTS = """
select a.index, a.kind, l.statement from (
  select index, kind from authors where did = $1 and index < $2 order by index desc limit $3
) a join leaves l using (index) order by a.index desc
"""
_OF_KIND = _STATEMENTS.replace("did = $1", "did = $1 and kind = $4")
_BALLOTS = """
select topic, index, statement, tiers from ballots where did = $1 and ended is null order by index desc limit $2
"""
_SPOKEN = """
select s.topic, s.document, s.reports, s.epoch, s.index, p.uri, p.title
from (select * from speakers where did = $1 order by index desc limit $2) s
left join lateral (
  select uri, title from protocols where document = s.document and topic = s.topic order by index limit 1
) p on true
order by s.index desc
"""
_NAMES = """
select distinct on (document) document, uri, title from protocols where document = any($1::bytea[]) order by document, index
"""


@dataclass(frozen=True)
class AuthoredStatement:
    """A statement that a DID signed."""

    index: int
    kind: str
    statement: str


@dataclass(frozen=True)
class StandingBallot:
    """A ballot that stands. `tiers`: hashes and `none`, best first."""

    topic: str
    index: int
    statement: str
    tiers: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Spoken:
    """A document that a DID reported. `uri`, `title`: of its first publication in the topic, if any."""

    topic: str
    hash: str
    reports: int
    epoch: int
    index: int
    uri: str | None
    title: str | None


class Named(NamedTuple):
    """The first publication of a document."""

    uri: str
    title: str


class AgentQueries:
    """Reads the acts of agents. Safe for concurrent use on one event loop; raises `Unavailable` when PostgreSQL is down."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def statements(self, did: str, kind: str | None, before: int) -> list[AuthoredStatement]:
        """Return the newest statements of a DID below a leaf, one more than `MAX_STATEMENTS` if there are more."""
        query, more = (_STATEMENTS, ()) if kind is None else (_OF_KIND, (kind,))
        rows = await self._pool.fetch(query, did, before, MAX_STATEMENTS + 1, *more)
        return [AuthoredStatement(row["index"], row["kind"], row["statement"].hex()) for row in rows]

    async def ballots(self, did: str) -> list[StandingBallot]:
        """Return the newest ballots of a DID that stand, one more than `MAX_BALLOTS` if there are more."""
        rows = await self._pool.fetch(_BALLOTS, did, MAX_BALLOTS + 1)
        return [StandingBallot(row["topic"], row["index"], row["statement"].hex(), read_tiers(row["tiers"])) for row in rows]

    async def spoken(self, did: str) -> list[Spoken]:
        """Return the documents that a DID reported last, one more than `MAX_SPOKEN` if there are more."""
        rows = await self._pool.fetch(_SPOKEN, did, MAX_SPOKEN + 1)
        return [
            Spoken(row["topic"], row["document"].hex(), row["reports"], row["epoch"], row["index"], row["uri"], row["title"])
            for row in rows
        ]

    async def names(self, documents: Sequence[str]) -> dict[str, Named]:
        """Return document → its first publication, of those that are published."""
        rows = await self._pool.fetch(_NAMES, [bytes.fromhex(document) for document in documents])
        return {row["document"].hex(): Named(row["uri"], row["title"]) for row in rows}


def read_tiers(text: str) -> list[list[str]]:
    """Return the tiers of a stored ballot."""
    return msgspec.json.decode(text, type=list[list[str]])
