"""Project the genesis, the log's clock, parameters, identities and grants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from treaty_consensus.kinds import Ballot, Body, Genesis, Grant, Identity, Parameters, Report, Validation, Vouch

from ..log.entry import Entry
from .columns import insert, statement_id, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection

# By the indexes of the leaves, so that the order in which the writers of one batch run does not matter. The rule is that of
# `treaty_consensus.admit`.
_END = """
update grants g set ended = ends.index from (
  select g.namespace, g.grantee, g.index as begun, min(ends.index) as index from grants g cross join lateral (
    select newer.index from grants newer
    where (newer.namespace, newer.grantee) = (g.namespace, g.grantee) and newer.index > g.index
    union all
    select i.index from identities i
    where i.did in (g.owner, g.grantee) and i.index > g.index and i.tenure > coalesce(
      (select max(tenure) from identities before where before.did = i.did and before.index < g.index), 1)
  ) ends where g.ended is null and ({some}) group by 1, 2, 3
) ends where (g.namespace, g.grantee, g.index) = (ends.namespace, ends.grantee, ends.begun)
"""


async def _genesis(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    bodies = [cast(Genesis, statement_of(entry).body) for entry in entries]
    rows = [(body.operator, bytes.fromhex(body.trusted_root)) for body in bodies]
    await insert(connection, "insert into genesis select * from unnest($1::text[], $2::bytea[])", rows)


async def _parameters(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    rows = []
    for entry in entries:
        body = cast(Parameters, statement_of(entry).body)
        rows.append((entry.index, statement_id(entry), body.electorate, body.rule))
    await insert(
        connection, "insert into parameters select * from unnest($1::bigint[], $2::bytea[], $3::text[], $4::text[])", rows
    )


async def _identities(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    rows = []
    for entry in entries:
        body = cast(Identity, statement_of(entry).body)
        keys = msgspec.json.encode({key.id: key.multikey for key in body.keys}).decode()
        document = bytes.fromhex(body.document.sha256)
        rows.append((body.did, entry.index, statement_id(entry), document, body.tenure, keys))
    await insert(
        connection,
        "insert into identities select * from unnest"
        "($1::text[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[], $6::jsonb[])",
        rows,
    )
    renewed = [did for did, _, _, _, tenure, _ in rows if tenure > 1]
    if renewed:
        await connection.execute(_END.format(some="g.owner = any($1) or g.grantee = any($1)"), renewed)


async def _grants(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    rows = []
    for entry in entries:
        body = cast(Grant, statement_of(entry).body)
        ended = entry.index if body.withdrawn else None
        rows.append((body.namespace, body.to, statement_of(entry).author.text, entry.index, ended))
    await insert(
        connection,
        "insert into grants select * from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])",
        rows,
    )
    pairs = "(g.namespace, g.grantee) in (select * from unnest($1::text[], $2::text[]))"
    await connection.execute(_END.format(some=pairs), [row[0] for row in rows], [row[1] for row in rows])


async def write_clock(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    """Store the operator's statements that set the log's clock, because a proof may need them.

    The operator is a did:key. Its reports, votes and vouches prove nothing and are skipped.
    """
    rows = [
        (entry.index, statement_of(entry).issued, author.text)
        for entry in entries
        for author in statement_of(entry).authors
        # They prove nothing in a bundle, so they are left out.
        if author.method == "key" and not isinstance(statement_of(entry).body, Report | Ballot | Vouch)
    ]
    await insert(
        connection,
        """
        insert into clock select index, issued from (
          select index, issued, max(issued) over (order by index rows between unbounded preceding and 1 preceding) as before
          from unnest($1::bigint[], $2::bigint[], $3::text[]) as signed (index, issued, did) join genesis on operator = did
        ) own where issued > coalesce(greatest(before, (select issued from clock order by index desc limit 1)), -1)
        """,
        rows,
    )


WRITERS: Mapping[type[Body], Callable[[AnyConnection, Sequence[Entry]], Awaitable[None]]] = {
    Genesis: _genesis,
    Parameters: _parameters,
    Identity: _identities,
    Validation: _identities,
    Grant: _grants,
}
