"""Project the vouches by DID. The list is for readers; the election computes from the log which vouches count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from treaty_consensus.kinds import Body, Vouch

from ..log.entry import Entry
from .columns import insert, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection


async def _vouches(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    # Of several vouches for one subject in a batch, the last is in force.
    newest = {(statement_of(entry).author.text, cast(Vouch, statement_of(entry).body).to): entry for entry in entries}
    await insert(
        connection,
        "delete from vouches v using unnest($1::text[], $2::text[]) as named (author, subject) "
        "where (v.author, v.subject) = (named.author, named.subject)",
        newest,
    )
    rows = []
    for (author, to), entry in newest.items():
        body = cast(Vouch, statement_of(entry).body)
        if not body.withdrawn:
            rows.append((author, to, body.seq, entry.index))
    await insert(
        connection,
        "insert into vouches (author, subject, seq, index) "
        "select * from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])",
        rows,
    )


WRITERS: Mapping[type[Body], Callable[[AnyConnection, Sequence[Entry]], Awaitable[None]]] = {Vouch: _vouches}
