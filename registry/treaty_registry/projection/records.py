"""Write what is made from several tables: the facets of protocols, and the served records.

A record is JSON, written once per change, so that a read is one look-up by key without encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from treaty_consensus.kinds import Decision, Handler, Publish, Status, Withdrawal

from ..catalogue.facets import WORDS_OF
from ..catalogue.queries import fetch_records
from ..log.entry import Entry
from .columns import insert, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection

_ELECTED = "select uri from protocols where topic = $1 and document = any($2)"
_WITHDRAWN = """
select uri from protocols where card = any($1)
union select uri from handlers where wheel = any($1) union select uri from handlers where bundle = any($1)
"""
# One statement for all protocols of a batch: it writes only the postings that change.
_RENEW_FACETS = f"""
with wanted as ({WORDS_OF}),
removed as (
  delete from postings p using (select index, unnest(old) as word, new from wanted) former
  where p.word = former.word and p.place = 0 and p.index = former.index and former.word <> all(former.new) returning p.word
),
added as (
  insert into postings select word, 0, index from (select index, unnest(new) as word, old from wanted) present
  where word <> all(old) returning word
),
counted as (
  insert into words
  select word, sum(uses)::bigint from (select word, 1 as uses from added union all select word, -1 from removed) changes
  group by word
  on conflict (word) do update set uses = words.uses + excluded.uses
),
updated as (update protocols set facets = new from wanted where protocols.index = wanted.index and facets <> new)
select distinct word from removed
"""  # noqa: S608 (constants)


async def write(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    """Write facets and records of the versions that `entries` affect. Call it after all other tables are written."""
    uris = await _touched(connection, entries)
    if not uris:
        return
    await _write_facets(connection, uris)
    records = await fetch_records(connection, sorted(uris))
    await insert(
        connection,
        "insert into records select * from unnest($1::text[], $2::bytea[], $3::bytea[]) "
        "on conflict (uri) do update set record = excluded.record",
        [(uri, bytes.fromhex(record.hash), msgspec.json.encode(record)) for uri, record in records.items()],
    )


async def _touched(connection: AnyConnection, entries: Iterable[Entry]) -> set[str]:
    uris: set[str] = set()
    for entry in entries:
        match statement_of(entry).body:
            case Publish(uri=uri, base=base) if base is not None:
                uris |= {uri, base.uri}
            case Publish(uri=uri) | Handler(uri=uri) | Status(uri=uri):
                uris.add(uri)
            case Decision() as body:
                documents = [bytes.fromhex(document) for document, _ in body.states]
                uris |= {row["uri"] for row in await connection.fetch(_ELECTED, body.topic, documents)}
            case Withdrawal() as body:
                uris |= {row["uri"] for row in await connection.fetch(_WITHDRAWN, [bytes.fromhex(body.sha256)])}
    return uris


async def _write_facets(connection: AnyConnection, uris: set[str]) -> None:
    """Write the facets of the protocols and their postings for search. Call it after the tables that they are derived from."""
    removed = [row["word"] for row in await connection.fetch(_RENEW_FACETS, list(uris))]
    if removed:
        # A word without uses would depend on how the leaves were batched.
        await connection.execute("delete from words where word = any($1) and uses = 0", removed)
