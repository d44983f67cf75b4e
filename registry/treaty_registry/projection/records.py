"""Write what is made from several tables: the facets of protocols, and the served records.

A record is JSON, written once per change, so that a read is one look-up by key without encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from treaty_consensus.kinds import Decision, Handler, Publish, Status, Withdrawal

from ..catalogue.queries import fetch_records
from ..log.entry import Entry
from . import facets
from .columns import insert, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection

_ELECTED = "select uri from protocols where topic = $1 and document = any($2)"
_WITHDRAWN = """
select uri from protocols where card = any($1)
union select uri from handlers where wheel = any($1) union select uri from handlers where bundle = any($1)
"""


async def write(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    """Write facets and records of the versions that `entries` affect. Call it after all other tables are written."""
    uris = await _touched(connection, entries)
    if not uris:
        return
    await facets.write(connection, uris)
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
