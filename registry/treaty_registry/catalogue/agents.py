"""Query the acts of an agent: its statements, its ballots and the protocols it speaks. The tables are `projection.agents`.

A page reads them together (`gathering`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from asyncpg import Pool

# An agent may sign any number of statements, so each list shows its newest.
MAX_STATEMENTS = 30
MAX_BALLOTS = 12
MAX_SPOKEN = 15

STATEMENTS = """
select a.index, a.kind, encode(l.statement, 'hex') as statement from (
  select newest.* from unnest($4::text[]) as kinds (kind) cross join lateral (
    select index, kind from authors where did = $1 and kind = kinds.kind and index < $2 order by index desc limit $3
  ) newest order by index desc limit $3
) a join leaves l using (index) order by a.index desc
"""
"""The rows of `AuthoredStatement`: of a DID, below a leaf, at most so many, of some kinds."""
BALLOTS = """
select b.topic, b.index, encode(l.statement, 'hex') as statement, b.tiers::json as tiers from (
  select * from ballots where did = $1 and ended is null order by index desc limit $2
) b join leaves l using (index) order by b.index desc
"""
"""The rows of `StandingBallot`: of a DID, at most so many."""
SPOKEN = """
select s.topic, encode(s.document, 'hex') as hash, s.reports, s.epoch, s.index, p.uri, p.title
from (select * from speakers where did = $1 order by index desc limit $2) s
left join lateral (
  select uri, title from protocols where document = s.document and topic = s.topic order by index limit 1
) p on true
order by s.index desc
"""
"""The rows of `Spoken`: of a DID, at most so many."""
_NAMES = """
select distinct on (document) document, uri, title from protocols where document = any($1::bytea[]) order by document, index
"""


class AuthoredStatement(msgspec.Struct, frozen=True):
    """A statement that a DID signed."""

    index: int
    kind: str
    statement: str


class StandingBallot(msgspec.Struct, frozen=True):
    """A ballot that stands. `tiers`: hashes and `none`, best first."""

    topic: str
    index: int
    statement: str
    tiers: Sequence[Sequence[str]]


class Spoken(msgspec.Struct, frozen=True):
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
    """Reads the names of documents. Safe for concurrent use on one event loop; raises `Unavailable` when PostgreSQL is down."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def names(self, documents: Sequence[str]) -> dict[str, Named]:
        """Return document → its first publication, of those that are published."""
        rows = await self._pool.fetch(_NAMES, [bytes.fromhex(document) for document in documents])
        return {row["document"].hex(): Named(row["uri"], row["title"]) for row in rows}


def read_tiers(text: str) -> list[list[str]]:
    """Return the tiers of a stored ballot."""
    return msgspec.json.decode(text, type=list[list[str]])
