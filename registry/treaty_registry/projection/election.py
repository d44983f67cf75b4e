"""Project reports, ballots and decisions for readers. Decisions are computed from the log, never from these tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from treaty_consensus.election.states import FORMER
from treaty_consensus.kinds import Body, Decision, Report

from ..log.entry import Entry
from .columns import insert, statement_id, statement_of

if TYPE_CHECKING:
    from ..storage.postgres import AnyConnection


async def _reports(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    agreed: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        body = cast(Report, statement_of(entry).body)
        agreed[body.topic, body.document] += body.outcome == "agreed"
    await insert(
        connection,
        "insert into tallies select * from unnest($1::text[], $2::bytea[], $3::bigint[]) "
        "on conflict (topic, document) do update set agreed = tallies.agreed + excluded.agreed",
        [(topic, bytes.fromhex(document), number) for (topic, document), number in agreed.items()],
    )


async def _decisions(connection: AnyConnection, entries: Sequence[Entry]) -> None:
    rows = []
    for entry in entries:
        body = cast(Decision, statement_of(entry).body)
        transcript, parameters = bytes.fromhex(body.transcript.sha256), bytes.fromhex(body.parameters)
        consensus = bytes.fromhex(body.consensus) if body.consensus else None
        rows.append((body.topic, entry.index, statement_id(entry), body.epoch, transcript, parameters, consensus))
    await insert(
        connection,
        "insert into decisions select * from unnest"
        "($1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bytea[], $6::bytea[], $7::bytea[])",
        rows,
    )
    for entry in entries:  # one by one, because each decision of a topic starts from the state after the one before
        await _elections(connection, cast(Decision, statement_of(entry).body), statement_id(entry))


async def _elections(connection: AnyConnection, body: Decision, decision: bytes) -> None:
    """Update the states of a topic's documents from a decision.

    A decision names its candidates and the documents that stopped being candidates. A former consensus keeps its state until it
    is named again.
    """
    # Documents that this decision no longer names are no candidates any more. Only former consensuses keep their
    # state.
    await connection.execute("delete from elections where topic = $1 and state <> all($2)", body.topic, sorted(FORMER))
    states = [(body.topic, bytes.fromhex(document), state, body.epoch, decision) for document, state in body.states]
    await connection.execute(
        "delete from elections where topic = $1 and document = any($2)", body.topic, [document for _, document, *_ in states]
    )
    await insert(
        connection,
        "insert into elections select * from unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[], $5::bytea[])",
        [row for row in states if row[2] != "published"],
    )


WRITERS: Mapping[type[Body], Callable[[AnyConnection, Sequence[Entry]], Awaitable[None]]] = {
    Report: _reports,
    Decision: _decisions,
}
