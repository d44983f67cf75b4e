"""Project the speakers of each protocol: the co-signed reports of agents. The list is for readers; the election computes from
the log which reports count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from treaty_consensus.kinds import Body, Report

from ..log.entry import Entry
from .columns import insert, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection


async def _reports(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    spoken: dict[tuple[str, str, str], tuple[int, int, int]] = {}
    for entry in entries:
        body = cast(Report, statement_of(entry).body)
        # A failure says that two agents did not speak the protocol.
        if body.outcome == "agreed":
            for did in statement_of(entry).authors:
                key = body.topic, body.document, did.text
                spoken[key] = (spoken.get(key, (0, 0, 0))[0] + 1, body.epoch, entry.index)
    await insert(
        connection,
        "insert into speakers select * from unnest"
        "($1::text[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) "
        "on conflict (topic, document, did) do update set "
        "reports = speakers.reports + excluded.reports, epoch = excluded.epoch, index = excluded.index",
        [(topic, bytes.fromhex(document), did, *numbers) for (topic, document, did), numbers in spoken.items()],
    )


WRITERS: Mapping[type[Body], Callable[[AnyConnection, Sequence[Entry]], Awaitable[None]]] = {Report: _reports}
