"""Project the statements and the ballots of each DID, and the pairs that agreed. They are for readers; the election computes from
the log which ballots and reports count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from treaty_consensus.kinds import Ballot, Body, Report

from ..log.entry import Entry
from ..log.tables import Addition
from .columns import insert, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection


async def write_authors(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    """Write who signed `entries`."""
    rows = _authors(entries)
    await insert(connection, "insert into authors select * from unnest($1::text[], $2::bigint[], $3::text[])", rows)


def with_ballots(entries: Sequence[Entry]) -> Addition:
    """Return the writes of entries that are ballots, to be made in the statement that appends them.

    Most leaves are ballots, and their sequencer waits for each statement.
    """
    ended, rows = _ballot_rows(entries)
    return Addition(
        _WITH_BALLOTS, tuple([list(column) for table in (ended, rows, _authors(entries)) for column in zip(*table, strict=True)])
    )


def _authors(entries: Sequence[Entry]) -> list[tuple[str, int, str]]:
    # A set: two keys of one DID may sign a statement.
    return sorted({(did.text, entry.index, statement_of(entry).type) for entry in entries for did in statement_of(entry).authors})


# All parts see the rows from before the statement, so a ballot of this statement is ended by its own row alone (`_ballot_rows`).
# Only the newest ballot of a DID in a topic can stand. Without `max` PostgreSQL would read all that have ended.
_WITH_BALLOTS = """ended_ballots as (
  update ballots b set ended = newer.index
  from moved, unnest($13::text[], $14::text[], $15::bigint[]) as newer (topic, did, index)
  where (b.topic, b.did) = (newer.topic, newer.did) and b.ended is null
  and b.index = (select max(o.index) from ballots o where (o.topic, o.did) = (newer.topic, newer.did))
), new_ballots as (
  insert into ballots (topic, did, index, tiers, ended)
  select row.* from moved, unnest($16::text[], $17::text[], $18::bigint[], $19::text[], $20::bigint[]) as row
), new_authors as (
  insert into authors
  select row.* from moved, unnest($21::text[], $22::bigint[], $23::text[]) as row
)"""


async def _ballots(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    ended, rows = _ballot_rows(entries)
    await insert(
        connection,
        "update ballots b set ended = newer.index from unnest($1::text[], $2::text[], $3::bigint[]) as newer (topic, did, index) "
        "where (b.topic, b.did) = (newer.topic, newer.did) and b.ended is null "
        "and b.index = (select max(o.index) from ballots o where (o.topic, o.did) = (newer.topic, newer.did))",
        ended,
    )
    await insert(
        connection,
        "insert into ballots (topic, did, index, tiers, ended) "
        "select * from unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[])",
        rows,
    )


def _ballot_rows(entries: Sequence[Entry]) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Return the topic and DID of each standing ballot that ends, with the leaf that ends it, and the rows of the ballots."""
    first: dict[tuple[str, str], int] = {}
    following: dict[tuple[str, str], int] = {}
    rows: list[tuple[object, ...]] = []
    for entry in reversed(entries):
        body, did = cast(Ballot, statement_of(entry).body), statement_of(entry).author.text
        key = body.topic, did
        ended = following.get(key) if body.tiers else entry.index
        tiers = msgspec.json.encode(body.tiers).decode()
        rows.append((body.topic, did, entry.index, tiers, ended))
        first[key] = following[key] = entry.index
    return [(*key, index) for key, index in first.items()], rows


async def _reports(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    newest: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    spoken: dict[tuple[str, str], tuple[str, int]] = {}
    for entry in entries:
        body = cast(Report, statement_of(entry).body)
        # A failure says that two agents did not speak the protocol.
        if body.outcome == "agreed":
            first, second = sorted(did.text for did in statement_of(entry).authors)
            newest[body.topic, body.document, first, second] = body.epoch, entry.index
            for did in (first, second):
                spoken[body.topic, did] = body.document, entry.index
    await insert(
        connection,
        "insert into pairs select * from unnest"
        "($1::text[], $2::bytea[], $3::text[], $4::text[], $5::bigint[], $6::bigint[]) "
        "on conflict (topic, document, first, second) do update set epoch = excluded.epoch, index = excluded.index",
        [(topic, bytes.fromhex(document), *pair, *at) for (topic, document, *pair), at in newest.items()],
    )
    await insert(
        connection,
        "insert into spoken select * from unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[]) "
        "on conflict (topic, did) do update set document = excluded.document, index = excluded.index",
        [(*key, bytes.fromhex(document), index) for key, (document, index) in spoken.items()],
    )


WRITERS: Mapping[type[Body], Callable[[AnyConnection, Sequence[Entry]], Awaitable[None]]] = {
    Ballot: _ballots,
    Report: _reports,
}
